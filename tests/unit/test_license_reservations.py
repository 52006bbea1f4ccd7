"""Tests of the license reservations that withhold power from jobs, against the rules of slurmctld.

The stand-in for slurmctld refuses what `_license_validate2`, `create_resv` and `update_resv` in
src/slurmctld/reservation.c refuse (Slurm 22.05 to 26.05).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_energy.controller.budgets.facts import BudgetScope, ScopeKind
from slurm_energy.controller.budgets.licenses import BudgetHeadroom, budget_reservations
from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.licenses import BUDGET_PREFIX, LicensePool, LicenseReservations

TOTAL = 3000
BASE = f"{BUDGET_PREFIX}_watts"
_NO_TIME = 0xFFFFFFFE
_YEAR_S = 365 * 86400


@dataclass(frozen=True)
class _Reservation:
    start: int
    end: int
    count: int


class Slurm:
    """Stand-in for scontrol and the reservations of slurmctld, for one license with `TOTAL` copies."""

    def __init__(self) -> None:
        self.now, self.reservations = 0.0, dict[str, _Reservation]()

    def __call__(self, argv: Sequence[str]) -> str:
        values = dict(word.split("=", 1) for word in argv if "=" in word)
        if "show" in argv:
            return "\n".join(
                f"ReservationName={name} StartTime={one.start} EndTime={one.end} Licenses=watts:{one.count}"
                for name, one in self.reservations.items()
            )
        name = values["ReservationName"]
        if argv[1] == "delete":
            del self.reservations[name]
            return ""
        old = self.reservations.get(name)
        assert (old is None) == (argv[1] == "create")
        start, end = _NO_TIME, _NO_TIME
        if "StartTime" in values:
            assert old is None or old.start > self.now, "Reservation already started"
            start = int(self.now) if values["StartTime"] == "now" else int(values["StartTime"][3:])
        if "EndTime" in values:
            end = int(values["EndTime"][3:])
        elif old is None:
            end = start + _YEAR_S
        count = int(values["Licenses"].removeprefix("watts:")) if "Licenses" in values else None
        if count is not None:
            others = [one for key, one in self.reservations.items() if key != name]
            overlapping = [one.count for one in others if not (one.end <= start or one.start >= end)]
            if count < 1 or count + sum(overlapping) > TOTAL:
                raise UnavailableError("scontrol", "Invalid license specification")
        one = old or _Reservation(start, end, count or 0)
        if old is not None and start != _NO_TIME:
            one = replace(one, start=start)
        if old is not None and end != _NO_TIME:
            one = replace(one, end=end)
        one = one if count is None else replace(one, count=count)
        assert self.now - 60 <= one.end > one.start >= 0, "invalid times"
        self.reservations[name] = one
        return ""

    def advance(self, unix_s: float) -> None:
        self.now = unix_s
        self.reservations = {name: one for name, one in self.reservations.items() if one.end > unix_s}

    def withheld(self, unix_s: int) -> int:
        return sum(one.count for one in self.reservations.values() if one.start <= unix_s < one.end)


def budget(headroom: float, limit: float, steps: Sequence[tuple[float, float]]) -> BudgetHeadroom:
    scope = BudgetScope(ScopeKind.CLUSTER)
    return BudgetHeadroom("site", scope, limit_watts=limit, headroom_watts=headroom, steps=steps)


def test_a_schedule_with_several_low_limits_can_be_reserved_at_once() -> None:
    """Slurm adds up all reservations that overlap a new one, also those that do not overlap each other."""
    slurm = Slurm()
    slurm.advance(1000.0)
    steps = [(2000.0 + 1000.0 * hour, 500.0 if hour % 2 else 1500.0) for hour in range(8)]
    plan = budget_reservations("watts", LicensePool(TOTAL, 0), budget(400.0, 1000.0, steps), 0, 1000.0)
    LicenseReservations(BUDGET_PREFIX, slurm).apply(plan, 1000.0)
    assert [slurm.withheld(at) for at in (1500, 2500, 3500, 4500, 9500)] == [2600, 2100, 3000, 2100, 3000]
    # An operator deletes the reservation without an end.
    del slurm.reservations[BASE]
    LicenseReservations(BUDGET_PREFIX, slurm).apply(plan, 1000.0)
    assert slurm.withheld(1500) == 2600


def test_licenses_are_withheld_completely_in_one_period_and_not_at_all_in_another() -> None:
    slurm = Slurm()
    slurm.advance(1000.0)
    steps = [(5000.0, 500.0), (6000.0, 5000.0)]
    plan = budget_reservations("watts", LicensePool(TOTAL, 0), budget(700.0, 1300.0, steps), 0, 1000.0)
    LicenseReservations(BUDGET_PREFIX, slurm).apply(plan, 1000.0)
    assert [slurm.withheld(at) for at in (1000, 5000, 6000)] == [2300, 3000, 1]
