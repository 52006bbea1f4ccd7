"""Tests of the license reservations that withhold power from jobs, against the rules of slurmctld.

The stand-in for slurmctld refuses what `_license_validate2`, `create_resv` and `update_resv` in
src/slurmctld/reservation.c refuse (Slurm 22.05 to 26.05).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.budget.license_plan import withheld_power
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


def _limit_at(steps: Sequence[tuple[float, float]], unix_s: float) -> float:
    return [watts for at, watts in steps if at <= unix_s][-1]


_LIMIT = st.one_of(st.integers(0, 2 * TOTAL).map(float), st.just(math.inf))
_TIME = st.integers(4000, 360_000).map(lambda quarters: quarters / 4)


@examples(200)
@given(
    schedule=st.lists(st.tuples(_TIME, _LIMIT), max_size=12, unique_by=lambda step: step[0]),
    story=st.lists(
        st.tuples(
            st.integers(1, 120_000).map(lambda quarters: quarters / 4),
            st.integers(0, TOTAL),  # licenses in use
            st.integers(-500, TOTAL).map(float),  # headroom
            st.integers(-100, TOTAL).map(float),  # offered power
            st.none() | st.tuples(_TIME, st.integers(0, 2 * TOTAL).map(float)),  # live limit
            st.sampled_from(["", "", "", "restart", "base is deleted"]),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_slurm_accepts_the_reservations_of_every_plan(
    schedule: list[tuple[float, float]],
    story: list[tuple[float, int, float, float, tuple[float, float] | None, str]],
) -> None:
    slurm, now = Slurm(), 1000.0
    writer = LicenseReservations(BUDGET_PREFIX, slurm)
    plan = [(0.0, 2000.0), *sorted(schedule)]
    for pause, used, headroom, offered, live, event in story:
        now += pause
        slurm.advance(now)
        if event:
            writer = LicenseReservations(BUDGET_PREFIX, slurm)
        if event == "base is deleted":
            slurm.reservations.pop(BASE, None)
        steps = [step for step in plan if step[0] > now]
        limit = _limit_at(plan, now)
        if live is not None and live[0] > now:
            end, limit = live
            steps = [(end, _limit_at(plan, end)), *(step for step in steps if step[0] > end)]
        free = math.inf if math.isinf(limit) else headroom
        pool = LicensePool(TOTAL, used)
        writer.apply(budget_reservations("watts", pool, budget(free, limit, steps), 0, now, offered), now)
        expected = withheld_power(TOTAL, used, free, limit, steps, now, offered)
        for at in {int(now) + 1, *(math.floor(at) + 1 for at, _ in steps)}:
            planned = sum(
                one.watts
                for one in expected
                if one.start_unix_s <= at and (one.end_unix_s is None or at < one.end_unix_s)
            )
            assert max(planned, 1) <= slurm.withheld(at) <= min(TOTAL, planned + 2)


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


def test_the_start_of_a_reservation_can_change_together_with_its_count() -> None:
    slurm = Slurm()
    slurm.advance(1000.0)
    pool, writer = LicensePool(TOTAL, 0), LicenseReservations(BUDGET_PREFIX, slurm)
    steps = [(5000.0 + 1000.0 * hour, 5000.0 if hour % 2 else 500.0) for hour in range(8)]
    live = budget(700.0, 1300.0, [(3000.0, 1000.0), *steps])
    writer.apply(budget_reservations("watts", pool, live, 0, 1000.0), 1000.0)
    slurm.advance(1100.0)
    writer.apply(budget_reservations("watts", pool, budget(390.0, 1000.0, steps), 0, 1100.0), 1100.0)
    assert [slurm.withheld(at) for at in (1100, 5100, 6100)] == [2610, 3000, 1]


def test_licenses_are_withheld_completely_in_one_period_and_not_at_all_in_another() -> None:
    slurm = Slurm()
    slurm.advance(1000.0)
    steps = [(5000.0, 500.0), (6000.0, 5000.0)]
    plan = budget_reservations("watts", LicensePool(TOTAL, 0), budget(700.0, 1300.0, steps), 0, 1000.0)
    LicenseReservations(BUDGET_PREFIX, slurm).apply(plan, 1000.0)
    assert [slurm.withheld(at) for at in (1000, 5000, 6000)] == [2300, 3000, 1]
