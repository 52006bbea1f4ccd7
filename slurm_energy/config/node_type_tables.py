"""Parser of the tables `[node_types.NAME]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slurm_energy.config.findings import Finding
from slurm_energy.config.node_types import CLUSTER_KEYS, NODE_SECTIONS, TYPE_NAME, NodeType
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slurm_energy.config.loader import TableReader


def parse_node_types(
    reader: TableReader, tables: Any, sections: Mapping[str, type[Any]]
) -> tuple[dict[str, NodeType], list[Finding]]:
    """Return the node types in a file by name, and the faults of the types' keys.

    Args:
        reader: table reader of the file.
        tables: value of `node_types` in the parsed file.
        sections: class of each section by name.
    """
    if not isinstance(tables, dict):
        return {}, [reader.finding("node_types", "", "must be tables such as [node_types.gpu]")]
    types, findings = {}, []
    for name, table in tables.items():
        section = f"node_types.{shown(name)}"
        if not TYPE_NAME.fullmatch(name):
            why = "the name of a node type is a letter a-z, then a-z, 0-9, - and _, at most 32 characters"
            findings.append(reader.finding(section, "", why))
        if not isinstance(table, dict):
            findings.append(reader.finding(section, "", "must be a table"))
            continue
        types[name], faults = _node_type(reader, section, table, sections)
        findings += faults
    return types, findings


def _node_type(
    reader: TableReader, section: str, table: dict[str, Any], sections: Mapping[str, type[Any]]
) -> tuple[NodeType, list[Finding]]:
    own = {name: value for name, value in table.items() if name not in NODE_SECTIONS}
    node_type, findings = reader.collect(NodeType, section, own)
    if "nodes" not in own:
        findings.append(reader.finding(section, "", "nodes is missing", 'give nodes = "gpu[01-16]"'))
    inner = {}
    for name in NODE_SECTIONS:
        if name not in table:
            continue
        inner_section, cls = f"{section}.{name}", sections[name]
        values, faults = reader.collect(cls, inner_section, table[name])
        findings += faults
        faulty = {fault.key.removeprefix(f"{inner_section}.") for fault in faults}
        given = table[name] if isinstance(table[name], dict) else {}
        for one in [one for one in given if (name, one) in CLUSTER_KEYS]:
            findings.append(reader.finding(inner_section, one, "concerns no node", f"set it in [{name}]"))
        valid = set(given) - faulty
        inner[name] = {one: getattr(values, one) for one in given if one in valid and hasattr(values, one)}
    return NodeType(node_type.nodes, **inner), findings
