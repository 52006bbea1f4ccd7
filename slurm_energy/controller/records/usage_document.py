"""The response to `GET /v1/usage`: energy, emissions and cost, summed by the requested dimensions."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from slurm_energy.accounting.usage.groups import COVERAGE, JOB, OFF, OFF_UNMEASURED, GroupKey
from slurm_energy.accounting.usage.interval_usage import IntervalUsage
from slurm_energy.accounting.usage.sum_changes import SUM_COLUMNS
from slurm_energy.accounting.usage.usage_queries import WindowUsage
from slurm_energy.errors import UsageError
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors

MAX_ROWS: Final = 200_000
_COMPONENTS: Final = ("cpu", "dram", "gpu", "other")
_JOULES_PER_MICROJOULE: Final = 1e-6
_INDEX: Final = {name: index for index, name in enumerate(SUM_COLUMNS)}
_ZEROS: Final = (0,) * len(SUM_COLUMNS)
_APART: Final = (COVERAGE, OFF, OFF_UNMEASURED)
_KINDS: Final = ("job", "idle", "unattributed")

RowKey = tuple[str, int, str, tuple[str | int | None, ...]]
"""Cluster, interval, kind, and a value per dimension."""


class GridRates:
    """Emissions and cost per microjoule. Values that vary with time are computed once per interval.

    Args:
        factors: emissions and cost per kWh.
    """

    def __init__(self, factors: GridFactors) -> None:
        self._factors = (factors.carbon, factors.price)
        self._scale = _JOULES_PER_MICROJOULE * (1.0 if factors.pue is None else factors.pue)
        self._varying = [factor for factor in self._factors if _varies(factor)]
        self._known: dict[tuple[int, int], list[float | None]] = {}
        self._constants: dict[tuple[int, int, int], float | None] = {}

    @property
    def vary(self) -> bool:
        """Whether emissions or cost of energy depend on the time at which the energy was used."""
        return bool(self._varying)

    def __call__(self, start: int, end: int) -> list[float | None]:
        """Return the emissions or the cost per microjoule of energy used between two times.

        The result has one value for each factor (carbon intensity or price) that varies with time. None means
        that the value is unknown.

        Args:
            start: start of the time span.
            end: end of the time span.
        """
        if (start, end) not in self._known:
            self._known[start, end] = [self._rate(factor, start, end) for factor in self._varying]
        return self._known[start, end]

    def footprint(
        self, energy_uj: int, groups: Iterable[int], interval: IntervalUsage
    ) -> tuple[float | None, float | None]:
        """Return the emissions in grams and the cost of the energy used in an interval.

        A value is None if it is unknown. `energy_uj` is the energy in microjoules that all `groups` used
        together. A group is the energy of one combination of user, account and other dimensions.
        """
        members = sorted(groups)
        grams, cost = (self._amount(factor, energy_uj, members, interval) for factor in self._factors)
        return grams, cost

    def _amount(
        self, factor: GridFactor | None, energy_uj: int, groups: Sequence[int], interval: IntervalUsage
    ) -> float | None:
        if factor is None or not energy_uj:
            return None if factor is None else 0.0
        index = next((place for place, one in enumerate(self._varying) if one is factor), None)
        if index is None:
            rate = self._constant_rate(factor, interval)
            return None if rate is None else energy_uj * rate
        if not interval.unknown[index].isdisjoint(groups):
            return None
        sums = interval.weighted[index]
        return math.fsum(sums.get(group, 0.0) for group in groups)

    def _constant_rate(self, factor: GridFactor, interval: IntervalUsage) -> float | None:
        key = (id(factor), interval.start, interval.end)
        if key not in self._constants:
            self._constants[key] = self._rate(factor, interval.start, interval.end)
        return self._constants[key]

    def _rate(self, factor: GridFactor, start: int, end: int) -> float | None:
        amount = factor.amount([(start, end, 1.0)]).amount
        return None if amount is None else amount * self._scale


def _varies(factor: GridFactor | None) -> TypeGuard[GridFactor]:
    return factor is not None and factor.series is not None and not factor.series.is_constant


def usage_rows(
    usage: WindowUsage, groups: Mapping[int, GroupKey], by: Sequence[str], rates: GridRates
) -> list[dict[str, Any]]:
    """Return the rows of a usage report, sorted by cluster, interval, kind and dimensions.

    Args:
        usage: energy sums of the requested time range.
        groups: groups of job runs whose energy the caller may see. The runs of a group have the same
            user, account and similar attributes.
        by: dimensions by which the energy is summed, such as user or account.
        rates: emissions and cost per microjoule.

    Raises:
        UsageError: there are too many rows.
    """
    rows = []
    names = {
        row_id: tuple(_value(group, name) for name in by)
        for row_id, group in groups.items()
        if group.kind not in _APART
    }
    for index, interval in enumerate(usage.intervals):
        sums = _sums_by_key(index, interval, groups, names)
        rows += [_row(key, one, by, rates, interval) for key, one in sums.items()]
        if len(rows) > MAX_ROWS:
            todo = "ask for a shorter window, longer intervals or another report"
            raise UsageError("report", f"more than {MAX_ROWS} rows", todo)
    return sorted(rows, key=lambda row: _order(row, by))


@dataclass(slots=True)
class _RowSums:
    values: Sequence[int]
    jobs: int = 0
    groups: set[int] = field(default_factory=set)


def _sums_by_key(
    index: int,
    interval: IntervalUsage,
    groups: Mapping[int, GroupKey],
    names: Mapping[int, tuple[str | int | None, ...]],
) -> dict[RowKey, _RowSums]:
    result: dict[RowKey, _RowSums] = {}
    for row_id in sorted(interval.sums.keys() | interval.jobs.keys()):
        if row_id not in names:
            continue
        group = groups[row_id]
        key = (group.cluster, index, group.kind, names[row_id])
        values = interval.sums.get(row_id, _ZEROS)
        if (row := result.get(key)) is None:
            row = result[key] = _RowSums(values)
        else:
            row.values = tuple(map(operator.add, row.values, values))
        row.jobs += interval.jobs.get(row_id, 0)
        row.groups.add(row_id)
    return result


def _value(group: GroupKey, name: str) -> str | int | None:
    """Return the value of one attribute of a group in the report, for example its user or partition.

    The result is None if the value is missing or unknown.
    """
    if group.kind != JOB:
        return None
    if name == "cpus":
        return group.cpus
    if name == "user" and not group.user and group.uid is not None:
        return str(group.uid)
    return str(getattr(group, name)) or None


def _row(
    key: RowKey, sums: _RowSums, by: Sequence[str], rates: GridRates, interval: IntervalUsage
) -> dict[str, Any]:
    cluster, index, kind, names = key
    values = sums.values
    energy_uj = _known_energy_uj(values)
    grams, cost = (None, None) if energy_uj is None else rates.footprint(energy_uj, sums.groups, interval)
    return {
        "cluster": cluster,
        "interval": index,
        "kind": kind,
        **dict(zip(by, names, strict=True)),
        "energy_microjoules": energy_uj,
        **{
            f"{name}_microjoules": values[_INDEX[f"{name}_uj"]] if values[_INDEX[f"{name}_rows"]] else None
            for name in _COMPONENTS
        },
        "cpu_seconds": values[_INDEX["cpu_seconds"]],
        "gpu_seconds": values[_INDEX["gpu_seconds"]],
        "jobs": sums.jobs,
        "co2e_grams": grams,
        "cost": cost,
    }


def _known_energy_uj(values: Sequence[int]) -> int | None:
    """Return the sum of the known energies in microjoules; None if no component of any period is known."""
    energy_uj = values[_INDEX["total_uj"]]
    return energy_uj if energy_uj or any(values[_INDEX[f"{name}_rows"]] for name in _COMPONENTS) else None


def _order(row: Mapping[str, Any], by: Sequence[str]) -> tuple[Any, ...]:
    values = ((row[name] is None, "" if row[name] is None else row[name]) for name in by)
    return row["cluster"], row["interval"], _KINDS.index(row["kind"]), *values
