"""Tracing of a PyTorch module: a forward pass on the `meta` device yields the workload profile.

The trace needs PyTorch, but neither weights nor a GPU. Registered functions (`registry`) return the cost of
every operator and of whole layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.oracle.workload import layers as layers
from slurm_energy.oracle.workload import operators
from slurm_energy.oracle.workload.operation_cost import AXES, Tally
from slurm_energy.oracle.workload.optimizers import find_optimizer
from slurm_energy.oracle.workload.profile import QUANTITIES, Affine, WorkloadProfile
from slurm_energy.oracle.workload.registry import (
    LayerHandler,
    UnknownOperationError,
    layer_handler,
    operator_handler,
)
from slurm_energy.quantities import shown

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    raise UnavailableError(
        "tracing a model", "PyTorch is not installed", "pip install torch, or name a shipped profile"
    ) from None

BATCHES = (2, 4)
"""The two traced batch sizes. Every quantity is the affine function through its two traced values."""


@dataclass(frozen=True, slots=True)
class ProfileLabels:
    """Descriptive fields of a workload profile. They have the same meaning as in `WorkloadProfile`."""

    name: str
    description: str = ""
    origin: str = ""
    optimizer: str = "adamw"
    dataset: str = ""
    samples_per_epoch: int | None = None


def profile_module(module: Any, inputs: Callable[[int], Any], labels: ProfileLabels) -> WorkloadProfile:
    """Compute the profile of a module.

    Args:
        module: any `torch.nn.Module` on any device; it is not changed, and its weights are not read.
        inputs: function from a batch size to the positional (tuple) or keyword (dict) arguments of the
            module's forward. Tensors may be on any device; only their shapes and types are used.
        labels: name and other descriptive fields.

    Raises:
        UnknownOperationError: an operator has no handler.
        EnergyError: the model cannot be traced. The message names the layer.
    """
    find_optimizer(labels.optimizer)
    first, second = (_one_pass(module, inputs(batch)) for batch in BATCHES)
    quantities: dict[str, Any] = {
        name: Affine.through((BATCHES[0], first[name]), (BATCHES[1], second[name])) for name in QUANTITIES
    }
    trainable = [tensor for tensor in module.parameters() if tensor.requires_grad]
    return WorkloadProfile(
        name=labels.name,
        description=labels.description or type(module).__name__,
        origin=labels.origin or f"traced with PyTorch {torch.__version__.partition('+')[0]}",
        parameters=sum(tensor.numel() for tensor in module.parameters()),
        trainable=sum(tensor.numel() for tensor in trainable),
        parameter_tensors=len(trainable),
        optimizer=labels.optimizer,
        dataset=labels.dataset,
        samples_per_epoch=labels.samples_per_epoch,
        **quantities,
    )


def _one_pass(module: Any, inputs: Any) -> dict[str, float]:
    """Trace the forward pass of one batch and return the values of all `QUANTITIES` by name."""
    counting = _CountingMode()
    state = {name: _on_meta(tensor) for name, tensor in _named_tensors(module)}
    args = tuple(_on_meta(item) for item in inputs) if isinstance(inputs, (tuple, list)) else ()
    kwargs = {key: _on_meta(item) for key, item in inputs.items()} if isinstance(inputs, dict) else {}
    if not args and not kwargs:
        raise UsageError("tracing a model", "its inputs are neither a tuple nor a dict", "return (tensor,)")
    training = module.training
    module.train()
    try:
        with _layer_hooks(module, counting), counting.saving(), torch.enable_grad(), counting:
            torch.func.functional_call(module, state, args, kwargs)
    except EnergyError:
        raise
    except Exception as error:
        raise EnergyError(
            f"layer {counting.current_layer or 'the model itself'}: cannot be traced on the meta device",
            shown(str(error), 200),
            "register a handler for the layer with handles_layer('CLASS'); docs/oracle.md has an example",
        ) from error
    finally:
        module.train(training)
    sums = counting.tally.sums
    dims = {f"{unit}_{axis}": counting.tally.mean_dim(unit, axis) for unit in AXES for axis in AXES[unit]}
    return {name: dims.get(name, sums.get(name, 0.0)) for name in QUANTITIES} | {"saved": counting.saved()}


def _named_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and tensors of all weights and buffers of a module.

    A tensor that the module uses under several names is yielded once, because `functional_call` replaces all
    uses of the tensor.
    """
    yield from module.named_parameters()
    yield from module.named_buffers()


