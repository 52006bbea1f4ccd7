"""Exact busy time of the logical CPUs of an emulated node, by CPU and by job.

docs/lab-physics.md, section 10, describes how jobs share a CPU. The module uses neither power nor
frequencies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from slurm_energy_lab.model.integrator import Integrator
from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.profile import CpuProfile


@dataclass(slots=True)
class _RealLoad:
    """Load that real programs (outside the model of the node) put on CPUs.

    Attributes:
        job: Slurm's job id; None if the load belongs to no job.
        cpus: logical CPUs of the programs.
        share: fraction of time in which each of these CPUs is busy, 0 to 1.
    """

    job: Job
    cpus: Collection[int]
    share: float


@dataclass(slots=True)
class _Cell:
    """A group of logical CPUs with the same load: the same parts of compute kernels and other loads.

    Attributes:
        cpus: the logical CPUs.
        parts: kernel parts, each of which demands the whole CPU.
        keys: keys of the loads that share each CPU with the parts.
        busy: busy seconds of each CPU, by job.
    """

    cpus: list[int]
    parts: tuple[KernelPart, ...]
    keys: tuple[str, ...]
    busy: dict[Job, Integrator] = field(default_factory=dict)


class Occupancy:
    """Busy time of the logical CPUs of an emulated node, by CPU and by job.

    The work of a compute kernel keeps each of its CPUs busy. Several kernels on one CPU share the CPU
    equally. Real programs, which are outside the model, share the remaining time. On a core that executes
    a kernel, this class counts no time of real programs, and `Cores` counts no power for them.
    """

    def __init__(self, cpu: CpuProfile, now_s: float) -> None:
        self._cpu = cpu
        self._parts: dict[KernelPart, tuple[int, ...]] = {}
        self._computing: set[KernelPart] = set()
        self._real: dict[str, _RealLoad] = {}
        self._cells = [_Cell(list(range(cpu.cpus)), (), ())]
        self._closed = [0.0] * cpu.cpus
        self._closed_jobs: dict[Job, float] = {}

    def add_part(self, now_s: float, part: KernelPart, cpus: Sequence[int], computes: bool) -> None:
        """Assign a part of a compute kernel to CPUs.

        Args:
            now_s: current time in seconds.
            part: part of a compute kernel.
            cpus: logical CPUs.
            computes: True if the cores execute the kernel, False if they only feed a GPU.
        """
        self._parts[part] = tuple(dict.fromkeys(cpus))
        if computes:
            self._computing.add(part)
        self._rebuild(now_s)

    def remove_part(self, now_s: float, part: KernelPart) -> None:
        """Remove a kernel part (the work of a compute kernel on its CPUs) from the CPUs."""
        self._parts.pop(part, None)
        self._computing.discard(part)
        self._rebuild(now_s)

    def set_real_load(self, now_s: float, key: str, job: Job, cpus: Collection[int], share: float) -> None:
        """Set the load of programs outside the model.

        Args:
            now_s: current time in seconds.
            key: identifies the load.
            job: Slurm's job id; None if the load belongs to no job.
            cpus: logical CPUs of the programs.
            share: busy share of each CPU, 0 to 1; 0 removes the load.
        """
        load = self._real.get(key)
        if load and share and (load.cpus is cpus or load.cpus == cpus):
            if (load.job, load.share) != (job, share):
                load.job, load.share = job, share
                self._run(now_s, [cell for cell in self._cells if key in cell.keys])
        elif load or share:
            self._real.pop(key, None)
            if share:
                self._real[key] = _RealLoad(job, cpus, share)
            self._rebuild(now_s)

    def cpu_seconds(self, now_s: float) -> list[float]:
        """Return the busy seconds of every logical CPU up to time `now_s`."""
        seconds = list(self._closed)
        for cell in self._cells:
            since = sum(meter.integral_at(now_s) for meter in cell.busy.values())
            if since:
                for cpu in cell.cpus:
                    seconds[cpu] += since
        return seconds

    def job_seconds(self, job: Job, now_s: float) -> float:
        """Return the busy seconds of a job up to time `now_s`, summed over all CPUs."""
        meters = [(len(cell.cpus), cell.busy[job]) for cell in self._cells if job in cell.busy]
        since = sum(count * meter.integral_at(now_s) for count, meter in meters)
        return self._closed_jobs.get(job, 0.0) + since

    def busy_cpus(self, job: Job) -> float:
        """Return the number of logical CPUs that a job keeps busy now.

        A CPU that is busy for a share of the time counts with this share.
        """
        cells = [(len(cell.cpus), cell.busy[job]) for cell in self._cells if job in cell.busy]
        return sum(count * meter.value for count, meter in cells)

    def all_busy_cpus(self) -> float:
        """Return the number of logical CPUs that are busy now.

        A CPU that is busy for a share of the time counts with this share.
        """
        return sum(len(cell.cpus) * sum(meter.value for meter in cell.busy.values()) for cell in self._cells)

    def merge_into_no_job(self, job: Job, now_s: float) -> None:
        """Add the busy time of a job to the busy time of the work outside all jobs (key None)."""
        self._close(now_s)
        self._closed_jobs[None] = self._closed_jobs.get(None, 0.0) + self._closed_jobs.pop(job, 0.0)

    def _rebuild(self, now_s: float) -> None:
        """Group the logical CPUs again after a change of their kernel parts or loads.

        All CPUs of a group run the same kernel parts (parts of emulated compute kernels) and have the same
        loads of real programs.
        """
        self._close(now_s)
        parts: dict[int, tuple[KernelPart, ...]] = {}
        computing: set[int] = set()
        for part, cpus in self._parts.items():
            for cpu in cpus:
                parts[cpu] = (*parts.get(cpu, ()), part)
            if part in self._computing:
                computing.update(self._cpu.core_of(cpu) for cpu in cpus)
        keys: dict[int, tuple[str, ...]] = {}
        for key, load in self._real.items():
            for cpu in load.cpus:
                if self._cpu.core_of(cpu) not in computing:
                    keys[cpu] = (*keys.get(cpu, ()), key)
        cells: dict[tuple[tuple[KernelPart, ...], tuple[str, ...]], _Cell] = {}
        for cpu in range(self._cpu.cpus):
            here = parts.get(cpu, ()), keys.get(cpu, ())
            if here not in cells:
                cells[here] = _Cell([], *here)
            cells[here].cpus.append(cpu)
        self._cells = list(cells.values())
        self._run(now_s, self._cells)

    def _run(self, now_s: float, cells: Iterable[_Cell]) -> None:
        """Compute how busy each job keeps the CPUs of the given cells from now on.

        A cell is a group of logical CPUs on which the same jobs and processes run.
        """
        for cell in cells:
            wishes = [(part.job, 1.0) for part in cell.parts]
            wishes += [(self._real[key].job, self._real[key].share) for key in cell.keys]
            total = sum(wish for _, wish in wishes)
            scale = min(1.0, total) / total if wishes else 0.0
            rates = dict.fromkeys(cell.busy, 0.0)
            for job, wish in wishes:
                rates[job] = rates.get(job, 0.0) + wish * scale
            for job, rate in rates.items():
                cell.busy.setdefault(job, Integrator(now_s, 0.0)).set_rate(now_s, rate)

    def _close(self, now_s: float) -> None:
        """Close the current interval of measurement at `now_s`.

        The busy time of each group of CPUs (cell) so far is added to the totals. The busy time of each cell
        then starts at 0 again.
        """
        self._closed = self.cpu_seconds(now_s)
        for cell in self._cells:
            for job, meter in cell.busy.items():
                used_s = len(cell.cpus) * meter.integral_at(now_s)
                self._closed_jobs[job] = self._closed_jobs.get(job, 0.0) + used_s
                cell.busy[job] = Integrator(now_s, meter.value)
