"""Data-parallel training with PyTorch in which each rank gets the share of the batch that suits its node.

    from slurm_energy.training import balanced
    model, loader = balanced.distribute(model, dataset, global_batch=256, goal="edp")

replaces `DistributedDataParallel`, `DistributedSampler` and `DataLoader` of a script under srun. The
gradients are those of the mean loss over the global batch, as in one process.
docs/training-balanced.md is the guide.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.errors import EnergyError, UnavailableError

if TYPE_CHECKING:
    from slurm_energy.training.loader import BalancedLoader
    from slurm_energy.training.replica import BalancedModel


def distribute(
    model: Any,
    dataset: Any,
    *,
    global_batch: int,
    goal: str = "time",
    max_slowdown: float = 0.1,
    state: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every_s: float = 60.0,
    window_steps: int = 4,
    shuffle: bool = True,
    seed: int = 0,
    workers: int = 0,
    collate: Callable[..., Any] | None = None,
    lost_after_s: float = 60.0,
    balance: bool = True,
    may_pause: bool = True,
    ddp_options: Mapping[str, Any] | None = None,
) -> tuple[BalancedModel, BalancedLoader]:
    """Distribute a model and a data set over the ranks of this Slurm step.

    An allocation that cannot be used ends the program with one line and the exit code of the error.

    Args:
        model: a `torch.nn.Module` on the device on which it trains.
        dataset: a map-style data set.
        global_batch: samples of a step on all ranks together.
        goal: `time`: least time. `energy`: least energy within `max_slowdown`. `edp`: least product of energy
            and time.
        max_slowdown: accepted relative increase of the time with the goal `energy`.
        state: objects with `state_dict` and `load_state_dict` to save and restore, such as the optimizer.
        checkpoint: file on a shared file system; training continues from it if it exists.
        checkpoint_every_s: seconds between two checkpoints.
        window_steps: steps between two exchanges of measurements.
        shuffle: whether each epoch has another order; the order depends on `seed` only, never on the ranks.
        seed: seed of the order.
        workers: processes per rank that load data.
        collate: function that makes a batch of samples; None for PyTorch's.
        lost_after_s: seconds after which a rank that does not answer counts as lost.
        balance: whether shares follow the measurements; False keeps equal shares.
        may_pause: whether ranks may get no samples where fewer ranks reach the goal better.
        ddp_options: further arguments of `DistributedDataParallel`.

    Returns:
        The model and the loader. Iterate `for epoch in loader.epochs(n): for batch in loader:`.
    """
    from slurm_energy.training.options import BalancedOptions

    try:
        options = BalancedOptions(
            global_batch=global_batch,
            goal=goal,
            max_slowdown=max_slowdown,
            checkpoint=Path(checkpoint) if checkpoint is not None else None,
            checkpoint_every_s=checkpoint_every_s,
            window_steps=window_steps,
            shuffle=shuffle,
            seed=seed,
            workers=workers,
            collate=collate,
            lost_after_s=lost_after_s,
            balance=balance,
            may_pause=may_pause,
            ddp_options=dict(ddp_options or {}),
        )
        _require_torch()
        from slurm_energy.training.session import start

        return start(model, dataset, options, dict(state or {}), os.environ)
    except EnergyError as error:
        if os.environ.get("SLURM_PROCID", os.environ.get("RANK", "0")) == "0":
            print(f"balanced: error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _require_torch() -> None:
    try:
        import torch.distributed
    except ImportError as error:
        todo = f"install PyTorch for {sys.executable}"
        raise UnavailableError("balanced training needs PyTorch", str(error), todo) from None
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise UnavailableError(
            "backend gloo", "this PyTorch lacks it", "install a PyTorch with torch.distributed"
        )
