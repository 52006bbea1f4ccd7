"""The response to `GET /v1/usage`: sums of groups by the requested dimensions, with emissions and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.accounting.usage_groups import COVERAGE, JOB, GroupKey
from slurm_energy.accounting.usage_queries import IntervalUsage, WindowUsage
from slurm_energy.accounting.usage_rollup import SUM_COLUMNS
from slurm_energy.errors import UsageError
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors

MAX_ROWS: Final = 200_000
_COMPONENTS: Final = ("cpu", "dram", "gpu", "other")
_JOULES_PER_MICROJOULE: Final = 1e-6
_INDEX: Final = {name: index for index, name in enumerate(SUM_COLUMNS)}
_KINDS: Final = ("job", "idle", "unattributed")

RowKey = tuple[str, int, str, tuple[str | int | None, ...]]
"""Cluster, interval, kind, and a value per dimension."""


def varies_over_time(factors: GridFactors) -> bool:
    """Return whether emissions or cost of energy depend on when it was used."""
    return any(
        factor is not None and factor.series is not None and not factor.series.is_constant
        for factor in (factors.carbon, factors.price)
    )


def usage_rows(
    usage: WindowUsage, groups: Mapping[int, GroupKey], by: Sequence[str], factors: GridFactors
) -> list[dict[str, Any]]:
    """Return the rows of the response, ordered by cluster, interval, kind and dimensions.

    Args:
        usage: the sums of the window.
        groups: the groups that the caller may see.
        by: dimensions.
        factors: emissions and cost per kWh.

    Raises:
        UsageError: there are too many rows.
    """
    rates = _Rates(factors)
    rows = []
    for index, interval in enumerate(usage.intervals):
        sums = _sums_by_key(index, interval, groups, by)
        rows += [_row(key, one, by, rates, interval) for key, one in sums.items()]
        if len(rows) > MAX_ROWS:
            todo = "ask for a shorter window, longer intervals or another report"
            raise UsageError("report", f"more than {MAX_ROWS} rows", todo)
    return sorted(rows, key=lambda row: _order(row, by))


@dataclass(slots=True)
class _RowSums:
    values: list[int] = field(default_factory=lambda: [0] * len(SUM_COLUMNS))
    jobs: int = 0
    energies: dict[tuple[int, int], int] = field(default_factory=dict)


def _sums_by_key(
    index: int, interval: IntervalUsage, groups: Mapping[int, GroupKey], by: Sequence[str]
) -> dict[RowKey, _RowSums]:
    result: dict[RowKey, _RowSums] = {}
    for row_id in interval.sums.keys() | interval.jobs.keys():
        group = groups.get(row_id)
        if group is None or group.kind == COVERAGE:
            continue
        names = tuple(_value(group, name) for name in by)
        row = result.setdefault((group.cluster, index, group.kind, names), _RowSums())
        for place, value in enumerate(interval.sums.get(row_id, ())):
            row.values[place] += value
        row.jobs += interval.jobs.get(row_id, 0)
        for span, energy in interval.energies.get(row_id, {}).items():
            row.energies[span] = row.energies.get(span, 0) + energy
    return result


def _value(group: GroupKey, name: str) -> str | int | None:
    """Return the value of a dimension; None: none or unknown."""
    if group.kind != JOB:
        return None
    if name == "cpus":
        return group.cpus
    if name == "user" and not group.user and group.uid is not None:
        return str(group.uid)
    return str(getattr(group, name)) or None


def _row(
    key: RowKey, sums: _RowSums, by: Sequence[str], rates: _Rates, interval: IntervalUsage
) -> dict[str, Any]:
    cluster, index, kind, names = key
    values = sums.values
    energies = sums.energies or {(interval.start, interval.end): values[_INDEX["total_uj"]]}
    return {
        "cluster": cluster,
        "interval": index,
        "kind": kind,
        **dict(zip(by, names, strict=True)),
        "energy_microjoules": values[_INDEX["total_uj"]],
        **{
            f"{name}_microjoules": values[_INDEX[f"{name}_uj"]] if values[_INDEX[f"{name}_rows"]] else None
            for name in _COMPONENTS
        },
        "cpu_seconds": values[_INDEX["cpu_seconds"]],
        "gpu_seconds": values[_INDEX["gpu_seconds"]],
        "jobs": sums.jobs,
        "co2e_grams": rates.grams(energies),
        "cost": rates.cost(energies),
    }


def _order(row: Mapping[str, Any], by: Sequence[str]) -> tuple[Any, ...]:
    values = ((row[name] is None, "" if row[name] is None else row[name]) for name in by)
    return row["cluster"], row["interval"], _KINDS.index(row["kind"]), *values


class _Rates:
    """Emissions and cost of a joule by span of time, each computed once."""

    def __init__(self, factors: GridFactors) -> None:
        self._factors = factors
        self._scale = 1.0 if factors.pue is None else factors.pue
        self._known: dict[tuple[str, tuple[int, int]], float | None] = {}

    def grams(self, energies: Mapping[tuple[int, int], int]) -> float | None:
        return self._amount("carbon", self._factors.carbon, energies)

    def cost(self, energies: Mapping[tuple[int, int], int]) -> float | None:
        return self._amount("price", self._factors.price, energies)

    def _amount(
        self, name: str, factor: GridFactor | None, energies: Mapping[tuple[int, int], int]
    ) -> float | None:
        if factor is None:
            return None
        amounts = []
        for span, energy in sorted(energies.items()):
            rate = self._rate(name, factor, span)
            if rate is None and energy:
                return None
            amounts.append(energy * _JOULES_PER_MICROJOULE * (rate or 0.0))
        return math.fsum(amounts)

    def _rate(self, name: str, factor: GridFactor, span: tuple[int, int]) -> float | None:
        if (name, span) not in self._known:
            amount = factor.amount([(*span, 1.0)]).amount
            self._known[name, span] = None if amount is None else amount * self._scale
        return self._known[name, span]
