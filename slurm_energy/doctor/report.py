"""Output of the results of `senergy doctor`.

The formats are text for a terminal, JSON, and single lines for monitoring.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from slurm_energy.doctor.diagnosis import NOT_HERE, is_healthy
from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState


def document(findings: HostFindings, checks: Iterable[CheckResult]) -> dict[str, Any]:
    """Return the report as a dict for JSON."""
    listed = list(checks)
    return {
        "node": findings.node,
        "version": findings.version,
        "time": findings.time,
        "root": findings.root,
        "healthy": is_healthy(listed),
        "checks": [dataclasses.asdict(check) for check in listed],
        "hardware": dataclasses.asdict(findings.hardware),
        "counters": [dataclasses.asdict(counter) for counter in findings.counters],
        "knobs": [dataclasses.asdict(knob) for knob in findings.knobs],
        "interfaces": [
            {"name": i.name, "present": i.present, "in_use": i.in_use} for i in findings.interfaces
        ],
        "throttle_sensors": list(findings.throttles),
        "notes": list(findings.notes),
    }


def lines(findings: HostFindings, checks: Iterable[CheckResult]) -> list[str]:
    """Return the lines of the report for a terminal."""
    listed = list(checks)
    hardware = findings.hardware
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    parts = [hardware.cpu_model or "unknown processor", f"{hardware.cpu_count} CPUs"]
    parts += [f"{count} x {name}" for name, count in gpus.items()]
    text = [f"{findings.node}: {', '.join(parts)}"]
    profiles = {gpu.name: gpu.power_profiles for gpu in hardware.gpus if gpu.power_profiles}
    text += [f"power profiles of {name}: {', '.join(offered)}" for name, offered in profiles.items()]
    text.append("")
    shown = [check for check in listed if not _is_silent(check)]
    width = max(len(check.name) for check in shown)
    for check in shown:
        text.append(f"{check.state:<9} {check.name:<{width}}  {check.finding}")
        indent = " " * (12 + width)
        text += [f"{indent}{label} {value}" for label, value in _advice(check)]
    if names := [check.name.removeprefix("interface ") for check in listed if _is_silent(check)]:
        text.append(f"{CheckState.ABSENT:<9} {'interfaces':<{width}}  {', '.join(names)}")
    text += [f"note      {note}" for note in findings.notes]
    faulty = (check for check in listed if check.state in (CheckState.DEGRADED, CheckState.FAILED))
    faults = dict.fromkeys(check.name for check in faulty)
    verdict = f"degraded: {', '.join(faults)}" if faults else "healthy"
    return [*text, "", f"{findings.node} is {verdict}"]


def faults(checks: Iterable[CheckResult]) -> list[str]:
    """Return one line per check that is degraded or failed."""
    bad = [check for check in checks if check.state in (CheckState.DEGRADED, CheckState.FAILED)]
    return [": ".join(filter(None, (check.state, check.name, check.finding, check.fix))) for check in bad]


def _is_silent(check: CheckResult) -> bool:
    """Return whether the report leaves out a check of a hardware interface.

    A check is left out if the node does not have the interface.
    """
    absent = check.state is CheckState.ABSENT and check.name.startswith("interface ")
    return absent and check.finding == NOT_HERE


def _advice(check: CheckResult) -> list[tuple[str, str]]:
    return [(label, value) for label, value in (("costs:", check.cost), ("fix:  ", check.fix)) if value]
