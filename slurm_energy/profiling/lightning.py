"""Progress reports of a Lightning trainer: `Trainer(callbacks=[ProgressCallback()])`."""

from __future__ import annotations

import importlib
import math
from typing import Any

from slurm_energy.profiling.progress import progress


def _callback_class() -> Any:
    """Return Lightning's class of callbacks.

    Raises:
        ImportError: Lightning is not installed.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("slurm_energy.profiling.lightning: Lightning is not installed (pip install lightning)")


class ProgressCallback(_callback_class()):  # type: ignore[misc]
    """Callback that reports one unit of work after each training batch.

    Validation batches do not count, because they take another time.
    """

    _total: float | None = None

    def on_train_start(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Store the number of batches in all, if the trainer knows it."""
        steps = getattr(trainer, "estimated_stepping_batches", math.inf)
        self._total = steps * (getattr(trainer, "accumulate_grad_batches", 1) or 1)

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Report the batch."""
        progress(1, self._total)
