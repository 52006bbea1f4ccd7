"""Plan of one stage of the deployment of a study.

A deployment introduces an alternative, which is a combination of energy-saving measures, step by step. The
plan states the alternative and the partitions that it covers. It also states which jobs are treated and
which are control jobs.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.study.choice.alternatives import StudyAlternative, alternative_of
from slurm_energy.study.data.days import date_of
from slurm_energy.study.goals.objective import StudyObjective
from slurm_energy.study.rollout.assignment import (
    ArmAssignment,
    AssignmentDesign,
    draw_groups,
    draw_switchback,
    fixed_groups,
)
from slurm_energy.study.rollout.deployment import DeploymentState
from slurm_energy.study.rollout.stages import DeploymentStage, check_order


@dataclass(frozen=True, slots=True)
class StageRequest:
    """Request of the administrator to begin a stage of the deployment of energy saving.

    The stages are `shadow`, `advise`, `partition` and `all`. An arm is either the group of treated jobs or
    the control group. A switchback is a design in which the treatment is in force in periods drawn at
    random.

    Attributes:
        stage: requested stage.
        configuration: energy.toml of the site.
        alternative: name of an alternative of the step `choose`; an empty value means the recommended
            alternative.
        design: design that divides jobs between the arms. None means that the chosen partitions are treated,
            or that the stage has no arms.
        partitions: partitions of the stage `partition`.
        first_day: first day of a switchback; None means tomorrow.
        days: length of a switchback.
        period_days: days of a period of a switchback.
        seed: seed of the assignment; None means a random seed.
        skip_stages: whether earlier stages may be skipped.
        apply_command: program that brings the configuration into force, see `DeploymentState`.
    """

    stage: DeploymentStage
    configuration: Path
    alternative: str = ""
    design: AssignmentDesign | None = None
    partitions: tuple[str, ...] = ()
    first_day: date | None = None
    days: int = 28
    period_days: int = 1
    seed: int | None = None
    skip_stages: bool = False
    apply_command: tuple[str, ...] = ()


def planned_state(
    request: StageRequest,
    choice: Mapping[str, Any],
    objective: StudyObjective,
    before: DeploymentState | None,
    now_s: float,
) -> DeploymentState:
    """Return the state of the deployment of a study at the beginning of a stage.

    The stages lead from decisions that are only computed to changes on the whole cluster. A request for the
    stage in force completes a stage that was interrupted. Treated and control jobs then remain assigned as
    before, unless the request names a seed.

    Args:
        request: stage and options that the administrator requests.
        choice: result of the step `choose`.
        objective: objective of the study. Its scope and time zone are used.
        before: present state of the deployment; None means that nothing was deployed.
        now_s: Unix time.

    Raises:
        UsageError: options of the request contradict each other, the result of the step `choose`, or the
            order of the stages.
    """
    alternative = _alternative(request, choice, before)
    continues = before is not None and before.alternative == alternative and before.is_active
    check_order(before.stage if before and continues else None, request.stage, skip=request.skip_stages)
    powers: Mapping[str, float] = choice["partition_energy_joules"]
    scope = tuple(objective.scope.partitions)
    if request.stage is DeploymentStage.PARTITION:
        known = [name for name in powers if not scope or name in scope]
        assignment: ArmAssignment | None = _partition_arms(request, powers, known, now_s)
        assert assignment is not None
        names = assignment.treated
    else:
        names, assignment = scope, _scope_arms(request, choice, objective.season.timezone, now_s)
    if before is not None and continues and before.stage is request.stage and request.seed is None:
        old = before.assignment
        is_same = old is not None and assignment is not None and old.design is assignment.design
        if is_same and (not request.partitions or names == before.partitions):
            assignment, names = old, before.partitions
    total = sum(powers.values())
    return DeploymentState(
        alternative,
        str(request.configuration.absolute()),
        request.stage,
        assignment,
        partitions=names,
        other_partitions=tuple(sorted(set(powers) - set(names))) if names else (),
        power_share=sum(powers.get(name, 0.0) for name in names) / total if names and total > 0 else 1.0,
        apply_command=request.apply_command or (before.apply_command if before else ()),
        switches=before.switches if before else (),
    )


def _alternative(
    request: StageRequest, choice: Mapping[str, Any], before: DeploymentState | None
) -> StudyAlternative:
    listed = {one["name"]: one for one in choice["alternatives"]}
    name = request.alternative or (before.alternative.name if before else choice["recommended"])
    if not name or name not in listed:
        todo = f"--alternative with one of {', '.join(sorted(listed))}"
        why = "recommends no alternative" if not name else f"has no alternative {name[:40]}"
        raise UsageError("the step choose", why, todo)
    alternative = alternative_of(listed[name])
    if not alternative.levers:
        raise UsageError(f"alternative {name}", "changes nothing", "name another one with --alternative")
    return alternative


def _partition_arms(
    request: StageRequest, powers: Mapping[str, float], known: list[str], now_s: float
) -> ArmAssignment:
    """Return the treated partitions and the control partitions of the stage `partition`.

    The request of the administrator names the treated partitions, or they are drawn at random.
    """
    design = AssignmentDesign.PARTITION
    if request.design not in (None, design):
        raise UsageError("stage partition", f"has no design {request.design}", "--stage all")
    if request.partitions:
        if unknown := sorted(set(request.partitions) - set(known)):
            todo = f"one of {', '.join(known)}"
            raise UsageError(f"--partition {unknown[0]}", "is not in the study", todo)
        control = [name for name in known if name not in request.partitions]
        return fixed_groups(design, request.partitions, control, now_s)
    if request.design is None:
        raise UsageError("stage partition", "needs partitions", "--partition NAME, or --design partition")
    return draw_groups(design, {name: powers[name] for name in known}, _seed(request), now_s)


def _scope_arms(
    request: StageRequest, choice: Mapping[str, Any], timezone: str, now_s: float
) -> ArmAssignment | None:
    """Return the random assignment of jobs to arms in a stage that covers the whole scope of a study.

    An arm is one of the two groups of an experiment: treated or control. The scope of a study is the part
    of the cluster that the study covers. Every stage of a deployment except the stage `partition` covers
    the whole scope. The result is None if the stage applies no changes.
    """
    if request.partitions:
        raise UsageError(f"stage {request.stage}", "covers the whole scope", "--stage partition")
    if not request.stage.applies:
        if request.design is not None:
            raise UsageError(f"stage {request.stage}", "has no arms: nothing is applied", "--stage all")
        return None
    if request.design is AssignmentDesign.SWITCHBACK:
        first = request.first_day or date_of(now_s, timezone) + timedelta(days=1)
        return draw_switchback(
            first, request.days, _seed(request), timezone=timezone, period_days=request.period_days
        )
    if request.design is AssignmentDesign.USERS:
        return draw_groups(request.design, choice["user_energy_joules"], _seed(request), now_s)
    if request.design is AssignmentDesign.PARTITION:
        raise UsageError("stage all", "covers all partitions", "--stage partition --design partition")
    return ArmAssignment(AssignmentDesign.NONE, -1, begin_s=now_s)


def _seed(request: StageRequest) -> int:
    return secrets.randbits(31) if request.seed is None else request.seed
