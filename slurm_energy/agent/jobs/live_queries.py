"""Responses to queries about running jobs and the node: energy so far, power, and state of the agent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slurm_energy.agent.budget.node_budget import NodeBudget
from slurm_energy.agent.jobs.adjusted_values import AdjustedValues
from slurm_energy.agent.jobs.job_records import running_records
from slurm_energy.agent.jobs.sessions import OPEN, Session, SessionTable
from slurm_energy.agent.jobs.step_energy import with_divided_energy
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import SampleReason
from slurm_energy.agent.metering.live_power import MIN_WINDOW_S
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.agent.signals.observation import node_observation, observation_json
from slurm_energy.agent.sockets import responses
from slurm_energy.agent.sockets.rate_limit import UserTokenBuckets
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.errors import ForbiddenError, UnavailableError
from slurm_energy.protocol.live_reports import MAX_LIVE_RECORDS, LiveReport

_SAMPLE_AGE_S = 0.1
_MIN_SAMPLE_AGE_S = 0.001
"""Counters update every millisecond (RAPL) or less often, so a younger sample has no new values."""
_FRESH_SAMPLES_PER_S, _FRESH_SAMPLES_BURST = 200.0, 400.0
"""Rate limit of samples that one user requests. 200 per second keep the agent below a tenth of a core."""
_OBSERVATIONS_PER_S, _OBSERVATIONS_BURST = 0.5, 10.0
"""Rate limit of observations that one user requests. The thread that serves hooks compresses each of them."""


class LiveQueries:
    """Handler of queries about the present state of the node.

    Args:
        devices: the node's hardware.
        meter: the node's energy meter.
        clock: the machine's clock.
        running: sessions of the running jobs.
        sample: takes a sample.
        budget: power budget of the node.
        settings: manager of the hardware settings of the node.

    Attributes:
        adjusted: adjusted values of the running jobs.
    """

    def __init__(
        self,
        devices: NodeDevices,
        meter: NodeEnergyMeter,
        clock: Clock,
        running: SessionTable,
        sample: Callable[[SampleReason], None],
        budget: NodeBudget,
        settings: SettingsManager,
    ) -> None:
        self._devices = devices
        self._meter = meter
        self._clock = clock
        self._running = running
        self.adjusted = AdjustedValues(running)
        self._sample = sample
        self._budget = budget
        self._settings = settings
        self._fresh = UserTokenBuckets(_FRESH_SAMPLES_PER_S, _FRESH_SAMPLES_BURST)
        self._observations = UserTokenBuckets(_OBSERVATIONS_PER_S, _OBSERVATIONS_BURST)

    @property
    def announced_jobs(self) -> int:
        """Number of jobs whose start was reported since the agent started."""
        return self._running.announced

    @property
    def unrestored(self) -> int:
        """Number of settings of ended jobs that could not be restored."""
        return len(self._settings.unrestored)

    @property
    def running_jobs(self) -> int:
        """Number of running jobs."""
        return len(self._running)

    def energy(self, job_id: int, reader: int | None, *, fresh: bool) -> tuple[int, dict[str, Any]]:
        """Return the uid of the owner of a job, and the response with the job's energy so far and power.

        Args:
            job_id: id of the job.
            reader: uid of the requesting user; None for a user who may read everything.
            fresh: whether to take a new sample. The user's rate limit may prevent the new sample. A program
                that measures a short section of itself needs a new sample.

        Raises:
            NotFoundError: the job does not run here.
            ForbiddenError: the job belongs to another user.
        """
        session = self._running.require_run(job_id)
        if reader not in (None, session.uid):
            raise ForbiddenError(f"energy: job {job_id} belongs to another user")
        now = self._clock.boottime()
        oldest_s = _MIN_SAMPLE_AGE_S if fresh and self._fresh.try_take(session.uid, now) else _SAMPLE_AGE_S
        if now - self._meter.sampled_at > oldest_s:
            self._sample(SampleReason.QUERY)
        sampled_s = self._meter.sampled_at
        age_s = max(0.0, self._clock.boottime() - sampled_s)
        return session.uid, {**responses.energy_response(session), "age_s": age_s, "sampled_s": sampled_s}

    def observation(self, job_id: int, reader: int | None) -> dict[str, Any]:
        """Return the signals, the steps (iterations of the program) and the power trace of a job so far.

        Data that were not observed are null.

        Args:
            job_id: id of the job.
            reader: uid of the requesting user; None for a user who may read everything.

        Raises:
            NotFoundError: the job does not run here.
            ForbiddenError: the job belongs to another user.
            UnavailableError: the user exceeds the rate limit.
        """
        session = self._running.require_run(job_id)
        if reader not in (None, session.uid):
            raise ForbiddenError(f"observation: job {job_id} belongs to another user")
        if reader is not None and not self._observations.try_take(reader, self._clock.boottime()):
            raise UnavailableError("observation: too many requests", todo="try again in 2 seconds")
        observed = node_observation(session.node, session.recording, session.step_reports, session.unix_at)
        trace = session.trace
        return {
            "node": session.node,
            "observation": observation_json(observed),
            "trace": trace.encode(session.unix_at(trace.start)) if trace and trace.is_plot else None,
        }

    def report(self, node: str, cluster: str) -> LiveReport:
        """Return the present power of the node and the energy so far of its running jobs.

        The method takes no sample. While jobs run, the last sample is at most one sampling interval old.

        Args:
            node: Slurm's name of the node.
            cluster: name of the cluster, used if no job reports the name.
        """
        now, boottime = self._clock.unix(), self._clock.boottime()
        sessions = [session for session in self._running.values() if session.phase == OPEN]
        shown = (with_divided_energy(s, self._devices.root) for s in sessions if s.node == node)
        records = running_records(shown, boottime)
        return LiveReport(
            next((session.cluster for session in sessions), cluster),
            node,
            now,
            self._meter.live.watts(boottime),
            tuple(itertools.islice(records, MAX_LIVE_RECORDS)),
        )

    def status(
        self, node: str, ended: Iterable[Session], reader: int | None, tuning: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the status of the node: its power, jobs and devices.

        Args:
            node: Slurm's name of the node.
            ended: sessions of ended jobs whose records are not written yet.
            reader: uid of the requesting user, who sees energy and power of the user's own jobs only; None
                for a user who may read everything.
            tuning: phase of the tuning by job as `JOBID.RESTART`.
        """
        now, last = self._clock.boottime(), self._meter.time
        if not self._running and (last is None or now - last > MIN_WINDOW_S):
            self._sample(SampleReason.QUERY)  # samples are rare without jobs
        live, sessions = self._meter.live, [*self._running.values(), *ended]
        response = {
            **responses.status_response(node, sessions, self._devices, reader, tuning),
            "watts": dict(live.watts(now)),
            "watts_window_s": live.window_s,
            "budget": self._budget.state(),
            "unrestored": sorted(self._settings.unrestored),
        }
        accounts = {"energy_accounts": self._meter.account_totals(), "idle_watts": self._meter.idle_watts()}
        return response if reader is not None else response | accounts
