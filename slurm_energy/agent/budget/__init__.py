"""Enforcement of power budgets on one node.

The node polls the controller for its budget decision. The decision sets ceilings, which are upper bounds of
the devices' power limits. The decision is valid for a limited time (lease). When the lease has ended, the
node sets safe limits by itself. Everything except `poll_client` works without a network.
"""
