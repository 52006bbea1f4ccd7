"""Jobs, nodes and prices for the benchmark benchmarks/deferral_live.py."""

from __future__ import annotations

from dataclasses import dataclass

SPEED = 200.0
HOUR_S = 3600.0 / SPEED
SLOT_S = 900.0 / SPEED
MARGIN_S = 10_800.0 / SPEED
CPUS, JOB_CPUS = 4, 2
NODES = ("xeon-8358", "xeon-8358")
DAY = (78, 96, 104, 92, 75, 60, 48, 42, 46, 58, 82, 118, 139, 128, 104, 90, 76, 68, 62, 55, 50, 48, 52, 60)
"""Prices of a day from 6:00 on in EUR/MWh by hour, as in a day-ahead market with much solar power."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of the simulated workload; times in seconds of the lab.

    Attributes:
        at_s: time of submission after the start.
        sleep_s: run time of the script.
        slack_s: time by which the start may be delayed (slack); 0 means none.
    """

    at_s: float
    sleep_s: int
    slack_s: int
