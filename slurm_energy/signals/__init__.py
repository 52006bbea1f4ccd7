"""Signals over time with forecasts: price, carbon intensity, renewable share, power budget, temperature.

All functions are pure and work on numpy arrays. Policies see the signals as `SignalColumns`, the same in the
simulator and in senergyctld.
"""

from slurm_energy.signals.columns import SignalColumns, SignalForecast, SignalName, constant_forecast

__all__ = ["SignalColumns", "SignalForecast", "SignalName", "constant_forecast"]
