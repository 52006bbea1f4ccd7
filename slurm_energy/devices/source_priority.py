"""Priority of energy sources: which source is recorded for which part of a node.

With the selection of `select_sources`, the energy of each part is counted exactly once, whatever combination
of interfaces a node has. All functions are pure; the module `sources` finds the counters.
docs/power-sources.md contains the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown


class NodePart(StrEnum):
    """Part of a node whose energy an energy source may include.

    `rest` is everything except CPU, memory and GPUs.
    """

    CPU = "cpu"
    DRAM = "dram"
    GPU = "gpu"
    REST = "rest"


ALL_PARTS = frozenset(NodePart)


@dataclass(frozen=True, slots=True)
class EnergySource:
    """A type of energy source. A node may have several counters of one type.

    Attributes:
        name: value of `source` in the counters of this type.
        component: component that the counters measure; `gpu` stands for all GPUs.
        parts: parts of the node whose energy the counters include.
        why: reason for the priority of this type, for the documentation.
    """

    name: str
    component: str
    parts: frozenset[NodePart]
    why: str


def _source(name: str, component: str, parts: str, why: str) -> EnergySource:
    return EnergySource(name, component, frozenset(NodePart(part) for part in parts.split()), why)


COMPONENT_SOURCES = (
    _source("powercap:intel-rapl", "cpu", "cpu", "exact counter, 1 ms; power limits act on it"),
    _source("powercap:intel-rapl-mmio", "cpu", "cpu", "the same packages, memory-mapped"),
    _source("perf:power", "cpu", "cpu", "the same counters where powercap is unreadable"),
    _source("hwmon:amd_energy", "cpu", "cpu", "the same counters on kernels whose powercap lacks AMD"),
    _source("pm_counters:cpu", "cpu", "cpu", "measured outside the processor, 10 Hz, whole joules"),
    _source("power_meter:grace-grace", "cpu", "cpu dram", "a whole Grace socket including its memory"),
    _source("power_meter:grace-cpu", "cpu", "cpu", "the core rail of Grace; added to its SysIO rail"),
    _source("power_meter:grace-sysio", "cpu", "cpu", "the SysIO rail of Grace; added to its core rail"),
    _source("hsmp:power", "cpu", "cpu", "power instead of energy"),
    _source("powercap:intel-rapl", "dram", "dram", "exact counter"),
    _source("powercap:intel-rapl-mmio", "dram", "dram", "the same memory, memory-mapped"),
    _source("perf:power", "dram", "dram", "the same counters where powercap is unreadable"),
    _source("pm_counters:dram", "dram", "dram", "measured on the board, 10 Hz, whole joules"),
    _source("model:dram", "dram", "dram", "a model; only where nothing measures"),
    _source("nvml:total_energy", "gpu", "gpu", "the driver's counter"),
    _source("amdsmi:energy", "gpu", "gpu", "the driver's counter"),
    _source("hwmon:xe", "gpu", "gpu", "the driver's counter"),
    _source("hwmon:i915", "gpu", "gpu", "the driver's counter"),
    _source("pm_counters:accel", "gpu", "gpu", "measured on the board, 10 Hz, whole joules"),
)
"""Sources of components, highest priority first within each component."""

NODE_SOURCES = (
    _source("pm_counters:node", "node", "cpu dram gpu rest", "energy counter of the whole blade, 10 Hz"),
    _source("power_meter:acpi", "node", "cpu dram gpu rest", "in-band, about 1 Hz"),
    _source("ipmi:dcmi", "node", "cpu dram gpu rest", "the BMC; 1 W, 1 s or slower"),
    _source("redfish:power", "node", "cpu dram gpu rest", "the BMC over the network; slower than DCMI"),
    _source("powercap:psys", "node", "cpu dram gpu rest", "coverage depends on the board's maker"),
    _source(
        "power_meter:grace-module", "node", "cpu dram gpu", "modules only; no fans, network or power supply"
    ),
)
"""Sources of the whole node, highest priority first."""

NO_SOURCE = "none"
_ADDED_UP = frozenset({"power_meter:grace-cpu", "power_meter:grace-sysio"})
"""Sources whose counters measure different portions of one part of the node. Their energies are added up."""
_SINGLE = frozenset({"powercap:psys"})
"""Sources that are used only if the node has exactly one such counter. What each of several counters covers
is undocumented.
"""


class SourceCounter(Protocol):
    """The properties of an energy counter that `select_sources` needs."""

    @property
    def key(self) -> str:
        """Unique name of the counter, for example `powercap:package-0`."""

    @property
    def component(self) -> str:
        """Component that the counter measures: `cpu`, `dram`, `gpu[INDEX]` or `node`."""

    @property
    def source(self) -> str:
        """Name of the counter's source, for example `powercap:intel-rapl`."""


