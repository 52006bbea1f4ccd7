"""Drivers of GPUs: energy, power limits, clocks and throttling."""
