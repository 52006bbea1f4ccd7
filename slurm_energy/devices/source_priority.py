"""Which source counts for which part of a node: an order of preference as data, and how it is resolved.

The rule keeps every part from being counted twice, whatever combination of interfaces a node has. Pure;
finding the sources is `discovery`'s business. The table is printed in docs/power-sources.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown


class NodePart(StrEnum):
    """What a node's energy is made of."""

    CPU = "cpu"
    DRAM = "dram"
    GPU = "gpu"
    REST = "rest"


ALL_PARTS = frozenset(NodePart)


@dataclass(frozen=True, slots=True)
class EnergySource:
    """A kind of source.

    Attributes:
        name: the `source` of its counters.
        component: the component of its counters, `gpu` standing for all GPUs.
        parts: what its figure includes.
        why: reason for its place, for the documentation.
    """

    name: str
    component: str
    parts: frozenset[NodePart]
    why: str


def _source(name: str, component: str, parts: str, why: str) -> EnergySource:
    return EnergySource(name, component, frozenset(NodePart(part) for part in parts.split()), why)


COMPONENT_SOURCES = (
    _source("powercap:intel-rapl", "cpu", "cpu", "exact counter, 1 ms, the same that limits act on"),
    _source("powercap:intel-rapl-mmio", "cpu", "cpu", "the same packages by another way"),
    _source("perf:power", "cpu", "cpu", "the same counters where powercap is not readable"),
    _source("hwmon:amd_energy", "cpu", "cpu", "the same counters on kernels without AMD in powercap"),
    _source("pm_counters:cpu", "cpu", "cpu", "measured outside the processor, 10 Hz, whole joules"),
    _source("power_meter:grace-grace", "cpu", "cpu dram", "a whole Grace socket, its memory included"),
    _source("power_meter:grace-cpu", "cpu", "cpu", "the core rail of Grace; summed with its SysIO rail"),
    _source("power_meter:grace-sysio", "cpu", "cpu", "the SysIO rail of Grace; summed with its core rail"),
    _source("hsmp:power", "cpu", "cpu", "power, not energy"),
    _source("powercap:intel-rapl", "dram", "dram", "exact counter"),
    _source("powercap:intel-rapl-mmio", "dram", "dram", "the same memory by another way"),
    _source("perf:power", "dram", "dram", "the same counters where powercap is not readable"),
    _source("pm_counters:dram", "dram", "dram", "measured on the board, 10 Hz, whole joules"),
    _source("model:dram", "dram", "dram", "a table; only where nothing measures"),
    _source("nvml:total_energy", "gpu", "gpu", "the driver's counter"),
    _source("amdsmi:energy", "gpu", "gpu", "the driver's counter"),
    _source("hwmon:xe", "gpu", "gpu", "the driver's counter"),
    _source("hwmon:i915", "gpu", "gpu", "the driver's counter"),
    _source("pm_counters:accel", "gpu", "gpu", "measured on the board, 10 Hz, whole joules"),
)
"""Best first within each component."""

NODE_SOURCES = (
    _source("pm_counters:node", "node", "cpu dram gpu rest", "energy counter of the whole blade, 10 Hz"),
    _source("power_meter:acpi", "node", "cpu dram gpu rest", "in-band, about 1 Hz"),
    _source("ipmi:dcmi", "node", "cpu dram gpu rest", "the BMC; 1 W, 1 s or slower"),
    _source("redfish:power", "node", "cpu dram gpu rest", "the BMC over the network, slower than DCMI"),
    _source("powercap:psys", "node", "cpu dram gpu rest", "covers what the board's maker wired to it"),
    _source(
        "power_meter:grace-module", "node", "cpu dram gpu", "modules only: no fans, network, power supply"
    ),
)
"""Best first."""

NO_SOURCE = "none"
_TOGETHER = frozenset({"power_meter:grace-cpu", "power_meter:grace-sysio"})
"""Sources that show different pieces of one part and belong together."""
_SINGLE = frozenset({"powercap:psys"})
"""Sources of which a node must have one counter: what each of several covers is not documented."""


