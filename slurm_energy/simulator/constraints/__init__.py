"""Constraints on the start of jobs in a simulation.

The constraints are memory, licenses, and the limits of partitions, QOS and reservations.
"""
