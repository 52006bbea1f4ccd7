"""Options of balanced training and their validation.

Balanced training distributes the training of a network over nodes of different speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.training.shares import GOALS


@dataclass(frozen=True, slots=True)
class BalancedOptions:
    """Options of `balanced.distribute`.

    Attributes:
        global_batch: samples of a training step on all ranks together.
        goal: `time`: least time. `energy`: least energy within `max_slowdown`. `edp`: least product of energy
            and time.
        max_slowdown: accepted relative increase of the time with the goal `energy`.
        checkpoint: file on a shared file system; None means no checkpoints.
        checkpoint_every_s: seconds between two checkpoints.
        window_steps: training steps between two exchanges of measurements.
        shuffle: whether each epoch has a different order. The order depends on `seed` only, never on the
            ranks.
        seed: seed of the order.
        workers: processes per rank that load data.
        collate: function that combines samples to a batch; None means PyTorch's default function.
        lost_after_s: seconds after which a rank that does not answer counts as lost.
        balance: whether the batch is divided according to the measurements; False gives all ranks equal
            numbers of samples.
        may_pause: whether some ranks may get no samples if the goal is reached better without them.
        ddp_options: further arguments of `DistributedDataParallel`.

    Raises:
        UsageError: a value is invalid.
    """

    global_batch: int
    goal: str = "time"
    max_slowdown: float = 0.1
    checkpoint: Path | None = None
    checkpoint_every_s: float = 60.0
    window_steps: int = 4
    shuffle: bool = True
    seed: int = 0
    workers: int = 0
    collate: Callable[..., Any] | None = None
    lost_after_s: float = 60.0
    balance: bool = True
    may_pause: bool = True
    ddp_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the options."""
        if self.goal not in GOALS:
            raise UsageError(f"goal '{self.goal}'", "unknown", f"one of {', '.join(GOALS)}")
        if not 0 <= self.max_slowdown < math.inf:
            raise UsageError(f"max_slowdown {self.max_slowdown}", "is invalid", "0.1 accepts 10 % more time")
        minimums = {"global_batch": 1, "window_steps": 1, "workers": 0, "checkpoint_every_s": 0.0}
        for name, minimum in {**minimums, "lost_after_s": 1.0}.items():
            value = getattr(self, name)
            if not minimum <= value < math.inf:
                raise UsageError(f"{name} {value}", "is invalid", f"{minimum:g} or more")
