"""Lists of node names in Slurm's folded form, `n[1-4,7]`.

ClusterShell does the work. It is imported on the first list that needs it, because most jobs have one
node and its import costs as much as the rest of a short command.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown


def fold(names: Iterable[str]) -> str:
    """Return node names as one folded list, ordered."""
    distinct = sorted(set(names))
    if len(distinct) < 2:
        return "".join(distinct)
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(distinct))


def expand(text: str, name: str = "nodelist") -> list[str]:
    """Return the node names of a folded list such as `n[1-4],login`, in the list's own order.

    Raises:
        UsageError: the list cannot be read or names nobody.
    """
    if not any(character in text for character in "[]@*!&^"):
        names = [part.strip() for part in text.split(",") if part.strip()]
        if names:
            return names
        raise UsageError(f"{name}: '{shown(text)}' names no node")
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    if any(character in text for character in "@*!&^"):
        raise UsageError(f"{name}: '{shown(text)}' is not a node list", todo="write it as n[1-4,7],login")
    try:
        return list(NodeSet(text))
    except NodeSetException as error:
        raise UsageError(f"{name}: '{shown(text)}' is not a node list", str(error)) from None
