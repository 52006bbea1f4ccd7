"""Storage of records and energy sums in senergyctld.

The package receives the deliveries of agents, stores the records, adds facts about the jobs, deletes old
data, and serves reports.
"""
