"""Callback that records the steps of a PyTorch Lightning trainer.

Usage: `Trainer(callbacks=[LightningWatch()])`.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import Any

from slurm_energy.profiling.step_marks import StepMarks, never_fails
from slurm_energy.profiling.step_recorder import NO_VALUE, recorder
from slurm_energy.profiling.torch_phases import TorchPhases, report_loader


def _callback_class() -> Any:
    """Return the class of Lightning from which callbacks are derived.

    Raises:
        ImportError: Lightning is not installed.
    """
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("slurm_energy.profiling.lightning: Lightning is not installed (pip install lightning)")


class LightningWatch(_callback_class()):  # type: ignore[misc]
    """Callback that records the steps of the training and their phases.

    Each training batch counts as one unit of progress. Validation batches do not count, because they do not
    take the same time as training batches.
    """

    _total: float | None = None
    _marks: StepMarks | None = None
    _samples = NO_VALUE
    _copy_ns = 0
    _validates = False
    _validation_ns = 0
    _restore: tuple[Callable[[], None], ...] = ()

    @never_fails
    def on_train_start(self, trainer: Any, module: Any = None, *_: Any, **__: Any) -> None:
        """Prepare the recorder, and store the total number of batches if the trainer knows it."""
        steps = getattr(trainer, "estimated_stepping_batches", math.inf)
        self._total = steps * (getattr(trainer, "accumulate_grad_batches", 1) or 1)
        loader = getattr(trainer, "train_dataloader", None)
        loader = getattr(loader, "loaders", loader)  # Lightning 1
        report_loader(loader)
        recorder.hint("marks_checkpoints", True)
        size = getattr(loader, "batch_size", None)
        self._samples = float(size) if isinstance(size, int) else NO_VALUE
        self._marks = StepMarks(TorchPhases(device=getattr(module, "device", None)))
        self._restore = (
            _wrapped(trainer.strategy, "batch_to_device", self._end_copy),
            _wrapped(trainer, "save_checkpoint", self._end_checkpoint),
        )

    @never_fails
    def on_train_epoch_start(self, *_: Any, **__: Any) -> None:
        """Mark the start of the wait for the first batch."""
        if self._marks is not None:
            self._marks.begin_epoch()

    @never_fails
    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Record the wait for the batch, and mark the start of the forward pass."""
        if self._marks is not None:
            self._marks.begin_step(self._copy_ns)
            self._marks.switch("forward")
        self._copy_ns = 0

    @never_fails
    def on_before_zero_grad(self, *_: Any, **__: Any) -> None:
        """Record the end of the forward pass."""
        self._switch(None)

    @never_fails
    def on_before_backward(self, *_: Any, **__: Any) -> None:
        """Record the start of the backward pass."""
        self._switch("backward")

    @never_fails
    def on_after_backward(self, *_: Any, **__: Any) -> None:
        """Record the end of the backward pass."""
        self._switch(None)

    @never_fails
    def on_before_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Record the start of the optimizer's step."""
        self._switch("optimizer")

    @never_fails
    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Record the step and report the batch as progress."""
        if self._marks is not None:
            self._marks.end_step(self._samples, self._total)

    @never_fails
    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """Store the start of an evaluation."""
        self._validation_ns = time.perf_counter_ns()
        self._validates = True

    @never_fails
    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """Record an evaluation. The sanity check before the training does not count as an evaluation."""
        self._validates = False
        if self._marks is not None:
            self._marks.pause("evaluation", self._validation_ns)

    @never_fails
    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Undo the changes that the callback made to the Lightning trainer."""
        self._close()

    @never_fails
    def on_exception(self, *_: Any, **__: Any) -> None:
        """Undo the changes that were made to the trainer."""
        self._close()

    def _switch(self, name: str | None) -> None:
        if self._marks is not None:
            self._marks.switch(name)

    def _close(self) -> None:
        restore, self._restore = self._restore, ()
        for function in restore:
            function()
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    def _end_copy(self, start_ns: int) -> None:
        if not self._validates:  # else part of the evaluation
            self._copy_ns += time.perf_counter_ns() - start_ns

    def _end_checkpoint(self, start_ns: int) -> None:
        if self._marks is not None:
            self._marks.pause("checkpoint", start_ns)


def _wrapped(owner: Any, name: str, end: Callable[[int], None]) -> Callable[[], None]:
    """Wrap a method of one object so that `end` is called after each call of the method.

    The argument of `end` is the start time of the call in nanoseconds.

    Returns:
        A function that restores the method.
    """
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        start_ns = time.perf_counter_ns()
        result = original(*args, **kwargs)
        end(start_ns)
        return result

    before = vars(owner).get(name)

    def undo() -> None:
        if vars(owner).get(name) is not method:
            return  # another library has wrapped it
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, method)
    return undo
