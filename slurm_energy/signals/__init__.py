"""Signals over time with forecasts: price, carbon intensity, renewable share, budget, temperature.

All functions are pure and work on numpy arrays. Policies get the signals as `SignalColumns`, both in the
simulator and in senergyctld.
"""

from slurm_energy.signals.columns import SignalColumns, SignalForecast, SignalName, constant_forecast

__all__ = ["SignalColumns", "SignalForecast", "SignalName", "constant_forecast"]
