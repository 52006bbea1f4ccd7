"""Reader of the tables that describe the limits of a cluster in a scenario.

The tables are `[partition.NAME]`, `[qos.NAME]`, `[reservation.NAME]` and `[licenses]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.config.loader import TableReader
from slurm_energy.config.value_checks import between, key
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.constraints import (
    Constraints,
    JobLimits,
    NodeReservation,
    Partition,
    Qos,
)
from slurm_energy.slurm.hostlist import expand_hostlist

_not_negative = between(0, 1e15)
_count = between(0, 1e9)
_priority = between(-1e9, 1e9)
_PRIORITY = "Jobs with a higher priority go before all others, whatever the policy ranks."
_NODES = "Kinds of nodes, or nodes such as gpu-[0-3] of the kind gpu; empty: all nodes."
_MIN_PERIOD_HOURS: Final = 0.01
TABLES: Final = ("partition", "qos", "reservation", "licenses")


@dataclass(frozen=True, slots=True)
class QosSection:
    """Section `[qos.NAME]` of the simulated constraints: priority and limits of the jobs of a QOS."""

    priority: int = key(0, _PRIORITY, _priority)
    max_jobs: int = key(0, "Running jobs; 0: no limit.", _count)
    max_units: int = key(0, "Units that running jobs hold; 0: no limit.", _count)
    max_jobs_per_user: int = key(0, "Running jobs of one user; 0: no limit.", _count)
    max_units_per_user: int = key(0, "Units that running jobs of one user hold; 0: no limit.", _count)
    max_units_per_job: int = key(0, "Size of a job; 0: no limit.", _count)
    max_hours: float = key(0.0, "Time limit of a job; 0: no limit.", _not_negative)


@dataclass(frozen=True, slots=True)
class PartitionSection(QosSection):
    """Nodes and limits of the jobs of a partition, `[partition.NAME]`."""

    nodes: list[str] = key([], _NODES)
    default_hours: float = key(0.0, "Time limit of jobs that request none; 0: max_hours.", _not_negative)


@dataclass(frozen=True, slots=True)
class ReservationSection:
    """Section `[reservation.NAME]` of a scenario: nodes that are reserved for certain jobs.

    Only jobs that name this reservation may use the nodes during its time.
    """

    nodes: list[str] = key([], _NODES)
    begin_hours: float = key(0.0, "Begin, from the start of the simulation.", _not_negative)
    hours: float = key(1.0, "Length.", between(1e-9, 1e9))
    every_hours: float = key(
        0.0, "Time between two begins of a recurring reservation; 0: once.", _not_negative
    )


@dataclass(frozen=True, slots=True)
class ConstraintTables:
    """The tables of a scenario that define partitions, QOS, reservations and licenses, by name."""

    partition: dict[str, PartitionSection] = field(default_factory=dict)
    qos: dict[str, QosSection] = field(default_factory=dict)
    reservation: dict[str, ReservationSection] = field(default_factory=dict)
    licenses: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.partition or self.qos or self.reservation or self.licenses)


_SECTIONS: Final = {"partition": PartitionSection, "qos": QosSection, "reservation": ReservationSection}


def read_tables(data: Mapping[str, Any], reader: TableReader) -> ConstraintTables:
    """Return the tables of constraints in a scenario file.

    Faults are reported with file and line by `reader`.
    """
    tables: dict[str, Any] = {}
    for name, section in _SECTIONS.items():
        entries = data.get(name, {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise reader.fail(name, "", f"must be tables: [{name}.NAME]")
        tables[name] = {
            entry: reader.section(section, f"{name}.{entry}", table) for entry, table in entries.items()
        }
    licenses = data.get("licenses", {})
    if not isinstance(licenses, dict):
        raise reader.fail("licenses", "", "must be a table of names and numbers")
    for name, count in licenses.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 1e9:
            raise reader.fail(
                "licenses", name, f"must be a whole number from 0 to 1e9, not {shown(str(count))}"
            )
    return ConstraintTables(**tables, licenses=dict(licenses))


def check_tables(tables: ConstraintTables, kinds: Sequence[NodeKind], reader: TableReader) -> None:
    """Check the tables of a scenario for combinations of values that contradict each other.

    An example is a default time limit above the maximum time limit. The error for a fault names the file and
    the line, which `reader` knows.
    """
    for name, partition in tables.partition.items():
        table = f"partition.{name}"
        _numbers(partition.nodes, kinds, table, reader)
        if 0 < partition.max_hours < partition.default_hours:
            raise reader.fail(table, "default_hours", "must not be above max_hours")
    for name, reservation in tables.reservation.items():
        table = f"reservation.{name}"
        _numbers(reservation.nodes, kinds, table, reader)
        if 0 < reservation.every_hours < _MIN_PERIOD_HOURS:
            raise reader.fail(table, "every_hours", f"must be 0 or at least {_MIN_PERIOD_HOURS}")
        if 0 < reservation.every_hours <= reservation.hours:
            raise reader.fail(table, "every_hours", "must be above hours, or the nodes are never free")


def constraints_of(
    tables: ConstraintTables, kinds: Sequence[NodeKind], reader: TableReader
) -> Constraints | None:
    """Return the constraints that the engine applies. Return None if the scenario has no constraints.

    Args:
        tables: the tables of the scenario.
        kinds: the kinds of nodes.
        reader: object that reports a fault with file and line.
    """
    if not tables:
        return None
    return Constraints(
        partitions=tuple(
            Partition(
                name,
                _limits(section),
                _numbers(section.nodes, kinds, f"partition.{name}", reader),
                section.default_hours * 3600 or math.inf,
            )
            for name, section in tables.partition.items()
        ),
        qos=tuple(Qos(name, _limits(section)) for name, section in tables.qos.items()),
        reservations=tuple(
            NodeReservation(
                name,
                _numbers(section.nodes, kinds, f"reservation.{name}", reader),
                section.begin_hours * 3600,
                section.hours * 3600,
                section.every_hours * 3600,
            )
            for name, section in tables.reservation.items()
        ),
        licenses=tuple(tables.licenses.items()),
    )


def _limits(section: QosSection) -> JobLimits:
    return JobLimits(
        section.priority,
        section.max_jobs,
        section.max_units,
        section.max_jobs_per_user,
        section.max_units_per_user,
        section.max_units_per_job,
        section.max_hours * 3600 or math.inf,
    )


def _numbers(
    names: Sequence[str], kinds: Sequence[NodeKind], table: str, reader: TableReader
) -> tuple[int, ...] | None:
    """Return the numbers of the nodes that a scenario selects by names.

    Each entry of `names` is the name of a kind of nodes, which selects all its nodes, or a set of nodes such
    as `gpu-[0-3]`. If `names` is empty, all nodes are selected and the result is None.
    """
    if not names:
        return None
    ranges: dict[str, range] = {}
    start = 0
    for kind in kinds:
        ranges[kind.name] = range(start, start + kind.nodes)
        start += kind.nodes
    numbers: set[int] = set()
    for name in names:
        if name in ranges:
            numbers.update(ranges[name])
            continue
        numbers.update(_node_set(name, ranges, table, reader))
    return tuple(sorted(numbers))


def _node_set(text: str, ranges: Mapping[str, range], table: str, reader: TableReader) -> list[int]:
    """Return the numbers of the nodes that a text such as `gpu-[0-3],cpu-7` names."""
    todo = f"a kind ({shown(', '.join(ranges))}), or its nodes such as {next(iter(ranges))}-[0-3]"
    try:
        nodes = expand_hostlist(text, "nodes")
    except UsageError as error:
        raise reader.fail(table, "nodes", str(error), todo) from None
    numbers = []
    for node in nodes:
        kind, _, index = node.rpartition("-")
        if kind not in ranges or not index.isdecimal() or int(index) >= len(ranges[kind]):
            raise reader.fail(table, "nodes", f"there is no node '{shown(node)}'", todo)
        numbers.append(ranges[kind][int(index)])
    return numbers
