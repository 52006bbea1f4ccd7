"""Library with which a program measures the energy of its sections.

In a job the node's agent supplies the energy; elsewhere the library reads the energy counters directly.
Measuring never stops or slows the program. An unknown value is None.
"""

from slurm_energy.profiling.profiler import flush, profile, results
from slurm_energy.profiling.section import Section
from slurm_energy.profiling.summary import SectionSummary, frame, read_lines, summarise

__all__ = ["Section", "SectionSummary", "flush", "frame", "profile", "read_lines", "results", "summarise"]
