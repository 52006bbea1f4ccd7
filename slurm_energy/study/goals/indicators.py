"""Key performance indicators of an energy study: their names, units and directions.

The module `kpis` computes their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Direction(StrEnum):
    """Direction in which a key performance indicator (KPI) improves: lower or higher."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Kpi:
    """A key performance indicator of a period of days.

    Attributes:
        name: key in objective.toml and in results.
        unit: unit of the value.
        better: direction in which the value improves.
        title: readable name for reports.
        meaning: definition in one sentence.
        depends_on_load: whether the value depends on the amount of submitted work. If it does, means of two
            periods with different load must not be compared directly.
    """

    name: str
    unit: str
    better: Direction
    title: str
    meaning: str
    depends_on_load: bool = False

    def worsening(self, before: float, after: float) -> float:
        """Return the relative change from `before` to `after`, positive for a worse value."""
        change = (after - before) / before
        return change if self.better is Direction.LOWER else -change


_LOWER, _HIGHER = Direction.LOWER, Direction.HIGHER
KPIS: Final[dict[str, Kpi]] = {
    kpi.name: kpi
    for kpi in (
        Kpi("energy_kwh", "kWh", _LOWER, "energy", "Energy of a day.", depends_on_load=True),
        Kpi(
            "energy_per_work_kwh",
            "kWh per node-hour",
            _LOWER,
            "energy per work",
            "Energy of a day divided by the node-hours of work done; compares weeks of unlike load.",
        ),
        Kpi(
            "edp_joule_seconds",
            "J s",
            _LOWER,
            "energy-delay product",
            "Energy of a day times the mean completion time of the jobs that ended on it.",
            depends_on_load=True,
        ),
        Kpi("cost", "currency", _LOWER, "cost", "Energy times price times PUE.", depends_on_load=True),
        Kpi(
            "carbon_kg",
            "kg CO2e",
            _LOWER,
            "carbon",
            "Energy times carbon intensity times PUE.",
            depends_on_load=True,
        ),
        Kpi(
            "peak_power_watts",
            "W",
            _LOWER,
            "peak power",
            "Highest mean power of an interval of the power series, at most one hour long.",
            depends_on_load=True,
        ),
        Kpi(
            "jobs_per_hour",
            "jobs/h",
            _HIGHER,
            "throughput",
            "Jobs that ended on a day, per hour.",
            depends_on_load=True,
        ),
        Kpi(
            "node_hours_per_hour",
            "node-hours/h",
            _HIGHER,
            "throughput of work",
            "Node-hours of work done on a day, per hour.",
            depends_on_load=True,
        ),
        Kpi(
            "mean_jct_s",
            "s",
            _LOWER,
            "mean completion time",
            "Mean time from submission to end of the jobs that ended on a day.",
        ),
        Kpi(
            "fairness",
            "",
            _HIGHER,
            "fairness",
            "Jain's index over accounts of the mean slowdown of the jobs that ended on a day, 0 to 1.",
        ),
        Kpi(
            "worst_wait_s",
            "s",
            _LOWER,
            "wait of the worst account",
            "Maximum over accounts of the mean wait of the jobs that started on a day or waited at its end.",
        ),
    )
}
"""KPIs by name. `worst_wait_s` also counts jobs that never start, which no completion time shows."""
