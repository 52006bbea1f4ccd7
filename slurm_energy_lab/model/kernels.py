"""Definitions of the compute kernels that run on emulated nodes.

A definition contains the operations and bytes for a problem size, and the switching activity. The module
contains only data and arithmetic. `cpu_physics` and `gpu_physics` compute speed and power. The kernels are
those of thesis 3.4.2 in single precision (thesis, Table 3.12) and a training loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

DEFAULT_SECONDS = 10.0
SWEEPS = 100
"""Passes over the data per run of a streaming kernel."""
REAL_ACTIVITY = 0.8
"""Switching activity of a core that runs a real program, between a stalled core and GEMM. Assumed."""
REAL_BYTES_PER_CYCLE = 0.5
"""Memory traffic of a core that runs a real program (1.5 GB/s at 3 GHz). Assumed."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Efficiency and switching activity of a phase of a kernel, on a CPU or a GPU.

    Attributes:
        efficiency: share of the peak operation rate that the code reaches when memory is not the bottleneck.
        busy: switching activity while operations are issued, relative to GEMM.
        stall: switching activity while the code waits for memory, relative to GEMM.
    """

    efficiency: float
    busy: float
    stall: float


@dataclass(frozen=True, slots=True)
class KernelPhase:
    """A section of a compute kernel with a constant ratio of operations to memory traffic.

    Attributes:
        flops: operations per unit of scaled size (see `KernelSpec.scale`).
        bytes: bytes read from and written to memory per unit of scaled size.
        overlap: fraction of the shorter time (compute or memory) that overlaps with the longer time.
        cpu: efficiency and activity factors on a CPU.
        gpu: efficiency and activity factors on a GPU.
        host_cycles: cycles of one host thread per unit of scaled size. On a GPU, they are the cycles of
            launches and data loading. The fraction `HOST_OVERLAP` of these cycles runs in parallel with the
            GPU. On CPUs, they are the cycles of a serial section, which is divided among the packages.
        wait_s: seconds of waiting for storage or network per unit of scaled size, independent of the
            frequency. On CPUs, they are divided among the packages.
        units: progress that the program reports at the end of the phase, in units that the program chooses.
    """

    flops: float
    bytes: float
    overlap: float
    cpu: Factors
    gpu: Factors
    host_cycles: float = 0.0
    wait_s: float = 0.0
    units: float = 0.0

    def factors(self, device: str) -> Factors:
        """Return the efficiency and activity factors of this phase of a kernel on a device.

        The device is `cpu` or `gpu`.
        """
        return self.gpu if device == "gpu" else self.cpu


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Definition of a compute kernel of the lab.

    The work of a run is `size ** exponent` times the work of the kernel's phases.

    Attributes:
        name: name of the kernel.
        size_unit: meaning of the problem size, for messages.
        exponent: exponent of the problem size in the work.
        bound: bottleneck at full speed: `compute`, `memory` or `mixed`.
        phases: sections that run one after another.
        looped: whether the phases run once per unit of problem size; otherwise they run once.
    """

    name: str
    size_unit: str
    exponent: float
    bound: str
    phases: tuple[KernelPhase, ...]
    looped: bool = False

    def scale(self, size: float) -> float:
        """Return the factor by which the work of a compute kernel grows with the problem size.

        Raises:
            UsageError: the size is not a positive number, or so large that the work overflows.
        """
        try:
            scale: float = float(size) ** self.exponent
        except OverflowError:
            scale = math.inf
        if not (math.isfinite(scale) and scale > 0 and size > 0):
            raise UsageError(f"{self.name}: size {size!r} is invalid", todo=f"give {self.size_unit}")
        return scale


HOST_OVERLAP = 0.9
"""Share of the shorter of host time and GPU time that runs in parallel with the longer one. Assumed."""
RUN_UNITS = 1000.0
"""Progress units of a run of a kernel without steps."""

_GEMM_BLOCK = (
    256  # elements; each operand element is fetched once per block: 2N^3 / (8N^3/256) = 64 flop/byte
)
_TRAIN_FLOPS = 12e12  # 1,000 images of ResNet-50 (3 x 4.1 GFLOP each, public model figure)
_TRAIN_COMPUTE_BYTES = _TRAIN_FLOPS / 64
_TRAIN_UPDATE_BYTES = 2.4e11  # activations, normalisation and optimiser of that batch. Assumed.
TRAIN_COMPUTE = KernelPhase(
    _TRAIN_FLOPS, _TRAIN_COMPUTE_BYTES, 0.7, Factors(0.7, 0.95, 0.8), Factors(0.7, 0.9, 0.6)
)
"""Forward and backward pass of a training step."""
TRAIN_UPDATE = KernelPhase(
    1e10, _TRAIN_UPDATE_BYTES, 0.9, Factors(0.1, 0.9, 0.8), Factors(0.1, 0.5, 0.24), units=1.0
)
"""Memory-bound rest of a training step, at whose end the program reports the step."""

