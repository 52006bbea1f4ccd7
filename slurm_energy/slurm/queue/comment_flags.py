"""Energy flags in a job's AdminComment: where the job_submit module leaves a copy that squeue can show.

Users can write into no job's AdminComment; the values in it are theirs all the same, and unchecked.
"""

from __future__ import annotations

import re
from typing import Final

MARK: Final = "energy-flags:"
_ITEM = re.compile(r"(ENERGY_[A-Z_]{1,32})=([A-Za-z0-9_.:,/+%-]{1,512})", re.ASCII)


def parse_comment_flags(text: str) -> dict[str, str]:
    """Return the flags of `... energy-flags: ENERGY_POLICY=edp ENERGY_CAP=200; ...`; no mark, no flags."""
    _, mark, after = text.rpartition(MARK)
    if not mark:
        return {}
    found: dict[str, str] = {}
    for word in after.partition(";")[0].split():
        if match := _ITEM.fullmatch(word):
            found.setdefault(match[1], match[2])
    return found
