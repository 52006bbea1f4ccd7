"""Rules that derive findings from the facts of a job, one module per group of the taxonomy.

A rule is a generator function of a `JobView`. A rule yields nothing if a fact that it needs is unknown.
"""
