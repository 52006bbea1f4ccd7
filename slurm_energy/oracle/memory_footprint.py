"""How much device memory a training step needs, estimated from the profile. Pure."""

from __future__ import annotations

from typing import Any

from slurm_energy.oracle.workload import Optimizer, WorkloadProfile

CONTEXT_BYTES = 0.8e9
"""Assumed: the driver's context and libraries."""
FRAGMENTED = 1.05
"""Assumed: what an allocator holds above what is in use."""
_MASTER_BYTES = 4.0
_WIDTHS = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0}


def footprint_bytes(profile: WorkloadProfile, batch: Any, precision: str, optimizer: Optimizer) -> Any:
    """Return the estimate for one device: weights, gradients, optimizer's states, kept activations.

    Args:
        profile: the workload.
        batch: samples per device and pass, a number or an array.
        precision: in 16 bits the weights have a copy in that precision and activations are half as large.
        optimizer: the update rule.
    """
    width = _WIDTHS[precision]
    weights = profile.parameters * (_MASTER_BYTES + (width if width < _MASTER_BYTES else 0.0))
    states = profile.trainable * (_MASTER_BYTES + _MASTER_BYTES * optimizer.states)
    activations = profile.saved.at(batch) * width
    return CONTEXT_BYTES + FRAGMENTED * (weights + states + activations)
