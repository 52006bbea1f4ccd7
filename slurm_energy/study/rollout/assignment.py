"""Random assignment of periods, partitions or users to the treated or the control group (arm).

The change that a study deploys is in force only for the treated group. All functions are pure. The seed and
the drawn assignment are stored, so that the draw can be repeated and checked. Source of the designs:
Bojinov, Simchi-Levi and Zhao, "Design and analysis of switchback experiments", Management Science 69 (2023);
Imai, King and Nall, Statistical Science 24 (2009), for matched pairs.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from zoneinfo import ZoneInfo

from slurm_energy.errors import UsageError

_WEEK: Final = 7
MIN_PERIODS: Final = 4
"""Minimum number of periods of a switchback: two of each arm."""


class AssignmentDesign(StrEnum):
    """Design of an experiment: how the jobs of a deployment become treated or control jobs."""

    SWITCHBACK = "switchback"
    PARTITION = "partition"
    USERS = "users"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class AssignmentPeriod:
    """A period of a switchback, a design in which a change is in force in periods drawn at random.

    Most periods are drawn in pairs (blocks): the change is in force in one period of each pair.

    Attributes:
        begin_s, end_s: Unix times.
        block: number of the block to which the period belongs.
        is_treated: whether the change is in force.
    """

    begin_s: float
    end_s: float
    block: int
    is_treated: bool


@dataclass(frozen=True, slots=True)
class ArmAssignment:
    """Assignment of jobs to the two arms of a deployment: treated jobs and control jobs.

    Attributes:
        design: design that divides jobs between the arms.
        seed: seed of the random numbers from which the arms were drawn.
        periods: periods in the order of time; empty except for a switchback, a design in which treatment
            alternates with time.
        treated: partitions or users whose jobs are treated.
        control: partitions or users whose jobs are not treated.
        begin_s: time from which the assignment holds.
    """

    design: AssignmentDesign
    seed: int
    periods: tuple[AssignmentPeriod, ...] = ()
    treated: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    begin_s: float = 0.0

    def period_at(self, time_s: float) -> AssignmentPeriod | None:
        """Return the period of a switchback that contains a time in Unix seconds.

        In a switchback, the tested configuration is in force in some periods and not in others. None is
        returned if no period contains the time.
        """
        position = bisect.bisect_right([period.begin_s for period in self.periods], time_s) - 1
        period = self.periods[position] if position >= 0 else None
        return period if period is not None and time_s < period.end_s else None

    def is_treated(self, start_s: float, partition: str = "", user: str = "") -> bool | None:
        """Return whether a job belongs to the treated jobs of a deployment, or to its control jobs.

        The treated jobs run with the change that is tested. The result is None if the job belongs to
        neither.

        Args:
            start_s: Unix time at which the job started.
            partition: partition of the job.
            user: user of the job.
        """
        if start_s < self.begin_s:
            return None
        if self.design is AssignmentDesign.SWITCHBACK:
            period = self.period_at(start_s)
            return None if period is None else period.is_treated
        if self.design is AssignmentDesign.NONE:
            return True
        name = partition if self.design is AssignmentDesign.PARTITION else user
        return True if name in self.treated else False if name in self.control else None

    def document(self) -> dict[str, Any]:
        """Return the assignment as a JSON object."""
        return asdict(self)


def assignment_of(document: Mapping[str, Any]) -> ArmAssignment:
    """Restore an assignment of treated and control jobs from a JSON object.

    `ArmAssignment.document` has written the object.
    """
    return ArmAssignment(
        design=AssignmentDesign(document["design"]),
        seed=document["seed"],
        periods=tuple(AssignmentPeriod(**period) for period in document["periods"]),
        treated=tuple(document["treated"]),
        control=tuple(document["control"]),
        begin_s=document["begin_s"],
    )


def draw_switchback(
    first_day: date, days: int, seed: int, *, timezone: str = "", period_days: int = 1
) -> ArmAssignment:
    """Draw at random which periods of a switchback are treated.

    In a switchback, a tested configuration is in force in some periods (treated) and not in others. Periods
    of one day are drawn in pairs: the same weekday in two consecutive weeks. One day of each pair is
    treated, so that the weekly pattern does not bias the comparison. Longer periods, and days after the last
    two full weeks, are drawn in pairs of neighbours.

    Args:
        first_day: first day of the switchback.
        days: length of the switchback. A remainder shorter than a period is left out.
        seed: seed of the random numbers.
        timezone: time zone in which days begin; an empty value means UTC.
        period_days: length of a period in days.

    Raises:
        UsageError: there are fewer than `MIN_PERIODS` periods.
    """
    count = days // period_days
    if count < MIN_PERIODS:
        least = MIN_PERIODS * period_days
        raise UsageError(
            "switchback", f"{days} days have {count} periods, at least {MIN_PERIODS}", f"--days {least}"
        )
    generator = random.Random(seed)
    arms, blocks = [False] * count, [0] * count
    for number, pair in enumerate(_pairs(count, _WEEK if period_days == 1 else 1)):
        treated_first = generator.random() < 0.5
        for place, position in enumerate(pair):
            arms[position], blocks[position] = (place == 0) == treated_first, number
    times = [_midnight(first_day + timedelta(days=period_days * i), timezone) for i in range(count + 1)]
    periods = tuple(AssignmentPeriod(times[i], times[i + 1], blocks[i], arms[i]) for i in range(count))
    return ArmAssignment(AssignmentDesign.SWITCHBACK, seed, periods, begin_s=times[0])


def _pairs(count: int, distance: int) -> Iterable[tuple[int, ...]]:
    """Yield pairs of indices for a random assignment, as tuples.

    The indices stand for periods of a switchback (a test that switches a treatment on and off), or for
    partitions or users. One index of each pair is later drawn for treatment. The two indices of a pair
    are `distance` apart. The last indices, for which this is not possible, form pairs of neighbours. If
    one index is left over, it is yielded alone.
    """
    whole = count // (2 * distance) * 2 * distance
    for begin in range(0, whole, 2 * distance):
        yield from ((begin + i, begin + i + distance) for i in range(distance))
    for begin in range(whole, count, 2):
        yield tuple(range(begin, min(begin + 2, count)))


def draw_groups(
    design: AssignmentDesign, weights: Mapping[str, float], seed: int, begin_s: float = 0.0
) -> ArmAssignment:
    """Draw for each partition or user whether its jobs are treated or serve as control.

    The partitions or users are sorted by weight. From each pair of neighbours, one is drawn for treatment.
    Treated and control jobs therefore do similar work.

    Args:
        design: `PARTITION` or `USERS`.
        weights: work of each partition or user in any unit.
        seed: seed of the random numbers.
        begin_s: Unix time from which the assignment holds.

    Raises:
        UsageError: there are fewer than two partitions or users.
    """
    if len(weights) < 2:
        raise UsageError(
            f"design {design}", f"needs two of them, there are {len(weights)}", "--design switchback"
        )
    names = sorted(weights, key=lambda name: (-weights[name], name))
    generator = random.Random(seed)
    arms: tuple[list[str], list[str]] = [], []
    for pair in _pairs(len(names), 1):
        treated = generator.randrange(2)
        for place, position in enumerate(pair):
            arms[int(place == treated)].append(names[position])
    return ArmAssignment(design, seed, treated=tuple(arms[1]), control=tuple(arms[0]), begin_s=begin_s)


def fixed_groups(
    design: AssignmentDesign, treated: Sequence[str], control: Sequence[str], begin_s: float = 0.0
) -> ArmAssignment:
    """Return an assignment of partitions or users to treated group and control group by hand.

    The administrator has chosen both groups. The seed of the assignment is -1, because nothing is drawn.
    """
    return ArmAssignment(design, -1, treated=tuple(treated), control=tuple(control), begin_s=begin_s)


def _midnight(day: date, timezone: str) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(timezone or "UTC")).timestamp()
