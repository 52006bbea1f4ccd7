"""Sums of energy, time and jobs by group in one interval of a report."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.accounting.usage.sum_changes import SUM_COLUMNS

TOTAL: Final = SUM_COLUMNS.index("total_uj")
_ZEROS: Final = (0,) * len(SUM_COLUMNS)

Rates = Sequence[float | None]
GroupSums = dict[int, tuple[int, ...]]
"""Sums of each group by row id, as tuples in the order of `SUM_COLUMNS`. The garbage collector does not track
tuples of integers.
"""


@dataclass(slots=True)
class IntervalUsage:
    """Sums of energy and time in one interval of a report's time window.

    The sums belong to groups of jobs. A rate is the emissions or the cost per unit of energy.

    Attributes:
        start, end: Unix seconds.
        sums: sums by row id of the group.
        jobs: number of jobs by group; empty if the query does not count jobs.
        weighted: for each rate of the query, the sum of energy times rate by group.
        unknown: for each rate, the groups that used energy while the rate was unknown.
        prorated: whether a measured period reaches beyond an edge of the interval. Only the part of its
            energy that belongs to the interval is included.
    """

    start: int
    end: int
    sums: GroupSums = field(default_factory=dict)
    jobs: dict[int, int] = field(default_factory=dict)
    weighted: list[dict[int, float]] = field(default_factory=list)
    unknown: list[set[int]] = field(default_factory=list)
    prorated: bool = False

    def add(self, group: int, values: Sequence[int]) -> None:
        """Add energy and times to the sums of a group of jobs.

        Args:
            group: row id of the group.
            values: values to add, in the order of `SUM_COLUMNS`.
        """
        self.add_rows([(group, *values)])

    def add_rows(self, rows: Iterable[Sequence[int]]) -> None:
        """Add the values of each row to the sums of the row's group.

        Each row is a sequence: first the row id of a group, then the values to add.
        """
        sums = self.sums
        for group, *values in rows:
            known = sums.get(group)
            sums[group] = tuple(values if known is None else map(operator.add, known, values))

    def subtract_rows(self, rows: Iterable[Sequence[int]]) -> None:
        """Subtract values from the sums of the groups.

        Each row consists of a group and its values. The values must have been added earlier. A group whose
        sums become zero is removed.
        """
        changed = set()
        for group, *values in rows:
            self.sums[group] = tuple(map(operator.sub, self.sums.get(group, _ZEROS), values))
            changed.add(group)
        for group in changed:
            if not any(self.sums[group]):
                del self.sums[group]

    @property
    def energy_uj(self) -> int:
        """Energy of all usage groups (e.g. of all accounts and users) in the interval, in microjoules."""
        return sum(sums[TOTAL] for sums in self.sums.values())

    def weigh(self, groups: Sequence[int], energies_uj: Sequence[int], rates: Rates) -> None:
        """Add the emissions and the cost of some energy to the sums of the groups of jobs.

        Args:
            groups: row ids of the groups of jobs that used the energy.
            energies_uj: microjoules of each group.
            rates: emissions and cost per microjoule. If a rate is None, the corresponding sums of the groups
                are marked as unknown.
        """
        self._prepare(len(rates))
        for sums, unknown, rate in zip(self.weighted, self.unknown, rates, strict=True):
            if rate is None:
                unknown.update(groups)
            else:
                for group, energy_uj in zip(groups, energies_uj, strict=True):
                    sums[group] = sums.get(group, 0.0) + energy_uj * rate

    def weigh_hours(self, rows: Iterable[Sequence[int]], first: int, rates: Sequence[Rates]) -> int:
        """Add emissions and cost of energy that was used in successive hours to the sums of groups.

        Args:
            rows: per group, its row id and its microjoules in each hour. Further values are ignored.
            first: index of the first hour to add.
            rates: emissions and cost per microjoule in each hour to add.

        Returns:
            The energy in the added hours in microjoules.
        """
        by_factor = [_FactorRates(factor) for factor in zip(*rates, strict=True)]
        self._prepare(len(by_factor))
        counted_uj, hours = 0, slice(1 + first, 1 + first + len(rates))
        for row in rows:
            group, energies_uj = row[0], row[hours]
            energy_uj = sum(energies_uj)
            if not energy_uj:
                continue
            counted_uj += energy_uj
            for sums, unknown, factor in zip(self.weighted, self.unknown, by_factor, strict=True):
                if factor.unknown_hours and any(energies_uj[hour] for hour in factor.unknown_hours):
                    unknown.add(group)
                    if len(factor.unknown_hours) == len(energies_uj):
                        continue
                # `sum` adds from left to right, as `weigh` would do with each hour.
                sums[group] = sum(map(operator.mul, energies_uj, factor.rates), sums.get(group, 0.0))
        return counted_uj

    def _prepare(self, factors: int) -> None:
        if not self.weighted:
            self.weighted = [{} for _ in range(factors)]
            self.unknown = [set() for _ in range(factors)]


class _FactorRates:
    """Emissions or cost per microjoule for each of several successive hours.

    An unknown value is stored as 0, and its hour is listed in `unknown_hours`.
    """

    def __init__(self, rates: Rates) -> None:
        self.unknown_hours = [hour for hour, rate in enumerate(rates) if rate is None]
        self.rates = [0.0 if rate is None else rate for rate in rates]
