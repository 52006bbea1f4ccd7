"""Data of one kind of device (GPU or CPU): peak rates, limits and names.

The module `hardware_files` reads the data from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.errors import UsageError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Number formats of the operands of matrix products.

Storage and accumulation formats are properties of the workload.
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Peak rates and limits of one kind of GPU or CPU socket.

    Attributes:
        name: name of the hardware file without suffix, e.g. `a100-sxm4-40gb`.
        description: name given by the manufacturer.
        kind: `gpu` or `cpu`.
        aliases: other common names.
        fp32_flops_per_s: peak rate of dense matrix products in single precision.
        tf32_flops_per_s, bf16_flops_per_s, fp16_flops_per_s: peak rate of dense matrix products in this
            format; None means that the device has no unit for it.
        alu_flops_per_s: peak rate in single precision outside the matrix units.
        memory_bytes: device memory.
        memory_bytes_per_s: peak bandwidth of the device memory.
        l2_bytes: size of the last-level cache.
        link_bytes_per_s: bandwidth to the other devices of the node, in one direction.
        link_latency_s: latency of one hop to another device.
        tdp_watts: design power, which is the maximum sustained power.
        min_cap_watts: lowest supported power limit.
        max_cap_watts: highest supported power limit.
        max_clock_mhz: maximum graphics or core clock.
        min_clock_mhz: minimum graphics or core clock.
        processors: number of streaming multiprocessors, compute units or cores.
        figure_sources: by field name, the source of the value.
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
        """Number formats that the matrix units support, e.g. `fp32`."""
        return tuple(name for name in PRECISIONS if self._peak(name) is not None)

    def matrix_flops_per_s(self, precision: str) -> float:
        """Return the peak rate of matrix products in the number format `precision`, in operations per second.

        Raises:
            UsageError: the device has no unit for this format, or the format does not exist.
        """
        peak = self._peak(precision) if precision in PRECISIONS else None
        if peak is None:
            offers = ", ".join(self.precisions)
            raise UsageError(f"precision {precision}", f"{self.name} has no unit for it", f"one of {offers}")
        return peak

    def _peak(self, precision: str) -> float | None:
        value: float | None = getattr(self, f"{precision}_flops_per_s")
        return value
