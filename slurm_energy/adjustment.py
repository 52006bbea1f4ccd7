"""Adjustments: changes of values for the next run of a program, to save time or energy.

An example of such a value is the number of loader processes. Each value has a type and fixed limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown


class AdjustmentKind(StrEnum):
    """Kinds of adjustments: values of a program that can be changed for its next run.

    An example is the number of loader processes (`workers`). The text of a member is its name in
    permissions, in JSON, and in calls of `slurm_energy.adjusted`.
    """

    WORKERS = "workers"
    PIN_MEMORY = "pin-memory"
    BATCH_SIZE = "batch-size"
    CHECKPOINT_INTERVAL = "checkpoint-interval"
    ACCUMULATION = "accumulation"
    STAGE_DATA = "stage-data"
    BALANCE = "balance"
    CPUS_PER_TASK = "cpus-per-task"
    GPUS_PER_NODE = "gpus-per-node"
    NODES = "nodes"
    TIME = "time"
    MEMORY = "mem"
    GPU_CAP = "gpu-cap"
    GPU_CLOCK = "gpu-clock"


@dataclass(frozen=True, slots=True)
class KindProperties:
    """Properties of a kind of adjustment.

    Attributes:
        minimum, maximum: lowest and highest value that any permission can allow.
        unit: unit of the value; empty for a count.
        option: option of sbatch that sets the value at submission; an empty value means that the program
            requests the value while it runs.
        hint: name under which a program reports the value that it uses; an empty text if programs do not
            report it.
        meaning: description of the value in words.
    """

    minimum: float
    maximum: float
    unit: str
    option: str
    hint: str
    meaning: str


KINDS: Final[Mapping[AdjustmentKind, KindProperties]] = {
    AdjustmentKind.WORKERS: KindProperties(0, 1024, "", "", "num_workers", "loader processes per rank"),
    AdjustmentKind.PIN_MEMORY: KindProperties(0, 1, "", "", "pin_memory", "pinned memory, 0 or 1"),
    AdjustmentKind.BATCH_SIZE: KindProperties(1, 1e7, "", "", "batch_size", "samples per step and rank"),
    AdjustmentKind.CHECKPOINT_INTERVAL: KindProperties(1, 1e7, "s", "", "", "time between checkpoints"),
    AdjustmentKind.ACCUMULATION: KindProperties(
        1, 1024, "", "", "accumulation", "steps per exchange of gradients"
    ),
    AdjustmentKind.STAGE_DATA: KindProperties(
        0, 1, "", "", "", "data set on fast storage of the node, 0 or 1"
    ),
    AdjustmentKind.BALANCE: KindProperties(0, 1, "", "", "", "work by the speed of the ranks, 0 or 1"),
    AdjustmentKind.CPUS_PER_TASK: KindProperties(1, 4096, "", "cpus-per-task", "", "CPUs per task"),
    AdjustmentKind.GPUS_PER_NODE: KindProperties(1, 64, "", "gpus-per-node", "", "GPUs per node"),
    AdjustmentKind.NODES: KindProperties(1, 1e5, "", "nodes", "", "nodes"),
    AdjustmentKind.TIME: KindProperties(1, 525_600, "min", "time", "", "time limit"),
    AdjustmentKind.MEMORY: KindProperties(1, 1e5, "GiB", "mem", "", "memory per node"),
    AdjustmentKind.GPU_CAP: KindProperties(1, 1e4, "W", "energy-gpu-cap", "", "power limit per GPU"),
    AdjustmentKind.GPU_CLOCK: KindProperties(1, 1e5, "MHz", "energy-gpu-clock", "", "clock limit per GPU"),
}
"""All kinds of adjustments."""

PROGRAM_KINDS: Final = frozenset(kind for kind, properties in KINDS.items() if not properties.option)
"""Kinds whose values the program requests while it runs.

The values of all other kinds are options of sbatch.
"""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A change of one value for the next run of a program.

    The diagnosis of a run proposes the change, for example more loader processes.

    Attributes:
        kind: which value changes, for example the number of workers or of nodes.
        new: value for the next run, in the unit of this kind of value; an integer.
        old: value of the diagnosed run; None if unknown.
    """

    kind: AdjustmentKind
    new: int
    old: float | None = None

    @property
    def is_for_program(self) -> bool:
        """Whether the program requests the adjusted value while it runs.

        Other values are set by an option of sbatch at submission.
        """
        return self.kind in PROGRAM_KINDS

    @property
    def sbatch_option(self) -> str | None:
        """Option of sbatch that sets the adjusted value for the next run.

        None means that the job's program reads the value while it runs.
        """
        name = KINDS[self.kind].option
        suffix = "G" if self.kind is AdjustmentKind.MEMORY else ""
        return f"--{name}={self.new}{suffix}" if name else None

    def described(self) -> str:
        """Return the change as text, such as `workers 2 -> 8`."""
        unit = f" {unit}" if (unit := KINDS[self.kind].unit) else ""
        old = "" if self.old is None else f"{self.old:g} -> "
        return f"{self.kind.value} {old}{self.new}{unit}"

    def to_json(self) -> dict[str, Any]:
        """Return the adjustment as a JSON object."""
        return {"kind": self.kind.value, "old": self.old, "new": self.new}

    @classmethod
    def from_json(cls, data: Any) -> Adjustment:
        """Return the adjustment from a JSON object that `to_json` returned.

        Raises:
            UsageError: the object is malformed.
        """
        if not isinstance(data, Mapping):
            raise UsageError("adjustment: not a JSON object")
        kind, old = kind_named(data.get("kind")), data.get("old")
        value = checked_value(kind, data.get("new"))
        if value is None or not (old is None or is_number(old)):
            raise UsageError(f"adjustment: bad value of {kind.value}")
        return cls(kind, value, old)


def kind_named(name: Any) -> AdjustmentKind:
    """Return the kind of adjustment that has the given name.

    Raises:
        UsageError: no kind has this name.
    """
    try:
        return AdjustmentKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in AdjustmentKind)
        raise UsageError(f"adjustment '{shown(str(name)[:40])}'", "unknown", f"one of {known}") from None


def checked_value(kind: AdjustmentKind, value: Any) -> int | None:
    """Return a value if it is an integer within the limits of its kind, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    properties = KINDS[kind]
    return value if properties.minimum <= value <= properties.maximum else None
