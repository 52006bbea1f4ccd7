"""Slurm host lists (`n[01-04,7],login`) and the per-node counts that go with them (`64(x2),32`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_SPAN = re.compile(r"([0-9]+)-([0-9]+)")
_MOST_NODES = 1_000_000


def position(node: str, hostlist: str) -> int | None:
    """Return the place of a node in a host list, counted from 0; None if it is not in it.

    Raises:
        UsageError: not a host list.
    """
    if not _NAME.fullmatch(node):  # it would be read as a host list of its own
        return None
    _check_spans(hostlist)
    offset = 0
    for group in _groups(hostlist):
        try:
            nodes = NodeSet(group, resolver=RESOLVER_NOGROUP)
            if node in nodes:
                place = next((i for i, name in enumerate(nodes) if name == node), None)
                return None if place is None else offset + place
            offset += len(nodes)
        except NodeSetException as error:
            raise UsageError(f"host list '{shown(hostlist)}'", shown(str(error), 100)) from None
    return None


def count_at(counts: str, index: int) -> int | None:
    """Return the count of the index-th node from a list such as `64(x2),32`; None if there is none.

    Raises:
        UsageError: not such a list.
    """
    offset = 0
    for part in counts.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"count per node '{shown(counts)}'", "not of the form 64(x2),32")
        offset += int(match[2] or 1)
        if index < offset:
            return int(match[1])
    return None


def uniform(counts: str) -> bool:
    """Return whether a list of counts has one group only, such as `64(x2)`."""
    return _COUNT.fullmatch(counts.strip()) is not None


def _check_spans(hostlist: str) -> None:
    if any(
        len(span[2]) > 9 or int(span[2]) - int(span[1]) > _MOST_NODES for span in _SPAN.finditer(hostlist)
    ):
        raise UsageError(f"host list '{shown(hostlist)}'", f"more than {_MOST_NODES} nodes")


def _groups(hostlist: str) -> Iterator[str]:
    """Split at commas outside brackets; the order of the list is that of Slurm's counts."""
    depth, start = 0, 0
    for end, letter in enumerate(hostlist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield hostlist[start:end]
            start = end + 1
    yield hostlist[start:]


def folded(names: Iterable[str]) -> str:
    """Write node names as one host list, `n[1-4],login`; names that are none are left out."""
    nodes = NodeSet.fromlist((name for name in names if _NAME.fullmatch(name)), resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)  # one bracket a name, which every release reads
    return str(nodes)


def expanded(hostlist: str) -> tuple[str, ...]:
    """Return the names in a host list.

    Raises:
        UsageError: not a host list, or an absurdly long one.
    """
    _check_spans(hostlist)
    try:
        return tuple(NodeSet(hostlist, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise UsageError(f"host list '{shown(hostlist)}'", shown(str(error), 100)) from None
