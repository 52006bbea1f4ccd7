"""Power budgets on one node: polls of the controller, ceilings of devices, leases and safe limits.

Everything except `poll_client` works without a network.
"""
