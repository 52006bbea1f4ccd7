"""Who keeps which logical CPU busy, and for how long: exact integrals by CPU and by job.

The rule is in docs/lab-physics.md, section 10. Watts and frequencies do not come in here.
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
    """A real program's load: the busy share of each of its CPUs."""

    job: Job
    cpus: Collection[int]
    share: float


@dataclass(slots=True)
class _Cell:
    """CPUs in the same situation.

    Attributes:
        parts: works that take a whole CPU each, if they can have it.
        keys: real loads that share each CPU with these.
        busy: of each CPU, by job.
    """

    cpus: list[int]
    parts: tuple[KernelPart, ...]
    keys: tuple[str, ...]
    busy: dict[Job, Integrator] = field(default_factory=dict)


class Occupancy:
    """Busy time of the logical CPUs of a node.

    A part of a work keeps each of its CPUs busy; several on one CPU share it equally. Real loads take their
    share of what is left, and nothing on a core whose cycles belong to a kernel (`Cores` gives them no
    power there either).
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
        """Put a part on CPUs.

        Args:
            now_s: present moment.
            part: of a work.
            cpus: logical CPUs.
            computes: it is the cores that do the work; False: they only feed a GPU.
        """
        self._parts[part] = tuple(dict.fromkeys(cpus))
        if computes:
            self._computing.add(part)
        self._rebuild(now_s)

    def remove_part(self, now_s: float, part: KernelPart) -> None:
        """Take a part off its CPUs."""
        self._parts.pop(part, None)
        self._computing.discard(part)
        self._rebuild(now_s)

    def set_real_load(self, now_s: float, key: str, job: Job, cpus: Collection[int], share: float) -> None:
        """Let a real program keep each of its CPUs busy for `share` of the time; 0 removes it."""
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
        """Return the busy seconds of every logical CPU up to `now_s`."""
        seconds = list(self._closed)
        for cell in self._cells:
            since = sum(meter.integral_at(now_s) for meter in cell.busy.values())
            if since:
                for cpu in cell.cpus:
                    seconds[cpu] += since
        return seconds

    def job_seconds(self, job: Job, now_s: float) -> float:
        """Return the busy seconds of a job, all CPUs together."""
        meters = [(len(cell.cpus), cell.busy[job]) for cell in self._cells if job in cell.busy]
        since = sum(count * meter.integral_at(now_s) for count, meter in meters)
        return self._closed_jobs.get(job, 0.0) + since

    def busy_cpus(self, job: Job) -> float:
        """Return how many CPUs a job keeps busy now."""
        cells = [(len(cell.cpus), cell.busy[job]) for cell in self._cells if job in cell.busy]
        return sum(count * meter.value for count, meter in cells)

    def all_busy_cpus(self) -> float:
        """Return how many CPUs are busy now."""
        return sum(len(cell.cpus) * sum(meter.value for meter in cell.busy.values()) for cell in self._cells)

    def merge_into_no_job(self, job: Job, now_s: float) -> None:
        """Book what a job has had under no job."""
        self._close(now_s)
        self._closed_jobs[None] = self._closed_jobs.get(None, 0.0) + self._closed_jobs.pop(job, 0.0)

    def _rebuild(self, now_s: float) -> None:
        """Sort the CPUs into cells anew."""
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
        """Work out the busy shares in some cells."""
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
        """Bring the books to the present moment and empty the cells."""
        self._closed = self.cpu_seconds(now_s)
        for cell in self._cells:
            for job, meter in cell.busy.items():
                used_s = len(cell.cpus) * meter.integral_at(now_s)
                self._closed_jobs[job] = self._closed_jobs.get(job, 0.0) + used_s
                cell.busy[job] = Integrator(now_s, meter.value)
