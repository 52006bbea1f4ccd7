"""Decisions to power idle nodes down and to power nodes up.

They follow from a forecast of idle gaps.
"""
