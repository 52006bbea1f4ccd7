"""The response to `GET /v1/usage`: amounts of energy, time, emissions and cost by group and interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from slurm_energy.errors import UsageError
from slurm_energy.quantities import JOULES_PER_KWH

JOB: Final = "job"
IDLE: Final = "idle"
UNATTRIBUTED: Final = "unattributed"
COMPONENTS: Final = ("cpu", "dram", "gpu", "other")
_MICROJOULES_PER_JOULE: Final = 1e6
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Amounts:
    """Energy, time, number of jobs, emissions and cost, each summed over jobs or nodes.

    Attributes:
        energy_uj: energy in microjoules; None if unknown.
        component_uj: energy by component in microjoules; a component without a meter is missing.
        cpu_seconds, gpu_seconds: allocated CPU and GPU time; None if unknown.
        jobs: number of jobs that ran; None if unknown.
        co2e_grams: emissions; None if unknown.
        cost: cost in the currency of the response; None if unknown.
    """

    energy_uj: int | None = 0
    component_uj: Mapping[str, int] = field(default_factory=dict)
    cpu_seconds: float | None = 0.0
    gpu_seconds: float | None = 0.0
    jobs: int | None = 0
    co2e_grams: float | None = 0.0
    cost: float | None = 0.0

    @property
    def energy_joules(self) -> float | None:
        """Energy in joules; None if unknown."""
        return None if self.energy_uj is None else self.energy_uj / _MICROJOULES_PER_JOULE

    @property
    def energy_kwh(self) -> float | None:
        """Energy in kWh; None if unknown."""
        joules = self.energy_joules
        return None if joules is None else joules / JOULES_PER_KWH

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Amounts:
        """Return the amounts (energy, times, jobs, emissions and cost) in one row of a JSON response."""
        components = {name: row.get(f"{name}_microjoules") for name in COMPONENTS}
        energy_uj = row["energy_microjoules"]
        return cls(
            None if energy_uj is None else int(energy_uj),
            {name: int(value) for name, value in components.items() if value is not None},
            row.get("cpu_seconds"),
            row.get("gpu_seconds"),
            row.get("jobs"),
            row.get("co2e_grams"),
            row.get("cost"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the amounts as a dict with the keys of the response."""
        return {
            "energy_microjoules": self.energy_uj,
            **{f"{name}_microjoules": self.component_uj.get(name) for name in COMPONENTS},
            "cpu_seconds": self.cpu_seconds,
            "gpu_seconds": self.gpu_seconds,
            "jobs": self.jobs,
            "co2e_grams": self.co2e_grams,
            "cost": self.cost,
        }


