"""Workloads from files: SWF, CSV, sacct's output. What cannot be used is counted and named."""

from slurm_energy.simulator.inputs.load import Loaded, load
from slurm_energy.simulator.inputs.problems import Problems

__all__ = ["Loaded", "Problems", "load"]
