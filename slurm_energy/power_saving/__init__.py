"""Decisions which idle nodes to power down and which to power up, from a forecast of idle gaps."""
