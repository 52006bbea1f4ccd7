"""Text lines of `senergy top`, made from the agent's response to the message `status`.

All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slurm_energy.quantities import format_duration
from slurm_energy.reports.plots.text_plot import Glyphs, share_bar
from slurm_energy.reports.table import fit

_UNKNOWN, _HIDDEN = "unknown", "-"
_BAR = 30


def node_watts(status: Mapping[str, Any]) -> float | None:
    """Return the power of the node in the agent's `status` response, in watts; None if unknown."""
    return total(status.get("watts") or {})


def total(watts: Mapping[str, float | None]) -> float | None:
    """Return the power of a node in watts; None if unknown.

    The result is the reading of the node's meter, which covers all components. If the meter has no reading,
    the result is the sum of the components.

    Args:
        watts: power by component; None if unknown.
    """
    if not watts:
        return None
    if "node" in watts:
        return watts["node"]
    known_values = [value for value in watts.values() if value is not None]
    return math.fsum(known_values) if len(known_values) == len(watts) else None


def screen(status: Mapping[str, Any], clock: str, glyphs: Glyphs, full_bar_watts: float) -> list[str]:
    """Return the lines of the whole `senergy top` screen.

    Args:
        status: the agent's response to `status`.
        clock: time of day, as text.
        glyphs: characters for bars.
        full_bar_watts: power in watts that fills a bar.
    """
    window_s = status.get("watts_window_s")
    mean = f", mean of {window_s:.1f} s" if window_s else ""
    lines = [f"{status.get('node', '?')}  {_watts(node_watts(status)).strip()} W  {clock}{mean}", ""]
    for name, watts in (status.get("watts") or {}).items():
        share = None if watts is None or full_bar_watts <= 0 else watts / full_bar_watts
        lines.append(f"{name:<10} {_watts(watts)} W  {share_bar(share, _BAR, glyphs)}")
    if not status.get("watts"):
        lines.append("this node has no energy counter; senergy doctor shows the cause")
    elif all(watts is None for watts in status["watts"].values()):
        lines.append("no power yet: the first mean follows with the next refresh")
    return [*lines, "", *_jobs(status.get("jobs") or [])]


def _jobs(jobs: list[Mapping[str, Any]]) -> list[str]:
    if not jobs:
        return ["no job is running on this node"]
    watts_by_type = [_by_component_type(job.get("watts") or {}) for job in jobs]
    names = list(dict.fromkeys(name for watts in watts_by_type for name in watts))
    tuned = any(job.get("tuning") for job in jobs)
    head = f"{'JOB':>10} {'USER':<10} {'POLICY':<12} {'TIME':>10} {'WATTS':>8} {'JOULES':>11}"
    head += f" {'TUNING':<9}" if tuned else ""
    units = [f"{name.upper()}(W)" for name in names]
    lines = [head + "".join(f" {unit:>8}" for unit in units)]
    for job, job_watts in zip(jobs, watts_by_type, strict=True):
        watts, joules = job.get("watts") or {}, job.get("energy_joules") or {}
        user, policy = str(job.get("user") or _HIDDEN), str(job.get("policy", "?"))
        unknown = _UNKNOWN if "watts" in job else _HIDDEN
        row = f"{job.get('job_id', '?'):>10} {fit(user, 10, True)} {fit(policy, 12, True)}"
        row += f" {format_duration(job.get('elapsed_s')) or unknown:>10} {_watts(total(watts), unknown)}"
        row += f" {_watts(total(joules), unknown):>11}"
        row += f" {fit(str(job.get('tuning') or _HIDDEN), 9, True)}" if tuned else ""
        lines.append(row + "".join(f" {_watts(job_watts.get(name), unknown)}" for name in names))
    if any("watts" not in job for job in jobs):
        lines.append("only root and their owners see the power of other users' jobs")
    return lines


def _by_component_type(watts: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return watts by component type, so that the sum of all GPUs is one entry; None if unknown.

    A column for each of eight GPUs would not fit into a terminal.
    """
    values_by_type: dict[str, list[float | None]] = {}
    for name, value in watts.items():
        values_by_type.setdefault(name.partition("[")[0], []).append(value)
    return {
        component_type: None if any(value is None for value in values) else math.fsum(filter(None, values))
        for component_type, values in values_by_type.items()
    }


def _watts(value: float | None, unknown: str = _UNKNOWN) -> str:
    return f"{unknown if value is None else format(value, '.1f'):>8}"
