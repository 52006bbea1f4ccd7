"""Metering of the energy of each job on the node.

The package samples the energy counters, divides the measured energy among the jobs (attribution), and
keeps the account of the node's energy (ledger).
"""
