"""Emulated network between the nodes of a lab, with a given latency and bandwidth."""
