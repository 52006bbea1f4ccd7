"""Decisions to power idle nodes down and nodes up, from a forecast of idle gaps."""
