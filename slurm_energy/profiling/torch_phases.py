"""Phases of a PyTorch model (forward, backward, optimizer), measured by hooks while a watched loop runs.

The hooks change no value, force no synchronisation and raise no error in the program. The hooks exist only
while the loop runs, and only in steps whose phases are timed: all long steps, and four short steps a second.
A hook costs ten times as much after a computation that has emptied the processor's caches as in a tight loop.
Copies of the model do not contain the hooks, nor do files to which the whole model is saved. This module does
not import PyTorch, because a program that uses this module has already imported PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

from slurm_energy.profiling.cuda_timer import CudaTimer, Mark, gpu_index
from slurm_energy.profiling.step_recorder import NO_VALUE, recorder
from slurm_energy.profiling.step_statistics import GPU

log = logging.getLogger("slurm_energy")

_now = time.perf_counter_ns
_MAX_DEPTH: Final = 3
_MAX_ITEMS: Final = 8
_TIMED_EVERY_NS: Final = 250_000_000
_LONG_STEP_NS: Final = 80_000_000
"""Minimum length, in ns, of a step that is always timed."""


class _Hook:
    """PyTorch hook of a model or tensor that raises no error and returns None.

    Args:
        call: function with the arguments of the hook.
        is_compiling: function that returns whether torch.compile is tracing the hook. If so, the hook must
            do nothing.
    """

    __slots__ = ("__weakref__", "_call", "_is_compiling")

    def __init__(self, call: Callable[..., None] | None, is_compiling: Callable[[], bool] | None) -> None:
        self._call = call
        self._is_compiling = is_compiling

    def __call__(self, *args: Any) -> None:
        if self._is_compiling is not None and self._is_compiling():
            return
        call = self._call
        if call is not None:
            try:
                call(*args)
            except Exception as error:
                self._call = None
                log.warning("slurm_energy: a phase is not recorded: %s: %s", type(error).__name__, error)

    def disable(self) -> None:
        """Disable the hook. A disabled hook does nothing."""
        self._call = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A saved or copied model gets a function without effect that exists in every Python.
        return getattr, (contextlib.nullcontext(), "__exit__")


class TorchPhases:
    """Timer of the phases of a model.

    Args:
        model: a `torch.nn.Module`; None means not to time the phases `forward` and `backward`.
        optimizer: an optimizer, or a list or tuple of optimizers; None means not to time the phase
            `optimizer`.
        device: device to which the program moves batches; None if unknown.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, device: Any = None) -> None:
        self._torch = sys.modules.get("torch")
        self._optimizers = tuple(optimizer) if isinstance(optimizer, (list, tuple)) else (optimizer,)
        self._optimizers = tuple(entry for entry in self._optimizers if entry is not None)
        self._weight = 0
        self._start_ns = 0
        self._is_cuda_lost = False
        self._cuda = self._cuda_timer(model, device)
        self._forward_ns: int | None = None
        self._backward_ns: int | None = None
        self._exchange_ns: int | None = None
        self._has_exchange = self._is_data_parallel(model)
        self._optimizer_ns = 0
        self._marks: dict[str, Mark | None] = {}
        self._nested_ns = 0
        self._removals: list[Callable[[], None]] = []
        self._switches: list[tuple[Any, Any, _Hook]] = []
        compiler = getattr(self._torch, "compiler", None)
        self._is_compiling = getattr(compiler, "is_compiling", None)
        self._backward_hook = self._hook(self._begin_backward)
        try:
            self._attach(model)
        except BaseException:
            self.detach()
            raise

    @property
    def times_step(self) -> bool:
        """Whether the phases of the current step are timed."""
        return self._weight > 0

    def begin_step(self, start_ns: int, weight: int) -> None:
        """Time the phases of a step.

        Args:
            start_ns: start of the step.
            weight: number of steps that the timed step represents: the timed step itself and the steps since
                the last timed step.
        """
        self._start_ns, self._weight = start_ns, weight
        try:
            for hooks, key, hook in self._switches:
                hooks[key] = hook
        except Exception as error:
            self._switches.clear()
            log.warning("slurm_energy: phases of the model are not recorded: %s", error)

    def add_copy(self, start_ns: int, end_ns: int) -> None:
        """Record a data copy to the device if the current step is one of the timed steps.

        The caller has measured start and end of the copy.
        """
        if self._weight:
            recorder.add("copy", start_ns, end_ns, weight=self._weight)

    def end_step(self, end_ns: int) -> int:
        """End a step whose phases were timed.

        Return the time from which on the next step may be timed.
        """
        self._switch_off()
        self.poll()
        if end_ns - self._start_ns >= _LONG_STEP_NS:
            return end_ns
        return self._start_ns + _TIMED_EVERY_NS

    def _switch_off(self) -> None:
        self._weight = 0
        self._forward_ns = self._backward_ns = self._exchange_ns = None
        for hooks, key, _ in self._switches:
            hooks.pop(key, None)

    def poll(self) -> None:
        """Record those phases of the training step that the GPU has completed."""
        if self._cuda is not None:
            try:
                self._cuda.poll()
            except Exception as error:
                self._stop_cuda(error)

    def detach(self) -> None:
        """Remove the hooks."""
        self._switch_off()
        while self._removals:
            with contextlib.suppress(Exception):
                self._removals.pop()()
        self.poll()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Record the duration of the `with` block as a phase with this name.

        The duration is recorded only in training steps that are timed. It is measured on the GPU if the
        model runs there.
        """
        if not self._weight:
            yield
            return
        start_ns, begin = _now(), self._mark()
        yield
        self._add(name, start_ns, _now(), begin)

    def _attach(self, model: Any) -> None:
        if model is not None:
            self._register(model.register_forward_pre_hook, self._begin_forward)
            self._register(model.register_forward_hook, self._end_forward)
        for optimizer in self._optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):  # PyTorch 2
                self._register(optimizer.register_step_pre_hook, self._begin_optimizer)
                self._register(optimizer.register_step_post_hook, self._end_optimizer)
            elif hasattr(optimizer, "step"):
                self._removals.append(self._wrap_step(optimizer))
        self._switch_off()

    def _register(self, register: Callable[[_Hook], Any], call: Callable[..., None]) -> None:
        hook = self._hook(call)
        handle = register(hook)
        self._removals.append(handle.remove)
        reference = getattr(handle, "hooks_dict_ref", None)
        hooks = reference() if reference is not None else None
        if hooks is not None:
            self._switches.append((hooks, handle.id, hook))

    def _wrap_step(self, optimizer: Any) -> Callable[[], None]:
        """Replace `optimizer.step` by a method that also records its time.

        Returns:
            A function that restores `optimizer.step`.
        """
        original = optimizer.step
        begin, end = self._hook(self._begin_optimizer), self._hook(self._end_optimizer)

        @functools.wraps(original)
        def step(_: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._weight:
                return original(*args, **kwargs)
            begin()
            result = original(*args, **kwargs)
            end()
            return result

        before = vars(optimizer).get("step")
        method = optimizer.step = types.MethodType(step, optimizer)

        def undo() -> None:
            begin.disable()
            end.disable()
            if vars(optimizer).get("step") is not method:
                return  # another library has wrapped it
            if before is None:
                del optimizer.step
            else:
                optimizer.step = before

        return undo

    def _hook(self, call: Callable[..., None]) -> _Hook:
        return _Hook(call, self._is_compiling)

    def _begin_forward(self, module: Any, *_: Any) -> None:
        is_evaluation = self._optimizers and not module.training
        # In the backward pass, a forward pass only recomputes activations.
        if self._weight and self._backward_ns is None and not is_evaluation:
            self._forward_ns = _now()
            self._marks["forward"] = self._mark()
        else:
            self._forward_ns = None

    def _end_forward(self, _: Any, __: Any, output: Any) -> None:
        if self._forward_ns is not None:
            self._add("forward", self._forward_ns, _now(), self._marks.get("forward"))
            self._forward_ns = None
            tensor = self._tensor_with_gradient(output, _MAX_DEPTH)
            if tensor is not None:
                tensor.register_hook(self._backward_hook)

    def _begin_backward(self, *_: Any) -> None:
        if self._weight and self._backward_ns is None:
            self._at_end_of_backward(self._end_backward)
            self._backward_ns = _now()
            self._marks["backward"] = self._mark()

    def _end_backward(self) -> None:
        if self._backward_ns is not None:
            self._add("backward", self._backward_ns, _now(), self._marks.get("backward"))
            self._backward_ns = None
            if self._has_exchange:
                # The model waits for the gradients of other ranks in a callback that runs before this one.
                self._at_end_of_backward(self._end_exchange)
                self._exchange_ns = _now()
                self._marks["communication"] = self._mark()

    def _end_exchange(self) -> None:
        if self._exchange_ns is not None:
            self._add("communication", self._exchange_ns, _now(), self._marks.get("communication"))
            self._exchange_ns = None

    def _at_end_of_backward(self, call: Callable[..., None]) -> None:
        """Call a function after the current backward pass and after all callbacks registered so far."""
        self._torch.autograd.Variable._execution_engine.queue_callback(self._hook(call))  # type: ignore[union-attr]

    def _is_data_parallel(self, model: Any) -> bool:
        """Return whether a model is a DistributedDataParallel.

        A DistributedDataParallel averages its gradients over the ranks.
        """
        parallel = getattr(getattr(self._torch, "nn", None), "parallel", None)
        kind = getattr(parallel, "DistributedDataParallel", None)
        return isinstance(kind, type) and isinstance(model, kind)

    def _begin_optimizer(self, *_: Any) -> None:
        if self._weight:
            self._optimizer_ns, self._nested_ns = _now(), 0
            self._marks["optimizer"] = self._mark()

    def _end_optimizer(self, *_: Any) -> None:
        nested_ns = self._nested_ns  # a closure runs forward and backward within the optimizer
        if self._weight and (self._cuda is None or not nested_ns):
            self._add("optimizer", self._optimizer_ns + nested_ns, _now(), self._marks.get("optimizer"))

    def _mark(self) -> Mark | None:
        try:
            return None if self._cuda is None else self._cuda.mark()
        except Exception as error:
            self._stop_cuda(error)
            return None

    def _stop_cuda(self, error: Exception) -> None:
        """Stop recording times on the GPU after an error, and log the error."""
        self._cuda = None
        self._is_cuda_lost = True
        log.warning("slurm_energy: times of the GPU are not recorded: %s", error)

    def _add(self, name: str, start_ns: int, end_ns: int, begin: Mark | None) -> None:
        self._nested_ns += end_ns - start_ns
        if self._cuda is not None:
            self._cuda.add(name, begin, self._mark(), self._weight)
        elif not self._is_cuda_lost:
            recorder.add(name, start_ns, end_ns, weight=self._weight)

    def _cuda_timer(self, model: Any, device: Any) -> CudaTimer | None:
        torch = self._torch
        kind = str(getattr(device, "type", device or ""))
        if torch is not None and device is None and hasattr(model, "parameters"):
            kind = next((parameter.device.type for parameter in model.parameters()), "")
        if torch is None or not kind.startswith("cuda") or not torch.cuda.is_available():
            recorder.hint("timing", "clock")
            return None
        recorder.hint("timing", "cuda")
        recorder.gpu = gpu_index(torch.cuda.current_device())
        return CudaTimer(torch.cuda, _record_on_gpu)

    def _tensor_with_gradient(self, output: Any, depth: int) -> Any:
        """Return the first tensor with a gradient in a model's output; None if no tensor has a gradient."""
        if isinstance(output, self._torch.Tensor):  # type: ignore[union-attr]
            return output if output.requires_grad else None
        if depth and isinstance(output, (dict, list, tuple)):
            items = output.values() if isinstance(output, dict) else output
            for item in itertools.islice(items, _MAX_ITEMS):
                tensor = self._tensor_with_gradient(item, depth - 1)
                if tensor is not None:
                    return tensor
        return None


