"""Demand of a training step on one device at a given batch size.

The demand is the number of operations, bytes and kernel launches. All functions are pure. Every value is a
number, or an array with one entry per predicted configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.oracle.workload import Affine, Optimizer, WorkloadProfile

ELEMENT_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0}
GROUPED_TENSORS = 64.0
"""Tensors that one kernel of an optimizer processes, unless the framework loops over them."""


@dataclass(frozen=True, slots=True)
class StepDemand:
    """Operations, bytes and kernel launches of one training step on one device.

    The step consists of the forward and backward pass of one micro-batch, followed by one optimizer step. In
    the list of attributes, "the pass" means the forward and the backward pass together.

    Each value is a number for one batch size, or an array with one element per batch size.

    Attributes:
        gemm_flops: operations of matrix products, forward and backward.
        conv_flops: operations of convolutions, forward and backward.
        alu_flops: all other operations, forward and backward.
        bytes_moved: bytes that the pass reads and writes.
        kernels: number of compute kernels that the pass launches.
        gemm_dims: mean rows, columns and inner size of the matrix products (thesis, Eq. 4.6).
        conv_dims: mean pixels, input channels and output channels of the convolutions.
        optimizer_flops: operations of the optimizer step.
        optimizer_bytes: bytes that the optimizer step reads and writes (thesis, Eq. 4.4 and
            4.5).
        optimizer_kernels: number of compute kernels that the optimizer step launches.
        gradient_bytes: size of all gradients in bytes. The all-reduce operation exchanges the gradients
            between the devices.
        low_precision: 1.0 if the matrix units work in 16 bits, else 0.0.
        batch: number of samples per device and pass.
    """

    gemm_flops: Any
    conv_flops: Any
    alu_flops: Any
    bytes_moved: Any
    kernels: Any
    gemm_dims: tuple[Any, Any, Any]
    conv_dims: tuple[Any, Any, Any]
    optimizer_flops: Any
    optimizer_bytes: Any
    optimizer_kernels: Any
    gradient_bytes: Any
    low_precision: Any
    batch: Any


def demand(
    profile: WorkloadProfile, batch: Any, precision: str, optimizer: Optimizer, *, looping: bool = False
) -> StepDemand:
    """Return the demand of a training step of a workload at one or many batch sizes.

    Args:
        profile: profile of the workload.
        batch: samples per device and pass, a number or an array.
        precision: number format of matrix products. `bf16` and `fp16` also halve the bytes of activations.
        optimizer: the optimizer of the training job.
        looping: whether the framework updates one tensor after the other (PyTorch before 2.0).
    """
    width = ELEMENT_BYTES[precision]
    moved = (profile.read_forward, profile.read_backward, profile.write_forward, profile.write_backward)
    per_kernel = 1.0 if looping else GROUPED_TENSORS
    groups = max(1.0, profile.parameter_tensors / per_kernel)
    return StepDemand(
        gemm_flops=_amount(batch, profile.gemm_flops_forward, profile.gemm_flops_backward),
        conv_flops=_amount(batch, profile.conv_flops_forward, profile.conv_flops_backward),
        alu_flops=_amount(batch, profile.alu_flops_forward, profile.alu_flops_backward),
        bytes_moved=width * _amount(batch, *moved),
        kernels=_amount(batch, profile.kernels_forward, profile.kernels_backward),
        gemm_dims=(_size(batch, profile.gemm_m), _size(batch, profile.gemm_n), _size(batch, profile.gemm_k)),
        conv_dims=(
            _size(batch, profile.conv_pixels),
            _size(batch, profile.conv_in),
            _size(batch, profile.conv_out),
        ),
        optimizer_flops=optimizer.total_flops(profile.trainable),
        optimizer_bytes=optimizer.read_bytes(profile.trainable, precision)
        + optimizer.write_bytes(profile.trainable),
        optimizer_kernels=optimizer.kernels * groups,
        gradient_bytes=profile.trainable * width,
        low_precision=1.0 if width == 2.0 else 0.0,
        batch=batch,
    )


def _amount(batch: Any, *parts: Affine) -> Any:
    """Return the operations or the memory traffic of a training step at a given batch size.

    Each of the given parts is a linear function of the batch size. The result is their sum, but at least 0.
    Far from the batch sizes at which the functions were determined, their sum could be negative.
    """
    line = sum(part.fixed for part in parts) + sum(part.per_sample for part in parts) * batch
    return np.maximum(0.0, line)


def _size(batch: Any, mean: Affine) -> Any:
    """Return the mean size of the operations along one axis.

    The size along an axis is, for example, the number of rows of matrix products. The size is a linear
    function of the batch size. A size below 1 is replaced by 1.

    Args:
        batch: batch size, a number or an array.
        mean: the linear function.
    """
    return np.maximum(1.0, mean.at(batch))
