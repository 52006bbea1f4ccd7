"""Recording of the steps of a Hugging Face trainer: `Trainer(..., callbacks=[TrainerWatch()])`."""

from __future__ import annotations

import importlib
from typing import Any

from slurm_energy.profiling.step_marks import StepMarks, never_fails
from slurm_energy.profiling.step_recorder import NO_VALUE, recorder
from slurm_energy.profiling.torch_phases import TorchPhases, report_loader


def _callback_class() -> Any:
    """Return the class of transformers from which callbacks are derived.

    Raises:
        ImportError: transformers is not installed.
    """
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ImportError:
        raise ImportError(
            "slurm_energy.profiling.huggingface: transformers is not installed (pip install transformers)"
        ) from None


class TrainerWatch(_callback_class()):  # type: ignore[misc]
    """Callback that records the steps of the training and their phases.

    A step is one step of the optimizer, and counts as one unit of progress.
    """

    _marks: StepMarks | None = None
    _samples = NO_VALUE
    _has_predicted = False

    @never_fails
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach the timers to the model and the optimizer."""
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        report_loader(kwargs.get("train_dataloader"))
        batch_size = getattr(args, "train_batch_size", None)
        recorder.hint("batch_size", batch_size)
        recorder.hint("world_size", getattr(args, "world_size", None))
        recorder.hint("marks_checkpoints", True)
        accumulated = getattr(args, "gradient_accumulation_steps", 1)
        self._samples = float(batch_size * accumulated) if isinstance(batch_size, int) else NO_VALUE
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps the optimizer
        self._close()
        self._marks = StepMarks(TorchPhases(model, optimizer))

    @never_fails
    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Mark the start of the wait for the first batch."""
        if self._marks is not None:
            self._marks.begin_epoch()

    @never_fails
    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Record the start of a training step, and thereby the end of the wait for its batch."""
        if self._marks is not None:
            self._marks.begin_step()

    @never_fails
    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Record the step and report it as progress."""
        if self._marks is not None:
            total = getattr(state, "max_steps", 0)
            self._marks.end_step(self._samples, total if total > 0 else None)
        self._has_predicted = False

    @never_fails
    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Mark that an evaluation is running."""
        self._has_predicted = True

    @never_fails
    def on_log(self, *_: Any, **__: Any) -> None:
        """Exclude the time of logging from the wait for data.

        Logging during an evaluation counts as evaluation.
        """
        if not self._has_predicted:
            self._rest()

    @never_fails
    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Record an evaluation."""
        self._has_predicted = False
        if self._marks is not None:
            self._marks.end_pause("evaluation")

    @never_fails
    def on_save(self, *_: Any, **__: Any) -> None:
        """Record a checkpoint."""
        if self._marks is not None:
            self._marks.end_pause("checkpoint")

    @never_fails
    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Mark the start of an evaluation or checkpoint at the end of an epoch."""
        self._rest()

    @never_fails
    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Remove the hooks of the model."""
        self._close()

    def _rest(self) -> None:
        if self._marks is not None:
            self._marks.rest()

    def _close(self) -> None:
        if self._marks is not None:
            self._marks.close()
            self._marks = None
