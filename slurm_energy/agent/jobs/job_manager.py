"""What the agent does with jobs: begin, end, steps, caps, samples; survives its own death at any instant.

Synchronous; every method runs in the one worker thread. Sockets, timers and delivery are in `daemon.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.agent.jobs import job_records, planner, recovery
from slurm_energy.agent.jobs.finalizer import JobFinalizer
from slurm_energy.agent.jobs.sessions import CLOSING, OPEN, STARTING, Session, SessionTable
from slurm_energy.agent.jobs.settings_applier import SettingsApplier
from slurm_energy.agent.jobs.stale_jobs import NO_EPILOG_NOTE, stale_jobs
from slurm_energy.agent.metering import components
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import SampleReason
from slurm_energy.agent.metering.live_power import MIN_WINDOW_S
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.agent.metering.trace import TraceBuilder
from slurm_energy.agent.sockets import responses
from slurm_energy.agent.sockets.rate_limit import UserTokenBuckets
from slurm_energy.agent.state.checkpoints import CheckpointWriter, UnsyncedFiles
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import Config
from slurm_energy.control.arbitration import JobAllocation
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.errors import ForbiddenError
from slurm_energy.slurm.hook_environment import JobContext, job_context, this_node

log = logging.getLogger(__name__)

_SAMPLE_AGE_S = 0.1
_MIN_SAMPLE_AGE_S = 0.001
"""Counters are updated every millisecond (RAPL) or less often; a younger sample tells nothing new."""
_IDLE_INTERVAL_S = 10.0
"""Between jobs somebody may still ask for the node's power, and its idle power is learned."""
_FRESH_SAMPLES_PER_S, _FRESH_SAMPLES_BURST = 200.0, 400.0
"""Samples that one user can make the agent take: 200 a second keep it below a tenth of a core."""


