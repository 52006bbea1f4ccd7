"""What the agent does with jobs: begin, end, steps, caps, samples; survives its own death at any instant.

Synchronous; every method runs in the one worker thread. Sockets, timers and delivery are in `daemon.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.agent.jobs import job_records, planner, recovery
from slurm_energy.agent.jobs.finalizer import Closing
from slurm_energy.agent.jobs.sessions import CLOSING, OPEN, STARTING, Roster, Session
from slurm_energy.agent.jobs.settings_applier import Applying
from slurm_energy.agent.jobs.stale_jobs import NOTE, overdue
from slurm_energy.agent.metering import components
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import Moment
from slurm_energy.agent.metering.live_power import LEAST_WINDOW_S
from slurm_energy.agent.metering.node_meter import Measuring
from slurm_energy.agent.metering.trace import TraceBuilder
from slurm_energy.agent.sockets import responses
from slurm_energy.agent.sockets.rate_limit import Allowance
from slurm_energy.agent.state.checkpoints import Flush, Keeper
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDir
from slurm_energy.config import Config
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.errors import ForbiddenError
from slurm_energy.slurm.hook_environment import JobContext, job_context, this_node

log = logging.getLogger(__name__)

_FRESH_S = 0.1
_FRESHEST_S = 0.001
"""Counters are updated every millisecond (RAPL) or less often; a younger sample tells nothing new."""
_IDLE_INTERVAL_S = 10.0
"""Between jobs somebody may still ask for the node's power, and its idle power is learned."""
_FRESH_PER_S, _FRESH_BURST = 200.0, 400.0
"""Samples that one user can make the agent take: 200 a second keep it below a tenth of a core."""


