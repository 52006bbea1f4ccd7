"""Trials of adjustments: proposals from advice, and the decision whether they helped.

Everything here is pure: no clock, no storage, no messages.
"""
