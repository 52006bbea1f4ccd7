"""The cost of updating a network's weights in one training step, by optimizer.

The cost consists of memory traffic, operations and kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.errors import NotFoundError
from slurm_energy.quantities import shown

FP32_BYTES = 4
GRADIENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Cost of one optimizer of neural networks, e.g. AdamW.

    Attributes:
        name: name, e.g. `adamw`.
        states: number of FP32 state values per weight, e.g. 2 for the moments of Adam.
        flops: floating-point operations per weight.
        kernels: compute kernels per weight tensor if the framework updates one tensor after the other.
    """

    name: str
    states: int
    flops: float
    kernels: int

    def read_bytes(self, trainable: float, precision: str) -> float:
        """Return the bytes that one update reads: weights, gradients and optimizer states.

        Args:
            trainable: number of trainable weights.
            precision: precision of matrix products.

        Source: thesis, Eq. 4.4.
        """
        return trainable * (FP32_BYTES * (1 + self.states) + GRADIENT_BYTES[precision])

    def write_bytes(self, trainable: float) -> float:
        """Return the bytes that one update of `trainable` weights writes: weights and optimizer states.

        Source: thesis, Eq. 4.5.
        """
        return trainable * FP32_BYTES * (1 + self.states)

    def total_flops(self, trainable: float) -> float:
        """Return the floating-point operations of one optimizer update of `trainable` weights.

        All of these operations run on the ALU. Source: thesis, 4.3.4 (18 per weight for AdamW).
        """
        return trainable * self.flops


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("sgd", 0, 2, 1),
        Optimizer("momentum", 1, 4, 3),
        Optimizer("adam", 2, 16, 8),
        Optimizer("adamw", 2, 18, 9),  # 18: thesis; the other numbers are counted from the update rules
        Optimizer("adadelta", 2, 14, 10),
    )
}


def find_optimizer(name: str) -> Optimizer:
    """Return the optimizer with a name, e.g. `adamw`.

    Raises:
        NotFoundError: no optimizer has this name.
    """
    if name not in OPTIMIZERS:
        raise NotFoundError(f"optimizer '{shown(name)}'", "not known", f"one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
