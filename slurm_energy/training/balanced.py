"""Data-parallel training with PyTorch in which faster nodes get more samples of each batch.

    from slurm_energy.training import balanced
    model, loader = balanced.distribute(model, dataset, global_batch=256, goal="edp")

These two lines replace `DistributedDataParallel`, `DistributedSampler` and `DataLoader` in a script under
srun. The gradients are the gradients of the mean loss over the global batch, as in a single process.
docs/training-balanced.md is the guide.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.training.options import BalancedOptions

if TYPE_CHECKING:
    from slurm_energy.training.loader import BalancedLoader
    from slurm_energy.training.replica import BalancedModel


def distribute(
    model: Any,
    dataset: Any,
    *,
    global_batch: int,
    goal: str = "time",
    state: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> tuple[BalancedModel, BalancedLoader]:
    """Distribute a model and a data set over the ranks of this Slurm step.

    An allocation that cannot be used ends the program with one line and the exit code of the error.

    Args:
        model: a `torch.nn.Module` on the device on which it trains.
        dataset: a map-style data set.
        global_batch: samples of a training step on all ranks together.
        goal: quantity to minimise: `time`, `energy` or `edp` (energy-delay product).
        state: objects with `state_dict` and `load_state_dict` to save and restore, such as the optimizer.
        checkpoint: file on a shared file system. If the file exists, training continues from it.
        options: further options. `BalancedOptions` describes them.

    Returns:
        The model and the loader. Iterate `for epoch in loader.epochs(n): for batch in loader:`.
    """
    try:
        path = Path(checkpoint) if checkpoint is not None else None
        chosen = BalancedOptions(global_batch, goal, checkpoint=path, **options)
        _require_torch()
        from slurm_energy.training.session import start

        return start(model, dataset, chosen, dict(state or {}), os.environ)
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
