"""Decisions to power idle nodes down and to power nodes up.

The decisions follow from a forecast of idle gaps.
"""
