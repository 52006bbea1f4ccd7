"""Checks of the tables `[node_types.NAME]`: nodes, contradictions, and values on each type of node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from slurm_energy.config.findings import Finding
from slurm_energy.config.loader import ConfigSource, TableReader
from slurm_energy.config.node_types import NodeType
from slurm_energy.errors import UsageError
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.validation import metrics, node_power
from slurm_energy.validation.budget_nodes import NodesOfSlurm
from slurm_energy.validation.check_context import CheckContext

_CHECKS_OF_NODES = (node_power.check, metrics.check)
"""Checks of sections that a node type may change. They are repeated with the values of each type."""


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the node types in the configuration, and yield a finding for each fault.

    Faults are, for example, unknown nodes, two values for one key on the same node, and invalid values.
    """
    types = context.config.node_types
    if not types:
        return
    nodes: dict[str, frozenset[str]] = {}
    for name, node_type in types.items():
        try:
            nodes[name] = frozenset(expand_hostlist(node_type.nodes)) if node_type.nodes else frozenset()
        except UsageError as error:
            nodes[name] = frozenset()
            yield context.error(f"node_types.{name}", "nodes", str(error))
        if not node_type.values:
            yield context.warning(f"node_types.{name}", "", "has no effect: it sets no key")
    yield from _unknown_nodes(context, nodes)
    for first, second in combinations(types, 2):
        yield from _conflicts(context, first, second, nodes)
    for name, node_type in types.items():
        yield from _values_of(context, name, node_type)


def _unknown_nodes(context: CheckContext, nodes: dict[str, frozenset[str]]) -> Iterator[Finding]:
    known = NodesOfSlurm.of(context.host.slurm).names
    for name, names in nodes.items():
        if known and (unknown := sorted(names - known)):
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            why = f"slurm.conf has no node {unknown[0]}{more}"
            yield context.warning(f"node_types.{name}", "nodes", why)


def _conflicts(
    context: CheckContext, first: str, second: str, nodes: dict[str, frozenset[str]]
) -> Iterator[Finding]:
    """Yield a finding for each configuration key to which two node types give different values.

    Only node types that have a node in common are in conflict.
    """
    common = nodes[first] & nodes[second]
    if not common:
        return
    values = [context.config.node_types[name].values for name in (first, second)]
    for section, key in values[0].keys() & values[1].keys():
        if values[0][section, key] != values[1][section, key]:
            why = f"node {min(common)} is also in [node_types.{first}], which sets another value"
            todo = "give each node one value"
            yield context.error(f"node_types.{second}.{section}", key, why, todo)


def _values_of(context: CheckContext, name: str, node_type: NodeType) -> Iterator[Finding]:
    """Yield the faults of the configuration that are caused by the values of a node type.

    The configuration is checked twice: with and without these values. A fault that both checks find is left
    out.
    """
    config, source = context.config, context.source
    sections = {
        section: replace(getattr(config, section), **values)
        for section in ("agent", "node_power", "bounds", "metrics")
        if (values := getattr(node_type, section))
    }
    places = frozenset(node_type.values)
    typed = ConfigSource(
        replace(config, **sections),
        source.findings,
        _TypeReader(source.reader, name, places),
        source.keys | places,
    )
    plain = {finding.text for check in _CHECKS_OF_NODES for finding in check(context)}
    for one in _CHECKS_OF_NODES:
        for finding in one(replace(context, source=typed)):
            if finding.text not in plain:
                yield finding


class _TypeReader(TableReader):
    """Reader of the table of a node type in the configuration file.

    A node type sets keys of other sections. If such a key has a fault, the finding names the key by its
    place in the table of the node type.

    Args:
        reader: reader of the file.
        name: name of the node type.
        places: keys that the node type sets, as (section, key).
    """

    def __init__(self, reader: TableReader, name: str, places: frozenset[tuple[str, str]]) -> None:
        self.path = reader.path
        self.newer_release = reader.newer_release
        self._lines = reader._lines
        self._name, self._places = name, places

    def finding(self, section: str, key: str, *more: Any, **named: Any) -> Finding:
        """Return a finding about a key in the settings of a node type; see `TableReader.finding`."""
        if (section, key) in self._places:
            section = f"node_types.{self._name}.{section}"
        return super().finding(section, key, *more, **named)
