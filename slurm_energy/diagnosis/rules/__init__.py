"""Rules that derive findings from the facts of a job.

Each group of the taxonomy has a module.

A rule is a generator function of a `JobView`. A rule yields nothing if a fact that it needs is unknown.
"""
