"""Cost functions of PyTorch layers that run as one library call on a GPU, e.g. recurrent layers.

If a layer has a cost function here, the operators in its Python definition are not counted. Importing this
module registers the functions in `registry`.
"""

from __future__ import annotations

from typing import Any

from slurm_energy.oracle.workload.operation_cost import OperationCost
from slurm_energy.oracle.workload.operators import needs_gradient, size
from slurm_energy.oracle.workload.registry import LayerHandler, handles_layer

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _shape(module: Any, data: Any) -> tuple[int, int]:
    """Return the numbers of time steps and sequences in the input `data` of a recurrent layer."""
    if data.dim() == 2:
        return data.shape[0], 1
    steps, batch = data.shape[:2]
    return (batch, steps) if module.batch_first else (steps, batch)


def _recurrent_work(module: Any, inputs: tuple[Any, ...], output: Any) -> list[OperationCost]:
    """Return the costs of all operations of a recurrent layer of a network.

    For the inputs of all time steps together, there is one matrix product. For each time step, there are a
    small matrix product and pointwise operations.
    """
    steps, batch = _shape(module, inputs[0])
    gates = _GATES[module.mode.split("_")[0]] * module.hidden_size
    directions = 2 if module.bidirectional else 1
    works = []
    for layer in range(module.num_layers):
        width = module.input_size if layer == 0 else directions * (module.proj_size or module.hidden_size)
        first = layer == 0 and not needs_gradient(inputs[0])
        for _ in range(directions):
            works += _layer_work(steps, batch, gates, width, module.hidden_size, first)
    return works


def _layer_work(
    steps: int, batch: int, gates: int, width: int, hidden: int, first: bool
) -> list[OperationCost]:
    back = 1.0 if first else 2.0
    whole = 2.0 * steps * batch * gates * width
    step = 2.0 * batch * gates * hidden
    state = float(steps * batch * gates)
    return [
        OperationCost(
            unit="gemm",
            forward_flops=whole,
            backward_flops=back * whole,
            forward_read=steps * batch * width + gates * width,
            forward_write=state,
            backward_read=back * (state + gates * width),
            backward_write=steps * batch * width + gates * width,
            backward_kernels=back,
            dims=(steps * batch, gates, width),
        ),
        OperationCost(
            unit="gemm",
            forward_flops=step * steps,
            backward_flops=2 * step * steps,
            forward_read=steps * (gates * hidden + batch * hidden),
            forward_write=state,
            backward_read=2 * steps * (gates * hidden + batch * hidden),
            backward_write=state + gates * hidden,
            forward_kernels=steps,
            backward_kernels=steps + 1,
            dims=(batch, gates, hidden),
        ),
        OperationCost(
            forward_flops=6 * state,
            backward_flops=10 * state,
            forward_read=2 * state,
            forward_write=state,
            backward_read=3 * state,
            backward_write=state,
            forward_kernels=steps,
            backward_kernels=steps,
            elements=state,
        ),
    ]


def _recurrent_output(module: Any, inputs: tuple[Any, ...]) -> Any:
    data = inputs[0]
    steps, batch = _shape(module, data)
    directions = 2 if module.bidirectional else 1
    width = directions * (module.proj_size or module.hidden_size)
    shape = (batch, steps, width) if module.batch_first else (steps, batch, width)
    output = data.new_empty(shape[1:] if data.dim() == 2 else shape).requires_grad_()
    state = data.new_empty((directions * module.num_layers, batch, module.proj_size or module.hidden_size))
    cell = data.new_empty((directions * module.num_layers, batch, module.hidden_size))
    return output, ((state, cell) if module.mode == "LSTM" else state)


def _recurrent_saved(module: Any, inputs: tuple[Any, ...], output: Any) -> float:
    """Return the number of tensor elements that a recurrent layer saves for the backward pass.

    These are the input, and the gates and states of every time step.
    """
    steps, batch = _shape(module, inputs[0])
    directions = 2 if module.bidirectional else 1
    gates = _GATES[module.mode.split("_")[0]]
    elements: float = module.num_layers * directions * steps * batch * module.hidden_size * (gates + 1.0)
    return size(inputs[0]) + elements


handles_layer("LSTM", "GRU", "RNN")(LayerHandler(_recurrent_work, _recurrent_output, _recurrent_saved))
