"""Deferral of jobs in senergyctld: signals, plan of the starts, held jobs, savings."""
