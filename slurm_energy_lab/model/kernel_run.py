"""Work in progress: how far each part of a submitted kernel is, at a rate that its device sets.

Book-keeping only: no watts and no frequencies in here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernels import Factors, KernelSpec
from slurm_energy_lab.model.requests import KernelResult


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """One phase of a part in absolute numbers."""

    flops: float
    bytes: float
    overlap: float
    factors: Factors


class KernelPart:
    """The share of a work that one GPU, or all its CPUs together, carries out.

    Attributes:
        task: the phase in progress.
        end_s: when that phase ends at the present rates; infinity while nothing moves.
        job: whose work it is.
    """

    __slots__ = (
        "_cycles_left",
        "_index",
        "_rates",
        "_remaining",
        "_since_s",
        "_tasks",
        "end_s",
        "job",
        "task",
    )

    def __init__(self, spec: KernelSpec, device: str, size: float, now_s: float, job: Job = None) -> None:
        scale = spec.scale(size)
        cycles = max(1, math.ceil(size)) if spec.looped else 1
        self._tasks = tuple(
            PhaseWork(
                phase.flops * scale / cycles,
                phase.bytes * scale / cycles,
                phase.overlap,
                phase.factors(device),
            )
            for phase in spec.phases
        )
        self._cycles_left = cycles
        self._index = 0
        self._remaining = 1.0
        self._rates: dict[int, float] = {}
        self._since_s = now_s
        self.task = self._tasks[0]
        self.end_s = math.inf
        self.job = job

    def update_progress(self, now_s: float) -> None:
        """Book the progress up to `now_s`."""
        if now_s > self._since_s:
            done = math.fsum(self._rates.values()) * (now_s - self._since_s)
            self._remaining = max(0.0, self._remaining - done)
            self._since_s = now_s

    def set_rate(self, place: int, rate_per_s: float) -> None:
        """Set the phases per second of a package or GPU. Call `update_progress` first."""
        if self._rates.get(place) != rate_per_s:
            self._rates[place] = rate_per_s
        total = math.fsum(self._rates.values())
        self.end_s = self._since_s + self._remaining / total if total > 0 else math.inf

    def next_phase(self) -> bool:
        """Leave a finished phase; return False when it was the last one."""
        self._index += 1
        if self._index == len(self._tasks):
            self._index = 0
            self._cycles_left -= 1
        self._remaining = 1.0
        self.task = self._tasks[self._index]
        self.end_s = math.inf
        return self._cycles_left > 0

    @property
    def total_flops(self) -> float:
        """Operations that are still to do from the present phase's start, all cycles."""
        return math.fsum(task.flops for task in self._tasks) * self._cycles_left

    @property
    def total_bytes(self) -> float:
        """Bytes that are still to move from the present phase's start, all cycles."""
        return math.fsum(task.bytes for task in self._tasks) * self._cycles_left


@dataclass(slots=True)
class KernelRun:
    """A submitted kernel: its parts still running and what they began with."""

    run_id: int
    kernel: str
    device: str
    size: float
    start_s: float
    flops: float
    bytes: float
    start_joules: dict[str, float]
    places: dict[KernelPart, tuple[int, ...]] = field(default_factory=dict)

    def finished(self, now_s: float, joules: dict[str, float]) -> KernelResult:
        """Return the result of a work that ends now, from the node's energy readings."""
        return KernelResult(
            run_id=self.run_id,
            kernel=self.kernel,
            device=self.device,
            size=self.size,
            start_s=self.start_s,
            end_s=now_s,
            seconds=now_s - self.start_s,
            flops=self.flops,
            bytes=self.bytes,
            energy_joules={name: value - self.start_joules[name] for name, value in joules.items()},
        )
