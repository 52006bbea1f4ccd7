"""Parsers and writers of Slurm host lists such as `n[01-04,7],login`.

The module also parses lists with one count per node of a host list, such as `64(x2),32`. ClusterShell
parses and folds host lists. It is imported by the first call that needs it, because the import takes
as long as the rest of a short command. Most jobs run on one node and need no import.
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
_LONG_NUMBER = re.compile(r"[0-9]{16}")
"""A number that is too long for ClusterShell to fold ranges."""
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_OPERATORS = "@*!&^"
"""Characters that ClusterShell reads as set operators, wildcards or node groups. Slurm has none of these."""
_MAX_NODES = 1_000_000


def fold_hostlist(names: Iterable[str]) -> str:
    """Return node names as one sorted host list, for example `login,n[1-4]`.

    Text that is not a node name is appended unchanged, so that no node disappears from a report. Each name in
    the result has at most one bracket, which every Slurm release can parse.
    """
    distinct = sorted(set(names))
    if len(distinct) < 2:
        return "".join(distinct)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    foldable = [name for name in distinct if _NAME.fullmatch(name) and not _LONG_NUMBER.search(name)]
    nodes = NodeSet.fromlist(foldable, resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)
    return ",".join([str(nodes)] * bool(nodes) + sorted(set(distinct).difference(foldable)))


def expand_hostlist(hostlist: str, name: str = "host list") -> list[str]:
    """Return the node names in a host list.

    Args:
        hostlist: such as `n[1-4],login`.
        name: the flag or value to name in the error.

    Raises:
        UsageError: the text is not a host list, is empty, or names more than a million nodes.
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
    """Return the position of a node in a host list, counted from 0; None if the node is not in the list.

    Raises:
        UsageError: the text is not a host list, or names more than a million nodes.
    """
    if not _NAME.fullmatch(node):  # such a name would be parsed as a host list
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


def contains_node(node: str, hostlist: str) -> bool:
    """Return whether a node is in a host list.

    Only the parts of the list that begin like the name of the node are parsed, because configuration files
    may have thousands of lists.

    Raises:
        UsageError: such a part is not a host list, or names more than a million nodes.
    """
    for group in _split_groups(hostlist):
        start, bracket, _ = group.strip().partition("[")
        if start == node and not bracket:
            return True
        if bracket and node.startswith(start) and node_position(node, group) is not None:
            return True
    return False


def count_at(counts: str, position: int) -> int | None:
    """Return one count from a list of counts such as `64(x2),32`: the count at the given position.

    Args:
        counts: list with one count per node of a host list.
        position: position of the node in the host list, from 0.

    Returns:
        The count; None means that the list has no count for this position.

    Raises:
        UsageError: `counts` is not a list of counts.
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


def sum_repeats(counts: str) -> int:
    """Return the number of nodes in a list of counts per node such as `64(x2),32`.

    The example describes three nodes: two with the count 64 and one with 32.

    Raises:
        UsageError: `counts` is not a list of counts.
    """
    total = 0
    for part in counts.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"count per node '{shown(counts)}'", "not of the form 64(x2),32")
        total += int(match[2] or 1)
    return total


def is_uniform(counts: str) -> bool:
    """Return whether a list of counts per node contains a single count that applies to all nodes.

    Example: `64(x2)` means 64 on each of 2 nodes.
    """
    return _COUNT.fullmatch(counts.strip()) is not None


def _parse(hostlist: str, name: str) -> NodeSet:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return NodeSet(hostlist, resolver=RESOLVER_NOGROUP)
    except (NodeSetException, ValueError) as error:  # ClusterShell's ValueError: ranges such as [----]
        raise UsageError(f"{name}: '{shown(hostlist)}' is not a node list", shown(str(error), 100)) from None


def _check_ranges(hostlist: str, name: str) -> None:
    if any(
        len(match[2]) > 9 or int(match[2]) - int(match[1]) > _MAX_NODES for match in _RANGE.finditer(hostlist)
    ):
        raise UsageError(f"{name}: '{shown(hostlist)}'", f"more than {_MAX_NODES} nodes")


def _split_groups(hostlist: str) -> Iterator[str]:
    """Yield the parts of a host list, split at the commas outside brackets.

    In Slurm's output, a list of counts may accompany the host list: its n-th count belongs to the n-th part.
    """
    depth, start = 0, 0
    for end, letter in enumerate(hostlist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield hostlist[start:end]
            start = end + 1
    yield hostlist[start:]
