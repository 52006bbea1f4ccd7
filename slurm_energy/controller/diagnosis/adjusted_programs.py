"""The adjusted values that apply to a program: values of kept trials and values of the pending trial."""

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
    """A program of a user, whose next run may use adjusted values.

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
    """Adjusted values for the next run of a program.

    Attributes:
        values: values by kind of adjustment.
        trial: key of the trial to which the run belongs; None means that the run belongs to no trial.
    """

    values: Mapping[str, int]
    trial: int | None

    @property
    def sbatch_options(self) -> list[str]:
        """The options of sbatch that set the values which a program cannot request from its agent."""
        items = (Adjustment(AdjustmentKind(name), value) for name, value in sorted(self.values.items()))
        return [option for item in items if (option := item.sbatch_option) is not None]


def plain_values(trials: Sequence[StoredTrial]) -> ValuesInForce:
    """Return the values for a run without sbatch options, which its program requests while it runs.

    A pending trial is left out in two cases:
    - The trial also needs sbatch options. All its adjustments are to be tried together.
    - The program's next run must measure the run time without adjustments.

    Args:
        trials: all trials of the program.
    """
    every = submission_values(trials, only_plain=True)
    return ValuesInForce(program_part(every.values), every.trial)


def program_part(values: Mapping[str, int]) -> dict[str, int]:
    """Return only the values that a running program requests from its agent."""
    return {name: value for name, value in values.items() if name in _PROGRAM_NAMES}


def submission_values(trials: Sequence[StoredTrial], *, only_plain: bool = False) -> ValuesInForce:
    """Return the values for a run. The run is submitted with the options of all adjustments.

    Args:
        trials: all trials of the program.
        only_plain: leave out a pending trial that needs options, or that waits for a run without adjustments.
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
    """Return the new values of a trial by kind of adjustment.

    Values of earlier trials are not included.
    """
    return {one.kind.value: one.new for one in trial.proposal.adjustments}


def is_within(trial: StoredTrial, limits: AdjustmentPermissions) -> bool:
    """Return whether a trial respects the given limits, which may be newer than the trial.

    A trial whose values are not in force always respects the limits.
    """
    if trial.state not in (PENDING, KEPT):
        return True
    ranges = {kind.value: bounds for kind, bounds in limits.ranges.items()}
    values = own_values(AdjustmentTrial.from_json(trial.body))
    return all(
        ranges[name][0] <= value <= ranges[name][1] for name, value in values.items() if name in ranges
    )


def effective_values(offered: OfferedRun | None) -> dict[str, int]:
    """Return the values that a run used: requested by its program, or set by sbatch options."""
    if offered is None:
        return {}
    return {
        name: value
        for name, value in offered.offered.items()
        if name in offered.requested or name not in _PROGRAM_NAMES
    }


def unrequested(trial: AdjustmentTrial, offered: OfferedRun) -> list[str]:
    """Return the kinds of adjustment in a trial that the program should have requested but has not."""
    return sorted(name for name in trial.program_values if name not in offered.requested)


def trial_json(trial: StoredTrial) -> dict[str, Any]:
    """Return a stored trial as a JSON object for its owner."""
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
