"""Rules that derive findings from the facts of a job.

A finding is a cause of lost time or energy. Each group of causes has its own module.

A rule is a generator function of a `JobView`. A rule yields nothing if a fact that it needs is unknown.
"""
