"""Powering nodes down and up in senergyctld, and waits of jobs for booting nodes."""
