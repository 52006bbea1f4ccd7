"""Deferral of jobs in senergyctld: signals such as prices, plan of the starts, held jobs, savings."""
