"""Registry of the cost functions of PyTorch operators and layers. The registry needs no PyTorch.

Sites and users can register further functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.oracle.workload.operation_cost import OperationCost

OperatorHandler = Callable[[tuple[Any, ...], dict[str, Any], Any], OperationCost]
"""Function of an operator's positional arguments, keyword arguments and result; tensors have no data."""


@dataclass(frozen=True, slots=True)
class LayerHandler:
    """Cost functions of a whole layer. The operators inside the layer are not counted.

    Attributes:
        work: function that returns all operations of one call, given the module, its positional inputs and
            its output.
        output: function that returns an output of the right shape on the inputs' device, given the module and
            its inputs. None means that the module's own forward runs, and its operators are not counted.
        saved: function that returns the number of elements saved for the backward pass, given module, inputs
            and output.
    """

    work: Callable[[Any, tuple[Any, ...], Any], list[OperationCost]]
    output: Callable[[Any, tuple[Any, ...]], Any] | None = None
    saved: Callable[[Any, tuple[Any, ...], Any], float] | None = None


_operators: dict[str, OperatorHandler] = {}
_layers: dict[str, LayerHandler] = {}


class UnknownOperationError(UsageError):
    """Error: a model runs an operator for which no handler is registered."""

    def __init__(self, operator: str, layer: str) -> None:
        super().__init__(
            f"layer {layer or 'the model itself'}: operator {operator} has no handler",
            "its cost is unknown",
            "register one with slurm_energy.oracle.workload.registry.handles_operator"
            f"('{operator}') or, for the whole layer, handles_layer('CLASS'); docs/oracle.md has an example",
        )
        self.operator, self.layer = operator, layer


def handles_operator(*names: str) -> Callable[[OperatorHandler], OperatorHandler]:
    """Return a decorator that registers a function as the cost function of PyTorch operators.

    Args:
        names: names of the operators, such as `aten.mm` or `mylib.fused_norm`.
    """

    def register(handler: OperatorHandler) -> OperatorHandler:
        _operators.update(dict.fromkeys(names, handler))
        return handler

    return register


def handles_layer(*classes: str) -> Callable[[LayerHandler], LayerHandler]:
    """Return a function that registers a handler for PyTorch module classes by name, e.g. `LSTM`."""

    def register(handler: LayerHandler) -> LayerHandler:
        _layers.update(dict.fromkeys(classes, handler))
        return handler

    return register


def operator_handler(name: str) -> OperatorHandler | None:
    """Return the cost function registered for an operator name, e.g. `aten.mm`; None if not registered."""
    return _operators.get(name)


def layer_handler(cls: type) -> LayerHandler | None:
    """Return the handler registered for a PyTorch module class; None if no handler is registered.

    Handlers registered for a base class are not used.
    """
    return _layers.get(cls.__name__)
