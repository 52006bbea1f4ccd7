"""Constraints in a simulation: memory, licenses, partitions, QOS and reservations."""
