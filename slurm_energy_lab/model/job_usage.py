"""CPU time and dynamic energy (energy above idle) of each job on an emulated node.

The modules `occupancy`, `package` and `gpu` compute these values over time. This module reads the values and
removes the values of old jobs.
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
    """CPU seconds and dynamic energy in joules by job.

    Dynamic energy is the energy of a component above its idle energy. The job None stands for work outside
    all jobs. The energy of every component is `idle_joules` plus the sum of `dynamic_joules` over all jobs
    and None. The busy time of the node is `system_cpu_seconds` plus the sum of `cpu_seconds` over all jobs
    and None.
    """

    def __init__(
        self,
        profile: NodeProfile,
        occupancy: Occupancy,
        shares: Mapping[str, Sequence[JobIntegrals]],
        start_s: float,
    ) -> None:
        """Create the usage by job from the power integrals of all components.

        Args:
            profile: the node's hardware profile.
            occupancy: busy time of the node's CPUs.
            shares: integrals of dynamic power by job, one per device, under the keys `cpu`, `dram` and
                `gpu`.
            start_s: start time of the model in seconds.
        """
        self._profile = profile
        self._occupancy = occupancy
        self._shares = {kind: integrals for kind, integrals in shares.items() if integrals}
        self._start_s = start_s
        self._known: dict[int, None] = {}
        self._system = profile.cpu.system_cpus / profile.cpu.cpus

    def add_job(self, job: Job, now_s: float) -> None:
        """Track a job from now on.

        The job None stands for work outside all jobs and is ignored.
        """
        if job is None:
            return
        self._known[job] = None
        if len(self._known) > MAX_TRACKED_JOBS:
            self._forget_oldest(now_s)

    def jobs(self) -> tuple[int, ...]:
        """Return the jobs whose resource usage is tracked, oldest first."""
        return tuple(self._known)

    def running(self, job: Job) -> bool:
        """Return whether a job keeps any logical CPU busy now.

        The result is also True for every job that uses a GPU.
        """
        return self._occupancy.busy_cpus(job) > 0

    def cpu_seconds(self, job: Job, now_s: float) -> float:
        """Return the CPU seconds that a job has used up to time `now_s`.

        They include the job's programs and its compute kernels. The job None stands for work that belongs to
        no job.
        """
        return self._occupancy.job_seconds(job, now_s) * (1 - self._system)

    def system_cpu_seconds(self, now_s: float) -> float:
        """Return the CPU seconds of the node's system daemons up to time `now_s`."""
        return self._profile.cpu.system_cpus * (now_s - self._start_s)

    def busy_seconds(self, now_s: float) -> list[float]:
        """Return the busy seconds of every logical CPU up to time `now_s`.

        The CPU time of system daemons is not included.
        """
        return [seconds * (1 - self._system) for seconds in self._occupancy.cpu_seconds(now_s)]

    def busy_cpus(self) -> float:
        """Return the number of logical CPUs that jobs keep busy now."""
        return self._occupancy.all_busy_cpus()

    def dynamic_joules(self, job: Job, now_s: float) -> dict[str, float]:
        """Return a job's energy above idle up to time `now_s`, in joules by component.

        The components are `cpu`, `dram`, `gpu[i]`, `gpu`, `other` and `node`.
        """
        joules_by_component: dict[str, float] = {}
        for kind, integrals in self._shares.items():
            joules = [integral.integral_at(job, now_s) for integral in integrals]
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
        """Return the energy in joules that the node would have used without jobs up to time `now_s`.

        The result has one value per component: `cpu`, `dram`, `gpu[i]`, `gpu`, `other` and `node`.
        """
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
