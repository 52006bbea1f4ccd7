"""Code for the messages between programs of slurm-energy, used by sender and receiver alike.

The package contains clients of the daemons, requests, proofs, and parsers of parameters.
"""
