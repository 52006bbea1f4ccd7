"""Operating points of the emulated packages and GPUs of a node.

An operating point consists of frequency and power, and of the rate of progress of each part of a compute
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from slurm_energy_lab.model.core_loads import Cores
from slurm_energy_lab.model.cpu_physics import FedGpu
from slurm_energy_lab.model.gpu import GpuModel
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.package import PackageModel
from slurm_energy_lab.model.placement import Placement, host_package
from slurm_energy_lab.model.profile import NodeProfile


class OperatingPoints:
    """Operating points (frequency, power and rate of progress) of all devices of the emulated node.

    The points are updated after each event and after each change of a setting or load.

    Attributes:
        stale_packages: packages whose operating point must be updated.
        stale_gpus: GPUs whose operating point must be updated.
        next_event_s: time of the next event at the computed operating points; infinity without an event.
    """

    def __init__(
        self, profile: NodeProfile, cores: Cores, packages: Sequence[PackageModel], gpus: Sequence[GpuModel]
    ) -> None:
        self._profile, self._cores, self._packages, self._gpus = profile, cores, packages, gpus
        self._host_cpus: dict[KernelPart, int] = {}
        self.stale_packages: set[int] = set()
        self.stale_gpus: set[int] = set()
        self.next_event_s = math.inf

    def assign(self, part: KernelPart, device: str, placement: Placement) -> None:
        """Assign the work of a compute kernel to cores, or to a GPU and the CPU that feeds the GPU."""
        if device == "gpu":
            self._host_cpus[part] = placement.cpus[0]
            gpu = self._gpus[placement.units[0]]
            gpu.parts = (*gpu.parts, part)
            self._cores.add_host(placement.cpus[0])
        else:
            self._cores.add_part(part, placement.units)
        self.mark(part, placement.units)

    def remove(self, part: KernelPart, units: Sequence[int]) -> None:
        """Remove a part of a compute kernel from its cores or its GPU."""
        self.mark(part, units)
        if part in self._host_cpus:  # a part on a GPU
            gpu = self._gpus[units[0]]
            gpu.parts = tuple(other for other in gpu.parts if other is not part)
            self._cores.remove_host(self._host_cpus.pop(part))
        else:
            self._cores.remove_part(part, units)

    def mark(self, part: KernelPart, units: Sequence[int]) -> None:
        """Mark the devices on which a part of a compute kernel runs.

        The next `update` then computes the operating points of the marked devices again.
        """
        if part in self._host_cpus:
            self.stale_gpus.update(units)
        else:
            self.stale_packages.update(self._cores.packages_of(units))

    def update(self, now_s: float, parts: Collection[KernelPart]) -> None:
        """Compute the new operating points of all packages and GPUs that are marked as stale.

        An operating point of the model is the frequency and power of a device. The new operating points
        apply from time `now_s` on.

        Args:
            now_s: current time in seconds.
            parts: the running parts of all emulated compute kernels.
        """
        if not (self.stale_packages or self.stale_gpus):
            return
        for index in self.stale_gpus:
            gpu = self._gpus[index]
            if tuple(gpu.rates) != gpu.parts:
                self.stale_packages.add(host_package(self._profile, index))
        if self.stale_packages:
            self._update_packages(now_s)
        for index in self.stale_gpus:
            gpu = self._gpus[index]
            gpu.operate(now_s)
            _set_rates(index, gpu.parts, gpu.rates, now_s)
        self.stale_gpus.clear()
        ends = [part.end_s for part in parts]
        ends.extend(package.next_event_s() for package in self._packages)
        self.next_event_s = min(ends, default=math.inf)

    def _update_packages(self, now_s: float) -> None:
        """Compute the operating point of every package whose load or settings have changed.

        If this changes the clock of a core that submits work to a GPU, the GPU is marked for a new
        computation, too.
        """
        for index in self.stale_packages:
            package = self._packages[index]
            fed = [
                self._fed_gpu(gpu)
                for gpu in self._gpus
                if gpu.parts and host_package(self._profile, gpu.index) == index
            ]
            package.operate(now_s, self._cores.loads(index), fed)
            _set_rates(index, package.rates, package.rates, now_s)
        self.stale_packages.clear()
        for gpu in self._gpus:
            for part in gpu.parts:
                cpu = self._host_cpus[part]
                ceiling_khz = self._packages[self._profile.cpu.package_of(cpu)].ceiling_khz
                khz = min(self._cores.requested_khz(cpu), ceiling_khz)
                if part.host_khz != khz:
                    part.host_khz = khz
                    self.stale_gpus.add(gpu.index)

    def _fed_gpu(self, gpu: GpuModel) -> FedGpu:
        khz = max(self._cores.requested_khz(self._host_cpus[part]) for part in gpu.parts)
        return FedGpu(gpu.parts, khz, self._profile.gpu.host_watts if self._profile.gpu else 0.0)


def _set_rates(
    device: int, parts: Iterable[KernelPart], rates: dict[KernelPart, float], now_s: float
) -> None:
    for part in parts:
        part.update_progress(now_s)
        part.set_rate(device, rates[part])
