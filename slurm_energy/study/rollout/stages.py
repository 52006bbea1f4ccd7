"""Stages of a deployment, and functions that return which keys of energy.toml each stage changes.

A deployment introduces a combination of energy-saving measures (an alternative) on a cluster in four
stages:

- `shadow`: decisions are computed and stored, but shown to no user;
- `advise`: the decisions are also shown;
- `partition`: the decisions are applied in some partitions;
- `all`: the decisions are applied to all jobs that the study covers.

The functions change no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.study.choice.alternatives import StudyAlternative
from slurm_energy.study.rollout.key_change import KeyChange

BUDGET_NAME: Final = "study"
"""Name of the power budget that a deployment adds."""


class DeploymentStage(StrEnum):
    """Stages of the deployment of a study, in which the energy measures come into force step by step.

    The stages are in their order.
    """

    SHADOW = "shadow"
    ADVISE = "advise"
    PARTITION = "partition"
    ALL = "all"

    @property
    def applies(self) -> bool:
        """Whether a deployment at this stage has an effect on jobs or nodes.

        At the other stages, the decisions are only computed or shown.
        """
        return self in (DeploymentStage.PARTITION, DeploymentStage.ALL)


@dataclass(frozen=True, slots=True)
class DeploymentTarget:
    """Part of the cluster to which a stage of a deployment applies.

    Attributes:
        partitions: treated partitions; an empty value means all.
        other_partitions: partitions of the site that are not treated.
        users: treated users; an empty value means all. Only tuning can be restricted to users.
        power_share: share of the cluster's power that the treated partitions draw. Budgets are multiplied by
            this share.
    """

    partitions: tuple[str, ...] = ()
    other_partitions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    power_share: float = 1.0


@dataclass(frozen=True, slots=True)
class StageKeys:
    """The configuration keys that a stage of the rollout changes.

    A lever is a function of slurm-energy that saves energy, such as tuning or deferral.

    Attributes:
        changes: new values of keys in energy.toml.
        remarks: one sentence for each lever without effect in this stage, with the reason.
    """

    changes: tuple[KeyChange, ...]
    remarks: tuple[str, ...] = ()


def stage_keys(
    alternative: StudyAlternative,
    stage: DeploymentStage,
    target: DeploymentTarget,
    site: Mapping[str, Any],
) -> StageKeys:
    """Return the keys of energy.toml that put an alternative into force in a stage of a deployment.

    Args:
        alternative: combination of energy measures (levers) to deploy.
        stage: stage of the deployment.
        target: partitions or users to which the stage applies.
        site: parsed energy.toml of the site.

    Raises:
        UsageError: the alternative cannot be restricted to the target, or conflicts with the site's own use
            of a lever.
    """
    if target.users and alternative.levers != ("tuning",):
        others = ", ".join(name for name in alternative.levers if name != "tuning")
        raise UsageError(
            "design users", f"{others or 'nothing'} cannot be limited to users", "--design switchback"
        )
    changes: list[KeyChange] = []
    remarks: list[str] = []
    for lever in alternative.levers:
        keys = _LEVERS[lever](alternative, stage, target, site)
        changes += keys.changes
        remarks += keys.remarks
    return StageKeys(tuple(changes), tuple(remarks))


def _tuning(
    alternative: StudyAlternative, stage: DeploymentStage, target: DeploymentTarget, site: Mapping[str, Any]
) -> StageKeys:
    """Return the configuration keys of tuning: the default policy of jobs, and the tuning mode."""
    if stage is DeploymentStage.SHADOW:
        return StageKeys((), ("tuning has no shadow mode: its forecast is that of the twin",))
    mode = "on" if stage.applies else "advise"
    changes = []
    if alternative.tuning == "energy" and alternative.slowdown_percent is not None:
        changes.append(KeyChange(("tuning", "slowdown_limit_percent"), alternative.slowdown_percent))
    if target.users:
        changes += [KeyChange(("defaults", "user", user), alternative.tuning) for user in target.users]
        changes.append(KeyChange(("tuning", "mode"), mode))
    elif target.partitions:
        for name in target.partitions:
            changes.append(KeyChange(("defaults", "partition", name), alternative.tuning))
            changes.append(KeyChange(("tuning", "partition", name), mode))
    else:
        changes += [
            KeyChange(("defaults", "policy"), alternative.tuning),
            KeyChange(("tuning", "mode"), mode),
        ]
    remark = "jobs that request tuning by themselves only get advice in this stage"
    own_mode = site.get("tuning", {}).get("mode", "on")
    return StageKeys(tuple(changes), (remark,) if mode == "advise" and own_mode == "on" else ())


def _priority(
    alternative: StudyAlternative, stage: DeploymentStage, target: DeploymentTarget, site: Mapping[str, Any]
) -> StageKeys:
    """Return the configuration keys that put the new order of the queue into force.

    The keys depend on the stage of the deployment. In early stages, the new order is only computed and
    does not change the order in which Slurm starts jobs.
    """
    own_mode = site.get("priority", {}).get("mode", "off")
    live = own_mode if own_mode in ("plugin", "portable") else "portable"
    if not stage.applies and own_mode == live:
        return StageKeys((), ("the site ranks its queue already: the new order has no shadow beside it",))
    changes = [
        KeyChange(("priority", "mode"), live if stage.applies else "shadow"),
        KeyChange(("priority", "policy"), alternative.ranking),
    ]
    if alternative.weights:
        changes.append(KeyChange(("priority", "weights"), dict(alternative.weights)))
    if target.partitions:
        changes.append(KeyChange(("priority", "partitions"), list(target.partitions)))
    return StageKeys(tuple(changes))


def _budget(
    alternative: StudyAlternative, stage: DeploymentStage, target: DeploymentTarget, site: Mapping[str, Any]
) -> StageKeys:
    """Return the changes of energy.toml that put the power budget of an alternative into force.

    An alternative is a combination of energy-saving measures that a study deploys. The budget is added as
    a new table beside the budgets of the site.

    Raises:
        UsageError: the mode `enforce`, which applies to all budgets, would also enforce budgets that the site
            does not enforce.
    """
    enforces = site.get("budget", {}).get("mode", "off") == "enforce"
    if enforces and not stage.applies:
        return StageKeys((), ("the site enforces budgets already: this one has no shadow beside them",))
    observed = [] if enforces else [str(table.get("name")) for table in site.get("budgets", ())]
    if observed and stage.applies:
        why = f"would also enforce budgets that the site does not enforce: {', '.join(observed)}"
        raise UsageError("power budget", why, "remove them, or set budget.mode = enforce first")
    assert alternative.budget_watts is not None
    table: dict[str, Any] = {"name": BUDGET_NAME}
    remarks: tuple[str, ...] = ()
    if target.partitions:
        if len(target.partitions) > 1:
            raise UsageError("power budget", "covers one partition or the cluster", "name one --partition")
        watts = round(alternative.budget_watts * target.power_share, 1)
        table |= {"partition": target.partitions[0], "watts": watts}
        remarks = (
            f"the budget of {target.partitions[0]} is its share of the cluster's power: {watts:,.0f} W",
        )
    else:
        table |= {"cluster": True, "watts": alternative.budget_watts}
    mode = KeyChange(("budget", "mode"), "enforce" if stage.applies else "observe")
    return StageKeys((mode, KeyChange(("budgets",), table, is_list_table=True)), remarks)


def _deferral(
    alternative: StudyAlternative, stage: DeploymentStage, target: DeploymentTarget, site: Mapping[str, Any]
) -> StageKeys:
    if stage is not DeploymentStage.ALL:
        return StageKeys((), ("deferral has no shadow and no partitions: it begins with the stage all",))
    return StageKeys((KeyChange(("deferral", "policy"), alternative.deferral),))


def _power_saving(
    alternative: StudyAlternative, stage: DeploymentStage, target: DeploymentTarget, site: Mapping[str, Any]
) -> StageKeys:
    if site.get("power_saving", {}).get("mode", "off") == "on" and not stage.applies:
        return StageKeys((), ("the site powers nodes down already",))
    changes = [KeyChange(("power_saving", "mode"), "on" if stage.applies else "observe")]
    if target.partitions and target.other_partitions:
        own = site.get("power_saving", {}).get("exclude_partitions", [])
        excluded = sorted({*own, *target.other_partitions} - set(target.partitions))
        changes.append(KeyChange(("power_saving", "exclude_partitions"), excluded))
    return StageKeys(tuple(changes))


_LEVERS: Final = {
    "tuning": _tuning,
    "priority": _priority,
    "budget": _budget,
    "deferral": _deferral,
    "power_saving": _power_saving,
}


def check_order(before: DeploymentStage | None, stage: DeploymentStage, *, skip: bool) -> None:
    """Refuse a stage of a deployment if an earlier stage was skipped.

    The stages are `shadow`, `advise`, `partition` and `all`, in this order.

    Args:
        before: stage in force; None means that no stage is in force.
        stage: requested stage.
        skip: whether stages may be skipped.

    Raises:
        UsageError: a stage was skipped without permission.
    """
    order: Sequence[DeploymentStage] = list(DeploymentStage)
    reached = -1 if before is None else order.index(before)
    wanted = order.index(stage)
    if wanted > reached + 1 and not skip:
        raise UsageError(
            f"stage {stage}",
            f"comes after {order[wanted - 1]}",
            f"--stage {order[reached + 1]}, or --skip-stages",
        )
