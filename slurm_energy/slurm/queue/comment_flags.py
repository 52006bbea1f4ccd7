"""Parser of the energy flags in a job's AdminComment.

The job_submit module copies the flags to AdminComment, so that squeue shows the flags. Users cannot write
AdminComment, but the values are those of users and are unchecked.
"""

from __future__ import annotations

import re
from typing import Final

MARK: Final = "energy-flags:"
_ITEM = re.compile(r"(ENERGY_[A-Z_]{1,32})=([A-Za-z0-9_.:,/+%-]{1,512})", re.ASCII)


def is_only_flags(text: str) -> bool:
    """Return whether an AdminComment contains no text except the mark `energy-flags:` and energy flags."""
    _, mark, after = text.partition(MARK)
    return text.startswith(MARK) and bool(mark) and all(map(_ITEM.fullmatch, after.split()))


def parse_comment_flags(text: str) -> dict[str, str]:
    """Return the energy flags in an AdminComment, values by flag name.

    An example is `... energy-flags: ENERGY_POLICY=edp ENERGY_CAP=200; ...`. Text without the mark
    `energy-flags:` has no flags.
    """
    _, mark, after = text.rpartition(MARK)
    if not mark:
        return {}
    flags: dict[str, str] = {}
    for word in after.partition(";")[0].split():
        if match := _ITEM.fullmatch(word):
            flags.setdefault(match[1], match[2])
    return flags
