"""Memory, licenses, partitions, QOS and reservations in a simulation."""
