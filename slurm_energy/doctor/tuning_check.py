"""Check by `senergy doctor` whether this host can tune jobs.

Tuning searches the hardware settings that are best for an objective, such as low energy.
"""

from __future__ import annotations

import importlib.util

from slurm_energy.config import TuningConfig
from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState


def has_numpy() -> bool:
    """Return whether numpy is installed. The search for operating points needs numpy."""
    return importlib.util.find_spec("numpy") is not None


def tuning_check(findings: HostFindings) -> CheckResult:
    """Return the result of the check of tuning on this node.

    The result states the tuning modes. If numpy is missing although a mode needs it, the result also states
    that the agent cannot search for operating points.
    """
    modes = _modes(findings.tuning)
    tuned = {findings.tuning.mode, *findings.tuning.partition.values()} - {"off"}
    if tuned and not findings.has_numpy:
        return CheckResult(
            "tuning",
            CheckState.ABSENT,
            f"{modes}; numpy is not installed: no search",
            "jobs with an objective run at a setting that is chosen without measurements of the job",
            "pip install 'slurm-energy[tuning]'",
        )
    return CheckResult("tuning", CheckState.OK, modes)


def _modes(tuning: TuningConfig) -> str:
    partitions = [f"{mode} in {name}" for name, mode in tuning.partition.items() if mode != tuning.mode]
    return ", ".join([f"mode {tuning.mode}", *partitions])
