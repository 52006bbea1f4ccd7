"""Workloads from files: SWF, CSV, sacct's output. What cannot be used is counted and named."""

from slurm_energy.simulator.inputs.input_problems import Problems
from slurm_energy.simulator.inputs.workload_file import Loaded, load

__all__ = ["Loaded", "Problems", "load"]
