"""Decisions to power idle nodes down and to power nodes up.

The decisions follow from a forecast of how long nodes will stay idle.
"""
