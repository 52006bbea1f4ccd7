"""Lines about power saving on the page of `senergy status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_energy.quantities import format_duration


def power_saving_lines(state: Mapping[str, Any], now: float) -> list[str]:
    """Return lines about power saving: state of the nodes, reasons for inaction, recent changes.

    Args:
        state: entries about power saving in the response to `GET /v1/status`.
        now: Unix seconds.
    """
    decided = state.get("decided")
    ago = f"decided {format_duration(max(0.0, now - decided))} ago" if decided else "no decision yet"
    lines = [f"{state.get('mode')}, {ago}"]
    nodes = state.get("nodes") or {}
    counts = [f"{count} {name}" for name, count in nodes.items() if count]
    if counts:
        lines.append(f"nodes: {', '.join(counts)}")
    if state.get("error"):
        lines.append(f"NOTHING IS DONE: {state['error']}")
    lines += [f"NOTHING IS DONE: {problem}" for problem in state.get("problems") or ()]
    lines += [f"note: {warning}" for warning in state.get("warnings") or ()]
    kept = state.get("kept") or {}
    lines += [f"idle nodes that stay on: {count}: {reason}" for reason, count in kept.items()]
    if state.get("deferred_boots"):
        lines.append(f"{state['deferred_boots']} boots wait for room in the power budgets")
    for change in (state.get("recent") or [])[-3:]:
        verb = "powered down" if change["change"] == "down" else "powered up"
        what = verb if state.get("mode") == "on" else f"would be {verb}"
        lines.append(f"{change['node']} {what} {format_duration(max(0.0, now - change['time']))} ago")
    return lines
