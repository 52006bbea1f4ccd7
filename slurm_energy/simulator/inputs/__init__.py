"""Readers of workload files: SWF, CSV, sacct output. Lines that cannot be used are counted and reported."""

from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.workload_file import LoadedWorkload, read_workload

__all__ = ["InputProblems", "LoadedWorkload", "read_workload"]
