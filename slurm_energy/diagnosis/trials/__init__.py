"""Trials of adjustments: proposals from advice, and the decision whether the adjustments helped.

The functions are pure: they use no clock, storage or messages.
"""
