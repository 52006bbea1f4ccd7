"""Deferral of jobs in senergyctld.

The package reads signals such as prices, plans the starts of jobs, holds jobs, and computes the savings.
"""
