"""The adjusted values that apply to the next run of a program.

A trial is a group of adjustments that are tried together in runs of the program. The values in force
come from the trials whose adjustments were kept, and from the trial that is not decided yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from slurm_energy.accounting.adjustments import KEPT, PENDING, OfferedRun, StoredTrial
from slurm_energy.adjustment import PROGRAM_KINDS, Adjustment, AdjustmentKind
from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.diagnosis.trials.trial import AdjustmentTrial

_PROGRAM_NAMES: Final = frozenset(kind.value for kind in PROGRAM_KINDS)


class AdjustedProgram(NamedTuple):
    """A program of a user. Some of its settings may be adjusted in its next run.

    Attributes:
        cluster: Slurm's ClusterName.
        uid: uid of the program's owner.
        workload: fingerprint of the batch script; if unknown, the value of `--energy-model`.
    """

    cluster: str
    uid: int
    workload: str


@dataclass(frozen=True, slots=True)
class ValuesInForce:
    """Adjusted values that the next run of a program must use.

    An adjusted value is a value of the program that the diagnosis has changed.

    Attributes:
        values: values by kind of adjustment.
        trial: id of the trial to which the run belongs; None means that the run belongs to no trial. A
            trial compares runs with and without adjusted values.
    """

    values: Mapping[str, int]
    trial: int | None

    @property
    def sbatch_options(self) -> list[str]:
        """Options of sbatch for those adjusted values that the program cannot read while it runs."""
        items = (Adjustment(AdjustmentKind(name), value) for name, value in sorted(self.values.items()))
        return [option for item in items if (option := item.sbatch_option) is not None]


def plain_values(trials: Sequence[StoredTrial]) -> ValuesInForce:
    """Return the adjusted values for a run that was submitted with the ordinary command sbatch.

    Such a run has no adjusted options of sbatch, but its program can request adjusted values while it
    runs. A pending trial tests its adjustments in a run. Its values are left out in two cases:

    - The trial also adjusts sbatch options. All its adjustments must be tried together.
    - The next run of the program must measure the run time without adjustments.

    Args:
        trials: all trials of the program.
    """
    every = submission_values(trials, only_plain=True)
    return ValuesInForce(program_part(every.values), every.trial)


def program_part(values: Mapping[str, int]) -> dict[str, int]:
    """Return those adjusted values that a program reads from its agent while it runs.

    An adjusted value is a value that the diagnosis advised, such as a number of loader processes. All other
    values are left out.
    """
    return {name: value for name, value in values.items() if name in _PROGRAM_NAMES}


def submission_values(trials: Sequence[StoredTrial], *, only_plain: bool = False) -> ValuesInForce:
    """Return the adjusted values for the next run of a program.

    The values are those of all kept trials, and those of one pending trial. A trial tests one or more
    adjusted values. The values that are options of sbatch are set at submission.

    Args:
        trials: all trials of the program.
        only_plain: leave out a pending trial that needs options of sbatch, or that waits for a run without
            adjustments.
    """
    values: dict[str, int] = {}
    for trial in sorted((one for one in trials if one.state == KEPT), key=lambda one: one.decided or 0.0):
        values |= own_values(AdjustmentTrial.from_json(trial.body))
    for trial in trials:
        if trial.state == PENDING:
            content = AdjustmentTrial.from_json(trial.body)
            if not (only_plain and (content.sbatch_options or content.awaits_control)):
                return ValuesInForce(values | own_values(content), trial.key)
    return ValuesInForce(values, None)


def own_values(trial: AdjustmentTrial) -> dict[str, int]:
    """Return the new values that a trial uses, by kind of adjustment (for example `workers`).

    Values of earlier trials of the program are not included.
    """
    return {one.kind.value: one.new for one in trial.proposal.adjustments}


def is_within(trial: StoredTrial, limits: AdjustmentPermissions) -> bool:
    """Return whether the values of a trial are within the given limits.

    A trial tests adjusted values of a program. The limits may be newer than the trial. A trial whose values
    are not in force always counts as within the limits.
    """
    if trial.state not in (PENDING, KEPT):
        return True
    ranges = {kind.value: bounds for kind, bounds in limits.ranges.items()}
    values = own_values(AdjustmentTrial.from_json(trial.body))
    return all(
        ranges[name][0] <= value <= ranges[name][1] for name, value in values.items() if name in ranges
    )


def is_permitted(trial: StoredTrial, permissions: AdjustmentPermissions) -> bool:
    """Return whether the given permissions allow all values of a trial.

    A trial tests adjusted values of a program. The permissions may be newer than the trial. A trial whose
    values are not in force always counts as permitted.
    """
    if trial.state not in (PENDING, KEPT):
        return True
    adjustments = AdjustmentTrial.from_json(trial.body).proposal.adjustments
    return all(permissions.permits(one.kind, one.new) for one in adjustments)


def effective_values(offered: OfferedRun | None) -> dict[str, int]:
    """Return the adjusted values that took effect in a run.

    A value took effect if the program requested it, or if an sbatch option set it.
    """
    if offered is None:
        return {}
    return {
        name: value
        for name, value in offered.offered.items()
        if name in offered.requested or name not in _PROGRAM_NAMES
    }


def unrequested(trial: AdjustmentTrial, offered: OfferedRun) -> list[str]:
    """Return the kinds of adjustment in a trial that a run of the program did not use.

    A program uses an adjustment if it requests the adjusted value from the agent.
    """
    return sorted(name for name in trial.program_values if name not in offered.requested)


def trial_json(trial: StoredTrial) -> dict[str, Any]:
    """Return a stored trial (test of adjusted values of a program) as a JSON object for its owner."""
    return {
        "trial": trial.key,
        "uid": trial.uid,
        "workload": trial.workload,
        "state": trial.state,
        "source": trial.source,
        "created_unix_s": trial.created,
        "decided_unix_s": trial.decided,
        **json.loads(trial.body),
    }
