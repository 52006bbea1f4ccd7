"""The doctor's report on a terminal, as JSON and as single lines for monitoring."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from slurm_energy.reports.findings import Findings
from slurm_energy.reports.health import Check, State, healthy


def document(found: Findings, checks: Iterable[Check]) -> dict[str, Any]:
    """Return the report as JSON-ready data."""
    listed = list(checks)
    return {
        "node": found.node,
        "version": found.version,
        "time": found.time,
        "root": found.root,
        "healthy": healthy(listed),
        "checks": [dataclasses.asdict(check) for check in listed],
        "hardware": dataclasses.asdict(found.hardware),
        "counters": [dataclasses.asdict(counter) for counter in found.counters],
        "knobs": [dataclasses.asdict(knob) for knob in found.knobs],
        "interfaces": [{"name": i.name, "present": i.present} for i in found.interfaces],
        "throttle_sensors": list(found.throttles),
        "notes": list(found.notes),
    }


def lines(found: Findings, checks: Iterable[Check]) -> list[str]:
    """Return the report for people."""
    listed = list(checks)
    hardware = found.hardware
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    parts = [hardware.cpu_model or "unknown processor", f"{hardware.cpu_count} CPUs"]
    parts += [f"{count} x {name}" for name, count in gpus.items()]
    text = [f"{found.node}: {', '.join(parts)}", ""]
    width = max(len(check.name) for check in listed)
    for check in listed:
        text.append(f"{check.state:<9} {check.name:<{width}}  {check.found}")
        indent = " " * (12 + width)
        text += [f"{indent}{label} {value}" for label, value in _advice(check)]
    text += [f"note      {note}" for note in found.notes]
    faults = [check.name for check in listed if check.state in (State.DEGRADED, State.FAILED)]
    verdict = f"degraded: {', '.join(faults)}" if faults else "healthy"
    return [*text, "", f"{found.node} is {verdict}"]


def faults(checks: Iterable[Check]) -> list[str]:
    """Return a line for each check that needs somebody."""
    bad = [check for check in checks if check.state in (State.DEGRADED, State.FAILED)]
    return [": ".join(filter(None, (check.state, check.name, check.found, check.fix))) for check in bad]


def _advice(check: Check) -> list[tuple[str, str]]:
    return [(label, value) for label, value in (("costs:", check.cost), ("fix:  ", check.fix)) if value]
