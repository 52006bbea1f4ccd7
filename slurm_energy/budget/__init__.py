"""Decisions about power budgets.

The package computes the limits in force and the power limit of each device. The decisions are pure functions
without I/O.
"""
