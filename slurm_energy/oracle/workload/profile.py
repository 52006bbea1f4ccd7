"""A workload profile: what one training step of a network asks for, as functions of the batch. Plain data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Affine:
    """A quantity of one step that is `fixed + per_sample * batch`."""

    fixed: float
    per_sample: float

    def at(self, batch: float) -> float:
        """Return the quantity for a batch."""
        return self.fixed + self.per_sample * batch

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> Affine:
        """Return the line through two points (batch, quantity); batches must differ."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        fixed = first[1] - slope * first[0]
        return cls(0.0 if abs(fixed) < 1e-9 * abs(first[1]) else fixed, slope)


_ZERO = Affine(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """One network with one kind of input. Operations and elements are per training step of one device.

    Attributes:
        name: e.g. `resnet50`.
        description: for people, with the input's shape.
        origin: what computed the figures.
        parameters: scalar weights.
        trainable: those that the optimizer changes.
        parameter_tensors: trainable tensors; an optimizer that loops launches kernels for each.
        optimizer: name of the usual optimizer.
        dataset: the usual training set.
        samples_per_epoch: its size; None: unknown.
        shared_weights: layers use the same weights repeatedly (the thesis' case ALBERT).
        gemm_flops_forward: matrix products; likewise the other `*_flops_*`.
        read_forward: elements read; likewise the other `read_*`, `write_*`.
        kernels_forward: kernels launched; likewise backward.
        elements: elements of generic operations.
        saved: elements kept from the forward for the backward pass.
        gemm_m: mean rows of matrix products, weighted by operations; likewise `gemm_*`, `conv_*`.
    """

    name: str
    description: str
    origin: str
    parameters: int
    trainable: int
    parameter_tensors: int
    optimizer: str
    dataset: str = ""
    samples_per_epoch: int | None = None
    shared_weights: bool = False
    gemm_flops_forward: Affine = _ZERO
    gemm_flops_backward: Affine = _ZERO
    conv_flops_forward: Affine = _ZERO
    conv_flops_backward: Affine = _ZERO
    alu_flops_forward: Affine = _ZERO
    alu_flops_backward: Affine = _ZERO
    read_forward: Affine = _ZERO
    read_backward: Affine = _ZERO
    write_forward: Affine = _ZERO
    write_backward: Affine = _ZERO
    kernels_forward: Affine = _ZERO
    kernels_backward: Affine = _ZERO
    elements: Affine = _ZERO
    saved: Affine = _ZERO
    gemm_m: Affine = _ZERO
    gemm_n: Affine = _ZERO
    gemm_k: Affine = _ZERO
    conv_pixels: Affine = _ZERO
    conv_in: Affine = _ZERO
    conv_out: Affine = _ZERO

    def flops(self, batch: float) -> float:
        """Return all operations of the forward pass."""
        units = (self.gemm_flops_forward, self.conv_flops_forward, self.alu_flops_forward)
        return math.fsum(unit.at(batch) for unit in units)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, quantities as [fixed, per sample]."""
        plain: dict[str, Any] = {"schema": SCHEMA}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain[field.name] = [value.fixed, value.per_sample] if isinstance(value, Affine) else value
        return plain


QUANTITIES = tuple(field.name for field in dataclasses.fields(WorkloadProfile) if field.default is _ZERO)
"""Names of the fields that are functions of the batch."""
