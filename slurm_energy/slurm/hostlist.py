"""Slurm host lists (`n[01-04,7],login`) and the lists of counts that belong to them (`64(x2),32`).

ClusterShell parses and folds the lists. It is imported by the first call that needs it: most jobs run on one
node, and the import takes as long as the rest of a short command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from ClusterShell.NodeSet import NodeSet

_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_OPERATORS = "@*!&^"
"""ClusterShell's set operators, wildcards and node groups; Slurm has none of them."""
_MAX_NODES = 1_000_000


def fold_hostlist(names: Iterable[str]) -> str:
    """Return node names as one sorted host list, `login,n[1-4]`.

    Text that is no node name is appended as it is, so that no node disappears from a report. Each name has
    one bracket at most, which every Slurm release reads.
    """
    distinct = sorted(set(names))
    if len(distinct) < 2:
        return "".join(distinct)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    nodes = NodeSet.fromlist([name for name in distinct if _NAME.fullmatch(name)], resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)
    return ",".join([str(nodes)] * bool(nodes) + [name for name in distinct if not _NAME.fullmatch(name)])


def expand_hostlist(hostlist: str, name: str = "host list") -> list[str]:
    """Return the node names in a host list.

    Args:
        hostlist: such as `n[1-4],login`.
        name: the flag or value to name in the error.

    Raises:
        UsageError: not a host list, one without a node, or one of more than a million nodes.
    """
    if not any(character in hostlist for character in "[]" + _OPERATORS):
        names = [part.strip() for part in hostlist.split(",") if part.strip()]
        if names:
            return names
        raise UsageError(f"{name}: '{shown(hostlist)}' names no node")
    if any(character in hostlist for character in _OPERATORS):
        raise UsageError(f"{name}: '{shown(hostlist)}' is not a node list", todo="write it as n[1-4,7],login")
    _check_ranges(hostlist, name)
    return list(_parse(hostlist, name))


def node_position(node: str, hostlist: str) -> int | None:
    """Return the position of a node in a host list, counted from 0; None if the list does not contain it.

    Raises:
        UsageError: not a host list, or one of more than a million nodes.
    """
    if not _NAME.fullmatch(node):  # it would be parsed as a host list of its own
        return None
    _check_ranges(hostlist, "host list")
    offset = 0
    for group in _split_groups(hostlist):
        nodes = _parse(group, "host list")
        if node in nodes:
            position = next((i for i, name in enumerate(nodes) if name == node), None)
            return None if position is None else offset + position
        offset += len(nodes)
    return None


def count_at(counts: str, position: int) -> int | None:
    """Return the count of the node at a position from a list such as `64(x2),32`; None beyond its end.

    Raises:
        UsageError: not such a list.
    """
    offset = 0
    for part in counts.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"count per node '{shown(counts)}'", "not of the form 64(x2),32")
        offset += int(match[2] or 1)
        if position < offset:
            return int(match[1])
    return None


def is_uniform(counts: str) -> bool:
    """Return whether a list of counts has a single group, such as `64(x2)`."""
    return _COUNT.fullmatch(counts.strip()) is not None


def _parse(hostlist: str, name: str) -> NodeSet:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return NodeSet(hostlist, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise UsageError(f"{name}: '{shown(hostlist)}' is not a node list", shown(str(error), 100)) from None


def _check_ranges(hostlist: str, name: str) -> None:
    if any(
        len(match[2]) > 9 or int(match[2]) - int(match[1]) > _MAX_NODES for match in _RANGE.finditer(hostlist)
    ):
        raise UsageError(f"{name}: '{shown(hostlist)}'", f"more than {_MAX_NODES} nodes")


def _split_groups(hostlist: str) -> Iterator[str]:
    """Split a host list at commas outside brackets; lists of counts have the order of these groups."""
    depth, start = 0, 0
    for end, letter in enumerate(hostlist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield hostlist[start:end]
            start = end + 1
    yield hostlist[start:]
