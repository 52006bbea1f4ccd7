"""Changes that advice names, before permissions limit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_energy.adjustment import AdjustmentKind


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """A change that advice names.

    Attributes:
        kind: kind of the value.
        new: advised value.
        old: value of the diagnosed run; None if unknown.
        requires: another change of the same advice without which this one goes less far; None: none.
        alone: value to take without the required change; None: this change is useless without it.
    """

    kind: AdjustmentKind
    new: int
    old: float | None
    requires: AdjustmentKind | None = None
    alone: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the change as a JSON object."""
        return {"kind": self.kind.value, "old": self.old, "new": self.new}


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes of one piece of advice, with their expected gain.

    Attributes:
        finding: kind of the finding.
        changes: changes to make; empty: nothing that can be applied.
        seconds_gain: expected gain of time.
        joules_gain: expected gain of energy; None if unknown.
        source: where the expectation comes from.
    """

    finding: str
    changes: tuple[AdvisedChange, ...]
    seconds_gain: float
    joules_gain: float | None
    source: str
