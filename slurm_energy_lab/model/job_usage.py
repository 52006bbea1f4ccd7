"""CPU time and dynamic energy of each job on a node, according to the model.

The module only reads and removes. `occupancy`, `package` and `gpu` integrate the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slurm_energy_lab.model.job_integrals import Job, JobIntegrals
from slurm_energy_lab.model.occupancy import Occupancy
from slurm_energy_lab.model.profile import NodeProfile

MAX_TRACKED_JOBS = 1000
"""Maximum number of tracked jobs. Above it the values of the oldest finished job go to no job."""


class UsageByJob:
    """CPU seconds and dynamic joules by job.

    Dynamic energy is the energy of a component above its idle energy. For every component
    `idle_joules + sum over jobs and None of dynamic_joules` is its energy.
    `system_cpu_seconds + sum of cpu_seconds` is the busy time of the node.
    """

    def __init__(
        self,
        profile: NodeProfile,
        occupancy: Occupancy,
        shares: Mapping[str, Sequence[JobIntegrals]],
        start_s: float,
    ) -> None:
        """Combine the integrals of all components.

        Args:
            profile: the node's profile.
            occupancy: busy time of its CPUs.
            shares: integrals of dynamic power by job, one per device; keys `cpu`, `dram`, `gpu`.
            start_s: start time of the model.
        """
        self._profile = profile
        self._occupancy = occupancy
        self._shares = {kind: books for kind, books in shares.items() if books}
        self._start_s = start_s
        self._known: dict[int, None] = {}
        self._system = profile.cpu.system_cpus / profile.cpu.cpus

    def add_job(self, job: Job, now_s: float) -> None:
        """Track a job from now on."""
        if job is None:
            return
        self._known[job] = None
        if len(self._known) > MAX_TRACKED_JOBS:
            self._forget_oldest(now_s)

    def jobs(self) -> tuple[int, ...]:
        """Return the tracked jobs, oldest first."""
        return tuple(self._known)

    def running(self, job: Job) -> bool:
        """Return whether a job keeps any CPU busy now. A job that uses a GPU always does."""
        return self._occupancy.busy_cpus(job) > 0

    def cpu_seconds(self, job: Job, now_s: float) -> float:
        """Return the CPU time of a job's programs and kernels; with None, of those outside all jobs."""
        return self._occupancy.job_seconds(job, now_s) * (1 - self._system)

    def system_cpu_seconds(self, now_s: float) -> float:
        """Return the CPU time of the node's daemons."""
        return self._profile.cpu.system_cpus * (now_s - self._start_s)

    def busy_seconds(self, now_s: float) -> list[float]:
        """Return the busy seconds of every logical CPU, without its share of the daemons' CPU time."""
        return [seconds * (1 - self._system) for seconds in self._occupancy.cpu_seconds(now_s)]

    def busy_cpus(self) -> float:
        """Return the number of logical CPUs that jobs keep busy now."""
        return self._occupancy.all_busy_cpus()

    def dynamic_joules(self, job: Job, now_s: float) -> dict[str, float]:
        """Return a job's energy above idle by component: `cpu`, `dram`, `gpu[i]`, `gpu`, `other`, `node`."""
        joules_by_component: dict[str, float] = {}
        for kind, books in self._shares.items():
            joules = [book.integral_at(job, now_s) for book in books]
            if kind == "gpu":
                joules_by_component |= {f"gpu[{index}]": value for index, value in enumerate(joules)}
            joules_by_component[kind] = math.fsum(joules)
        parts = math.fsum(joules_by_component[kind] for kind in self._shares)
        return {
            **joules_by_component,
            "other": self._profile.other.loss_share * parts,
            "node": (1 + self._profile.other.loss_share) * parts,
        }

    def idle_joules(self, now_s: float) -> dict[str, float]:
        """Return the energy of the node without any job, by the same component names."""
        profile, elapsed_s = self._profile, now_s - self._start_s
        watts = {
            "cpu": profile.cpu.packages * profile.cpu.idle_watts,
            "dram": profile.cpu.packages * profile.memory.idle_watts,
        }
        if profile.gpu:
            watts |= {f"gpu[{i}]": profile.gpu.idle_watts for i in range(profile.gpu.count)}
        parts = math.fsum(watts.values())
        if profile.gpu:
            watts["gpu"] = profile.gpu.count * profile.gpu.idle_watts
        watts["other"] = profile.other.base_watts + profile.other.loss_share * parts
        watts["node"] = parts + watts["other"]
        return {name: value * elapsed_s for name, value in watts.items()}

    def _forget_oldest(self, now_s: float) -> None:
        job = next((job for job in self._known if not self.running(job)), None)
        if job is None:
            return
        del self._known[job]
        self._occupancy.merge_into_no_job(job, now_s)
        for book in (book for group in self._shares.values() for book in group):
            book.merge_into_no_job(job, now_s)
