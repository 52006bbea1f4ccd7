"""Which function counts which operator or layer. Sites and users add their own here; no PyTorch is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.oracle.workload.operation_cost import OperationCost

OperatorHandler = Callable[[tuple[Any, ...], dict[str, Any], Any], OperationCost]
"""Takes an operator's positional arguments, keyword arguments and result; tensors have shapes, no data."""


@dataclass(frozen=True, slots=True)
class LayerHandler:
    """How to count a whole layer without looking into it.

    Attributes:
        work: from the module, its positional inputs and its output, all operations of one call.
        output: from the module and its inputs, an output of the right shape on the inputs' device; None: the
            module's own forward is run for it, its operators are not counted.
        saved: from module, inputs and output, elements kept for the backward pass.
    """

    work: Callable[[Any, tuple[Any, ...], Any], list[OperationCost]]
    output: Callable[[Any, tuple[Any, ...]], Any] | None = None
    saved: Callable[[Any, tuple[Any, ...], Any], float] | None = None


_operators: dict[str, OperatorHandler] = {}
_layers: dict[str, LayerHandler] = {}


class UnknownOperationError(UsageError):
    """A model runs an operator that nobody counts."""

    def __init__(self, operator: str, layer: str) -> None:
        super().__init__(
            f"layer {layer or 'the model itself'}: operator {operator} has no handler",
            "its cost is not known",
            "register one with slurm_energy.oracle.workload.registry.handles_operator"
            f"('{operator}') or, for the whole layer, handles_layer('CLASS'); docs/oracle.md has an example",
        )
        self.operator, self.layer = operator, layer


def handles_operator(*names: str) -> Callable[[OperatorHandler], OperatorHandler]:
    """Register the decorated function for operators by name, e.g. `aten.mm`, `mylib.fused_norm`."""

    def register(handler: OperatorHandler) -> OperatorHandler:
        _operators.update(dict.fromkeys(names, handler))
        return handler

    return register


def handles_layer(*classes: str) -> Callable[[LayerHandler], LayerHandler]:
    """Return a function that registers a handler for module classes by name, e.g. `LSTM`."""

    def register(handler: LayerHandler) -> LayerHandler:
        _layers.update(dict.fromkeys(classes, handler))
        return handler

    return register


def operator_handler(name: str) -> OperatorHandler | None:
    """Return who counts an operator."""
    return _operators.get(name)


def layer_handler(cls: type) -> LayerHandler | None:
    """Return who counts modules of a class as a whole; subclasses are not included."""
    return _layers.get(cls.__name__)
