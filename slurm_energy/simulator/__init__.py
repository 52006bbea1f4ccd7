"""Discrete-event simulator of scheduling policies, with exact energies.

It orders the simulated queue by the same code as the live queue.
"""
