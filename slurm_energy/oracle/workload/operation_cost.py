"""The cost of one operation of a network, and sums of the costs of all operations in a pass.

Plain arithmetic without PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNITS = ("gemm", "conv", "alu")
AXES = {"gemm": ("m", "n", "k"), "conv": ("pixels", "in", "out")}
"""Dimensions of a matrix product and of a convolution.

A matrix product has rows, columns and an inner size. A convolution has the output pixels of the whole batch,
the input channels of a group, and the output channels.
"""


@dataclass(frozen=True, slots=True)
class OperationCost:
    """Cost of one operation of a network in the forward and the backward pass.

    Attributes:
        unit: execution unit of the device that runs the main part of the operation: `gemm` (matrix products),
            `conv` (convolutions) or `alu`.
        forward_flops: floating-point operations on that unit in the forward pass; a multiply-add counts as 2.
        backward_flops: floating-point operations on that unit in the backward pass.
        forward_alu: further floating-point operations on the ALU, e.g. adding a bias.
        backward_alu: further floating-point operations on the ALU in the backward pass.
        forward_read: elements read from memory in the forward pass.
        forward_write: elements written to memory in the forward pass.
        backward_read: elements read in the backward pass.
        backward_write: elements written in the backward pass.
        forward_kernels: compute kernels launched in the forward pass.
        backward_kernels: compute kernels launched in the backward pass.
        dims: sizes along the axes `AXES[unit]`; empty for `alu`.
        elements: elements that a generic operation processes; 0 for matrix products.
    """

    unit: str = "alu"
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    forward_alu: float = 0.0
    backward_alu: float = 0.0
    forward_read: float = 0.0
    forward_write: float = 0.0
    backward_read: float = 0.0
    backward_write: float = 0.0
    forward_kernels: float = 1.0
    backward_kernels: float = 1.0
    dims: tuple[float, ...] = ()
    elements: float = 0.0


NO_WORK = OperationCost(forward_kernels=0.0, backward_kernels=0.0)


@dataclass(slots=True)
class Tally:
    """Sums of the costs of all operations in one forward and backward pass, by name of the quantity.

    Costs are, for example, floating-point operations and memory traffic.
    """

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, work: OperationCost) -> None:
        """Add the cost of one operation to the sums of this tally."""
        for phase in ("forward", "backward"):
            flops = getattr(work, f"{phase}_flops")
            self._more(f"{work.unit}_flops_{phase}", flops)
            self._more(f"alu_flops_{phase}", getattr(work, f"{phase}_alu"))
            for kind in ("read", "write", "kernels"):
                self._more(f"{kind}_{phase}", getattr(work, f"{phase}_{kind}"))
        self._more("elements", work.elements)
        for axis, size in zip(AXES.get(work.unit, ()), work.dims, strict=True):
            self._more(f"{work.unit}_{axis}_weighted", work.forward_flops * size)

    def mean_dim(self, unit: str, axis: str) -> float:
        """Return the mean size, along one axis, of the operations that a hardware unit executes.

        Each operation is weighted by its floating-point operations in the forward pass. The result is 0 if
        there are no operations. Source: thesis, Eq. 4.6.
        """
        flops = self.sums.get(f"{unit}_flops_forward", 0.0)
        return self.sums.get(f"{unit}_{axis}_weighted", 0.0) / flops if flops else 0.0

    def _more(self, name: str, amount: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + amount
