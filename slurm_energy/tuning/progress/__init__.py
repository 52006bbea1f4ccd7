"""Progress of a running job in units of work per second.

The progress is determined from one of three sources: reports of the job, the period of a repeating
pattern in the job's power, and hardware counters.
"""
