"""Model of one node that computes frequencies, power and exact energy from settings and running kernels.

The model is event-driven. Between two events every power is constant, so energies are exact integrals. The
caller passes the time; the module reads no clock, does not sleep and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy_lab.model.core_loads import Cores
from slurm_energy_lab.model.cpu_physics import CpuPhysics
from slurm_energy_lab.model.gpu import GpuModel
from slurm_energy_lab.model.gpu_physics import GpuPhysics
from slurm_energy_lab.model.job_usage import UsageByJob
from slurm_energy_lab.model.kernel_run import KernelPart, KernelRun
from slurm_energy_lab.model.kernels import KernelSpec
from slurm_energy_lab.model.occupancy import Occupancy
from slurm_energy_lab.model.operating_points import OperatingPoints
from slurm_energy_lab.model.package import PackageModel
from slurm_energy_lab.model.placement import check_gpu, check_gpu_limit, placements
from slurm_energy_lab.model.problem_size import size_of
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.readings import Readings
from slurm_energy_lab.model.requests import FrequencyRequest, GpuState, KernelRequest, KernelResult
from slurm_energy_lab.model.task_counters import TaskCounters


class NodeModel:
    """Model of one emulated node. All times are seconds of model time, which never decreases.

    The current model time is the time of the last `advance` or `submit`. Changes take effect at this time,
    and readings apply to it. Call `advance(now_s)` before a change or a reading. A `now_s` in the past counts
    as the current time.
    """

    def __init__(self, profile: NodeProfile, start_s: float = 0.0) -> None:
        """Start an idle node with the profile's default settings."""
        self.profile = profile
        self._now_s = start_s
        self._cores = Cores(profile)
        physics = CpuPhysics(profile)
        packages = range(profile.cpu.packages)
        self._packages = [PackageModel(profile, physics, index, start_s) for index in packages]
        self._gpus: list[GpuModel] = []
        if profile.gpu is not None:
            gpu_physics = GpuPhysics(profile.gpu)
            self._gpus = [GpuModel(gpu_physics, index, start_s) for index in range(profile.gpu.count)]
        self._runs: dict[int, KernelRun] = {}
        self._results: dict[int, KernelResult] = {}
        self._run_of_part: dict[KernelPart, KernelRun] = {}
        self._last_run_id = 0
        self._points = OperatingPoints(profile, self._cores, self._packages, self._gpus)
        self._readings = Readings(
            {
                "cpu": [package.meter for package in self._packages],
                "dram": [package.dram_meter for package in self._packages],
                "gpu": [gpu.meter for gpu in self._gpus],
            },
            [package.core_meter for package in self._packages],
            profile.other,
            start_s,
        )
        self._occupancy = Occupancy(profile.cpu, start_s)
        job_watts = {
            "cpu": [package.job_watts for package in self._packages],
            "dram": [package.dram_job_watts for package in self._packages],
            "gpu": [gpu.job_watts for gpu in self._gpus],
        }
        self._usage = UsageByJob(profile, self._occupancy, job_watts, start_s)

    @property
    def now_s(self) -> float:
        """Current model time in seconds."""
        return self._now_s

    def advance(self, now_s: float) -> None:
        """Advance the model time to `now_s` and process every event in between."""
        self._operate()
        while self._points.next_event_s <= now_s:
            self._now_s = max(self._now_s, self._points.next_event_s)
            self._pass_event()
        self._now_s = max(self._now_s, now_s)

    def next_event_s(self) -> float | None:
        """Return the time of the next event that changes the power of the node.

        An event is the end of a compute kernel or of its phase. Another event is that the running average of
        the power reaches a limit. None means that no event is pending.
        """
        self._operate()
        return None if math.isinf(self._points.next_event_s) else self._points.next_event_s

    def set_cpufreq(self, cpu: int, request: FrequencyRequest) -> None:
        """Set the cpufreq settings of a logical CPU.

        A core runs at the maximum frequency of its threads' requests.

        Raises:
            UsageError: the CPU does not exist, or the driver does not have the governor.
        """
        if self._cores.set_request(cpu, request):
            self._points.stale_packages.add(self.profile.cpu.package_of(cpu))

    def set_cpufreq_all(self, request: FrequencyRequest) -> None:
        """Set the cpufreq settings of all logical CPUs. The errors are those of `set_cpufreq`."""
        for cpu in range(self.profile.cpu.cpus):
            self.set_cpufreq(cpu, request)

    def cpufreq(self, cpu: int) -> FrequencyRequest:
        """Return the frequency settings of a logical CPU.

        Raises:
            UsageError: the CPU does not exist.
        """
        return self._cores.request(cpu)

    def effective_khz(self, cpu: int) -> int:
        """Return the current frequency of a CPU's core in kHz.

        Governor, turbo bins and power limits are taken into account.

        Raises:
            UsageError: the CPU does not exist.
        """
        self._operate()
        requested = self._cores.requested_khz(cpu)
        return min(requested, self._packages[self.profile.cpu.package_of(cpu)].ceiling_khz)

    def set_package_limit(
        self,
        package: int,
        constraint: str,
        limit_watts: float,
        window_s: float,
        enabled: bool,
        interface: str = "msr",
    ) -> None:
        """Set one RAPL limit. The minimum of all limits in force applies.

        Args:
            package: package number.
            constraint: `long_term` (running average over the window) or `short_term` (ceiling).
            limit_watts: the limit, at least 0. Under a limit that cannot be reached, the package runs at
                its minimum frequency.
            window_s: time window of the running average, above 0.
            enabled: whether the limit applies. The running average of a disabled limit is still updated.
            interface: `msr`, or `mmio` for the second interface of profiles that have one.

        Raises:
            UsageError: the package does not have the constraint, or the limit or the window is invalid.
        """
        limit = self._package(package).limits.get((interface, constraint))
        if limit is None:
            raise UsageError(f"package {package} has no limit {interface}:{constraint[:40]}")
        self._operate()
        limit.change(self._now_s, limit_watts, window_s, enabled)
        self._points.stale_packages.add(package)

    def package_average_watts(self, package: int, interface: str = "msr") -> float | None:
        """Return the running average of the power that the long-term limit bounds, in watts.

        Return None if the package has no long-term limit.
        """
        self._operate()
        limit = self._package(package).limits.get((interface, "long_term"))
        return None if limit is None else limit.average_at(self._now_s)

    def package_throttled_s(self, package: int) -> float:
        """Return the seconds for which a limit held a package below its requested frequency (MSR 0x613)."""
        self._operate()
        return self._package(package).throttle_meter.integral_at(self._now_s)

    def set_gpu(
        self,
        index: int,
        limit_watts: float,
        graphics_clock_mhz: tuple[int, int] | None = None,
        memory_clock_mhz: tuple[int, int] | None = None,
    ) -> None:
        """Set the power limit and the clock ranges of a GPU. None as a range removes the clock limits.

        Raises:
            UsageError: the GPU does not exist, or the limit is outside the profile's bounds.
        """
        gpu = self._gpu(index)
        check_gpu_limit(self.profile, index, limit_watts)
        self._operate()
        gpu.limit_watts = limit_watts
        gpu.graphics_range_mhz, gpu.memory_range_mhz = graphics_clock_mhz, memory_clock_mhz
        self._points.stale_gpus.add(index)

    def gpu_clocks(self, index: int) -> tuple[int, int] | None:
        """Return the range in MHz to which the graphics clock of a GPU is locked; None means no lock.

        Raises:
            UsageError: the GPU does not exist.
        """
        return self._gpu(index).graphics_range_mhz

    def set_real_load(
        self, key: str, cpus: Collection[int], busy_cores: float, job_id: int | None = None
    ) -> None:
        """Set the load of real programs (outside the model) on the emulated node.

        The programs keep `busy_cores` emulated cores busy. The load does not slow down compute kernels,
        because it uses only time that kernels leave idle.

        Args:
            key: identifies the load.
            cpus: logical CPUs of the programs. Each CPU is busy for the same fraction of time as its core.
            busy_cores: number of busy cores, distributed evenly; 0 removes the load.
            job_id: Slurm's job id; None if the load belongs to no job.

        Raises:
            UsageError: a CPU does not exist, or the number of busy cores is negative.
        """
        packages, share = self._cores.set_real_load(key, cpus, busy_cores, job_id)
        self._points.stale_packages |= packages
        self._usage.add_job(job_id, self._now_s)
        self._occupancy.set_real_load(self._now_s, key, job_id, cpus, share)

    def submit(self, request: KernelRequest, now_s: float, spec: KernelSpec | None = None) -> int:
        """Start a compute kernel on the emulated node at `now_s` and return the id of the run.

        Args:
            request: request to run the kernel.
            now_s: start time in seconds.
            spec: definition of the kernel, for a request with a size. None means that the kernel's name
                selects the definition.

        Raises:
            UsageError: the kernel, device, CPU or GPU does not exist, or the size is invalid.
        """
        spec = spec or workload_spec(request.kernel)
        size = size_of(self.profile, request)
        part_placements = placements(self.profile, request)
        self.advance(now_s)
        self._last_run_id += 1
        parts = [
            KernelPart(spec, request.device, size, self._now_s, request.job_id, self._last_run_id)
            for _ in part_placements
        ]
        run = KernelRun(
            run_id=self._last_run_id,
            kernel=request.kernel,
            device=request.device,
            size=size,
            start_s=self._now_s,
            flops=math.fsum(part.total_flops for part in parts),
            bytes=math.fsum(part.total_bytes for part in parts),
            start_joules=self._readings.all_joules(self._now_s),
            total_units=parts[0].total_units,
            units={part: placement.units for part, placement in zip(parts, part_placements, strict=True)},
        )
        self._runs[run.run_id] = run
        self._usage.add_job(request.job_id, self._now_s)
        for part, placement in zip(parts, part_placements, strict=True):
            self._run_of_part[part] = run
            self._points.assign(part, request.device, placement)
            self._occupancy.add_part(self._now_s, part, placement.cpus, computes=request.device == "cpu")
        return run.run_id

    def result(self, run_id: int) -> KernelResult | None:
        """Return the result of a finished compute kernel; None while the kernel runs.

        Results are kept until `forget`.

        Raises:
            NotFoundError: the run id is unknown.
        """
        if run_id not in self._runs and run_id not in self._results:
            raise NotFoundError(f"unknown kernel run {run_id}")
        return self._results.get(run_id)

    def progress_units(self, run_id: int) -> float:
        """Return the progress of a compute kernel since its start.

        The unit depends on the kernel. If a kernel runs on several GPUs, the progress of the slowest GPU is
        returned.

        Raises:
            NotFoundError: the run id is unknown.
        """
        run = self._runs.get(run_id)
        if run is None:
            result = self.result(run_id)
            return result.units if result else 0.0
        self._operate()
        return run.progress_at(self._now_s)

    def progress_share(self, run_id: int) -> float:
        """Return the completed fraction of a compute kernel's work, 0 to 1.

        Raises:
            NotFoundError: the run id is unknown.
        """
        run = self._runs.get(run_id)
        if run is None:
            return 1.0 if self.result(run_id) else 0.0
        return self.progress_units(run_id) / run.total_units

    def progress_report(self, run_id: int) -> tuple[float, float] | None:
        """Return the progress that a compute kernel can report now.

        The result is a pair: the number of completed units, and the time at which the last of these units
        was completed. It is None if the kernel has ended.
        """
        run = self._runs.get(run_id)
        if run is None:
            return None
        self._operate()
        return run.report_at(self._now_s)

    def running(self) -> tuple[int, ...]:
        """Return the run ids of the running compute kernels."""
        return tuple(self._runs)

    def forget(self, run_id: int) -> None:
        """Delete a finished compute kernel's result, or cancel a running kernel. Unknown ids are ignored."""
        self._results.pop(run_id, None)
        if run := self._runs.pop(run_id, None):
            self._operate()
            for part in list(run.units):
                self._remove(part, run)

    def energy_joules(self, component: str) -> float:
        """Return the energy of a component in joules since the start of the model.

        Args:
            component: a device `cpu[i]`, `dram[i]`, `gpu[i]`; a sum `cpu`, `dram`, `gpu`, `other`, `node`; or
                `core[i]` (the cores inside `cpu[i]`).

        Raises:
            NotFoundError: the node does not have the component.
        """
        self._operate()
        return self._readings.joules(component, self._now_s)

    def power_watts(self, component: str) -> float:
        """Return the current power of a component in watts. The names are those of `energy_joules`.

        Raises:
            NotFoundError: the node does not have the component.
        """
        self._operate()
        return self._readings.watts(component)

    def components(self) -> tuple[str, ...]:
        """Return the names of the components for which the model states energy and power.

        A component is a device or a sum. The devices are `cpu[i]`, `dram[i]` and `gpu[i]`. The sums `cpu`,
        `dram` and `gpu` each cover all devices of one kind. `other` covers the rest of the node, and `node`
        covers the whole node. `core[i]` is not among the names, because `core[i]` is part of `cpu[i]`.
        """
        return self._readings.names

    def usage(self) -> UsageByJob:
        """Return CPU time and energy by job. The values are valid at time `now_s`."""
        self._operate()
        return self._usage

    def task_counters(self) -> Sequence[TaskCounters]:
        """Return the hardware counters of the tasks on each CPU package at the node's simulated time.

        The simulated time is `now_s`.
        """
        self._operate()
        return [package.task_counters for package in self._packages]

    def cpu_utilisation(self, cpu: int) -> float:
        """Return the busy share of a CPU's core, 0 to 1.

        Raises:
            UsageError: the CPU does not exist.
        """
        return self._cores.busy(cpu)

    def gpu_state(self, index: int) -> GpuState:
        """Return clocks, utilisation, power and throttle reasons of a GPU.

        Raises:
            UsageError: the GPU does not exist.
        """
        self._operate()
        return self._gpu(index).state(self._now_s)

    def _package(self, index: int) -> PackageModel:
        if not 0 <= index < len(self._packages):
            raise UsageError(f"package {index} does not exist", todo=f"0 to {len(self._packages) - 1}")
        return self._packages[index]

    def _gpu(self, index: int) -> GpuModel:
        check_gpu(self.profile, index)
        return self._gpus[index]

    def _pass_event(self) -> None:
        """Process all events at the current model time."""
        now = self._now_s
        ended = [part for part in self._run_of_part if part.end_s <= now]
        for part in ended:
            self._points.mark(part, self._run_of_part[part].units[part])
            part.update_progress(now)
            if not part.next_phase():
                self._remove(part, self._run_of_part[part])
        for package in self._packages:
            if package.next_event_s() <= now:
                self._points.stale_packages.add(package.index)
        self._operate()

    def _remove(self, part: KernelPart, run: KernelRun) -> None:
        """Remove a part of a compute kernel.

        The removal of the last part finishes the run, or completes the cancellation of the run.
        """
        units = run.units.pop(part)
        del self._run_of_part[part]
        self._occupancy.remove_part(self._now_s, part)
        self._points.remove(part, units)
        if not run.units and run.run_id in self._runs:
            del self._runs[run.run_id]
            self._results[run.run_id] = run.finished(self._now_s, self._readings.all_joules(self._now_s))

    def _operate(self) -> None:
        """Compute the operating points that have changed. The new points apply from the current time on."""
        self._points.update(self._now_s, self._run_of_part)
