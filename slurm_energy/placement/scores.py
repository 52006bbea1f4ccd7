"""Predicted energy, cost, emissions and completion time of each job on each cluster.

Source: the postdoc proposal of LISTIC, "follow-the-sun or follow-the-wind to exploit greener energy
locations" and "impact of latency and data transfer between networked machines". The equations are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_energy.placement.sites import NO_HOME, Floats, PlacementJobs, Site
from slurm_energy.placement.sunlight import mean_sunlight
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.signals import SignalColumns, SignalName

_BYTES_PER_GB = 1e9
_GRAMS_PER_KG = 1e3


@dataclass(frozen=True, slots=True)
class PlacementScores:
    """Predicted quantities of n jobs on m clusters; each array has the shape (n, m).

    NaN means unknown or impossible.

    Attributes:
        start_s, end_s: predicted start and end in seconds, on the same clock as the signals (price,
            carbon intensity).
        transfer_s: seconds that the transfer of the job's data to the cluster takes.
        kwh: energy that the cluster's site uses for the job in kWh, including PUE and data transfer.
        cost: cost in units of the currency; `cost_deviation` is its standard deviation.
        carbon_kg: emissions in kg CO2e; `carbon_deviation_kg` is its standard deviation.
        sunlight: mean sine of the sun's elevation while the job runs.
    """

    start_s: Floats
    end_s: Floats
    transfer_s: Floats
    kwh: Floats
    cost: Floats
    cost_deviation: Floats
    carbon_kg: Floats
    carbon_deviation_kg: Floats
    sunlight: Floats


def score(jobs: PlacementJobs, sites: Sequence[Site], now_s: float) -> PlacementScores:
    """Return the predicted time, energy, cost and emissions of each job on each cluster.

    All jobs are submitted at `now_s`. The transfer of a job's data begins at the submission and takes place
    while the job waits. The job therefore starts when both the transfer and the wait have ended. The network
    uses electricity for the transfer. Half of this electricity counts at the job's home cluster, the other
    half at the cluster that runs the job.
    """
    n, m = jobs.run_s.shape
    figures = {name: np.full((n, m), np.nan) for name in PlacementScores.__slots__}
    for row in range(n):
        home = int(jobs.home[row])
        for column, site in enumerate(sites):
            run_s, wait_s = float(jobs.run_s[row, column]), float(jobs.wait_s[row, column])
            if not (run_s >= 0 and math.isfinite(run_s) and wait_s >= 0 and math.isfinite(wait_s)):
                continue
            origin = None if home in (NO_HOME, column) else sites[home]
            watts, data_bytes = float(jobs.watts[row, column]), float(jobs.data_bytes[row])
            values = _figures(site, origin, now_s, wait_s, run_s, watts, data_bytes)
            for name, value in values.items():
                figures[name][row, column] = value
    return PlacementScores(**figures)


def transfer_seconds(site: Site, origin: Site | None, data_bytes: float) -> float:
    """Return the seconds that the transfer of a job's data to a cluster takes.

    Without `origin`, the data are already at the cluster.
    """
    if origin is None or not data_bytes:
        return 0.0
    return data_bytes / min(site.bandwidth_bytes_per_s, origin.bandwidth_bytes_per_s)


def signal_mean(
    signals: SignalColumns | None, name: SignalName, start_s: float, end_s: float
) -> tuple[float, float]:
    """Return the mean and standard deviation of a signal over a time span.

    Both are NaN if the signal is unknown. The values of the signal are known by time slot. A slot without a
    value gets the mean of the known slots, and so does time outside all slots. The standard deviation of
    such a slot is assumed to be large: the maximum of the deviations of the known slots, or the scatter of
    their means if this is larger. The forecast errors in different slots are assumed to be fully correlated,
    so that the result is never too small.
    """
    column = signals.forecast(name) if signals is not None else None
    if signals is None or column is None or not column.known:
        return math.nan, math.nan
    known = np.isfinite(column.mean)
    usual = float(np.mean(column.mean[known]))
    spread = max(float(np.std(column.mean[known])), float(np.nanmax(column.deviation[known], initial=0.0)))
    if not end_s > start_s:
        end_s = math.nextafter(start_s, math.inf)
    first = max(0, math.floor((start_s - signals.start_s) / signals.step_s))
    last = min(signals.slots, math.ceil((end_s - signals.start_s) / signals.step_s))
    slots = np.arange(first, max(first, last))
    edges = signals.start_s + slots * signals.step_s
    lengths = np.minimum(edges + signals.step_s, end_s) - np.maximum(edges, start_s)
    weights = np.where(known[slots], np.maximum(0.0, lengths), 0.0) / (end_s - start_s)
    rest = max(0.0, 1.0 - float(np.sum(weights)))
    mean = float(np.sum(weights * np.where(known[slots], column.mean[slots], 0.0)))
    deviations = np.where(np.isfinite(column.deviation[slots]), column.deviation[slots], spread)
    return mean + rest * usual, float(np.sum(weights * deviations)) + rest * spread


def _figures(
    site: Site,
    origin: Site | None,
    now_s: float,
    wait_s: float,
    run_s: float,
    watts: float,
    data_bytes: float,
) -> dict[str, float]:
    transfer_s = transfer_seconds(site, origin, data_bytes)
    start_s = now_s + max(wait_s, transfer_s)
    end_s = start_s + run_s
    job_kwh = site.pue * watts * run_s / JOULES_PER_KWH
    cost, cost_deviation = signal_mean(site.signals, SignalName.PRICE, start_s, end_s)
    carbon, carbon_deviation = signal_mean(site.signals, SignalName.CARBON, start_s, end_s)
    figures = {
        "start_s": start_s,
        "end_s": end_s,
        "transfer_s": transfer_s,
        "kwh": job_kwh,
        "cost": job_kwh * cost,
        "cost_deviation": job_kwh * cost_deviation,
        "carbon_kg": job_kwh * carbon / _GRAMS_PER_KG,
        "carbon_deviation_kg": job_kwh * carbon_deviation / _GRAMS_PER_KG,
        "sunlight": mean_sunlight(start_s, end_s, site.latitude_degrees, site.longitude_degrees),
    }
    if origin is not None and data_bytes:
        for end in (site, origin):
            kwh = data_bytes / _BYTES_PER_GB * end.transfer_kwh_per_gb
            if not kwh:
                continue
            price, _ = signal_mean(end.signals, SignalName.PRICE, now_s, now_s + transfer_s)
            grams, _ = signal_mean(end.signals, SignalName.CARBON, now_s, now_s + transfer_s)
            figures["kwh"] += kwh
            figures["cost"] += kwh * price
            figures["carbon_kg"] += kwh * grams / _GRAMS_PER_KG
    return figures
