"""Changes to a job that the diagnosis advises, before the user's permissions limit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_energy.adjustment import AdjustmentKind


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """A change of a program's parameter that the advice of the diagnosis proposes.

    Attributes:
        kind: kind of the value.
        new: advised value.
        old: value of the diagnosed run; None if unknown.
        requires: another change without which the value `new` cannot be reached, given by its kind. It
            belongs to the same advice. None means that no other change is required.
        alone: smaller value to use if the required change is not made; None means that this change is
            useless without the required change.
    """

    kind: AdjustmentKind
    new: int
    old: float | None
    requires: AdjustmentKind | None = None
    alone: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the advised change of a value as a JSON object."""
        return {"kind": self.kind.value, "old": self.old, "new": self.new}


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes of settings that one advice of the diagnosis proposes, with their expected gain.

    Attributes:
        finding: kind of the finding.
        changes: changes to make; an empty value means that the advice contains no change that can be applied
            automatically.
        seconds_gain: expected gain of time.
        joules_gain: expected gain of energy; None if unknown.
        source: measurement or model from which the gain is expected.
    """

    finding: str
    changes: tuple[AdvisedChange, ...]
    seconds_gain: float
    joules_gain: float | None
    source: str