# efficiency, busy, stall. GEMM is the scale (1); the others follow the loaded watts of thesis,
# Tables 3.16, 3.17, 3.25-3.27 relative to GEMM; efficiencies are assumed.
_KERNELS = (
    KernelSpec(
        "gemm",
        "N of an N x N x N product",
        3.0,
        "compute",
        (
            KernelPhase(
                2.0,
                8.0 / _GEMM_BLOCK,
                0.70,
                Factors(0.85, 1.0, 0.80),
                Factors(0.85, 1.0, 0.60),
                units=RUN_UNITS,
            ),
        ),
    ),
    KernelSpec(
        "spmv",
        f"non-zeros of a COO matrix, {SWEEPS} products",
        1.0,
        "memory",
        (
            KernelPhase(
                2.0 * SWEEPS,
                16.0 * SWEEPS,
                0.9,
                Factors(0.02, 0.9, 0.75),
                Factors(0.02, 0.20, 0.06),
                units=RUN_UNITS,
            ),
        ),
    ),
    KernelSpec(
        "triad",
        f"elements of one vector, {SWEEPS} sweeps",
        1.0,
        "memory",
        (
            KernelPhase(
                2.0 * SWEEPS,
                12.0 * SWEEPS,
                0.95,
                Factors(0.10, 0.9, 0.84),
                Factors(0.10, 0.50, 0.24),
                units=RUN_UNITS,
            ),
        ),
    ),
    KernelSpec(
        "stencil",
        f"grid points, {SWEEPS} sweeps",
        1.0,
        "mixed",
        (
            KernelPhase(
                8.0 * SWEEPS,
                8.0 * SWEEPS,
                0.9,
                Factors(0.05, 0.7, 0.50),
                Factors(0.15, 0.35, 0.15),
                units=RUN_UNITS,
            ),
        ),
    ),
    KernelSpec(
        "monte_carlo",
        "samples",
        1.0,
        "compute",
        (KernelPhase(12.0, 0.3, 0.95, Factors(0.30, 1.12, 0.8), Factors(0.30, 0.50, 0.40), units=RUN_UNITS),),
    ),
    KernelSpec(
        "dist",
        f"points, {SWEEPS} sweeps",
        1.0,
        "mixed",
        (
            KernelPhase(
                4.0 * SWEEPS,
                12.0 * SWEEPS,
                0.9,
                Factors(0.015, 0.8, 0.60),
                Factors(0.05, 0.40, 0.20),
                units=RUN_UNITS,
            ),
        ),
    ),
    KernelSpec(
        "train",
        "steps of 1,000 images",
        1.0,
        "mixed",
        (
            TRAIN_COMPUTE,
            TRAIN_UPDATE,
        ),
        looped=True,
    ),
)
_BY_NAME = {spec.name: spec for spec in _KERNELS}


def kernel_names() -> tuple[str, ...]:
    """Return the names of all compute kernels: gemm, spmv, triad, stencil, monte_carlo, dist, train."""
    return tuple(_BY_NAME)


def kernel_spec(name: str) -> KernelSpec:
    """Return the definition of the compute kernel with this name.

    Raises:
        UsageError: no kernel has this name. The message lists the valid names.
    """
    spec = _BY_NAME.get(name)
    if spec is None:
        raise UsageError(f"kernel '{shown(name)}' is not known", todo=f"one of {', '.join(_BY_NAME)}")
    return spec


def roofline(compute_s: float, memory_s: float, overlap: float) -> float:
    """Return the seconds that a phase takes, computed from its compute time and its memory time.

    The share `overlap` of the shorter time runs in parallel with the longer time and does not lengthen the
    phase.

    Args:
        compute_s: seconds for the operations alone.
        memory_s: seconds for the memory traffic alone.
        overlap: share of the shorter time that overlaps with the longer time, 0 to 1.
    """
    if compute_s >= memory_s:
        return compute_s + (1.0 - overlap) * memory_s
    return memory_s + (1.0 - overlap) * compute_s
