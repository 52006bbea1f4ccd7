"""Discrete-event simulator of scheduling policies, with exact energies.

It runs the code that orders the live queue.
"""
