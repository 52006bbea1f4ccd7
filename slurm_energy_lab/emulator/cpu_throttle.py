"""Throttling of real programs: CPU quotas follow the effective frequency of the emulated CPUs.

The utilisation of a job is the fraction of its quota that it uses. This utilisation is passed to the node
model. An emulated core is a fixed fraction of a real core. Compute kernels of `senergy lab run` are not
throttled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.emulator.cpu_cgroups import CpuCgroups
from slurm_energy_lab.realtime_model import RealtimeModel

DEFAULT_SHARE_CORES = 0.45
TICK_S = 0.1
MIN_QUOTA_US = 1000
PERIODS_US = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
EMPTY_GRACE_S = 10.0
_RELATIVE_CHANGE = 0.01


def quota_us(real_cores: float) -> tuple[int, int]:
    """Return the CPU quota and the period in microseconds for a share of real CPU time.

    Linux rejects quotas below a millisecond, so a small share needs a long period. A program that has waited
    may use the whole quota of one period at full speed. With a long period, the program therefore gets too
    much CPU time. In a measurement with a share of 0.24 and bursts of 50 ms of CPU time, the program got a
    share of 0.272 with periods of 20 ms, and 0.247 with periods of 5 ms.

    Args:
        real_cores: number of real cores, that is CPU seconds per second; at least 0.001.
    """
    for period in PERIODS_US:
        if real_cores * period >= MIN_QUOTA_US:
            return round(real_cores * period), period
    return MIN_QUOTA_US, PERIODS_US[-1]


@dataclass(slots=True)
class _Job:
    """Job whose real programs have a control group (cgroup).

    Attributes:
        cpus: logical CPUs of the job.
        cores: number of CPUs that the job has on each core, by the number of the core's first CPU.
        registered_s: time of the job's last registration in seconds.
        allowed_cores: current quota in real cores.
        sampled_s: time of the last measurement in seconds.
        used_s: CPU seconds that the job's control group had used at the last measurement.
        measured: utilisation at the last measurement, 0 to 1.
        reported: utilisation that was last passed to the node model. None if the CPUs of the job have changed
            since then, so that the utilisation must be passed again.
    """

    cpus: tuple[int, ...]
    cores: dict[int, int]
    registered_s: float
    allowed_cores: float = 0.0
    sampled_s: float = 0.0
    used_s: float = 0.0
    measured: float = 0.0
    reported: float | None = 0.0


class CpuThrottle:
    """CPU quotas and utilisation of the real programs of one node.

    The class is not thread-safe.
    """

    def __init__(
        self,
        realtime_model: RealtimeModel,
        groups: CpuCgroups | None,
        reason: str = "",
        share_cores: float = DEFAULT_SHARE_CORES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the throttle of a node without jobs.

        Args:
            realtime_model: real-time model of the node.
            groups: control groups (cgroups) of jobs; None if programs are not throttled and run at the speed
                of the host.
            reason: reason why control groups are not available; empty if they are available.
            share_cores: number of real cores that all emulated CPUs share at full frequency.
            clock: monotonic clock in seconds.
        """
        self._realtime_model = realtime_model
        self._groups = groups
        self._reason = reason
        self._share_per_cpu = share_cores / realtime_model.profile.cpu.cpus
        self._clock = clock
        self._jobs: dict[int, _Job] = {}

    @property
    def busy(self) -> bool:
        """Return whether there are jobs that `tick` must process."""
        return bool(self._jobs)

    def status(self) -> dict[str, object]:
        """Return the mode, the number of real cores, and the utilisation of jobs.

        The result is part of the emulator's response to the message `status`.
        """
        return {
            "mode": self._groups.kind if self._groups else "none",
            "reason": self._reason,
            "share_cores": self._share_per_cpu * self._realtime_model.profile.cpu.cpus,
            "jobs": {str(number): job.measured for number, job in self._jobs.items()},
        }

    def has_job(self, job_id: int) -> bool:
        """Return whether the emulator has a control group for the real programs of a job."""
        return job_id in self._jobs

    def register(self, job_id: int, cpus: tuple[int, ...] | None) -> list[str]:
        """Create the control group of a job, or update its CPUs.

        Args:
            job_id: Slurm's job id.
            cpus: the job's logical CPUs; None for all CPUs of the node.

        Returns:
            `cgroup.procs` files to which the ids of the job's processes must be written; empty without
            throttling.

        Raises:
            UnavailableError: the group cannot be created.
        """
        if self._groups is None:
            return []
        job = self._jobs.get(job_id)
        everything = tuple(range(self._realtime_model.profile.cpu.cpus))
        job_cpus = cpus or (job.cpus if job else everything)
        try:
            files = self._groups.create(_name(job_id))
            used_s = self._groups.cpu_seconds(_name(job_id))
        except OSError as error:
            raise _unavailable(job_id, error) from None
        now_s = self._clock()
        cores = dict(Counter(self._realtime_model.profile.cpu.core_of(cpu) for cpu in job_cpus))
        if job:
            job.reported = job.reported if job.cpus == job_cpus else None
            job.cpus, job.cores, job.registered_s = job_cpus, cores, now_s
        else:
            self._jobs[job_id] = _Job(job_cpus, cores, now_s, sampled_s=now_s, used_s=used_s)
        try:
            self._limit(job_id, self._allowed_cores()[job_id])
        except OSError as error:
            raise _unavailable(job_id, error) from None
        return [str(path) for path in files]

    def tick(self) -> None:
        """Measure all jobs, pass their load to the node model, update quotas and remove empty cgroups."""
        measured = [job_id for job_id in list(self._jobs) if self._try(self._measure, job_id)]
        if measured:
            with self._realtime_model.modify() as model:
                for job_id in measured:
                    job = self._jobs[job_id]
                    model.set_real_load(_name(job_id), job.cpus, job.measured * len(job.cores), job_id)
                    job.reported = job.measured
        for job_id, allowed_cores in self._allowed_cores().items():
            self._try(self._limit, job_id, allowed_cores)
        now_s = self._clock()
        for job_id, job in list(self._jobs.items()):
            if now_s - job.registered_s > EMPTY_GRACE_S and job.measured == 0:
                self._remove_if_empty(job_id)

    def close(self) -> None:
        """Remove all quotas and control groups."""
        for job_id in list(self._jobs):
            self._drop(job_id)
        if self._groups:
            self._groups.close()

    def _try(self, act: Callable[..., bool], job_id: int, *arguments: float) -> bool:
        """Call the function `act` for a job, and return the result of the call.

        If the job's control group no longer exists, remove the job and return False.
        """
        try:
            return act(job_id, *arguments)
        except OSError:
            self._drop(job_id)
            return False

    def _measure(self, job_id: int) -> bool:
        """Measure the utilisation of a job: the fraction of the job's quota that was used.

        Return whether the utilisation must be passed to the node model.
        """
        assert self._groups is not None
        job, now_s = self._jobs[job_id], self._clock()
        _, period_us = quota_us(job.allowed_cores)
        if now_s - job.sampled_s < max(TICK_S / 2, 2e-6 * period_us):
            return False
        used_s = self._groups.cpu_seconds(_name(job_id))
        real_cores = (used_s - job.used_s) / (now_s - job.sampled_s)
        job.used_s, job.sampled_s = used_s, now_s
        job.measured = min(1.0, real_cores / job.allowed_cores) if job.allowed_cores else 0.0
        if job.measured < 1e-4:
            job.measured = 0.0
        return job.measured != job.reported

    def _allowed_cores(self) -> dict[int, float]:
        """Return how many real cores each job may use at the current CPU frequencies, by job id."""
        max_khz = self._realtime_model.profile.cpufreq.max_khz
        with self._realtime_model.now() as model:
            cycles = {
                job_id: sum(count * model.effective_khz(core) for core, count in job.cores.items())
                for job_id, job in self._jobs.items()
            }
        return {job_id: max(1e-3, self._share_per_cpu * khz / max_khz) for job_id, khz in cycles.items()}

    def _limit(self, job_id: int, allowed_cores: float) -> bool:
        """Set the quota of a job.

        A small change of the quota is skipped, because every write refills the quota of the period.

        Returns:
            Whether the quota was written.
        """
        assert self._groups is not None
        job = self._jobs[job_id]
        if abs(allowed_cores - job.allowed_cores) <= _RELATIVE_CHANGE * job.allowed_cores:
            return False
        self._groups.limit(_name(job_id), *quota_us(allowed_cores))
        job.allowed_cores = allowed_cores
        return True

    def _remove_if_empty(self, job_id: int) -> None:
        if self._groups and self._groups.remove(_name(job_id)):
            self._drop(job_id)

    def _drop(self, job_id: int) -> None:
        job = self._jobs.pop(job_id)
        with self._realtime_model.modify() as model:
            model.set_real_load(_name(job_id), job.cpus, 0.0)


def _unavailable(job_id: int, error: OSError) -> UnavailableError:
    return UnavailableError(f"job {job_id}: control group", error.strerror or "")


def _name(job_id: int) -> str:
    """Return the name of the control group that counts the real CPU time of a job's programs.

    Slurm uses other names for its groups, which show emulated CPU time.
    """
    return f"tasks_of_{job_id}"
