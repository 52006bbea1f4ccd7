"""Programs of the node model: kernels that repeat several phases in steps.

At full speed on current hardware, a step takes about a second. A program reports each finished step as one
unit of progress. The module also finds all kernels and programs by name.
"""

from __future__ import annotations

import dataclasses

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy_lab.model.kernels import (
    TRAIN_COMPUTE,
    TRAIN_UPDATE,
    Factors,
    KernelPhase,
    KernelSpec,
    kernel_names,
    kernel_spec,
)

_PART_STEPS = 100
_CHECKPOINT_STEPS = 20

_GEMM, _TRIAD = (kernel_spec(name).phases[0] for name in ("gemm", "triad"))
_COMPUTE_STEP = dataclasses.replace(_GEMM, flops=1.6e13, bytes=1.6e13 / 64, units=1.0)
_MEMORY_STEP = dataclasses.replace(_TRIAD, flops=2e11, bytes=1.2e12, units=1.0)
_HOST_STEP = dataclasses.replace(
    TRAIN_COMPUTE, flops=3e12, bytes=1e11, host_cycles=3e9, wait_s=0.05, units=1.0
)
_CHECKPOINT = KernelPhase(0.0, 2e10, 0.9, _TRIAD.cpu, _TRIAD.gpu, host_cycles=3e9, wait_s=1.5)
# Training on 8 GPUs as in power-capping. The bytes of the exchange are chosen so that on xeon-4210-rtx6000
# the training takes 1.0935 times as long at 170 W as at 260 W: 93.6 s and 85.6 s in Figure 7 of the paper. A
# GPU that waits for the others polls: its activity is that of a stalled compute phase. Assumed.
_FORWARD_BACKWARD = dataclasses.replace(
    TRAIN_COMPUTE, flops=1e13, bytes=1e13 * TRAIN_COMPUTE.bytes / TRAIN_COMPUTE.flops
)
_GRADIENT_EXCHANGE = KernelPhase(1e9, 1.5e11, 0.9, TRAIN_UPDATE.cpu, Factors(0.1, 0.6, 0.6), units=1.0)

_PROGRAMS = (
    KernelSpec(
        "pipeline",
        f"multiples of {_PART_STEPS} steps of each part",
        1.0,
        "mixed",
        (_COMPUTE_STEP,) * _PART_STEPS + (_MEMORY_STEP,) * _PART_STEPS + (_HOST_STEP,) * _PART_STEPS,
    ),
    KernelSpec(
        "checkpointed",
        f"rounds of {_CHECKPOINT_STEPS} training steps and a checkpoint",
        1.0,
        "mixed",
        (TRAIN_COMPUTE, TRAIN_UPDATE) * _CHECKPOINT_STEPS + (_CHECKPOINT,),
        looped=True,
    ),
    KernelSpec(
        "solver",
        f"multiples of {2 * _PART_STEPS} steps of assembly and {_PART_STEPS} of factorisation",
        1.0,
        "mixed",
        (_MEMORY_STEP,) * (2 * _PART_STEPS) + (_COMPUTE_STEP,) * _PART_STEPS,
    ),
    KernelSpec(
        "data_parallel",
        "training steps",
        1.0,
        "mixed",
        (_FORWARD_BACKWARD, _GRADIENT_EXCHANGE),
        looped=True,
    ),
)
_BY_NAME = {spec.name: spec for spec in _PROGRAMS}


def program_names() -> tuple[str, ...]:
    """Return the names of all programs.

    `pipeline` computes, then moves memory, then waits for the host. `checkpointed` is a training with
    checkpoints. `solver` is memory-bound for two thirds of its steps and compute-bound for the rest.
    `data_parallel` is a training whose GPUs exchange gradients after each step.
    """
    return tuple(_BY_NAME)


def workload_spec(name: str) -> KernelSpec:
    """Return the definition of the compute kernel or program with this name.

    Raises:
        UsageError: no kernel or program has this name. The message lists the valid names.
    """
    if name in kernel_names():
        return kernel_spec(name)
    spec = _BY_NAME.get(name)
    if spec is None:
        names = ", ".join((*kernel_names(), *_BY_NAME))
        raise UsageError(f"kernel '{shown(name)}' is not known", todo=f"one of {names}")
    return spec
