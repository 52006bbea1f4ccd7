"""Proposals: changes of a program's values (adjustments) for its next run.

The diagnosis advises these changes, and the permissions of the user allow them. An example is the number of
loader processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.adjustment import Adjustment, AdjustmentKind
from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.diagnosis.trials.change_set import AdvisedChange, ChangeSet

_DIVIDING: Final = frozenset(
    {
        AdjustmentKind.WORKERS,
        AdjustmentKind.BATCH_SIZE,
        AdjustmentKind.CHECKPOINT_INTERVAL,
        AdjustmentKind.ACCUMULATION,
        AdjustmentKind.CPUS_PER_TASK,
    }
)
"""Kinds whose value divides the lost time. The first part of such a change gains most."""


@dataclass(frozen=True, slots=True)
class AdjustmentProposal:
    """Adjustments that remove the cause of one finding and are applied, verified and undone together.

    Attributes:
        finding: kind of the finding.
        adjustments: the changes; never empty.
        time_ratio: predicted time of the next run, divided by the time of the diagnosed run.
        energy_ratio: predicted energy of the next run, divided by that of the diagnosed run; None if unknown.
        source: measurement or model behind the prediction.
    """

    finding: str
    adjustments: tuple[Adjustment, ...]
    time_ratio: float
    energy_ratio: float | None
    source: str

    def described(self) -> str:
        """Return the changes as text."""
        return ", ".join(adjustment.described() for adjustment in self.adjustments)

    def to_json(self) -> dict[str, Any]:
        """Return the proposal as a JSON object.

        A proposal contains adjustments. An adjustment is a new value that the next run of a program should
        use, for example another number of loader processes.
        """
        return {
            "finding": self.finding,
            "adjustments": [adjustment.to_json() for adjustment in self.adjustments],
            "predicted_time_ratio": self.time_ratio,
            "predicted_energy_ratio": self.energy_ratio,
            "prediction_source": self.source,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AdjustmentProposal:
        """Build a proposal of adjustments (changed values of a program) from a JSON object of `to_json`."""
        return cls(
            data["finding"],
            tuple(Adjustment.from_json(item) for item in data["adjustments"]),
            data["predicted_time_ratio"],
            data["predicted_energy_ratio"],
            data["prediction_source"],
        )


def propose(
    change_sets: Sequence[ChangeSet],
    permissions: AdjustmentPermissions,
    *,
    elapsed_s: float,
    energy_joules: float | None,
) -> list[AdjustmentProposal]:
    """Return proposals of adjustments for the next run of a job, in descending order of their gains.

    A proposal contains adjusted values, such as a number of workers, with their predicted gain. The advised
    value may be outside the range that the user permits. The proposal then uses the nearest permitted value
    and the corresponding fraction of the gain.

    Args:
        change_sets: changes that the advice about the job proposes.
        permissions: permitted values.
        elapsed_s: duration of the diagnosed run.
        energy_joules: energy of the diagnosed run; None if unknown.
    """
    proposals = []
    for item in change_sets:
        permitted = _permitted_changes(item.changes, permissions)
        if not permitted or elapsed_s <= 0:
            continue
        share = min(share for _, share in permitted)
        energy = None
        if energy_joules and item.joules_gain is not None:
            energy = max(0.0, 1 - share * item.joules_gain / energy_joules)
        time = max(0.0, 1 - share * item.seconds_gain / elapsed_s)
        adjustments = tuple(adjustment for adjustment, _ in permitted)
        proposals.append(AdjustmentProposal(item.finding, adjustments, time, energy, item.source))
    return sorted(proposals, key=lambda one: min(one.time_ratio, one.energy_ratio or 1.0))


def _permitted_changes(
    changes: Sequence[AdvisedChange], permissions: AdjustmentPermissions
) -> list[tuple[Adjustment, float]]:
    """Return the permitted parts of the changes of one advice, each with the remaining fraction of the gain.

    A change that another change requires, such as more CPUs for more workers, is useless by itself. It is
    left out if the other change is not permitted, or if the permitted part of the other change is possible
    without it.
    """
    by_kind = {change.kind: change for change in changes}
    permitted = {change.kind: part for change in changes for part in _permitted(change, by_kind, permissions)}
    for change in changes:
        if change.requires in permitted:
            part = permitted.get(change.kind)
            if part is None or (change.alone is not None and part[0].new <= change.alone):
                del permitted[change.requires]
    return list(permitted.values())


def _permitted(
    change: AdvisedChange,
    changes: Mapping[AdjustmentKind, AdvisedChange],
    permissions: AdjustmentPermissions,
) -> Iterator[tuple[Adjustment, float]]:
    """Yield the part of an advised change that the user permits.

    The diagnosis advises a change of a value, such as 2 to 8 workers. If the user permits values up to 4,
    the change to 4 is yielded. The second element of the result is the fraction of the gain that remains.
    Nothing is yielded if no part of the change is permitted.
    """
    if change.kind not in permissions.ranges:
        return
    target = change.new
    if change.requires is not None:
        required = changes.get(change.requires)
        if required is None or not permissions.permits(required.kind, required.new):
            if change.alone is None:
                return
            target = change.alone
    low, high = permissions.ranges[change.kind]
    value = min(max(target, low), high)
    if change.old is None:
        if value == change.new:
            yield Adjustment(change.kind, value), 1.0
        return
    distance = change.new - change.old
    share = (value - change.old) / distance if distance else 0.0
    if 0 < share <= 1:
        if change.kind in _DIVIDING and change.old > 0 and value > 0:
            share *= change.new / value  # (1/old - 1/value) / (1/old - 1/new)
        yield Adjustment(change.kind, value, change.old), min(1.0, share)