def _record_on_gpu(name: str, start_ns: int, end_ns: int, weight: int) -> None:
    recorder.add(name, start_ns, end_ns, thread=GPU, weight=weight)


def batch_size(loader: Any) -> float:
    """Return the number of samples in each batch of a loader; NaN if unknown."""
    size = _setting(loader, "batch_size")
    return float(size) if isinstance(size, int) and not isinstance(size, bool) else NO_VALUE


def missing_samples(loader: Any, batches: int) -> float:
    """Return a correction of the number of samples that a pass over a data loader has processed.

    The number was counted as if all batches were full. The correction is negative if the last batch is
    smaller, and 0 if the size of the last batch is unknown.
    """
    size = batch_size(loader)
    try:
        missing = float(len(_setting(loader, "sampler")) - batches * size)
    except Exception:  # a sampler without a length
        return 0.0
    return missing if not _setting(loader, "drop_last") and -size < missing < 0 else 0.0


def _setting(loader: Any, name: str) -> Any:
    """Return an attribute of a PyTorch data loader, for example a setting.

    The result is None if the loader does not have the attribute, or if the loader's own code fails.
    """
    try:
        return getattr(loader, name, None)
    except Exception:
        return None


def report_loader(loader: Any) -> None:
    """Store the settings of a data loader and of torch.distributed that the diagnosis needs."""
    recorder.start_cpu_time()
    for name in ("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"):
        recorder.hint(name, _setting(loader, name))
    with contextlib.suppress(Exception):
        recorder.hint("dataset_samples", len(loader.dataset))
    torch, environment = sys.modules.get("torch"), os.environ
    with contextlib.suppress(Exception):
        recorder.hint("compute_threads", int(torch.get_num_threads()))  # type: ignore[union-attr]
    with contextlib.suppress(Exception):
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            recorder.hint("world_size", int(torch.distributed.get_world_size()))
            recorder.hint("backend", str(torch.distributed.get_backend()))
            return
    world = environment.get("WORLD_SIZE") or environment.get("SLURM_NTASKS") or ""
    if world.isascii() and world.isdecimal():
        recorder.hint("world_size", int(world[:9]))


def moved(batch: Any, device: Any) -> Any:
    """Return a batch whose tensors are on a device.

    A batch is a tensor, or a dict, list or tuple of tensors. Tensors in pinned memory are copied
    asynchronously. Values other than tensors are not changed.
    """
    if isinstance(batch, dict):
        items = {key: moved(value, device) for key, value in batch.items()}
        return items if type(batch) is dict else type(batch)(items)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(item, device) for item in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(moved(item, device) for item in batch)
    if hasattr(batch, "to"):
        is_pinned = getattr(batch, "is_pinned", None)
        if is_pinned is not None and is_pinned():
            return batch.to(device, non_blocking=True)
        return batch.to(device)
    return batch
