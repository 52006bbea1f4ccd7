"""Progress of a running job in units of work per second.

Sources are reports of the job, the period of its power, and hardware counters.
"""
