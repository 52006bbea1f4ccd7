"""Times of the phases of a program: `with phase("checkpoint"):` and `for batch in watch(loader):`.

A phase costs about a microsecond. The energy of a phase is not read; `profile` measures energy. The functions
of this module raise no error in the program and never wait for the agent.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from slurm_energy.errors import UsageError
from slurm_energy.profiling.decoration import inside
from slurm_energy.profiling.loader_queue import PROBE_PERIOD_NS, is_batch_ready, is_in_order
from slurm_energy.profiling.loop_report import LoopReport
from slurm_energy.profiling.step_recorder import recorder
from slurm_energy.profiling.step_statistics import phase_name
from slurm_energy.profiling.torch_phases import (
    TorchPhases,
    batch_size,
    missing_samples,
    moved,
    report_loader,
)
from slurm_energy.profiling.worker_trial import EpochTimes, end_epoch, trial_of

log = logging.getLogger("slurm_energy")

_now = time.perf_counter_ns
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")


class phase:  # noqa: N801 (used like a function, as a context manager and as a decorator)
    """Record the time of a phase of the program.

    `with phase("checkpoint"):` records the `with` block, `@phase("evaluation")` each call of a function,
    including coroutines. The names `data`, `copy`, `forward`, `backward`, `optimizer`, `communication`,
    `checkpoint` and `evaluation` have a meaning for the diagnosis; any other name denotes a section of the
    program.

    Args:
        name: name of the phase, at most 64 characters.

    Raises:
        UsageError: the name is not text, or is empty.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"phase: {name!r:.60} is not a valid name", todo="use 1 to 64 printable characters"
            )
        self._name = phase_name(name)
        self._starts = threading.local()

    def __enter__(self) -> None:
        starts = self._starts.__dict__.setdefault("ns", [])
        starts.append(_now())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _now()
        starts = self._starts.__dict__.get("ns")
        if starts:  # else the block began in another thread
            recorder.add(self._name, starts.pop(), end_ns)

    def __call__(self, function: _Function) -> _Function:
        """Return a wrapper of `function` that records each call."""
        return inside(function, functools.partial(phase, self._name))


class watch(Generic[_Item]):  # noqa: N801 (used like a function)
    """Record the steps of a loop: `for batch in watch(loader, model, optimizer):`.

    Each item is one step. The step lasts from the request for the item to the request for the next item. The
    wait for the item is recorded as `data`. With a PyTorch model and optimizer, `forward`, `backward` and
    `optimizer` are recorded too. On a GPU, these phases are timed with CUDA events, without synchronisation.
    Each step counts as one unit of progress, as with `track`. A step that the program leaves with `break` or
    an exception is not counted.

    Args:
        loader: the items, for example a `torch.utils.data.DataLoader`.
        model: a `torch.nn.Module`; None means not to record `forward` and `backward`.
        optimizer: a `torch.optim.Optimizer`, or a list or tuple of optimizers.
        device: device to which each batch is moved, with the time recorded as `copy`; None means that the
            program itself moves the batches.
        total: total number of steps of this process, if known.
        max_workers: maximum number of loader processes. While steps wait for data, the number of processes is
            increased between epochs. An increase that does not make steps faster is undone. None means never
            to change the loader.

    Raises:
        UsageError: `max_workers` is not a positive whole number.
    """

    def __init__(
        self,
        loader: Iterable[_Item],
        model: Any = None,
        optimizer: Any = None,
        *,
        device: Any = None,
        total: float | None = None,
        max_workers: int | None = None,
    ) -> None:
        if max_workers is not None and (type(max_workers) is not int or max_workers < 1):
            todo = "use a whole number from 1 on, or leave it out"
            raise UsageError(f"watch: max_workers={max_workers!r:.20} is not valid", todo=todo)
        self._loader, self._max_workers = loader, max_workers
        self._model, self._optimizer, self._device, self._total = model, optimizer, device, total

    def __len__(self) -> int:
        """Return the length of the loader."""
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader, for example its `dataset` or `sampler`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[_Item]:
        """Yield the items of the wrapped data loader, and record the program's steps."""
        phases = self._attach()
        trial = None if self._max_workers is None else trial_of(self._loader, self._max_workers)
        times = EpochTimes()
        size, thread, append = batch_size(self._loader), threading.get_ident(), recorder.append_step
        now, device, report = _now, self._device, LoopReport(self._total)
        steps = report_ns = report_steps = 0
        untimed, timed_ns = recorder.untimed_steps, recorder.next_timed_ns
        start_ns = probe_ns = now()
        try:
            iterator = iter(self._loader)
            while True:
                is_ready = False
                if start_ns >= probe_ns:
                    probe_ns, is_ready = start_ns + PROBE_PERIOD_NS, is_batch_ready(iterator)
                try:
                    item = next(iterator)
                except StopIteration:
                    recorder.add_samples(missing_samples(self._loader, steps))
                    if trial is not None:
                        end_epoch(self._loader, trial, times)
                    return
                received_ns = now()
                if not steps:
                    recorder.add_loader_start(received_ns - start_ns)
                elif is_ready and is_in_order(iterator):
                    recorder.add_ready_batch(received_ns - start_ns)
                untimed += 1
                timed = phases if received_ns >= timed_ns else None
                if timed is not None:
                    timed.begin_step(start_ns, untimed)
                if device is not None:
                    item = _moved(item, device, phases)
                yield item
                end_ns = now()
                if timed is not None:
                    untimed, timed_ns = 0, timed.end_step(end_ns)
                append((start_ns, received_ns, end_ns, size, thread))
                if trial is not None:
                    times.add((received_ns - start_ns) * 1e-9, (end_ns - start_ns) * 1e-9)
                start_ns = end_ns
                steps += 1
                if end_ns >= report_ns or steps >= report_steps:
                    report_ns, report_steps = report.send(end_ns, steps)
        finally:
            report.close(steps)
            if phases is not None:
                recorder.untimed_steps, recorder.next_timed_ns = untimed, timed_ns
                phases.detach()

    def _attach(self) -> TorchPhases | None:
        """Return the timer of the model's phases.

        Return None if there is no model, or the timer cannot be attached.
        """
        try:
            report_loader(self._loader)
            if self._model is None and self._optimizer is None and self._device is None:
                return None
            return TorchPhases(self._model, self._optimizer, self._device)
        except Exception as error:
            log.warning(
                "slurm_energy: phases of the model are not recorded: %s: %s", type(error).__name__, error
            )
            return None


def _moved(batch: Any, device: Any, phases: TorchPhases | None) -> Any:
    """Move a batch of training data to a device, and record the time of the copy."""
    with contextlib.nullcontext() if phases is None else phases.timed("copy"):
        return moved(batch, device)
