"""Power budgets in senergyctld.

The package polls the nodes, decides on power limits, admits jobs, and serves requests.
"""
