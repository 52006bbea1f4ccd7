"""Claims of a benchmark (ratio, target, and whether it holds): construction, output and exit status."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Claim = dict[str, Any]


def claim(name: str, ratio: float, target: str, holds: bool) -> Claim:
    """Return a claim; further values may be added to it."""
    return {"claim": name, "ratio": round(ratio, 3), "target": target, "holds": holds}


def at_most(name: str, ratio: float, most: float) -> Claim:
    """Return the claim that a ratio does not exceed its target."""
    return claim(name, ratio, f"<={most:g}", ratio <= most)


def at_least(name: str, ratio: float, least: float) -> Claim:
    """Return the claim that a ratio reaches its target."""
    return claim(name, ratio, f">={least:g}", ratio >= least)


def publish(claims: Iterable[Claim], path: str | None) -> int:
    """Print each claim as soon as it is available, and return the exit status: 1 if a claim fails.

    If `path` is given, write all claims to this file as JSON.
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
