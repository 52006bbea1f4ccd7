"""Powering nodes down and up in senergyctld, and waiting for their boots."""
