"""What each job has used of a node, as its physics has it: CPU seconds and dynamic joules.

Only reading and forgetting; who uses what is booked in `occupancy`, `cpu` and `gpu`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slurm_energy_lab.model.job_integrals import Job, JobIntegrals
from slurm_energy_lab.model.occupancy import Occupancy
from slurm_energy_lab.model.profile import NodeProfile

MAX_TRACKED_JOBS = 1000
"""So many jobs are told apart; the oldest of those that have ended then count as no job."""


class UsageByJob:
    """CPU seconds and dynamic joules by job.

    Dynamic is what a component uses beyond its idle power. For every component
    `idle_joules + sum over jobs and None of dynamic_joules` is its energy, and
    `system_cpu_seconds + sum of cpu_seconds` the busy time of the node.
    """

    def __init__(
        self,
        profile: NodeProfile,
        occupancy: Occupancy,
        shares: Mapping[str, Sequence[JobIntegrals]],
        start_s: float,
    ) -> None:
        """Tie the books together.

        Args:
            profile: of the node.
            occupancy: busy time.
            shares: dynamic watts by job of each component; keys `cpu`, `dram`, `gpu`.
            start_s: when everything began.
        """
        self._profile = profile
        self._occupancy = occupancy
        self._shares = {kind: books for kind, books in shares.items() if books}
        self._start_s = start_s
        self._known: dict[int, None] = {}
        self._system = profile.cpu.system_cpus / profile.cpu.cpus

    def add_job(self, job: Job, now_s: float) -> None:
        """Tell that a job is there."""
        if job is None:
            return
        self._known[job] = None
        if len(self._known) > MAX_TRACKED_JOBS:
            self._forget_oldest(now_s)

    def jobs(self) -> tuple[int, ...]:
        """Return the jobs that are known, oldest first."""
        return tuple(self._known)

    def running(self, job: Job) -> bool:
        """Return whether a job keeps any CPU busy now; who uses a GPU does."""
        return self._occupancy.busy_cpus(job) > 0

    def cpu_seconds(self, job: Job, now_s: float) -> float:
        """Return the CPU time of a job's programs and kernels; None: of those that belong to no job."""
        return self._occupancy.job_seconds(job, now_s) * (1 - self._system)

    def system_cpu_seconds(self, now_s: float) -> float:
        """Return the CPU time of the node's daemons."""
        return self._profile.cpu.system_cpus * (now_s - self._start_s)

    def busy_seconds(self, now_s: float) -> list[float]:
        """Return the busy seconds of every logical CPU without the daemons' even share."""
        return [seconds * (1 - self._system) for seconds in self._occupancy.cpu_seconds(now_s)]

    def busy_cpus(self) -> float:
        """Return how many logical CPUs jobs keep busy now."""
        return self._occupancy.all_busy_cpus()

    def dynamic_joules(self, job: Job, now_s: float) -> dict[str, float]:
        """Return a job's joules beyond idle by `cpu`, `dram`, `gpu[i]`, `gpu`, `other` and `node`."""
        found: dict[str, float] = {}
        for kind, books in self._shares.items():
            joules = [book.integral_at(job, now_s) for book in books]
            if kind == "gpu":
                found |= {f"gpu[{index}]": value for index, value in enumerate(joules)}
            found[kind] = math.fsum(joules)
        parts = math.fsum(found[kind] for kind in self._shares)
        return {
            **found,
            "other": self._profile.other.loss_share * parts,
            "node": (1 + self._profile.other.loss_share) * parts,
        }

    def idle_joules(self, now_s: float) -> dict[str, float]:
        """Return what the node without any job would have used, by the same names."""
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
