"""Who keeps which logical CPU busy, and for how long: exact integrals by CPU and by job.

The rule is in docs/lab-physics.md, section 10. Watts and frequencies do not come in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.lab.model.byjob import ByJob, Job
from slurm_energy.lab.model.meter import Meter
from slurm_energy.lab.model.profile import CpuProfile
from slurm_energy.lab.model.work import Part


@dataclass(frozen=True, slots=True)
class _RealLoad:
    """A real program's load: the busy share of each of its CPUs."""

    job: Job
    cpus: frozenset[int]
    share: float


@dataclass(slots=True)
class _Cell:
    """CPUs in the same situation.

    Attributes:
        parts: works that take a whole CPU each, if they can have it.
        keys: real loads that take what these leave.
        busy: busy share of each CPU.
    """

    cpus: list[int]
    parts: tuple[Part, ...]
    keys: tuple[str, ...]
    busy: Meter


class Occupancy:
    """Busy time of the logical CPUs of a node.

    A part of a work keeps each of its CPUs busy; several on one CPU share it equally. Real loads take their
    share of what is left, and nothing on a core whose cycles belong to a kernel (`Cores` gives them no
    power there either).
    """

    def __init__(self, cpu: CpuProfile, now_s: float) -> None:
        self._cpu = cpu
        self._parts: dict[Part, tuple[int, ...]] = {}
        self._computing: set[Part] = set()
        self._real: dict[str, _RealLoad] = {}
        self._cells = [_Cell(list(range(cpu.cpus)), (), (), Meter(now_s, 0.0))]
        self._closed = [0.0] * cpu.cpus
        self.jobs = ByJob()
        """CPU seconds by job."""

    def take(self, now_s: float, part: Part, cpus: Sequence[int], computes: bool) -> None:
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

    def leave(self, now_s: float, part: Part) -> None:
        """Take a part off its CPUs."""
        self._parts.pop(part, None)
        self._computing.discard(part)
        self._rebuild(now_s)

    def set_real(self, now_s: float, key: str, job: Job, cpus: Iterable[int], share: float) -> None:
        """Let a real program keep each of its CPUs busy for `share` of the time; 0 removes it."""
        old = self._real.pop(key, None)
        new = _RealLoad(job, frozenset(cpus), min(1.0, share)) if share > 0 else None
        if new:
            self._real[key] = new
        if (old.cpus if old else None) != (new.cpus if new else None):
            self._rebuild(now_s)
        elif old != new:
            self._run(now_s)

    def cpu_seconds(self, now_s: float) -> list[float]:
        """Return the busy seconds of every logical CPU up to `now_s`."""
        seconds = list(self._closed)
        for cell in self._cells:
            since = cell.busy.integral_at(now_s)
            if since:
                for cpu in cell.cpus:
                    seconds[cpu] += since
        return seconds

    def busy_cpus(self) -> float:
        """Return how many CPUs are busy now."""
        return sum(len(cell.cpus) * cell.busy.value for cell in self._cells)

    def _rebuild(self, now_s: float) -> None:
        """Sort the CPUs into cells anew."""
        self._closed = self.cpu_seconds(now_s)
        parts: dict[int, tuple[Part, ...]] = {}
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
        cells: dict[tuple[tuple[Part, ...], tuple[str, ...]], _Cell] = {}
        for cpu in range(self._cpu.cpus):
            here = parts.get(cpu, ()), keys.get(cpu, ())
            if here not in cells:
                cells[here] = _Cell([], *here, Meter(now_s, 0.0))
            cells[here].cpus.append(cpu)
        self._cells = list(cells.values())
        self._run(now_s)

    def _run(self, now_s: float) -> None:
        """Work out the busy shares."""
        rates: dict[Job, float] = {}
        for cell in self._cells:
            wishes = [(part.job, 1.0) for part in cell.parts]
            wishes += [(self._real[key].job, self._real[key].share) for key in cell.keys]
            total = sum(wish for _, wish in wishes)
            scale = min(1.0, total) / total if wishes else 0.0
            cell.busy.run_at(now_s, total * scale)
            for job, wish in wishes:
                rates[job] = rates.get(job, 0.0) + len(cell.cpus) * wish * scale
        self.jobs.run_at(now_s, rates)
