"""Code of senergyctld for the diagnosis of jobs.

It stores findings (causes of lost time or energy), sends alerts about findings, and manages trials. A
trial tests changed values in the next runs of a program.
"""
