"""The name that somebody most likely meant. The same rules are in spank/flags.c and senergy_submit.lua."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 32


def nearest_name(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name with the fewest edits, whatever the case; None if more than a third would change.

    Args:
        wanted: what was written; only its first 32 bytes count.
        names: what is allowed, in lower case; of equals the first is returned.
    """
    folded = wanted.encode("utf-8", "surrogateescape")[:_LONGEST].lower()  # ASCII letters alone
    nearest, best = None, len(folded) + _LONGEST
    for name in names:
        longer = max(len(folded), len(name))
        edits = _distance(folded, name.encode())
        if edits < best and edits <= (1 if longer < 6 else longer // 3):
            nearest, best = name, edits
    return nearest


def _distance(wanted: bytes, name: bytes) -> int:
    """Count insertions, deletions, replacements and swaps of neighbours; a beginning counts as one edit."""
    before: list[int] = []
    above = list(range(len(wanted) + 1))
    for j, theirs in enumerate(name, 1):
        row = [j]
        for i, ours in enumerate(wanted, 1):
            edits = min(row[i - 1] + 1, above[i] + 1, above[i - 1] + (ours != theirs))
            if i > 1 and j > 1 and ours == name[j - 2] and wanted[i - 2] == theirs:
                edits = min(edits, before[i - 2] + 1)
            row.append(edits)
        before, above = above, row
    if len(wanted) >= 2 and name.startswith(wanted):
        return min(above[-1], 1)
    return above[-1]
