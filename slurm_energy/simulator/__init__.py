"""Discrete-event simulator of scheduling policies, with exact energies.

The simulated queue is ordered by the same code as the live queue.
"""
