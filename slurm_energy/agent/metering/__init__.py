"""Metering of the energy of each job: counter sampling, attribution to jobs, and the node's energy ledger."""
