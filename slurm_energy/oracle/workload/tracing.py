"""The forward pass on the `meta` device that turns a PyTorch module into a profile: no weights, no GPU.

Needs PyTorch. Every operator and every handled layer is counted by its handler in the registry.
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
"""Two batches are traced; every quantity lies on the line through them."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What a profile says beside its figures; see `Profile`."""

    name: str
    description: str = ""
    origin: str = ""
    optimizer: str = "adamw"
    dataset: str = ""
    samples_per_epoch: int | None = None


def profile_module(module: Any, inputs: Callable[[int], Any], labels: Labels) -> WorkloadProfile:
    """Compute the profile of a module.

    Args:
        module: any `torch.nn.Module`, on any device; it is not changed and its weights are not read.
        inputs: from a batch size, the positional (tuple) or keyword (dict) arguments of its forward. Tensors
            of any device; only their shapes and types count.
        labels: name and so on.

    Raises:
        UnknownOperationError: an operator that no handler counts.
        EnergyError: the model cannot be traced; names the layer.
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


def _one_pass(module: Any, given: Any) -> dict[str, float]:
    """Return every quantity of `QUANTITIES` for one batch."""
    counting = _Counting()
    state = {name: _on_meta(tensor) for name, tensor in _named_tensors(module)}
    args = tuple(_on_meta(item) for item in given) if isinstance(given, (tuple, list)) else ()
    kwargs = {key: _on_meta(item) for key, item in given.items()} if isinstance(given, dict) else {}
    if not args and not kwargs:
        raise UsageError("tracing a model", "its inputs are neither a tuple nor a dict", "return (tensor,)")
    training = module.training
    module.train()
    try:
        with _watched(module, counting), counting.saving(), torch.enable_grad(), counting:
            torch.func.functional_call(module, state, args, kwargs)
    except EnergyError:
        raise
    except Exception as error:
        raise EnergyError(
            f"layer {counting.place or 'the model itself'}: cannot be traced on the meta device",
            shown(str(error), 200),
            "register a handler for the layer with handles_layer('CLASS'); docs/oracle.md has an example",
        ) from error
    finally:
        module.train(training)
    sums = counting.tally.sums
    dims = {f"{unit}_{axis}": counting.tally.mean_dim(unit, axis) for unit in AXES for axis in AXES[unit]}
    return {name: dims.get(name, sums.get(name, 0.0)) for name in QUANTITIES} | {"saved": counting.saved()}


def _named_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield weights and buffers, tied ones once: `functional_call` ties them again."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _on_meta(item: Any) -> Any:
    """Return a tensor's shape on the meta device; other things as they are."""
    if not isinstance(item, torch.Tensor):
        return item
    return torch.empty_like(item, device="meta").requires_grad_(item.requires_grad)


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator of a pass, knows in which layer it runs, and adds up its work."""

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self.layers: list[str] = []
        self.muted = 0
        self.place = ""
        self._kept: dict[int, Any] = {}
        self._kept_more = 0.0

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
            raise UnknownOperationError(name, self.place)
        return out

    def enter(self, layer: str) -> None:
        """Note that a layer begins; its name stays for errors if it fails."""
        self.layers.append(layer)
        self.place = layer

    def leave(self) -> None:
        """Note that a layer has ended."""
        self.layers.pop()
        self.place = self.layers[-1] if self.layers else ""

    def keep(self, tensor: Any) -> Any:
        """Take note of a tensor that the backward pass needs; weights do not count."""
        if not self.muted and not isinstance(tensor, torch.nn.Parameter):
            self._kept.setdefault(tensor.untyped_storage()._cdata, tensor.detach())
        return tensor

    def keep_more(self, elements: float) -> None:
        """Count elements that a handled layer keeps."""
        self._kept_more += elements

    def saved(self) -> float:
        """Return all elements kept."""
        return self._kept_more + sum(operators.traffic(tensor) for tensor in self._kept.values())

    def saving(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which autograd tells what it keeps."""
        manager: contextlib.AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(
            self.keep, lambda tensor: tensor
        )
        return manager


@contextlib.contextmanager
def _watched(module: Any, counting: _Counting) -> Iterator[None]:
    """Let layers say when they begin and end, and put handlers in the place of handled layers' forward."""
    undo = []
    for name, layer in module.named_modules():
        label = f"{name or '(model)'} ({type(layer).__name__})"
        handler = layer_handler(type(layer))
        if handler is not None:
            had = layer.__dict__.get("forward")
            layer.forward = _counted(layer, layer.forward, handler, counting)
            undo.append(_restorer(layer, had))
        before = layer.register_forward_pre_hook(lambda *_, label=label: counting.enter(label))
        after = layer.register_forward_hook(lambda *_: counting.leave())
        undo += [before.remove, after.remove]
    try:
        yield
    finally:
        for step in undo:
            step()


def _restorer(layer: Any, had: Any) -> Callable[[], None]:
    def restore() -> None:
        if had is None:
            del layer.forward
        else:
            layer.forward = had

    return restore


def _counted(layer: Any, forward: Any, handler: LayerHandler, counting: _Counting) -> Callable[..., Any]:
    """Return a forward that counts by the handler and hides what runs inside."""

    def counted(*inputs: Any, **kwargs: Any) -> Any:
        given = (*inputs, *kwargs.values())
        counting.muted += 1
        try:
            output = handler.output(layer, given) if handler.output else forward(*inputs, **kwargs)
            works = handler.work(layer, given, output)
            kept = handler.saved(layer, given, output) if handler.saved else 0.0
        finally:
            counting.muted -= 1
        for work in works:
            counting.tally.add(work)
        counting.keep_more(kept)
        return output

    return counted
