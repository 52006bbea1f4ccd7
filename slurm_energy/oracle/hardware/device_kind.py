"""One kind of device as plain data; reading of files is next door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.errors import UsageError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Number formats of matrix products: storage and accumulation beside them are the workload's matter."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Peak figures of one GPU, or of one CPU socket.

    Attributes:
        name: name of the file, e.g. `a100-sxm4-40gb`.
        description: maker's name.
        kind: `gpu` or `cpu`.
        aliases: other names that people use.
        fp32_flops_per_s: matrix products in single precision, dense.
        tf32_flops_per_s: in TF32; None: the device has no such unit. Likewise bf16 and fp16.
        alu_flops_per_s: single precision outside the matrix units.
        memory_bytes: device memory.
        memory_bytes_per_s: peak bandwidth of it.
        l2_bytes: last level of cache.
        link_bytes_per_s: to the other devices of the node, one direction.
        link_latency_s: of one hop.
        tdp_watts: most that it draws for long.
        min_cap_watts: lowest power limit that it takes.
        max_cap_watts: highest power limit that it takes.
        max_clock_mhz: highest graphics or core clock.
        min_clock_mhz: lowest.
        processors: streaming multiprocessors, compute units or cores.
        figure_sources: where each figure was found.
    """

    name: str
    description: str
    kind: str
    aliases: tuple[str, ...]
    fp32_flops_per_s: float
    alu_flops_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    l2_bytes: float
    link_bytes_per_s: float
    link_latency_s: float
    tdp_watts: float
    min_cap_watts: float
    max_cap_watts: float
    max_clock_mhz: float
    min_clock_mhz: float
    processors: float
    tf32_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    figure_sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Number formats that its matrix units take."""
        return tuple(name for name in PRECISIONS if self._peak(name) is not None)

    def matrix_flops_per_s(self, precision: str) -> float:
        """Return the peak of matrix products in `precision`.

        Raises:
            UsageError: the device has no such unit, or there is no such precision.
        """
        peak = self._peak(precision) if precision in PRECISIONS else None
        if peak is None:
            offers = ", ".join(self.precisions)
            raise UsageError(f"precision {precision}", f"{self.name} has no unit for it", f"one of {offers}")
        return peak

    def _peak(self, precision: str) -> float | None:
        value: float | None = getattr(self, f"{precision}_flops_per_s")
        return value
