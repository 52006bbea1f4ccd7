"""Claims of a benchmark: construction, output and exit status.

A claim is a measured ratio with a target, and states whether the target is reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Claim = dict[str, Any]


def claim(name: str, ratio: float, target: str, holds: bool) -> Claim:
    """Return a claim: the result of a benchmark compared with its target.

    The caller may add further values to the claim.
    """
    return {"claim": name, "ratio": round(ratio, 3), "target": target, "holds": holds}


def at_most(name: str, ratio: float, most: float) -> Claim:
    """Return a claim: a measured ratio, its target, and whether the ratio is at most the target.

    Args:
        name: name of the claim.
        ratio: measured ratio.
        most: target.
    """
    return claim(name, ratio, f"<={most:g}", ratio <= most)


def at_least(name: str, ratio: float, least: float) -> Claim:
    """Return a benchmark result (claim) with the target that `ratio` is at least `least`.

    The claim states whether the target is reached.
    """
    return claim(name, ratio, f">={least:g}", ratio >= least)


def publish(claims: Iterable[Claim], path: str | None) -> int:
    """Print each claim (result with a target) of a benchmark as soon as it is available.

    Return the exit status: 1 if a claim fails, else 0. If `path` is given, write all claims to this file as
    JSON.
    """
    result = []
    for entry in claims:
        holds = "yes" if entry["holds"] else "no"
        print(
            f"CLAIM {entry['claim']} ratio={entry['ratio']} target={entry['target']} holds={holds}",
            flush=True,
        )
        result.append(entry)
    if path:
        Path(path).write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(entry["holds"] for entry in result) else 1
