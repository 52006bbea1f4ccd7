"""Manager of the jobs of one node.

It handles starts, ends, Slurm steps, power caps and samples of jobs, and recovers after a crash at
any time. Every method is synchronous and runs in the worker thread. `daemon.py` provides sockets,
timers and delivery.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slurm_energy.agent.budget.node_budget import NodeBudget
from slurm_energy.agent.jobs import planner, recovery
from slurm_energy.agent.jobs.acct_gather import AcctGatherQueries
from slurm_energy.agent.jobs.finalizer import JobFinalizer
from slurm_energy.agent.jobs.gpu_numbers import GpuNumbers
from slurm_energy.agent.jobs.live_queries import LiveQueries
from slurm_energy.agent.jobs.node_sharing import node_occupation
from slurm_energy.agent.jobs.output_line import OutputLine
from slurm_energy.agent.jobs.progress_reports import ProgressReports
from slurm_energy.agent.jobs.sessions import CLOSING, OPEN, STARTING, Session, SessionTable
from slurm_energy.agent.jobs.settings_applier import SettingsApplier
from slurm_energy.agent.jobs.stale_jobs import NEXT_JOB_NOTE, NO_EPILOG_NOTE, stale_jobs
from slurm_energy.agent.jobs.step_energy import divide_step_energy, read_steps_cpu_time
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import SampleReason
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.agent.signals.sampling import SignalSampling
from slurm_energy.agent.sockets import responses
from slurm_energy.agent.state.checkpoints import CheckpointWriter, UnsyncedFiles
from slurm_energy.agent.state.spool import PERIOD_SHARE, Spool
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.agent.tuning.advice import AdviceCache
from slurm_energy.agent.tuning.job_tuners import JobTuners
from slurm_energy.agent.tuning.point_applier import PointApplier
from slurm_energy.budget.messages import NodePoll
from slurm_energy.config import Config, this_node
from slurm_energy.control.arbitration import JobAllocation
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.slurm.hook_environment import JobContext, job_context

log = logging.getLogger(__name__)

_IDLE_INTERVAL_S = 10.0  # without jobs: clients may ask for the node's power, and idle power is learned


class JobManager:
    """Manager of the jobs of one node.

    Args:
        config: the configuration.
        devices: the node's hardware.
        state: the state directory.
        clock: the machine's clock; if None, the manager creates a clock.
        on_written: function that is called after each write whose file should be synced to disk or whose
            record should be delivered; None if no function is to be called.
    """

    def __init__(
        self,
        config: Config,
        devices: NodeDevices,
        state: StateDirectory,
        clock: Clock | None = None,
        on_written: Callable[[], None] | None = None,
    ) -> None:
        self._file_config, self.node = config, this_node()
        self.config, self._current_config = config.for_node(self.node), lambda: self.config
        self.spool, self.period_spool = Spool(state.spool_folder, 0), Spool(state.period_folder, 0)
        self._devices = devices = planner.with_original_limits(devices, state.journal)
        self._state, self._clock, self._gpu_numbers = state, clock or Clock(), GpuNumbers()
        self._pending: set[tuple[int, int]] = set()
        self._sessions, self.output_line = SessionTable(), OutputLine(self._current_config)
        self.progress = ProgressReports(self._sessions, self._clock)
        self.signals = SignalSampling(devices, self._sessions, self._clock, self._current_config)
        self._meter = NodeEnergyMeter(devices, self._clock, self.node, self.config)
        self._settings = SettingsManager(devices, state.journal, self._allocations)
        self._checkpoints = CheckpointWriter(
            state, (self.spool, self.period_spool), self._meter, self._sessions.values, on_written
        )
        self._finalizer = JobFinalizer(devices, self._settings, self._checkpoints)
        self._applier = SettingsApplier(devices, self._settings, self._checkpoints, self._current_config)
        points = PointApplier(devices, self._settings, self._current_config)
        self.tuners = JobTuners(
            *(points, self._checkpoints, self.progress, AdviceCache(state.folder / "advice")),
            *(self._current_config, self._clock.boottime, devices),
        )
        self.budget = NodeBudget(
            *(devices, self._settings, self._sessions.values, self._meter.live),
            *(state.folder, self._clock, self._current_config),
        )
        self.reconfigure(config)
        queried = devices, self._meter, self._clock, self._sessions, self._sample
        self.acct_gather = AcctGatherQueries(*queried)
        self.queries = LiveQueries(*queried, self.budget, self._settings)

    @property
    def active(self) -> bool:
        """Whether any job is running."""
        return bool(self._sessions)

    @property
    def sampling_interval_s(self) -> float:
        """Seconds between periodic samples.

        The interval is longer while no job runs, but always short enough to notice each wrap of a counter.
        """
        wanted_s = max(1 / self.config.agent.sampling_hz, 0.0 if self.active else _IDLE_INTERVAL_S)
        return min(wanted_s, *(part.max_interval_s for part in (self._meter, self.tuners, self.budget)))

    def start(self) -> None:
        """Recover the state that an earlier run of the agent has stored.

        Running jobs are resumed. Ended jobs get their energy records and are removed. Settings of jobs that
        no longer run are restored to their original values.
        """
        running, ended, recorded = recovery.recover(self._state, self.spool, self._meter, self._clock.boot_id)
        self._finalizer.sessions += ended
        self._sessions.update({session.key: session for session in running})
        self._meter.resume(self._sessions.values())
        for session in self._sessions.values():
            self._resume_session(session)
        self._finalizer.repair(self._sessions.values())
        self.budget.start()
        self.apply_pending_settings()
        self._checkpoints.save_accounts()
        self.spool.expire(self._clock.unix(), self.config.agent.trace_retention_days * 86400)
        self._checkpoints.remove_when_synced(recorded)
        if self._finalizer.sessions:
            self.notify_written()

    def begin(
        self, env: Mapping[str, str], *, late_s: float = 0.0, received_s: float = math.inf
    ) -> dict[str, Any]:
        """Start a job and return the response to its prolog. A repeated call returns the first response.

        Args:
            env: environment of the prolog.
            late_s: seconds since the prolog if the message of the prolog was deferred; otherwise 0.
            received_s: time of the message in seconds since boot. A sample taken since then is used.

        Raises:
            UsageError: the environment does not describe a job.
        """
        context = job_context(env)
        session = self._sessions.get(context.key)
        if session is not None:
            return responses.begin_response(session)
        self._set_node_name(context.node)
        occupation = node_occupation(context, self._sessions.values(), self._devices)
        for stale in occupation.stale:
            self._finish_stale(stale, NEXT_JOB_NOTE)
        for earlier in occupation.beside:
            self._share_node(earlier)
        self._finalizer.repair(self._sessions.values())
        reason = SampleReason.FINAL if occupation.whole_node else SampleReason.HOOK
        self._sample(reason, received_s)  # earlier energy belongs to other jobs
        started = self._clock.unix(), self._meter.sampled_at
        devices = self._gpu_numbers.applied_to(self._devices, context, self.node)
        session = planner.new_session(context, occupation, self.node, devices, self.config, started)
        session.boot_id = self._clock.boot_id
        if session.gpus and not session.gpus_assumed:
            self._remove_assumed_gpus(occupation.beside)
        if late_s:
            session.late = True
            late = f"the job began {late_s:.1f} s before senergyd received its message"
            session.note(f"{late}; not measured until then")
        request = planner.parse_request(session, context.flags, self.config)
        self._sessions.announce(session)
        self.budget.job_starts(session)
        if self._applier.apply(session, request):
            self._sample(reason)
        self._start_metering(session)
        self.tuners.start(session, request)
        session.phase = OPEN
        self._checkpoints.save(session)
        summary = responses.settings_summary(response := responses.begin_response(session))
        log.info("job %s begins: policy %s, %s", session.owner, session.policy, summary)
        return response

    def end(
        self, env: Mapping[str, str], *, late_s: float = 0.0, received_s: float = math.inf
    ) -> dict[str, Any]:
        """End a job: take its last sample and restore its settings.

        In the response, `known` is False if the job is unknown.

        The arguments and errors are those of `begin`; `env` is the environment of the epilog.
        """
        context = job_context(env)
        session = self._ending_run(context)
        if session is None:
            return {"known": False}
        if late_s:
            late = f"the job ended {late_s:.1f} s before senergyd received its message"
            session.note(f"{late}; end and energy are upper bounds")
        self._finish(session, received_s)
        return {"known": True}

    def _ending_run(self, context: JobContext) -> Session | None:
        """Return the session of the run that an epilog ends; None if the run is unknown."""
        if (session := self._sessions.get(context.key)) is not None:
            return session
        run = self._sessions.sole_run(context.job_id)
        if run is None or not context.states_restart_count:
            return run
        # slurmctld raises the restart count before it ends a run that it requeues: the epilog states the next
        # count.
        return run if run.restart_count < context.restart_count else None

    def has_job(self, key: tuple[int, int]) -> bool:
        """Return whether a job has started here and has no record yet.

        `key` is the job's id and restart count.
        """
        return key in self._sessions or any(session.key == key for session in self._finalizer.sessions)

    def record_unmeasured_job(self, env: Mapping[str, str], began: float, ended: float) -> None:
        """Record a job that ran from `began` to `ended` (seconds since boot) while the agent was stopped.

        Raises:
            UsageError: the environment does not describe a job.
        """
        now = self._clock.unix() - self._clock.boottime()
        context = job_context(env)
        occupation = node_occupation(context, (), self._devices)
        started = now + began, began
        node = context.node or self.node
        devices = self._gpu_numbers.applied_to(self._devices, context, node)
        session = planner.new_session(context, occupation, node, devices, self.config, started)
        planner.mark_unmeasured(session, context.flags, self.config, self._clock.boot_id, now + ended)
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
        *,
        received_s: float = math.inf,
    ) -> dict[str, Any]:
        """Take note that a Slurm step of a running job has started or ended; return the response.

        In the response, `known` is False if the job or the step is unknown.

        Args:
            event: `start` or `end`.
            job_id: id of the job.
            name: Slurm's name of the step.
            job_cores: list of the job's cores in Slurm's numbering; None if not reported.
            pid: process id of the step's slurmstepd; None if not reported.
            script: fingerprint of the batch script and its arguments; None if not reported.
            received_s: time of the message in seconds since boot. A sample taken since then is used.
        """
        session = self._sessions.latest_run(job_id)
        if session is None or (event == "end" and name not in session.steps):
            return {"known": False}
        was_read = self._meter.knows_processes(session)
        self._meter.find_processes(session)  # the job's control group still exists at the end of a step
        if not (event == "start" and session.begin_with_job(name, pid)):
            ends_job = event == "end" and session.is_last_step(name)
            reason = SampleReason.FINAL if ends_job else SampleReason.STEP
            self._sample(reason, received_s if was_read else math.inf)
            divide_step_energy(session, self._devices.root)
        if event == "start":
            read_steps_cpu_time(session, self._devices.root)
            session.begin_step(name, self._meter.sampled_at, pid)
            session.fingerprint = script or session.fingerprint
            self._meter.find_processes(session)
            if planner.learn_cpus(session, job_cores, self._devices.hardware):
                self._pending.add(session.key)
            self._checkpoints.save(session)
        else:
            self._finalizer.end_step(session, name, self._meter.sampled_at, self._clock.boottime())
            self._checkpoints.save_later(session)  # the record of the step is stored
        return self.output_line.response(event, session, name, self._meter.sampled_at)

    @property
    def has_pending_settings(self) -> bool:
        """Whether settings of jobs wait for `apply_pending_settings`."""
        return bool(self._pending)

    def apply_pending_settings(self) -> None:
        """Apply the job settings that were postponed until Slurm reported the CPUs of a job step.

        The settings of a job that has to share the node from now on are applied, too. Call this method after
        the agent has sent the response to the message about the step or job.
        """
        pending, self._pending = self._pending, set()
        for session in [self._sessions[key] for key in pending if key in self._sessions]:
            self._applier.replan(session)
            self.tuners.settings_changed(session)

    def set_caps(self, job_id: int, caps: Mapping[str, float | None]) -> dict[str, Any]:
        """Change the caps of a running job and return how many settings were `applied` and `failed`.

        Args:
            job_id: id of the job.
            caps: `cap_watts` and `gpu_cap_watts`; None removes a cap; a cap whose key is missing stays
                unchanged.

        Raises:
            NotFoundError: the job does not run here.
        """
        session = self._sessions.require_run(job_id)
        self._sample(SampleReason.HOOK)
        result = self._applier.set_caps(session, caps)
        self.tuners.settings_changed(session)
        return result

    def energy(
        self, job_id: int, *, reader: int | None = None, fresh: bool = False
    ) -> tuple[int, dict[str, Any]]:
        """Return the uid of a job's owner and the job's energy so far, as `LiveQueries.energy` does."""
        return self.queries.energy(job_id, reader, fresh=fresh)

    def status(self, reader: int | None = None) -> dict[str, Any]:
        """Return the state of this agent that a user may read, with energy and power of the user's jobs.

        Args:
            reader: uid of the requesting user, whose jobs are included. None means a user who may read the
                jobs of all users.
        """
        return {
            **self.queries.status(self.node, self._finalizer.sessions, reader, self.tuners.phases()),
            **self.spool.state() | {"periods": self.period_spool.state(), "signals": self.signals.state()},
            "sampling_hz": self.config.agent.sampling_hz,
        }

    def sample(self) -> None:
        """Take a periodic sample of all sensors, and let tuning use the sample.

        Tuning may then choose other hardware settings for jobs.
        """
        self._sample(SampleReason.PERIODIC)
        self.tuners.add_sample(self._meter.sampled_at)

    def poll_budget(self) -> NodePoll:
        """Return the state of the node for the controller's decision about power budgets."""
        self._sample(SampleReason.QUERY)
        return self.budget.poll(self.node)

    def housekeeping(self) -> None:
        """Write a checkpoint, end jobs whose epilog did not run, and retry failed operations."""
        self.apply_pending_settings()
        self.budget.lift_if_off()
        for session in stale_jobs(self._sessions.values(), self._devices.root, self._clock.boottime()):
            self._finish_stale(session, NO_EPILOG_NOTE)
        self._finalizer.repair(self._sessions.values())
        self._checkpoints.save_periodically()
        self.spool.expire(self._clock.unix(), self.config.agent.trace_retention_days * 86400)
        if self._finalizer.sessions:
            self.notify_written()

    def reconfigure(self, config: Config) -> None:
        """Replace the configuration by a newly loaded configuration. Running jobs keep their settings."""
        self._file_config, self.config = config, config.for_node(self.node)
        self.spool.limit_bytes = self.config.agent.spool_limit_mb * 1_000_000
        self.period_spool.limit_bytes = self.spool.limit_bytes // PERIOD_SHARE
        self._meter.periods.period_s = self.config.agent.period_s

    def finalize_jobs(self) -> UnsyncedFiles:
        """Write the records of ended jobs and return the files to sync; call `flushed` after the sync."""
        self._finalizer.complete()
        return self._checkpoints.unsynced()

    def flushed(self, flush: UnsyncedFiles, *, succeeded: bool = True) -> None:
        """Take note of whether the files in `flush` were written to the disk.

        If this has failed, the files are written again.
        """
        (self._checkpoints.synced if succeeded else self._checkpoints.not_synced)(flush)

    def stop(self) -> None:
        """Write all state to disk. Settings of running jobs stay in force and in the settings journal."""
        self._meter.stop(s for s in self._sessions.values() if s.phase == OPEN)
        self._checkpoints.save_all()
        self._finalizer.complete()
        self._checkpoints.flush()
        self._meter.close()
        self._devices.close()
        self._state.close()

    def notify_written(self) -> None:
        """Request that written files are synced to disk and that spooled records are delivered."""
        self._checkpoints.notify_written()

    def _allocations(self) -> dict[str, JobAllocation]:
        return {s.owner: planner.allocation(s, self._devices.hardware) for s in self._sessions.values()}

    def _start_metering(self, session: Session) -> None:
        """Count a job's energy from the last sample on.

        The caller has taken that sample after applying the job's settings.
        """
        start = self._meter.sampled_at
        session.start_unix = self._clock.unix() - (self._clock.boottime() - start)
        session.start_metering(start, 1 / self.config.agent.sampling_hz)

    def _resume_session(self, session: Session) -> None:
        session.note("senergyd was restarted while the job ran")
        if session.phase == STARTING:
            session.merge_outcomes(self._settings.apply(session.owner, session.plan))
            self.tuners.start(session, planner.request_again(session, self.config))
            session.phase = OPEN
        if session.cpu_list is not None:  # the CPUs are known, but perhaps not used for settings yet
            self._pending.add(session.key)
        session.resume_trace(self._meter.sampled_at, 1 / self.config.agent.sampling_hz)
        self.tuners.resume(session)
        log.info("job %s continues", session.owner)

    def _finish_stale(self, session: Session, note: str) -> None:
        """End the recording of a job whose epilog did not run. The log and the record get the note."""
        log.warning("job %s: %s", session.owner, note)
        session.note(note)
        self._finish(session)

    def _share_node(self, session: Session) -> None:
        """Let a running job that had the whole node share the node from now on."""
        if not session.whole_node:
            return
        self._sample(SampleReason.FINAL)  # the energy until now belongs to this job alone
        session.whole_node = False
        session.note("another job began on the same CPUs: the job shares the node from then on")
        self._meter.find_processes(session)
        self._sample(SampleReason.FINAL)  # CPU time that the job used until now does not count in its share
        self._pending.add(session.key)  # settings of the whole node no longer apply
        self._checkpoints.save(session)

    def _remove_assumed_gpus(self, sessions: Iterable[Session]) -> None:
        """Remove the assumed GPUs of running jobs, because a job begins whose GPUs Slurm names.

        Jobs that requested GPUs keep them. The energy of the GPUs until now stays with the running jobs.
        """
        for session in sessions:
            if session.gpus and session.gpus_assumed and not session.gpu_job:
                session.gpus = ()
                self._pending.add(session.key)  # settings of the GPUs no longer apply
                self._checkpoints.save(session)

    def _finish(self, session: Session, received_s: float = math.inf) -> None:
        """Take a job's last sample and restore its settings. `finalize_jobs` writes the record later."""
        if not self._meter.has_end(session):
            self._sample(SampleReason.FINAL, received_s)
        divide_step_energy(session, self._devices.root)
        session.end_unix, session.phase = session.unix_at(self._meter.sampled_at), CLOSING
        del self._sessions[session.key]
        self._meter.remove(session)
        self.tuners.finish(session)
        self._finalizer.sessions.append(session)
        if session.outcomes:
            self._checkpoints.save(session)
        self._finalizer.restore_settings(session)
        self.budget.job_ended()
        self._checkpoints.save(session)

    def _sample(self, reason: SampleReason, received_s: float = math.inf) -> None:
        """Take a sample of the energy counters, unless a recent sample can be used.

        A recent sample can be used if it was taken at `received_s` or later, and covers all counters that a
        sample for `reason` must cover.

        Args:
            reason: reason for the sample; determines which counters are read.
            received_s: seconds since boot; the default requires a new sample.
        """
        if not self._meter.has_sample_since(received_s, reason):
            self._meter.sample((s for s in self._sessions.values() if s.phase == OPEN), reason)
            self.budget.add_sample(self._meter.sampled_at)

    def _set_node_name(self, node: str | None) -> None:
        if node and node != self.node:
            self.node = node
            self.reconfigure(self._file_config)
            self._meter.rename(node)
