"""Energy of a program's own sections: in a job through the agent, elsewhere from the counters.

Nothing in here may stop or slow the program that is measured: what is not known is None.
"""

from slurm_energy.profiling.profiler import flush, profile, results
from slurm_energy.profiling.section import Section
from slurm_energy.profiling.summary import SectionSummary, frame, read_lines, summarise

__all__ = ["Section", "SectionSummary", "flush", "frame", "profile", "read_lines", "results", "summarise"]
