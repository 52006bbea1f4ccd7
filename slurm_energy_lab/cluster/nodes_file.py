"""Reader of a nodes file: a TOML file whose `[[node]]` tables describe the nodes of a lab.

A lab is a cluster of emulated nodes. Without a nodes file, a lab has four default nodes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError, UsageError

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,14}[a-z0-9])?")
_KEYS = {"name", "profile", "overrides", "speed"}
_SPEED_LIMIT = 100.0
DEFAULT_PROFILES = ("xeon-8358", "epyc-7513-a100", "xeon-4210-rtx6000", "xeon-h100")
NODES_LIMIT = 64


@dataclass(frozen=True)
class NodeSpec:
    """Specification of one node to emulate.

    Attributes:
        name: host name and Slurm's node name.
        profile: name or path of the hardware profile.
        overrides: values by dotted key that replace values of the profile.
        speed: relative speed of the node. The share of real CPU time that its programs get is multiplied
            by this factor.
    """

    name: str
    profile: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    speed: float = 1.0


def from_profiles(profiles: Iterable[str]) -> tuple[NodeSpec, ...]:
    """Return one lab node for each hardware profile. The names of the nodes are n1, n2 and so on."""
    return tuple(NodeSpec(f"n{number}", profile) for number, profile in enumerate(profiles, 1))


def read(path: Path) -> tuple[NodeSpec, ...]:
    """Read a nodes file.

    Raises:
        ConfigError: the file is unreadable or not TOML, or a node has no usable name or profile.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason) from None


def parse(text: str, name: str = "nodes file") -> tuple[NodeSpec, ...]:
    """Parse the text of a nodes file.

    `name`, the name of the file, appears in error messages.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(name, str(error)) from None
    tables = data.get("node")
    if set(data) != {"node"} or not isinstance(tables, list) or not tables:
        raise ConfigError(name, "must have [[node]] tables and nothing else")
    if len(tables) > NODES_LIMIT:
        raise ConfigError(name, f"{len(tables)} nodes are too many for one machine", f"at most {NODES_LIMIT}")
    nodes = tuple(_node(table, f"{name}: node {number}") for number, table in enumerate(tables, 1))
    names = [node.name for node in nodes]
    for double in {node for node in names if names.count(node) > 1}:
        raise ConfigError(name, f"two nodes are named '{double}'")
    return nodes


def _node(table: Any, location: str) -> NodeSpec:
    if not isinstance(table, dict) or not _KEYS >= set(table) >= {"name", "profile"}:
        raise ConfigError(location, "has the keys name, profile and optionally overrides, speed")
    name, profile, overrides = table["name"], table["profile"], table.get("overrides", {})
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in ("localhost", "controller"):
        raise ConfigError(f"{location}: name", "must be a host name of at most 16 of a-z, 0-9 and -")
    if not isinstance(profile, str) or not isinstance(overrides, dict):
        raise ConfigError(location, "profile must be a string and overrides a table")
    speed = table.get("speed", 1.0)
    if type(speed) not in (int, float) or not 0 < speed <= _SPEED_LIMIT:
        raise ConfigError(f"{location}: speed", f"must be a number above 0, at most {_SPEED_LIMIT:g}")
    return NodeSpec(name, profile, _dotted(overrides), float(speed))


def with_speeds(nodes: Sequence[NodeSpec] | None, speeds: Sequence[float]) -> tuple[NodeSpec, ...]:
    """Return the nodes with the given speeds.

    Args:
        nodes: the nodes. If None, there is one node per speed, with the first default profile.
        speeds: speed of each node.

    Raises:
        UsageError: the numbers of nodes and speeds differ, or a speed is not valid.
    """
    text = ",".join(f"{speed:g}" for speed in speeds)
    if not all(0 < speed <= _SPEED_LIMIT for speed in speeds):
        raise UsageError(f"--speeds {text}", "is invalid", f"numbers above 0, at most {_SPEED_LIMIT:g}")
    nodes = from_profiles(DEFAULT_PROFILES[:1] * len(speeds)) if nodes is None else nodes
    if len(nodes) != len(speeds):
        raise UsageError(f"--speeds {text}", f"names {len(speeds)} speeds for {len(nodes)} nodes")
    return tuple(replace(node, speed=speed) for node, speed in zip(nodes, speeds, strict=True))


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_dotted(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
