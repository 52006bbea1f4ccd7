"""Determination of the command with which the user continues a study."""

from __future__ import annotations

import shlex
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.manifest import StepState
from slurm_energy.study.rollout.stages import DeploymentStage
from slurm_energy.study.steps import STEPS

_FOLLOWING: Final = {"shadow": "advise", "advise": "partition --design partition"}
"""Next stage after each stage that has no effect on jobs."""


def next_command(study: StudyDirectory) -> str:
    """Return the command line that continues a study.

    The command runs the first step that is missing or stale (out of date). If every step is current, the
    command writes the report.

    There is an exception while the site applies an alternative of the study (deployment). The command then
    never repeats an earlier step. After a repeated step, the step `validate` would refuse the study and
    would no longer guard its limits.
    """
    prefix, name = "senergy study", shlex.quote(str(study.path))
    stage, is_active = _deployment(study)
    if is_active and stage.applies and study.staleness("deploy"):
        return f"{prefix} deploy {name} --undo"
    for step in STEPS:
        is_current = study.manifest.steps[step].state is StepState.DONE and not study.staleness(step)
        if step == "deploy" and not (is_current and stage.applies):
            following = _FOLLOWING[stage] if is_current and is_active else "shadow"
            return f"{prefix} deploy {name} --stage {following}"
        if not is_current:
            return f"{prefix} {step} {name}"
    return f"{prefix} report {name}"


def _deployment(study: StudyDirectory) -> tuple[DeploymentStage, bool]:
    """Return the stage of the study's deployment, and whether this stage is in force."""
    try:
        result = study.result("deploy", unchanged=False)
        return DeploymentStage(result["stage"]), not result["stopped"]
    except (UsageError, KeyError, ValueError):
        return DeploymentStage.SHADOW, False
