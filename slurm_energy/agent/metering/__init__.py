"""Metering of the energy of each job: counter sampling, attribution to jobs, energy ledger of the node."""