def _on_meta(item: Any) -> Any:
    """Return a tensor on the `meta` device with the same shape and type as `item`.

    If `item` is no tensor, return `item` itself.
    """
    if not isinstance(item, torch.Tensor):
        return item
    return torch.empty_like(item, device="meta").requires_grad_(item.requires_grad)


class _CountingMode(TorchDispatchMode):  # type: ignore[misc]
    """PyTorch dispatch mode that receives every operator of a pass and sums the operators' costs.

    The mode also tracks the current layer for error messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self.layers: list[str] = []
        self.muted = 0
        self.current_layer = ""
        self._saved_tensors: dict[int, Any] = {}
        self._saved_elements = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.muted or func.is_view:
            return out
        name = str(func.overloadpacket)
        handler = operator_handler(name)
        if handler is not None:
            self.tally.add(handler(args, kwargs or {}, out))
        elif torch.Tag.pointwise in func.tags:
            self.tally.add(operators.pointwise(name, args, out))
        else:
            raise UnknownOperationError(name, self.current_layer)
        return out

    def enter(self, layer: str) -> None:
        """Record the start of a layer. Until the layer ends, error messages name `layer`."""
        self.layers.append(layer)
        self.current_layer = layer

    def leave(self) -> None:
        """Record the end of the current layer."""
        self.layers.pop()
        self.current_layer = self.layers[-1] if self.layers else ""

    def record_saved(self, tensor: Any) -> Any:
        """Record that the backward pass needs a tensor of the traced model, and return the tensor.

        The recorded tensors determine how much memory the backward pass needs. Weights of the model are not
        recorded.
        """
        if not self.muted and not isinstance(tensor, torch.nn.Parameter):
            self._saved_tensors.setdefault(tensor.untyped_storage()._cdata, tensor.detach())
        return tensor

    def add_saved(self, elements: float) -> None:
        """Add the number of elements that a registered layer saves for the backward pass."""
        self._saved_elements += elements

    def saved(self) -> float:
        """Return how many numbers of four bytes the forward pass must keep for the backward pass."""
        return self._saved_elements + sum(
            operators.traffic(tensor) for tensor in self._saved_tensors.values()
        )

    def saving(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager in which PyTorch's autograd reports the tensors that it saves.

        The size of these tensors is a part of the memory of a training step.
        """
        manager: contextlib.AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(
            self.record_saved, lambda tensor: tensor
        )
        return manager


@contextlib.contextmanager
def _layer_hooks(module: Any, counting: _CountingMode) -> Iterator[None]:
    """Context manager that reports to `counting` when each layer of a PyTorch module starts and ends.

    Some layer types have a registered handler. For these layers, the context manager also replaces the
    method `forward`. At the end, all changes are undone.
    """
    undo = []
    for name, layer in module.named_modules():
        label = f"{name or '(model)'} ({type(layer).__name__})"
        handler = layer_handler(type(layer))
        if handler is not None:
            original = layer.__dict__.get("forward")
            layer.forward = _counting_forward(layer, layer.forward, handler, counting)
            undo.append(_restorer(layer, original))
        before = layer.register_forward_pre_hook(lambda *_, label=label: counting.enter(label))
        after = layer.register_forward_hook(lambda *_: counting.leave())
        undo += [before.remove, after.remove]
    try:
        yield
    finally:
        for step in undo:
            step()


def _restorer(layer: Any, original: Any) -> Callable[[], None]:
    def restore() -> None:
        if original is None:
            del layer.forward
        else:
            layer.forward = original

    return restore


def _counting_forward(
    layer: Any, forward: Any, handler: LayerHandler, counting: _CountingMode
) -> Callable[..., Any]:
    """Return a replacement for a layer's `forward` that counts the costs returned by the layer's handler.

    The operators that run inside the layer are not counted.
    """

    def forward_and_count(*inputs: Any, **kwargs: Any) -> Any:
        arguments = (*inputs, *kwargs.values())
        counting.muted += 1
        try:
            output = handler.output(layer, arguments) if handler.output else forward(*inputs, **kwargs)
            works = handler.work(layer, arguments, output)
            kept = handler.saved(layer, arguments, output) if handler.saved else 0.0
        finally:
            counting.muted -= 1
        for work in works:
            counting.tally.add(work)
        counting.add_saved(kept)
        return output

    return forward_and_count
