"""Workload profile: how much work one training step of a neural network needs.

The amounts of work are functions of the batch size.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Affine:
    """A quantity of a training step that is affine in the batch size: `fixed + per_sample * batch`."""

    fixed: float
    per_sample: float

    def at(self, batch: float) -> float:
        """Return the value of the quantity at a batch size.

        The batch size is in samples per device and step. It is a number or an array.
        """
        return self.fixed + self.per_sample * batch

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> Affine:
        """Return the affine function through two points (batch size, quantity) with different batch sizes."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        fixed = first[1] - slope * first[0]
        return cls(0.0 if abs(fixed) < 1e-9 * abs(first[1]) else fixed, slope)


_ZERO = Affine(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """Cost of one training step of a neural network with one kind of input.

    The quantities are per training step of one device.

    Attributes:
        name: name, e.g. `resnet50`.
        description: description for users, with the shape of the input.
        origin: program that computed the profile.
        parameters: number of scalar weights.
        trainable: number of scalar weights that the optimizer updates.
        parameter_tensors: number of trainable tensors. A framework that updates one tensor after the other
            launches compute kernels for each tensor.
        optimizer: name of the optimizer that usually trains this network.
        dataset: name of the training set that is usual for this network.
        samples_per_epoch: samples in the training set; None means unknown.
        shared_weights: whether layers use the same weights repeatedly (ALBERT in the thesis).
        gemm_flops_forward: operations of matrix products in the forward pass. The other `*_flops_*` count
            the operations of other kinds, forward or backward.
        read_forward: elements read in the forward pass. The other attributes `read_*` and `write_*` have the
            same form.
        kernels_forward, kernels_backward: compute kernels launched in the forward and the backward pass.
        elements: tensor elements that generic operations process.
        saved: tensor elements that the forward pass saves for the backward pass.
        gemm_m: mean number of rows of matrix products, weighted by operations. The other `gemm_*` and
            `conv_*` sizes have the same form.
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
        """Return the floating-point operations of the forward pass at a batch size."""
        units = (self.gemm_flops_forward, self.conv_flops_forward, self.alu_flops_forward)
        return math.fsum(unit.at(batch) for unit in units)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as a dict for JSON. Affine quantities are lists [fixed, per sample]."""
        plain: dict[str, Any] = {"schema": SCHEMA}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            plain[field.name] = [value.fixed, value.per_sample] if isinstance(value, Affine) else value
        return plain


QUANTITIES = tuple(field.name for field in dataclasses.fields(WorkloadProfile) if field.default is _ZERO)
"""Names of the fields that are functions of the batch size."""
