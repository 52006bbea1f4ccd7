"""Emulated node and the agent's job manager on one virtual clock, in one process and without root.

The emulator's files are copied into a folder. Before each sample, the contents that change with time are
written again. Every setting that the job manager writes reaches the emulator at once. Energy is therefore
measured in the same way as on a real node, but seconds pass at the speed at which the model computes them.
For GPUs and the meter of the node, the agent uses counters and knobs of the model, because the libraries of
these devices would require a separate process.
"""

from slurm_energy_lab.virtual_node.clocks import ModelClock
from slurm_energy_lab.virtual_node.node import VirtualNode

__all__ = ["ModelClock", "VirtualNode"]
