"""Text output of `senergy tune`: programs with their response curves and pinned operating points."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.quantities import format_duration, shown

_HEADER = f"  {'TIME':>8}  {'+-':>5}  {'POWER':>8}  {'ENERGY':>8}  {'COUNT':>5}  {'AGE':>11}  SETTINGS"


def program_lines(answer: Mapping[str, Any], now_unix_s: float | None = None) -> Iterator[str]:
    """Yield the lines of `senergy tune show`.

    Args:
        answer: the response to `GET /v1/tuning`.
        now_unix_s: current time; None means the time of the system clock.
    """
    now_unix_s = time.time() if now_unix_s is None else now_unix_s
    for number, program in enumerate(answer.get("programs") or ()):
        if number:
            yield ""
        yield from _program_lines(program, now_unix_s)


def _program_lines(program: Mapping[str, Any], now_unix_s: float) -> Iterator[str]:
    owner = program.get("user") or "(site)"
    model = program.get("model")
    also = f" (--energy-model={model})" if model and model != program.get("workload") else ""
    yield f"{program.get('workload')}{also}  {owner}  {program.get('hardware')}"
    last = program.get("last_run_unix_s")
    job = f", job {program['last_job']}" if program.get("last_job") else ""
    age = f"; the last ended {format_duration(now_unix_s - last)} ago{job}" if last else ""
    explorations = program.get("explorations", 0)
    yield f"  {program.get('runs', 0)} runs learned, {explorations} of them explorations{age}"
    pin = program.get("pin")
    if pin:
        yield f"  pinned by {pin.get('pinned_by')}: {point_text(pin.get('point'))}"
    curve = program.get("curve")
    if curve and curve.get("points"):
        yield "  relative to the untuned program:"
        yield _HEADER
        for point in sorted(curve["points"], key=lambda point: float(point.get("time_ratio", 1.0))):
            yield _point_line(point, now_unix_s)
    elif program.get("runs"):
        yield "  no run at another setting can be compared with an untuned one yet"


def _point_line(point: Mapping[str, Any], now_unix_s: float) -> str:
    time_ratio, power_ratio = point.get("time_ratio", 1.0), point.get("power_ratio", 1.0)
    error, measured = point.get("time_error"), point.get("measured_unix_s")
    error_text = "" if error is None else f"{100 * error:.1f} %"
    age = "" if measured is None else format_duration(now_unix_s - measured)
    energy_ratio = time_ratio * power_ratio
    return (
        f"  {_change(time_ratio)}  {error_text:>5}  {_change(power_ratio)}  {_change(energy_ratio)}"
        f"  {point.get('count', 0):>5}  {age:>11}  {point_text(point.get('point'))}"
    )


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+7.1f}%"


def point_text(data: Any) -> str:
    """Return an operating point from JSON as text. A point with unknown keys is shown as JSON."""
    try:
        return str(OperatingPoint.from_json(data))
    except UsageError:
        return shown(str(data), 80)


def change_lines(action: str, answer: Mapping[str, Any]) -> list[str]:
    """Return the lines that confirm `senergy tune forget`, `pin` or `unpin`.

    Args:
        action: name of the action.
        answer: the response of the controller.
    """
    if action == "forget":
        return [f"{answer.get('forgotten_runs', 0)} runs forgotten"]
    if action == "unpin":
        return [f"{answer.get('unpinned', 0)} pins removed: further runs are tuned"]
    pin = answer.get("pinned") or {}
    place = f"{pin.get('workload')} of {pin.get('user')} on {pin.get('hardware')}"
    return [f"{place}: pinned to {point_text(pin.get('point'))}"]