class SourceCounter(Protocol):
    """What the resolution needs to know of a counter."""

    @property
    def key(self) -> str:
        """Unique name."""

    @property
    def component(self) -> str:
        """`cpu`, `dram`, `gpu[i]` or `node`."""

    @property
    def source(self) -> str:
        """Name of its source."""


@dataclass(frozen=True, slots=True)
class SourceSelection:
    """Which counters count.

    Attributes:
        components: keys of the counters of cpu, dram and GPUs, none of which includes another.
        node: keys of the counters whose sum is the node, together with `added_parts`.
        added_parts: parts that the node's counters lack and that are added from `components`.
        missing_parts: parts that neither measures: the node's figure is too low by them.
        excluded: reason by key of every other counter.
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
    """Decide which counters count.

    Args:
        counters: everything found.
        node_source: what the administrator wants for the node: a name of NODE_SOURCES; `none` for no
            node figure; None for the best that is there.
        node_excludes: parts that the administrator knows not to be in the node's figure, e.g. GPUs in
            a box with a power supply of its own.

    Returns:
        The choice. It does not depend on the order of `counters`.

    Raises:
        UsageError: `node_source` is not the name of a source.
    """
    names = [source.name for source in NODE_SOURCES]
    if node_source not in (None, NO_SOURCE, *names):
        raise UsageError(
            f"node source '{shown(str(node_source))}' is not known", todo=f"one of {', '.join(names)}, none"
        )
    everything = sorted(counters, key=lambda counter: counter.key)
    excluded: dict[str, str] = {}
    components, covered = _components(everything, excluded)
    node, included = _node(everything, node_source, excluded)
    included -= node_excludes
    missing = ALL_PARTS - included if node else frozenset[NodePart]()
    for counter in everything:
        if counter.key not in excluded and counter.key not in components and counter.key not in node:
            excluded[counter.key] = "a source without a place in the order of preference"
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
    """Take sources in order of preference as long as what they include is not counted yet."""
    chosen: list[str] = []
    covered: dict[NodePart, str] = {}
    for source in COMPONENT_SOURCES:
        mine = [c for c in counters if c.source == source.name and _kind(c) == source.component]
        if not mine:
            continue
        taken = {covered[part] for part in source.parts if part in covered}
        if taken and not (taken | {source.name} <= _TOGETHER):
            reason = f"{source.component} is counted by {', '.join(sorted(taken))}"
            excluded.update({counter.key: reason for counter in mine})
            continue
        chosen += [counter.key for counter in mine]
        covered.update(dict.fromkeys(source.parts, source.name))
    return chosen, frozenset(covered)


def _node(
    counters: list[SourceCounter], wanted: str | None, excluded: dict[str, str]
) -> tuple[list[str], frozenset[NodePart]]:
    """Take the best source of the node's power, or the one that the administrator wants."""
    chosen: list[str] = []
    parts: frozenset[NodePart] = frozenset()
    winner = ""
    for source in NODE_SOURCES:
        mine = [counter for counter in counters if counter.source == source.name]
        if not mine:
            continue
        reason = ""
        if wanted is not None and source.name != wanted:
            reason = f"the configuration wants {wanted}"
        elif winner:
            reason = f"the node is counted by {winner}"
        elif source.name in _SINGLE and len(mine) > 1:
            reason = f"{len(mine)} of them: what each covers is not known"
        if reason:
            excluded.update({counter.key: reason for counter in mine})
            continue
        winner, parts = source.name, source.parts
        chosen = [counter.key for counter in mine]
    return chosen, parts


def _kind(counter: SourceCounter) -> str:
    return counter.component.partition("[")[0]


def priority_tables() -> str:
    """Return the order of preference as Markdown tables, for the documentation."""
    lines = []
    for title, sources in (("component", COMPONENT_SOURCES), ("node", NODE_SOURCES)):
        lines += [f"| {title} | source | includes | remark |", "|---|---|---|---|"]
        for source in sources:
            parts = ", ".join(part for part in NodePart if part in source.parts)
            lines.append(f"| {source.component} | `{source.name}` | {parts} | {source.why} |")
        lines.append("")
    return "\n".join(lines)
