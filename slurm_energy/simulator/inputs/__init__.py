"""Readers of workload files: SWF, CSV, and the output of sacct and `senergy acct`.

Unusable lines are skipped and reported.
"""

from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.workload_file import LoadedWorkload, WorkloadFormat, read_workload

__all__ = ["InputProblems", "LoadedWorkload", "WorkloadFormat", "read_workload"]
