"""The name that somebody most likely meant. The same rules are in spank/flags.c and senergy_submit.lua."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_energy.spelling import edits

_LONGEST = 32


def nearest_name(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name with the fewest edits, whatever the case; None if more than a third would change.

    Args:
        wanted: what was written; only its first 32 bytes count.
        names: what is allowed, in lower case; of equals the first is returned.
    """
    folded = _bytes(wanted)[:_LONGEST].lower()  # ASCII letters alone
    nearest, best = None, len(folded) + _LONGEST
    for name in names:
        longer = max(len(folded), len(name))
        count = _distance(folded, name.encode())
        if count < best and count <= (1 if longer < 6 else longer // 3):
            nearest, best = name, count
    return nearest


def _bytes(text: str) -> bytes:
    """Return the bytes that a name stands for; text that came from no bytes (JSON) as far as it has any."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _distance(wanted: bytes, name: bytes) -> int:
    """Count the edits; a beginning counts as one."""
    counted = edits(wanted, name)
    return min(counted, 1) if len(wanted) >= 2 and name.startswith(wanted) else counted
