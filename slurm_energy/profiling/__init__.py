"""Energy of a program's own sections: in a job through the agent, elsewhere from the counters.

Nothing in here may stop or slow the program that is measured: what is not known is None.
"""

from slurm_energy.profiling.gathering import Summary, frame, read_lines, summarise
from slurm_energy.profiling.section import Section
from slurm_energy.profiling.sections import flush, profile, results

__all__ = ["Section", "Summary", "flush", "frame", "profile", "read_lines", "results", "summarise"]
