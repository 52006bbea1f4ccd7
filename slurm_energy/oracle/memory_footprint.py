"""Estimate of the device memory that a training step needs. Pure functions."""

from __future__ import annotations

from typing import Any

from slurm_energy.oracle.workload import Optimizer, WorkloadProfile

CONTEXT_BYTES = 0.8e9
"""Assumed memory of the driver's context and libraries."""
FRAGMENTED = 1.05
"""Assumed ratio of memory held by the allocator to memory in use."""
_MASTER_BYTES = 4.0
_WIDTHS = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0}


def footprint_bytes(profile: WorkloadProfile, batch: Any, precision: str, optimizer: Optimizer) -> Any:
    """Return the bytes of device memory that a training step needs on one device.

    The bytes include weights, gradients, optimizer states, saved activations, and the context and libraries
    of the driver.

    Args:
        profile: profile of the workload.
        batch: samples per device and pass, a number or an array. The result has its shape.
        precision: precision of matrix products. A 16-bit format adds a copy of the weights in that format and
            halves the activations.
        optimizer: the optimizer of the training job.
    """
    width = _WIDTHS[precision]
    weights = profile.parameters * (_MASTER_BYTES + (width if width < _MASTER_BYTES else 0.0))
    states = profile.trainable * (_MASTER_BYTES + _MASTER_BYTES * optimizer.states)
    activations = profile.saved.at(batch) * width
    return CONTEXT_BYTES + FRAGMENTED * (weights + states + activations)