UNKNOWN_ENERGY: Final = Amounts(energy_uj=None, co2e_grams=None, cost=None)
"""Amounts of energy that was not measured, or that is hidden from the user."""


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of amounts (energy, time, cost and other figures) for a report.

    The energy of the sum is that of all amounts with known energy. It is unknown if it is unknown in all
    amounts. Emissions and cost of the sum are also those of the amounts with known energy, and are unknown if
    they are unknown in one of these amounts. Each other figure is unknown if it is unknown in one of all
    amounts.
    """
    summands = list(amounts)
    if len(summands) == 1:  # such as the only account of a user, in most lines of a long report
        return _with_floats(summands[0])
    components: dict[str, int] = {}
    for one in summands:
        for name, value in one.component_uj.items():
            components[name] = components.get(name, 0) + value
    # If no energy is known, the sums of the unknown energies, emissions and costs are unknown.
    measured = [one for one in summands if one.energy_uj is not None] or summands
    return Amounts(
        _integer_sum_or_none([one.energy_uj for one in measured]),
        components,
        _sum_or_none([one.cpu_seconds for one in summands]),
        _sum_or_none([one.gpu_seconds for one in summands]),
        _integer_sum_or_none([one.jobs for one in summands]),
        _sum_or_none([one.co2e_grams for one in measured]),
        _sum_or_none([one.cost for one in measured]),
    )


def _with_floats(one: Amounts) -> Amounts:
    """Return amounts with the same number types as a sum of several amounts.

    CPU time, GPU time, emissions and cost are converted to floats.
    """
    return Amounts(
        one.energy_uj,
        one.component_uj,
        _float_or_none(one.cpu_seconds),
        _float_or_none(one.gpu_seconds),
        one.jobs,
        _float_or_none(one.co2e_grams),
        _float_or_none(one.cost),
    )


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def _sum_or_none(values: Sequence[float | None]) -> float | None:
    return None if None in values else math.fsum(cast(Sequence[float], values))


def _integer_sum_or_none(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(cast(Sequence[int], values))


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Amounts of one group of jobs or nodes during one interval.

    Attributes:
        cluster: name of the cluster.
        interval: index of the interval.
        kind: whether the amounts are of jobs (`job`), idle nodes (`idle`) or neither (`unattributed`).
        names: the group's value of each dimension (`account`, `user`, ...), by dimension; None if unknown, or
            the group has no value.
        cpus: number of CPUs of the jobs, if the request groups by job size; None if unknown.
        amounts: sums over the jobs or nodes of the group.
    """

    cluster: str
    interval: int
    kind: str
    names: Mapping[str, str | None]
    cpus: int | None
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class UsageDocument:
    """The response to `GET /v1/usage`.

    Attributes:
        start, end: start and end of the time window in Unix seconds.
        intervals: start and end of each interval into which the window is divided.
        rows: amounts, one row per group and interval.
        parents: by cluster, the parent account of each Slurm account; empty if unknown.
        meter_visible: whether the response contains idle and unattributed energy.
        scope: whose jobs the response covers: `all`, `accounts` or `own`.
        currency: currency of the cost; empty if cost is unknown.
        has_carbon: whether emissions are computed.
        notes: remarks for the reader, one line each.
        data: the response as parsed JSON.
    """

    start: float
    end: float
    intervals: Sequence[tuple[float, float]]
    rows: Sequence[UsageRow]
    parents: Mapping[str, Mapping[str, str]]
    meter_visible: bool
    scope: str
    currency: str
    has_carbon: bool
    notes: Sequence[str]
    data: Mapping[str, Any]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UsageDocument:
        """Return the document of a response.

        Raises:
            UsageError: the response has another form, for example the form of a newer release.
        """
        try:
            return cls(
                float(data["window"]["start"]),
                float(data["window"]["end"]),
                tuple((float(start), float(end)) for start, end in data["intervals"]),
                tuple(_row(row) for row in data["rows"]),
                {name: dict(parents) for name, parents in (data.get("parents") or {}).items()},
                bool(data.get("meter_visible")),
                str(data.get("scope", "all")),
                str(data.get("currency") or ""),
                bool(data.get("has_carbon")),
                tuple(str(note) for note in data.get("notes", ())),
                data,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError("controller's answer", f"not a usage document: {error!r}"[:120]) from None

    @property
    def clusters(self) -> list[str]:
        """Sorted names of the clusters for which the document contains usage."""
        return sorted({row.cluster for row in self.rows})


def _row(data: Mapping[str, Any]) -> UsageRow:
    names = {key: data.get(key) for key in NAMES if key in data}
    return UsageRow(
        str(data["cluster"]), int(data["interval"]), str(data["kind"]), names, data.get("cpus"),
        Amounts.from_json(data),
    )  # fmt: skip


NAMES: Final = ("account", "user", "qos", "partition", "policy", "tag", "gpu_kind")
"""Dimensions of groups whose values are names."""


def group_amounts(rows: Iterable[UsageRow], key: Callable[[UsageRow], Key]) -> dict[Key, Amounts]:
    """Return the sum of the amounts of each group of rows. The function `key` names a row's group.

    The groups are in the order in which they first appear.
    """
    groups: dict[Key, list[Amounts]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row.amounts)
    return {name: total(amounts) for name, amounts in groups.items()}
