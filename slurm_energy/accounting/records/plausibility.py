"""Check whether energy records and periods are plausible.

The check tests their times, and compares their energy with the maximum power of the hardware. Nodes
are trusted to measure. A faulty or hostile node must nevertheless not distort the history and the
sums of Slurm accounts. The check is a pure function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.node_period import NodePeriod
from slurm_energy.records import EnergyRecord

MAX_WATTS: Final[Mapping[str, float]] = {
    "cpu": 20_000.0,
    "dram": 5_000.0,
    "gpu": 5_000.0,
    "other": 20_000.0,
    "node": 50_000.0,
}
"""Default maximum power in watts by component.

The values are more than twice the power of the largest nodes of 2026 (16 sockets, or 8 GPUs of 1.4 kW).
"""
CHARGE_DELAY_S: Final = 60.0
"""Seconds before the start of a job whose energy may still be charged to the job, because a sensor is slow.
"""
MAX_ELAPSED_S: Final = 5 * 366 * 86400.0
"""Maximum duration of a record in seconds; a longer duration is due to a wrong clock."""
MAX_PERIOD_S: Final = 366 * 86400.0
"""Maximum duration of a period in seconds. This maximum limits the energy of one row."""
CLOCK_TOLERANCE_S: Final = 600.0
MAX_CLOCK_LEAD_S: Final = 86400.0
"""Maximum seconds by which the end of a record may be ahead of the controller's clock. Records that end later
are rejected permanently, and the agent does not send them again.
"""
_DURATIONS: Final = (
    "seconds_above_cap",
    "throttled_seconds",
    "budget_capped_seconds",
    "uncertain_seconds",
)


_RECORD, _PERIOD = "energy record", "energy period"


class ClockAheadError(EnergyError):
    """A record or period ends in the future of the controller's clock.

    The node's clock is ahead. The record or period can be stored later.
    """


@dataclass(frozen=True, slots=True)
class PlausibilityCheck:
    """Plausibility bounds for records.

    Attributes:
        max_watts: maximum mean power in watts by component name; `gpu` bounds each GPU, `node` the whole
            node.
    """

    max_watts: Mapping[str, float] = field(default_factory=lambda: MAX_WATTS)

    @classmethod
    def with_site_values(cls, max_watts: Mapping[str, float]) -> PlausibilityCheck:
        """Return a plausibility check with the default maximum powers and those of the site.

        A value of the site replaces the default value.

        Args:
            max_watts: maximum power in watts by component name, as configured by the site.
        """
        return cls({**MAX_WATTS, **max_watts})

    def check(self, record: EnergyRecord, now: float) -> None:
        """Raise an error for an implausible record.

        Args:
            record: record with finite, non-negative values, whose end is not before its start.
            now: current time, Unix seconds.

        Raises:
            ClockAheadError: the record ends up to one day in the future.
            UsageError: a value is implausible. The message names the value and the bound.
        """
        self._check_times(record, now)
        measured_s = record.elapsed_s + CHARGE_DELAY_S
        for component in record.components:
            name = component.name.partition("[")[0]
            self._check_energy(component.name, component.energy_joules, self.max_watts[name], measured_s)
        node_watts = self.max_watts["node"]
        energies = [c.energy_joules for c in record.components if c.energy_joules is not None]
        self._check_energy("all components", _sum(energies), 2 * node_watts, measured_s)
        self._check_energy("the node", _total(record), node_watts, measured_s)
        mean_joules = (record.mean_watts or 0.0) * record.elapsed_s
        self._check_energy("mean_watts", mean_joules, node_watts, measured_s)
        if (record.peak_watts or 0.0) > 2 * node_watts:
            raise _implausible("peak_watts", f"{record.peak_watts:.4g} W", 2 * node_watts)

    def check_period(self, period: NodePeriod, now: float) -> None:
        """Raise an error for an implausible period.

        Args:
            period: period whose end is after its start and whose energies add up.
            now: current time, Unix seconds.

        Raises:
            ClockAheadError: the period ends up to one day in the future.
            UsageError: a value is implausible. The message names the value and the bound.
        """
        elapsed_s = period.end - period.start
        _check_lead(_PERIOD, period.end - now)
        if max(elapsed_s, period.late_seconds) > MAX_PERIOD_S:
            raise UsageError("energy period: implausible 'start'", f"{elapsed_s:.4g} s before its end")
        measured_s = elapsed_s + period.late_seconds + CHARGE_DELAY_S
        for name, energy in period.components.items():
            watts = self.max_watts[name.partition("[")[0]]
            self._check_energy(name, energy.measured_uj / 1e6, watts, measured_s, _PERIOD)
        total = sum(energy.measured_uj for energy in period.components.values()) / 1e6
        self._check_energy("the node", total, self.max_watts["node"], measured_s, _PERIOD)

    def _check_energy(
        self, what: str, joules: float | None, watts: float, measured_s: float, subject: str = _RECORD
    ) -> None:
        if joules is not None and joules > watts * measured_s:
            amount = f"{joules:.4g} J in {measured_s - CHARGE_DELAY_S:.4g} s"
            raise _implausible(what, amount, watts, subject)

    def _check_times(self, record: EnergyRecord, now: float) -> None:
        _check_lead(_RECORD, record.end - now)
        if record.elapsed_s > MAX_ELAPSED_S:
            raise UsageError("energy record: implausible 'start'", f"{record.elapsed_s:.4g} s before its end")
        for name in _DURATIONS:
            seconds = getattr(record, name)
            if seconds is not None and seconds > 2 * (record.elapsed_s + CHARGE_DELAY_S):
                raise UsageError(f"energy record: implausible '{name}'", f"{seconds:.4g} s")


def _check_lead(subject: str, lead_s: float) -> None:
    """Raise an error if a record or period ends too far in the future of the controller's clock.

    `lead_s` is the time in seconds by which the end is in the future.
    """
    if lead_s > MAX_CLOCK_LEAD_S:
        raise UsageError(
            f"{subject}: implausible 'end'", f"{lead_s:.4g} s in the future", "set the node's clock"
        )
    if lead_s > CLOCK_TOLERANCE_S:
        why = f"it ends {lead_s:.0f} s in the future by the controller's clock"
        raise ClockAheadError(subject, why, "set the node's clock")


def _total(record: EnergyRecord) -> float | None:
    try:
        return record.energy_joules
    except OverflowError:
        return math.inf


def _sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _implausible(what: str, actual: str, watts: float, subject: str = _RECORD) -> UsageError:
    return UsageError(
        f"{subject}: implausible energy of {what}",
        f"{actual} is more than {watts:.6g} W can use",
        "raise controller.max_watts if this hardware exists, then run: senergy spool resend",
    )
