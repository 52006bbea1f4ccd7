"""Adjustments of the next run of a program: their kinds, permissions, proposals and verification.

Everything here is pure: no clock, no storage, no messages.
"""
