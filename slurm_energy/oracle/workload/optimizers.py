"""What an optimizer's step costs: memory traffic, operations and kernels, from the number of weights."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.errors import NotFoundError
from slurm_energy.quantities import shown

FP32_BYTES = 4
GRADIENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One update rule.

    Attributes:
        name: e.g. `adamw`.
        states: tensors of the weights' size that it keeps (moments), FP32.
        flops: operations per weight.
        kernels: kernels per tensor where the framework loops over tensors.
    """

    name: str
    states: int
    flops: float
    kernels: int

    def read_bytes(self, trainable: float, precision: str) -> float:
        """Return bytes read in one step: weights, gradients, states.

        Source: thesis, Eq. 4.4.
        """
        return trainable * (FP32_BYTES * (1 + self.states) + GRADIENT_BYTES[precision])

    def write_bytes(self, trainable: float) -> float:
        """Return bytes written in one step: weights and states.

        Source: thesis, Eq. 4.5.
        """
        return trainable * FP32_BYTES * (1 + self.states)

    def total_flops(self, trainable: float) -> float:
        """Return operations of one step, all on the ALU.

        Source: thesis, 4.3.4 (18 per weight for AdamW).
        """
        return trainable * self.flops


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("sgd", 0, 2, 1),
        Optimizer("momentum", 1, 4, 3),
        Optimizer("adam", 2, 16, 8),
        Optimizer("adamw", 2, 18, 9),  # 18: thesis; the others counted from their update rules
        Optimizer("adadelta", 2, 14, 10),
    )
}


def find_optimizer(name: str) -> Optimizer:
    """Return an optimizer by name.

    Raises:
        NotFoundError: no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise NotFoundError(f"optimizer '{shown(name)}'", "not known", f"one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
