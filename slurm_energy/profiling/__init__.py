"""Energy of the sections of a program, measured by the program itself.

In a job the figures come from the node's agent, elsewhere directly from the energy counters. Measuring never
stops or slows the program; a figure that is not known is None.
"""

from slurm_energy.profiling.profiler import flush, profile, results
from slurm_energy.profiling.section import Section
from slurm_energy.profiling.summary import SectionSummary, frame, read_lines, summarise

__all__ = ["Section", "SectionSummary", "flush", "frame", "profile", "read_lines", "results", "summarise"]