@dataclass(frozen=True, slots=True)
class SourceSelection:
    """The counters whose energy is recorded on a node: the result of `select_sources`.

    Attributes:
        components: keys of the counters of cpu, dram and GPUs; no counter includes the energy of another
            one.
        node: keys of the counters that measure the node. The node's energy is the sum of these counters plus
            the energy of `added_parts`.
        added_parts: parts that the counters in `node` do not include. Their energy is added from the
            counters in `components`.
        missing_parts: parts of the node that no counter measures. The energy of the node does not include
            these parts.
        excluded: reasons why counters are not recorded, by the counter's key.
    """

    components: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    added_parts: frozenset[NodePart] = frozenset()
    missing_parts: frozenset[NodePart] = frozenset()
    excluded: Mapping[str, str] = field(default_factory=dict)


def select_sources(
    counters: Iterable[SourceCounter],
    node_source: str | None = None,
    node_excludes: frozenset[NodePart] = frozenset(),
) -> SourceSelection:
    """Select the counters whose energy is recorded.

    Args:
        counters: all counters of the node.
        node_source: source of the node's power that the administrator configured. The value is a name in
            NODE_SOURCES, or `none` to record no energy of the node. None selects the best available source.
        node_excludes: parts of the node whose power the configured node source does not include, according to
            the administrator; for example GPUs in an enclosure with a separate power supply.

    Returns:
        The selection, which does not depend on the order of `counters`.

    Raises:
        UsageError: `node_source` is not the name of a source.
    """
    names = [source.name for source in NODE_SOURCES]
    if node_source not in (None, NO_SOURCE, *names):
        raise UsageError(
            f"node source '{shown(str(node_source))}' is unknown", todo=f"use one of {', '.join(names)}, none"
        )
    ordered = sorted(counters, key=lambda counter: counter.key)
    excluded: dict[str, str] = {}
    components, covered = _components(ordered, excluded)
    node, included = _node(ordered, node_source, excluded)
    included -= node_excludes
    missing = ALL_PARTS - included if node else frozenset[NodePart]()
    for counter in ordered:
        if counter.key not in excluded and counter.key not in components and counter.key not in node:
            excluded[counter.key] = "a source without a place in the source priority"
    return SourceSelection(
        components=tuple(components),
        node=tuple(node),
        added_parts=missing & covered,
        missing_parts=missing - covered,
        excluded=excluded,
    )


def _components(
    counters: list[SourceCounter], excluded: dict[str, str]
) -> tuple[list[str], frozenset[NodePart]]:
    """Select the counters of components (CPU, memory, GPUs) whose energy is recorded.

    The best source of each component is taken. A source is skipped if it measures a part of the node that is
    already counted.

    Args:
        counters: all counters of the node.
        excluded: maps the key of each counter that is not selected to the reason. This function adds
            entries.

    Returns:
        (keys of the selected counters, parts of the node that they measure).
    """
    chosen: list[str] = []
    covered: dict[NodePart, str] = {}
    for source in COMPONENT_SOURCES:
        matching = [c for c in counters if c.source == source.name and _component_type(c) == source.component]
        if not matching:
            continue
        counted_by = {covered[part] for part in source.parts if part in covered}
        if counted_by and not (counted_by | {source.name} <= _ADDED_UP):
            reason = f"{source.component} is counted by {', '.join(sorted(counted_by))}"
            excluded.update({counter.key: reason for counter in matching})
            continue
        chosen += [counter.key for counter in matching]
        covered.update(dict.fromkeys(source.parts, source.name))
    return chosen, frozenset(covered)


def _node(
    counters: list[SourceCounter], configured: str | None, excluded: dict[str, str]
) -> tuple[list[str], frozenset[NodePart]]:
    """Select the counters that measure the power of the whole node.

    The counters come from the best available source, or from the source that the administrator configured.

    Args:
        counters: all counters of the node.
        configured: name of the configured source; None for the best available one.
        excluded: maps the key of each counter that is not selected to the reason. This function adds
            entries.

    Returns:
        (keys of the selected counters, parts of the node whose power these counters include).
    """
    chosen: list[str] = []
    parts: frozenset[NodePart] = frozenset()
    winner = ""
    for source in NODE_SOURCES:
        matching = [counter for counter in counters if counter.source == source.name]
        if not matching:
            continue
        reason = ""
        if configured is not None and source.name != configured:
            reason = f"the configuration selects {configured}"
        elif winner:
            reason = f"the node is counted by {winner}"
        elif source.name in _SINGLE and len(matching) > 1:
            reason = f"{len(matching)} of them: the coverage of each is unknown"
        if reason:
            excluded.update({counter.key: reason for counter in matching})
            continue
        winner, parts = source.name, source.parts
        chosen = [counter.key for counter in matching]
    return chosen, parts


def _component_type(counter: SourceCounter) -> str:
    return counter.component.partition("[")[0]


def priority_tables() -> str:
    """Return the priority of the sources of energy as Markdown tables, for the documentation."""
    lines = []
    for title, sources in (("component", COMPONENT_SOURCES), ("node", NODE_SOURCES)):
        lines += [f"| {title} | source | includes | remark |", "|---|---|---|---|"]
        for source in sources:
            parts = ", ".join(part for part in NodePart if part in source.parts)
            lines.append(f"| {source.component} | `{source.name}` | {parts} | {source.why} |")
        lines.append("")
    return "\n".join(lines)