class JobManager:
    """The jobs of one node.

    Args:
        config: the configuration.
        devices: the node's hardware.
        state: the agent's directory.
        clock: time.
        on_written: called after each write that should be synced to disk or delivered.
    """

    def __init__(
        self,
        config: Config,
        devices: NodeDevices,
        state: StateDirectory,
        clock: Clock | None = None,
        on_written: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.node = this_node()
        self.spool = Spool(state.spool_folder, config.agent.spool_limit_mb * 1_000_000)
        self._devices = devices
        self._state = state
        self._clock = clock or Clock()
        self._fresh = UserTokenBuckets(_FRESH_SAMPLES_PER_S, _FRESH_SAMPLES_BURST)
        self._pending: set[tuple[int, int]] = set()
        self._sessions = SessionTable()
        self._meter = NodeEnergyMeter(devices, self._clock, self.node, config.agent.idle_watts)
        self._settings = SettingsManager(
            devices,
            state.journal,
            self._allocations,
        )
        self._checkpoints = CheckpointWriter(
            state, self.spool, self._meter, self._sessions.values, on_written
        )
        self._finalizer = JobFinalizer(devices, self._settings, self._checkpoints)
        self._applier = SettingsApplier(devices, self._settings, self._checkpoints, self._current_config)

    @property
    def active(self) -> bool:
        """Whether there is any job to measure."""
        return bool(self._sessions)

    @property
    def sampling_interval_s(self) -> float:
        """Seconds between regular samples now: as configured for jobs, seldom without, wraps never missed."""
        interval_s = 1 / self.config.agent.sampling_hz
        interval_s = interval_s if self.active else max(interval_s, _IDLE_INTERVAL_S)
        return min(interval_s, self._meter.max_interval_s)

    def start(self) -> None:
        """Take up what an earlier run left: finish what ended, go on with what runs, restore the rest."""
        running, ended, recorded = recovery.recover(self._state, self.spool, self._meter, self._clock.boot_id)
        self._finalizer.sessions += ended
        self._sessions.update({session.key: session for session in running})
        self._meter.resume(self._sessions.values())
        for session in self._sessions.values():
            self._resume_session(session)
        self._repair()
        self.apply_pending_settings()
        self._checkpoints.save_accounts()
        self.spool.expire(self._clock.unix(), self.config.agent.trace_retention_days * 86400)
        self._checkpoints.remove_when_synced(recorded)
        if self._finalizer.sessions:
            self.notify_written()

    def begin(self, env: Mapping[str, str], *, late_s: float = 0.0) -> dict[str, Any]:
        """Begin a job, or say what was done if it has begun before.

        Args:
            env: the hook's environment.
            late_s: seconds since the prolog, if nobody took its message then.

        Raises:
            UsageError: the environment does not describe a job.
        """
        context = job_context(env)
        session = self._sessions.get(context.key)
        if session is not None:
            return responses.begin_response(session)
        self._set_node_name(context.node)
        whole = components.has_whole_node(context, self._devices.hardware.cpu_count)
        self._finish_stale(context, whole)
        self._repair()
        reason = (
            SampleReason.FINAL if whole else SampleReason.HOOK
        )  # what was before is not the whole node's job's
        self._sample(reason)
        started = self._clock.unix(), self._meter.sampled_at
        session = planner.new_session(context, whole, self.node, self._devices, self.config, started)
        session.boot_id = self._clock.boot_id
        if late_s:
            session.late = True
            session.note(f"the job began {late_s:.1f} s before senergyd took note: not measured until then")
        request = planner.parse_request(session, context.flags, self.config)
        self._sessions[session.key] = session
        if self._applier.apply(session, request):
            self._sample(reason)
        self._start_metering(session)
        session.phase = OPEN
        self._checkpoints.save(session)
        answer = responses.begin_response(session)
        log.info(
            "job %s begins: policy %s, %s", session.owner, session.policy, responses.settings_summary(answer)
        )
        return answer

    def end(self, env: Mapping[str, str], *, late_s: float = 0.0) -> dict[str, Any]:
        """End a job: last sample, restore. An unknown job is no error.

        Args:
            env: the hook's environment.
            late_s: seconds since the epilog, if nobody took its message then.

        Raises:
            UsageError: the environment does not describe a job.
        """
        context = job_context(env)
        session = self._sessions.get(context.key) or self._sessions.sole_run(context.job_id)
        if session is None:
            return {"known": False}
        if late_s:
            session.note(
                f"the job ended {late_s:.1f} s before senergyd took note: end and energy are upper bounds"
            )
        self._finish(session)
        return {"known": True}

    def has_job(self, key: tuple[int, int]) -> bool:
        """Return whether a job (id, restart count) has begun here and has no record yet."""
        return key in self._sessions or any(session.key == key for session in self._finalizer.sessions)

    def record_unmeasured_job(self, env: Mapping[str, str], began: float, ended: float) -> None:
        """Record a job that began and ended while we were away; boot times in seconds.

        Raises:
            UsageError: the environment does not describe a job.
        """
        now = self._clock.unix() - self._clock.boottime()
        context = job_context(env)
        whole = components.has_whole_node(context, self._devices.hardware.cpu_count)
        node = context.node or self.node
        session = planner.new_session(context, whole, node, self._devices, self.config, (now + began, began))
        planner.mark_unmeasured(session, context.flags, self._clock.boot_id, now + ended)
        if not self.spool.has(session.record_id):
            self._finalizer.sessions.append(session)
            self._checkpoints.save(session)

    def step(
        self,
        event: str,
        job_id: int,
        name: str,
        job_cores: str | None = None,
        pid: int | None = None,
        script: str | None = None,
    ) -> dict[str, Any]:
        """Note begin (`start`) or end (`end`) of a step of a running job.

        Args:
            event: `start` or `end`.
            job_id: the job.
            name: Slurm's name of the step.
            job_cores: which cores the job has; None if that is not told.
            pid: the step's slurmstepd; None if that is not told.
            script: fingerprint of the job's script and its arguments; None if that is not told.
        """
        session = self._sessions.latest_run(job_id)
        if session is None or (event == "end" and name not in session.steps):
            return {"known": False}
        self._meter.find_processes(session)  # at the end of a step its job's control group is still there
        self._sample(SampleReason.STEP)
        if event == "start":
            session.begin_step(name, self._meter.sampled_at, pid)
            session.fingerprint = script or session.fingerprint
            self._meter.find_processes(session)
            if planner.learn_cpus(session, job_cores, self._devices.hardware):
                self._pending.add(session.key)
        else:
            step = session.steps[name]
            record = job_records.step_record(session, step, session.unix_at(self._meter.sampled_at))
            if self._checkpoints.spool_record(record):
                del session.steps[name]
            if step.is_container:
                session.steps_ended_at = self._clock.boottime()
        self._checkpoints.save(session)
        return {"known": True}

    @property
    def has_pending_settings(self) -> bool:
        """Whether `catch_up` has anything to do."""
        return bool(self._pending)

    def apply_pending_settings(self) -> None:
        """Set what became possible with a step, after it was answered: the step must not wait for it."""
        late, self._pending = self._pending, set()
        for session in [self._sessions[key] for key in late if key in self._sessions]:
            self._applier.replan(session)

    def set_caps(self, job_id: int, caps: Mapping[str, float | None]) -> dict[str, Any]:
        """Change the caps of a running job.

        Args:
            job_id: the job.
            caps: `cap_watts` and `gpu_cap_watts`; None lifts a cap, a missing one stays.

        Raises:
            NotFoundError: no such job here.
        """
        session = self._sessions.require_run(job_id)
        self._sample(SampleReason.HOOK)
        return self._applier.set_caps(session, caps)

    def energy(
        self, job_id: int, *, reader: int | None = None, fresh: bool = False
    ) -> tuple[int, dict[str, Any]]:
        """Return the job's owner and what it used so far: joules by component, watts now.

        Args:
            job_id: the job.
            reader: uid of who asks; None for who may read everything.
            fresh: sample at once, for measuring short sections, as long as the reader's allowance lasts.

        Raises:
            NotFoundError: no such job here.
            ForbiddenError: it is another user's.
        """
        session = self._sessions.require_run(job_id)
        if reader not in (None, session.uid):
            raise ForbiddenError(f"energy: job {job_id} belongs to another user")
        now = self._clock.boottime()
        oldest_s = _MIN_SAMPLE_AGE_S if fresh and self._fresh.try_take(session.uid, now) else _SAMPLE_AGE_S
        if now - self._meter.sampled_at > oldest_s:
            self._sample(SampleReason.QUERY)
        sampled_s = self._meter.sampled_at
        age_s = max(0.0, self._clock.boottime() - sampled_s)
        return session.uid, {**responses.energy_response(session), "age_s": age_s, "sampled_s": sampled_s}

    def status(self, reader: int | None = None) -> dict[str, Any]:
        """Return what anyone may know about this agent, and the power of the reader's own jobs.

        Args:
            reader: uid of who asks; None for who may read everything.
        """
        now, last = self._clock.boottime(), self._meter.time
        if not self.active and (last is None or now - last > MIN_WINDOW_S):
            self._sample(SampleReason.QUERY)  # without jobs that is done seldom
        live, sessions = self._meter.live, [*self._sessions.values(), *self._finalizer.sessions]
        response = {
            **responses.status_response(self.node, sessions, self._devices, reader),
            **self.spool.state(),
            "sampling_hz": self.config.agent.sampling_hz,
            "unrestored": sorted(self._settings.unrestored),
            "watts": dict(live.watts(now)),
            "watts_window_s": live.window_s,
        }
        accounts = {"energy_accounts": self._meter.account_totals(), "idle_watts": self._meter.idle_watts()}
        return response if reader is not None else response | accounts

    def sample(self) -> None:
        """Take a regular sample."""
        self._sample(SampleReason.PERIODIC)

    def housekeeping(self) -> None:
        """Write a checkpoint, and try again what failed before."""
        self.apply_pending_settings()
        for session in stale_jobs(self._sessions.values(), self._devices.root, self._clock.boottime()):
            log.warning("job %s: %s", session.owner, NO_EPILOG_NOTE)
            session.note(NO_EPILOG_NOTE)
            self._finish(session)
        self._repair()
        self._checkpoints.save_periodically()
        self.spool.expire(self._clock.unix(), self.config.agent.trace_retention_days * 86400)
        if self._finalizer.sessions:
            self.notify_written()

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from now on; running jobs keep their settings."""
        self.config = config
        self.spool.limit_bytes = config.agent.spool_limit_mb * 1_000_000

    def finalize_jobs(self) -> UnsyncedFiles:
        """Write records of what has ended, and return what is to be forced to disk before `flushed`."""
        self._finalizer.complete()
        return self._checkpoints.unsynced()

    def flushed(self, flush: UnsyncedFiles, *, succeeded: bool = True) -> None:
        """Forget what is on disk now; what could not be forced to it is written again."""
        (self._checkpoints.synced if succeeded else self._checkpoints.not_synced)(flush)

    def stop(self) -> None:
        """Write everything down; settings of running jobs stay, journaled."""
        self.sample()
        self._checkpoints.save_traces()
        self._checkpoints.save_accounts()
        self._finalizer.complete()
        self._checkpoints.flush()
        self._meter.close()
        self._devices.close()
        self._state.close()

    def notify_written(self) -> None:
        """Ask for a sync to disk and for delivery of the spool."""
        self._checkpoints.notify_written()

    def _allocations(self) -> dict[str, JobAllocation]:
        return {s.owner: planner.allocation(s, self._devices.hardware) for s in self._sessions.values()}

    def _current_config(self) -> Config:
        return self.config

    def _start_metering(self, session: Session) -> None:
        """Count from the last sample on: what setting up used is not the job's."""
        start = self._meter.sampled_at
        session.start_unix = self._clock.unix() - (self._clock.boottime() - start)
        session.start_metering(start, 1 / self.config.agent.sampling_hz)

    def _resume_session(self, session: Session) -> None:
        session.note("senergyd was restarted while the job ran")
        if session.phase == STARTING:
            session.merge_outcomes(self._settings.apply(session.owner, session.plan))
            session.phase = OPEN
        if session.cpu_list is not None:  # known, but perhaps not acted upon yet
            self._pending.add(session.key)
        if session.trace is None:
            interval_s = 1 / self.config.agent.sampling_hz
            session.trace = TraceBuilder(self._meter.sampled_at, interval_s, session.components)
        log.info("job %s goes on", session.owner)

    def _finish_stale(self, context: JobContext, whole: bool) -> None:
        """End jobs that cannot run any more beside the new one: their epilog never came."""
        for session in list(self._sessions.values()):
            if whole or session.whole_node or session.job_id == context.job_id:
                log.warning("job %s: no epilog came; ended by the begin of another", session.owner)
                session.note("no epilog came: ended when the next job began, so the end is an upper bound")
                self._finish(session)

    def _finish(self, session: Session) -> None:
        """Measure for the last time and restore; the record is written by `tidy`, nobody waits for it."""
        self._sample(SampleReason.FINAL)
        session.end_unix = session.unix_at(self._meter.sampled_at)
        session.phase = CLOSING
        del self._sessions[session.key]
        self._meter.remove(session)
        self._finalizer.sessions.append(session)
        if session.outcomes:
            self._checkpoints.save(session)
        self._finalizer.restore_settings(session)
        self._checkpoints.save(session)

    def _repair(self) -> None:
        self._finalizer.repair(self._sessions.values())

    def _sample(self, reason: SampleReason) -> None:
        self._meter.sample((s for s in self._sessions.values() if s.phase == OPEN), reason)

    def _set_node_name(self, node: str | None) -> None:
        if node and node != self.node:
            self.node = node
            self._meter.rename(node)
