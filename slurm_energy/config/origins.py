"""Origin of each value of a configuration: the file, a node type, or the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_energy.config.loader import ConfigSource
from slurm_energy.config.node_types import merged_values, types_of


@dataclass(frozen=True, slots=True)
class Origin:
    """Place where a configured value comes from: the file, a node type, or the default.

    Attributes:
        table: section or table that sets the key, such as `node_types.gpu.agent`; an empty value means that
            the value is the default.
        line: line in the file; None means that the value is the default.
    """

    table: str = ""
    line: int | None = None

    def text(self, file: str) -> str:
        """Return the origin of a configured value as text for a comment in the configuration.

        The text is `default`, or consists of the file, the line and the node type.
        """
        if not self.table:
            return "default"
        place = f"{file}:{self.line}" if self.line else file
        return f"{place} [{self.table}]" if self.table.startswith("node_types.") else place

    def to_json(self) -> dict[str, Any]:
        """Return the origin of a configuration value as a JSON object.

        If the value is the default, `table` is null.
        """
        return {"table": self.table or None, "line": self.line}


def origins(source: ConfigSource, node: str | None = None) -> dict[tuple[str, str], Origin]:
    """Return the origin of each key that the file sets, by section and key. Other keys have their defaults.

    Args:
        source: the parsed configuration file.
        node: node whose node types are applied; None means to apply no node types.
    """
    found = {
        (section, key): Origin(section, source.reader.line(section, key))
        for section, key in source.keys
        if section != "node_types"
    }
    types = types_of(source.config.node_types, node) if node else {}
    for (section, key), (name, _) in merged_values(types).items():
        table = f"node_types.{name}.{section}"
        found[section, key] = Origin(table, source.reader.line(table, key))
    return found