class Engine:
    """The jobs of one node.

    Args:
        config: the configuration.
        devices: the node's hardware.
        state: the agent's directory.
        clock: time.
        on_change: called after something was written that should be forced to disk, or delivered.
    """

    def __init__(
        self,
        config: Config,
        devices: NodeDevices,
        state: StateDir,
        clock: Clock | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.node = this_node()
        self.spool = Spool(state.spool_folder, config.agent.spool_limit_mb * 1_000_000)
        self._devices = devices
        self._state = state
        self._clock = clock or Clock()
        self._fresh = Allowance(_FRESH_PER_S, _FRESH_BURST)
        self._late: set[tuple[int, int]] = set()
        self._sessions = Roster()
        self._measuring = Measuring(devices, self._clock, self.node, config.agent.idle_watts)
        self._restoration = SettingsManager(
            devices,
            state.journal,
            lambda: {s.owner: planner.tenant(s, devices.hardware) for s in self._sessions.values()},
        )
        self._keeper = Keeper(state, self.spool, self._measuring, self._sessions.values, on_change)
        self._closing = Closing(devices, self._restoration, self._keeper)
        self._applying = Applying(devices, self._restoration, self._keeper, lambda: self.config)

    @property
    def on_change(self) -> Callable[[], None]:
        """Called after something was written that should be forced to disk, or delivered."""
        return self._keeper.on_change

    @on_change.setter
    def on_change(self, function: Callable[[], None]) -> None:
        self._keeper.on_change = function

    @property
    def active(self) -> bool:
        """Whether there is any job to measure."""
        return bool(self._sessions)

    @property
    def sampling_interval_s(self) -> float:
        """Seconds between regular samples now: as configured for jobs, seldom without, wraps never missed."""
        wanted_s = 1 / self.config.agent.sampling_hz
        wanted_s = wanted_s if self.active else max(wanted_s, _IDLE_INTERVAL_S)
        return min(wanted_s, self._measuring.max_interval_s)

    def start(self) -> None:
        """Take up what an earlier run left: finish what ended, go on with what runs, restore the rest."""
        take_up = recovery.take_up(self._state, self.spool, self._measuring, self._clock.boot_id)
        running, ended, recorded = take_up
        self._closing.sessions += ended
        self._sessions.update({session.key: session for session in running})
        self._measuring.resume(self._sessions.values())
        for session in self._sessions.values():
            self._continue(session)
        self._repair()
        self.catch_up()
        self._keeper.save_books()
        self.spool.expire(self._clock.unix(), self.config.agent.trace_retention_days * 86400)
        self._keeper.forget_when_synced(recorded)
        if self._closing.sessions:
            self.on_change()

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
        self._name_node(context.node)
        whole = components.has_whole_node(context, self._devices.hardware.cpu_count)
        self._close_stale(context, whole)
        self._repair()
        moment = Moment.LAST if whole else Moment.HOOK  # what was before is not the whole node's job's
        self._sample(moment)
        started = self._clock.unix(), self._measuring.sampled_at
        session = planner.new_session(context, whole, self.node, self._devices, self.config, started)
        session.boot_id = self._clock.boot_id
        if late_s:
            session.late = True
            session.note(f"the job began {late_s:.1f} s before senergyd took note: not measured until then")
        request = planner.request(session, context.flags, self.config)
        self._sessions[session.key] = session
        if self._applying.apply(session, request):
            self._sample(moment)
        self._begin_meter(session)
        session.phase = OPEN
        self._keeper.save(session)
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
        session = self._sessions.get(context.key) or self._sessions.only_run(context.job_id)
        if session is None:
            return {"known": False}
        if late_s:
            session.note(
                f"the job ended {late_s:.1f} s before senergyd took note: end and energy are upper bounds"
            )
        self._finish(session)
        return {"known": True}

    def knows(self, key: tuple[int, int]) -> bool:
        """Return whether a job (id, restart count) has begun here and has no record yet."""
        return key in self._sessions or any(session.key == key for session in self._closing.sessions)

    def not_measured(self, env: Mapping[str, str], began: float, ended: float) -> None:
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
            self._closing.sessions.append(session)
            self._keeper.save(session)

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
        session = self._sessions.running(job_id)
        if session is None or (event == "end" and name not in session.steps):
            return {"known": False}
        self._measuring.learn(session)  # at the end of a step its job's control group is still there
        self._sample(Moment.STEP)
        if event == "start":
            session.begin_step(name, self._measuring.sampled_at, pid)
            session.fingerprint = script or session.fingerprint
            self._measuring.learn(session)
            if planner.learn_cpus(session, job_cores, self._devices.hardware):
                self._late.add(session.key)
        else:
            step = session.steps[name]
            record = job_records.step_record(session, step, session.unix_at(self._measuring.sampled_at))
            if self._keeper.spool(record):
                del session.steps[name]
            if step.is_container:
                session.over_since = self._clock.boottime()
        self._keeper.save(session)
        return {"known": True}

    @property
    def behind(self) -> bool:
        """Whether `catch_up` has anything to do."""
        return bool(self._late)

    def catch_up(self) -> None:
        """Set what became possible with a step, after it was answered: the step must not wait for it."""
        late, self._late = self._late, set()
        for session in [self._sessions[key] for key in late if key in self._sessions]:
            self._applying.again(session)

    def set_caps(self, job_id: int, caps: Mapping[str, float | None]) -> dict[str, Any]:
        """Change the caps of a running job.

        Args:
            job_id: the job.
            caps: `cap_watts` and `gpu_cap_watts`; None lifts a cap, a missing one stays.

        Raises:
            NotFoundError: no such job here.
        """
        session = self._sessions.must_run(job_id)
        self._sample(Moment.HOOK)
        return self._applying.set_caps(session, caps)

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
        session = self._sessions.must_run(job_id)
        if reader not in (None, session.uid):
            raise ForbiddenError(f"energy: job {job_id} belongs to another user")
        now = self._clock.boottime()
        oldest_s = _FRESHEST_S if fresh and self._fresh.take(session.uid, now) else _FRESH_S
        if now - self._measuring.sampled_at > oldest_s:
            self._sample(Moment.LOOK)
        sampled_s = self._measuring.sampled_at
        age_s = max(0.0, self._clock.boottime() - sampled_s)
        return session.uid, {**responses.energy_response(session), "age_s": age_s, "sampled_s": sampled_s}

    def status(self, reader: int | None = None) -> dict[str, Any]:
        """Return what anyone may know about this agent, and the power of the reader's own jobs.

        Args:
            reader: uid of who asks; None for who may read everything.
        """
        now, last = self._clock.boottime(), self._measuring.time
        if not self.active and (last is None or now - last > LEAST_WINDOW_S):
            self._sample(Moment.LOOK)  # without jobs that is done seldom
        live, sessions = self._measuring.live, [*self._sessions.values(), *self._closing.sessions]
        found = {
            **responses.status_response(self.node, sessions, self._devices, reader),
            **self.spool.state(),
            "sampling_hz": self.config.agent.sampling_hz,
            "unrestored": sorted(self._restoration.unrestored),
            "watts": dict(live.watts(now)),
            "watts_window_s": live.window_s,
        }
        books = {"books": self._measuring.sums(), "idle_watts": self._measuring.idle_watts()}
        return found if reader is not None else found | books

    def tick(self) -> None:
        """Take a regular sample."""
        self._sample(Moment.TICK)

    def housekeeping(self) -> None:
        """Write a checkpoint, and try again what failed before."""
        self.catch_up()
        for session in overdue(self._sessions.values(), self._devices.root, self._clock.boottime()):
            log.warning("job %s: %s", session.owner, NOTE)
            session.note(NOTE)
            self._finish(session)
        self._repair()
        self._keeper.save_regularly()
        self.spool.expire(self._clock.unix(), self.config.agent.trace_retention_days * 86400)
        if self._closing.sessions:
            self.on_change()

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from now on; running jobs keep their settings."""
        self.config = config
        self.spool.limit_bytes = config.agent.spool_limit_mb * 1_000_000

    def tidy(self) -> Flush:
        """Write records of what has ended, and return what is to be forced to disk before `flushed`."""
        self._closing.complete()
        return self._keeper.unsynced()

    def flushed(self, flush: Flush, *, succeeded: bool = True) -> None:
        """Forget what is on disk now; what could not be forced to it is written again."""
        (self._keeper.synced if succeeded else self._keeper.not_synced)(flush)

    def stop(self) -> None:
        """Write everything down; settings of running jobs stay, journaled."""
        self.tick()
        self._keeper.save_traces()
        self._keeper.save_books()
        self._closing.complete()
        self._keeper.flush()
        self._measuring.close()
        self._devices.close()
        self._state.close()

    def _begin_meter(self, session: Session) -> None:
        """Count from the last sample on: what setting up used is not the job's."""
        start = self._measuring.sampled_at
        session.start_unix = self._clock.unix() - (self._clock.boottime() - start)
        session.count_from(start, 1 / self.config.agent.sampling_hz)

    def _continue(self, session: Session) -> None:
        session.note("senergyd was restarted while the job ran")
        if session.phase == STARTING:
            session.merge_outcomes(self._restoration.apply(session.owner, session.plan))
            session.phase = OPEN
        if session.cpu_list is not None:  # known, but perhaps not acted upon yet
            self._late.add(session.key)
        if session.trace is None:
            interval_s = 1 / self.config.agent.sampling_hz
            session.trace = TraceBuilder(self._measuring.sampled_at, interval_s, session.components)
        log.info("job %s goes on", session.owner)

    def _close_stale(self, context: JobContext, whole: bool) -> None:
        """End jobs that cannot run any more beside the new one: their epilog never came."""
        for session in list(self._sessions.values()):
            if whole or session.whole_node or session.job_id == context.job_id:
                log.warning("job %s: no epilog came; ended by the begin of another", session.owner)
                session.note("no epilog came: ended when the next job began, so the end is an upper bound")
                self._finish(session)

    def _finish(self, session: Session) -> None:
        """Measure for the last time and restore; the record is written by `tidy`, nobody waits for it."""
        self._sample(Moment.LAST)
        session.end_unix = session.unix_at(self._measuring.sampled_at)
        session.phase = CLOSING
        del self._sessions[session.key]
        self._measuring.leave(session)
        self._closing.sessions.append(session)
        if session.outcomes:
            self._keeper.save(session)
        self._closing.put_back(session)
        self._keeper.save(session)

    def _repair(self) -> None:
        self._closing.repair(self._sessions.values())

    def _sample(self, moment: Moment) -> None:
        self._measuring.sample((s for s in self._sessions.values() if s.phase == OPEN), moment)

    def _name_node(self, node: str | None) -> None:
        if node and node != self.node:
            self.node = node
            self._measuring.rename(node)
