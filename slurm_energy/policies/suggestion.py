"""Suggestion of a permitted name for a misspelt one.

The rules are those of spank/flags.c and senergy_submit.lua.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_energy.spelling import edit_distance

_MAX_BYTES = 32


def nearest_name(misspelt: str, names: Iterable[str]) -> str | None:
    """Return the allowed name with the fewest edits, ignoring case; None if no name is near enough.

    A name is near enough if at most a third of its letters are edited. In a name of fewer than six letters,
    one letter may be edited.

    Args:
        misspelt: the misspelt name; only its first 32 bytes count.
        names: allowed names in lower case; among equally near names the first is returned.
    """
    folded = _bytes(misspelt)[:_MAX_BYTES].lower()  # lowers ASCII letters only
    nearest, best = None, len(folded) + _MAX_BYTES
    for name in names:
        longer = max(len(folded), len(name))
        count = _distance(folded, name.encode())
        if count < best and count <= (1 if longer < 6 else longer // 3):
            nearest, best = name, count
    return nearest


def _bytes(text: str) -> bytes:
    """Encode a name in UTF-8.

    Lone surrogates, which JSON can carry but UTF-8 cannot encode, become question marks.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _distance(misspelt: bytes, name: bytes) -> int:
    """Return the number of edits between two names. An abbreviation of `name` counts as at most one edit.

    An abbreviation consists of at least two first letters of the name.
    """
    count = edit_distance(misspelt, name)
    return min(count, 1) if len(misspelt) >= 2 and name.startswith(misspelt) else count
