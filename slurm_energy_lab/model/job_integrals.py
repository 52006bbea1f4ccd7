"""Exact integrals over time of a quantity that several jobs share, for example power.

There is one integral per job. The caller determines the share of each job.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy_lab.model.integrator import Integrator

Job = int | None
"""Slurm's job number. None stands for work outside all jobs."""


class JobIntegrals:
    """Integrals over time of one quantity per job, such as watts.

    Examples: watts are integrated to joules, and busy CPUs to CPU seconds.
    """

    __slots__ = ("_closed", "_rates", "_running")

    def __init__(self) -> None:
        self._rates: Mapping[Job, float] = {}
        self._running: dict[Job, Integrator] = {}
        self._closed: dict[Job, float] = {}

    def set_rates(self, now_s: float, rates: Mapping[Job, float]) -> None:
        """Set the rate at which the integrated quantity of each job grows, from time `now_s` on.

        The rate is, for example, the power of a job, whose integral is energy. Jobs that are not in `rates`
        have rate 0.
        """
        if rates == self._rates:
            return
        self._rates = rates
        for job in [job for job in self._running if job not in rates]:
            total = self._closed.get(job, 0.0) + self._running.pop(job).integral_at(now_s)
            self._closed[job] = total
        for job, rate in rates.items():
            meter = self._running.get(job)
            if meter is None:
                self._running[job] = Integrator(now_s, rate)
            else:
                meter.set_rate(now_s, rate)

    def integral_at(self, job: Job, now_s: float) -> float:
        """Return the integral of a job's rate over time, from the start of the model to `now_s`.

        `now_s` must not be earlier than the last change of the rate.
        """
        meter = self._running.get(job)
        running = meter.integral_at(now_s) if meter else 0.0
        return self._closed.get(job, 0.0) + running

    def forget(self, job: Job) -> None:
        """Delete the stored integral of a job that has ended.

        Nothing is deleted if the job still has a rate, that is, if its integral still grows.
        """
        if job not in self._running:
            self._closed.pop(job, None)

    def merge_into_no_job(self, job: Job, now_s: float) -> None:
        """Forget an ended job. Its integral is added to the integral of the work outside all jobs.

        The key of the work outside all jobs is None. Nothing is done if the job's rate is not 0.

        Args:
            job: the ended job.
            now_s: time of the call.
        """
        if job not in self._running and job in self._closed:
            self._closed[None] = self._closed.get(None, 0.0) + self._closed.pop(job)
