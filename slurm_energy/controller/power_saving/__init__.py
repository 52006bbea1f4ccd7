"""Powering nodes down and up in senergyctld.

The package also lets jobs wait for booting nodes.
"""
