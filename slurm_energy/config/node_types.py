"""Tables `[node_types.NAME]` of the configuration, for nodes that need special values.

Each table names the nodes, and the keys whose values are different on these nodes.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.config.value_checks import key

NODE_SECTIONS: Final = ("agent", "node_power", "bounds", "metrics")
"""Sections whose keys a node type may set."""
CLUSTER_KEYS: Final = frozenset({("metrics", "controller_listen")})
"""Keys of these sections that concern the cluster and not single nodes."""
TYPE_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PART: Final = re.compile(r"[A-Za-z0-9_.+-]*(?:\[[0-9,-]+\][A-Za-z0-9_.+-]*)*")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def _node_list(value: str) -> str | None:
    parts = list(_split(value))
    good = parts and all(part and _PART.fullmatch(part) and _has_ranges(part) for part in parts)
    return None if good else "must be a node list such as gpu[01-16],big1"


@dataclass(frozen=True, slots=True)
class NodeType:
    """Type of nodes: configuration keys that have special values on the nodes of this type.

    With node types, every host can have the same configuration file. The tables `agent`, `node_power`,
    `bounds` and `metrics` contain keys of the configuration sections with these names. See
    docs/node-types.md.
    """

    nodes: str = key("", "Names of the nodes, as in slurm.conf.", _node_list, show="gpu[01-16]")
    agent: dict[str, Any] = key(
        {}, "Keys of section agent on these nodes.", show={"sampling_hz": 10.0, "idle_watts": {"gpu": 55.0}}
    )
    node_power: dict[str, Any] = key(
        {}, "Keys of section node_power on these nodes.", show={"source": "ipmi"}
    )
    bounds: dict[str, Any] = key(
        {},
        "Keys of section bounds on these nodes. Flags of jobs are accepted within the widest bounds of all "
        "nodes; on each node the values are then limited to its own bounds.",
        show={"gpu_cap_watts": [200.0, 700.0]},
    )
    metrics: dict[str, Any] = key(
        {}, "Keys of section metrics on these nodes.", show={"agent_listen": "10.0.0.1:9628"}
    )

    @property
    def values(self) -> dict[tuple[str, str], Any]:
        """Values that the node type sets, by section and key."""
        return {
            (section, name): value
            for section in NODE_SECTIONS
            for name, value in getattr(self, section).items()
        }

    def contains(self, node: str) -> bool:
        """Return whether a node belongs to this node type."""
        return any(_matches(part, node) for part in _split(self.nodes))


def types_of(node_types: Mapping[str, NodeType], node: str) -> dict[str, NodeType]:
    """Return the node types to which a node belongs, by the name of the type."""
    return {name: node_type for name, node_type in node_types.items() if node_type.contains(node)}


def merged_values(types: Mapping[str, NodeType]) -> dict[tuple[str, str], tuple[str, Any]]:
    """Return the value of each configuration key that a node gets from its node types.

    The name of the node type is returned with each value. If several types set a key, the first type takes
    precedence.
    """
    merged: dict[tuple[str, str], tuple[str, Any]] = {}
    for name, node_type in types.items():
        for place, value in node_type.values.items():
            merged.setdefault(place, (name, value))
    return merged


def this_node() -> str:
    """Return the name of this node: $SLURMD_NODENAME if the variable is set, else the short host name.

    The agent uses the short host name until the first hook reports the node's name.
    """
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def _split(nodes: str) -> Iterator[str]:
    """Yield the parts of a node list. Commas outside of brackets separate the parts."""
    depth, part = 0, ""
    for character in nodes:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += character
    if nodes:
        yield part.strip()


def _has_ranges(part: str) -> bool:
    """Return whether the brackets in a part of a host list are valid.

    A bracket such as `[1-4,7]` must contain numbers and ascending ranges.
    """
    for inner in re.findall(r"\[([^\]]*)\]", part):
        matches = [_RANGE.fullmatch(one) for one in inner.split(",")]
        if not all(match and (match[2] is None or int(match[1]) <= int(match[2])) for match in matches):
            return False
    return True


def _matches(part: str, node: str) -> bool:
    """Return whether one element of a node list, such as `gpu[01-16]`, includes a node."""
    pieces = re.split(r"\[([^\]]*)\]", part)
    pattern = "".join(
        "([0-9]+)" if position % 2 else re.escape(piece) for position, piece in enumerate(pieces)
    )
    match = re.fullmatch(pattern, node)
    return match is not None and all(
        any(_is_within(number, one) for one in inner.split(","))
        for number, inner in zip(match.groups(), pieces[1::2], strict=True)
    )


def _is_within(number: str, bounds: str) -> bool:
    """Return whether the number in a node name is in a range such as `01-16`.

    If the first number of the range has leading zeros, all numbers of the range have the same number of
    digits.
    """
    match = _RANGE.fullmatch(bounds)
    if match is None:
        return False
    low, high = match[1], match[2] or match[1]
    is_padded = low.startswith("0") and len(low) > 1
    fits = len(number) == max(len(low), len(number.lstrip("0"))) if is_padded else number == str(int(number))
    return fits and int(low) <= int(number) <= int(high)
