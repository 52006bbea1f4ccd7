"""The tuners of all jobs on this node. A tuner searches for the best power settings of one job.

The tuners get samples from the job manager and the sampler. They get advice from the controller.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_energy.agent.jobs.progress_reports import ProgressReports
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.state.checkpoints import CheckpointWriter
from slurm_energy.agent.tuning.advice import Advice, AdviceCache
from slurm_energy.agent.tuning.group_source import GroupSource
from slurm_energy.agent.tuning.job_signals import JobSignals
from slurm_energy.agent.tuning.job_tuner import JobTuner, SourceFactory
from slurm_energy.agent.tuning.local_source import LocalSources
from slurm_energy.agent.tuning.point_applier import PointApplier
from slurm_energy.agent.tuning.point_source import PointSource
from slurm_energy.agent.tuning.tuning_state import checked_state, new_state
from slurm_energy.agent.tuning.window_collector import MeasuredInterval
from slurm_energy.config import Config
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.errors import UsageError
from slurm_energy.log_once import UnexpectedErrorLog
from slurm_energy.policies import PolicyRequest, catalogue
from slurm_energy.protocol.tuning_advice import AdviceRequest
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll, NodeOffer
from slurm_energy.tuning.response_curve import hardware_kind

log = logging.getLogger(__name__)

WARM_UP_S = 10.0
"""Time after the begin of a job that is not measured: programs load data and compile code."""
_FAST_S = 0.1
"""Mean interval of samples while the progress of a job is sought in its power."""
_ADVICE_WAIT_S = 3.0
"""Time after the begin of a job in which its batch step is expected to report the script's fingerprint."""

Key = tuple[int, int]


@dataclass(slots=True)
class _Entry:
    """A tuner, and the time at which the tuner started in seconds since boot."""

    tuner: JobTuner
    began_s: float


class JobTuners:
    """The tuners of all tuned jobs on this node. All methods run in the worker thread.

    Args:
        applier: object that applies operating points.
        checkpoints: object that stores the sessions of jobs whose tuning has changed.
        progress: progress reports of the jobs' processes.
        cache: stored advice of the controller.
        config: function that returns the current configuration.
        clock_s: function that returns the time in seconds since boot.
        devices: the node's hardware, for its activity sensors.
        create_source: function that creates the sources of operating points; None for a search on this node.

    Attributes:
        max_interval_s: maximum seconds until the next sample. The value varies. With a constant interval, a
            period of the job that is shorter than the interval would look like a longer period.
        groups: jobs on several nodes for which the agent polls a coordinator. Any thread may read this
            attribute.
        has_group_work: whether a job on several nodes is tuned, or the end of a tuned job on several nodes
            must still be reported. Any thread may read this attribute.
    """

    def __init__(
        self,
        applier: PointApplier,
        checkpoints: CheckpointWriter,
        progress: ProgressReports,
        cache: AdviceCache,
        config: Callable[[], Config],
        clock_s: Callable[[], float],
        devices: NodeDevices,
        create_source: SourceFactory | None = None,
    ) -> None:
        self._applier = applier
        self._checkpoints = checkpoints
        self._progress = progress
        self._cache = cache
        self._config = config
        self._clock_s = clock_s
        self._signals = JobSignals(devices)
        self._local = LocalSources(config)
        self._create_source = create_source or self._create
        self._left: list[GroupPoll] = []
        self._entries: dict[Key, _Entry] = {}
        self._unasked: set[Key] = set()
        self.max_interval_s = math.inf
        self.groups: frozenset[Key] = frozenset()
        self.has_group_work = False
        self._errors = UnexpectedErrorLog(log)

    def start(self, session: Session, request: PolicyRequest) -> None:
        """Start to tune a job if its policy names an objective. In mode `off` only the mode is recorded.

        Args:
            session: session of the job. The fixed settings of the job are applied already.
            request: validated energy flags of the job.
        """
        info = catalogue(self._config()).get(request.policy)
        if info is None or info.objective is None:
            return
        mode = request.tuning_mode or self._config().tuning.mode
        session.tuning = new_state(mode, info.objective, request.slowdown_limit)
        self._add(session, WARM_UP_S)

    def resume(self, session: Session) -> None:
        """Continue to tune a job after a restart of the agent, starting from the job's untuned settings.

        A job on several nodes keeps its current settings for the time being. The coordinator of the job in
        the controller then states the operating point (set of hardware settings) in force.
        """
        if session.tuning is None or session.key in self._entries:
            return
        try:
            session.tuning = checked_state(session.tuning)
        except UsageError as error:
            session.tuning = None
            session.note(f"tuning ended, because its state cannot be read: {error}")
            self._applier.withdraw(session)
            return
        self._add(session, 0.0)
        entry = self._entries.get(session.key)
        if entry is not None and _is_in_group(session):
            entry.tuner.join_group(self._group_source(entry.tuner, knows_point=False))
        elif entry is not None:
            entry.tuner.resume(self._clock_s())

    def _add(self, session: Session, warm_up_s: float) -> None:
        assert session.tuning is not None
        now_s = self._clock_s()
        if session.tuning["mode"] != "off":
            tuner = JobTuner(session, self._applier, self._create_source, now_s, warm_up_s)
            self._entries[session.key] = _Entry(tuner, now_s)
            self._unasked.add(session.key)
            self.has_group_work |= _is_in_group(session)

    def settings_changed(self, session: Session) -> None:
        """Restart the tuning of a job after its settings were set anew, for example its power caps.

        The tuning measures the job at its untuned settings again.
        """
        if (entry := self._entries.get(session.key)) is not None:
            self._guard(entry, lambda: entry.tuner.restart(self._clock_s()))

    def finish(self, session: Session) -> None:
        """End the tuning of a job. Call this method before the settings of the job are restored."""
        self._signals.forget(session.key)
        if (entry := self._entries.pop(session.key, None)) is not None:
            self._leave_group(entry.tuner)
            try:
                entry.tuner.finish()
            except Exception as error:  # the job's settings must be restored and its record written
                self._note_error(entry.tuner, error)

    def add_sample(self, now_s: float) -> None:
        """Take the last sample of the node into account for every tuned job.

        An unexpected error ends the tuning of the job, which returns to its untuned settings.
        """
        if self._entries:
            self._local.prepare()
        for entry in list(self._entries.values()):
            if self._guard(entry, lambda entry=entry: self._sample(entry.tuner, now_s)):  # type: ignore[misc]
                self._checkpoints.save(entry.tuner.session)
        fast = any(entry.tuner.needs_fast_samples(now_s) for entry in self._entries.values())
        self.max_interval_s = _FAST_S * random.uniform(0.8, 1.2) if fast else math.inf

    def _sample(self, tuner: JobTuner, now_s: float) -> bool:
        key = tuner.session.key
        for report in self._progress.collect(key):
            tuner.tracker.report(*report)
        tuner.remaining_s = self._progress.remaining_s(key)
        return tuner.add_sample(now_s, self._signals.read(tuner.session, now_s))

    def _guard(self, entry: _Entry, action: Callable[[], bool | None]) -> bool:
        """Call a function of a tuner and return its result, without letting an error escape.

        An unexpected error ends the tuning of the job.
        """
        try:
            return bool(action())
        except Exception as error:
            self._note_error(entry.tuner, error)
            self._entries.pop(entry.tuner.session.key, None)
            self._leave_group(entry.tuner)
            try:
                self._applier.withdraw(entry.tuner.session)
            except Exception as again:  # the originals are in the journal and restored at the end of the job
                self._note_error(entry.tuner, again)
            return False

    def _note_error(self, tuner: JobTuner, error: Exception) -> None:
        session = tuner.session
        self._errors.report(error, f"job {session.owner}: tuning failed and ends", context="tuning")
        session.note("tuning ended after an internal error, see the agent's log")

    def phases(self) -> dict[str, str]:
        """Return the phase of the tuning of each job, by job as `JOBID.RESTART`.

        An example of a phase is the warm-up.
        """
        return {entry.tuner.session.owner: entry.tuner.phase for entry in self._entries.values()}

    def advice_requests(self) -> list[AdviceRequest]:
        """Return the requests for advice that are due. Each request is returned only once."""
        now_s, due = self._clock_s(), []
        for key in list(self._unasked):
            entry = self._entries.get(key)
            if entry is None:
                self._unasked.discard(key)
            elif entry.tuner.session.fingerprint or now_s - entry.began_s >= _ADVICE_WAIT_S:
                self._unasked.discard(key)
                due.append(self._advice_request(entry.tuner))
        return due

    @property
    def awaits_advice(self) -> bool:
        """Whether the controller still has to be asked for tuning advice about a job.

        Any thread may use this property.
        """
        return bool(self._unasked)

    def advise(self, request: AdviceRequest, answer: Mapping[str, Any] | None) -> None:
        """Use the controller's tuning advice for a job.

        If the controller did not respond, the stored advice of an earlier job is used.

        Args:
            request: the request.
            answer: the controller's answer; None if the controller did not respond.
        """
        entry = self._entries.get((request.job_id, request.restart_count))
        if entry is None:
            return
        key = self._cache_key(entry.tuner.session, request)
        if answer is None:
            advice = None if key is None else self._cache.load(key)
        else:
            try:
                advice = Advice.from_json(answer)
            except UsageError as error:
                log.warning("job %s: advice of the controller not used: %s", entry.tuner.session.owner, error)
                return
            if key is not None:
                self._cache.store(key, answer)
        entry.tuner.advice = advice
        is_pinned = advice is not None and advice.pinned and not _is_in_group(entry.tuner.session)
        if is_pinned and advice is not None and advice.start is not None:
            start = advice.start
            self._guard(entry, lambda: entry.tuner.pin(start, self._clock_s()))

    def group_poll(self, key: Key) -> GroupPoll | None:
        """Return the next state message (poll) of this node for a tuned job on several nodes.

        None is returned if the job has ended on this node.
        """
        group = self._group(key)
        return None if group is None else group.next_poll()

    def group_decided(self, key: Key, decision: GroupDecision, sent_s: float, received_s: float) -> float:
        """Apply a decision of the coordinator of a job on several nodes.

        Return the seconds until the agent should send the next request (poll) to the coordinator.

        Args:
            key: job id and restart count of the job.
            decision: the coordinator's decision, for example the next operating point.
            sent_s: time at which the poll was sent, in seconds since boot.
            received_s: time at which the decision arrived, in seconds since boot.
        """
        group = self._group(key)
        if group is None:
            return 1.0
        group.take(decision, sent_s, received_s)
        return group.poll_s

    def group_change_at_s(self, key: Key) -> float:
        """Return when a job on several nodes changes its operating point next, in seconds since boot.

        All nodes of the job have agreed on this time. The time is infinity if no change is agreed.
        """
        group = self._group(key)
        return math.inf if group is None else group.change_at_s()

    def change_group_point(self, key: Key) -> bool:
        """Change the hardware settings of a job that is tuned on several nodes, if a change is due.

        Return whether a change was due.
        """
        entry = self._entries.get(key)
        if entry is None:
            return False
        if not self._guard(entry, lambda: entry.tuner.change_group_point(self._clock_s())):
            return False
        self._checkpoints.save(entry.tuner.session)
        return True

    def left_groups(self) -> list[GroupPoll]:
        """Return the messages (polls) that tell the controller which jobs of several nodes have ended.

        Each message is returned only once.
        """
        left, self._left = self._left, []
        self.has_group_work = any(_is_in_group(entry.tuner.session) for entry in self._entries.values())
        return left

    def _leave_group(self, tuner: JobTuner) -> None:
        if (group := tuner.group) is not None:
            self.groups -= {tuner.session.key}
            self._left.append(group.last_poll())

    def _group(self, key: Key) -> GroupSource | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.tuner.group

    def _create(self, tuner: JobTuner, interval: MeasuredInterval) -> PointSource | None:
        if _is_in_group(tuner.session):
            return self._group_source(tuner, knows_point=True)
        return self._local.create(tuner, interval)

    def _group_source(self, tuner: JobTuner, *, knows_point: bool) -> GroupSource:
        session, record, tunable, advice = tuner.session, tuner.record, tuner.tunable, tuner.advice
        gpu = tunable.gpu
        draw_watts = tuner.gpu_draw_watts or (gpu.default_limit_watts if gpu is not None else None)
        offer = NodeOffer(
            tunable.candidates(draw_watts),
            gpu,
            tunable.cpu,
            start=None if advice is None else advice.start,
            pinned=advice is not None and advice.pinned,
        )
        identity = GroupPoll(
            node=session.node,
            job_id=session.job_id,
            restart_count=session.restart_count,
            nodes=session.node_count or 1,
            objective=record["objective"],
            slowdown_limit=record["slowdown_limit"],
        )
        self.groups |= {session.key}
        return GroupSource(identity, offer, knows_point=knows_point)

    def _advice_request(self, tuner: JobTuner) -> AdviceRequest:
        session, record = tuner.session, tuner.record
        cpu = next((device.product for device in session.devices if device.name == "cpu"), "")
        gpus = [device.product for device in session.devices if device.name != "cpu"]
        return AdviceRequest(
            node=session.node,
            job_id=session.job_id,
            restart_count=session.restart_count,
            hardware=hardware_kind(cpu, gpus) or "unknown",
            objective=record["objective"],
            slowdown_limit=record["slowdown_limit"],
            mode=record["mode"],
            fingerprint=session.fingerprint,
            model=session.model,
        )

    @staticmethod
    def _cache_key(session: Session, request: AdviceRequest) -> tuple[str, ...] | None:
        """Return the key under which advice is stored; None for a program without a name."""
        workload = request.fingerprint or request.model
        if workload is None:
            return None
        limit = "" if request.slowdown_limit is None else f"{request.slowdown_limit:g}"
        return (str(session.uid), workload, request.hardware, request.objective or "", limit)


def _is_in_group(session: Session) -> bool:
    """Return whether the nodes of a job are tuned together."""
    return session.tuning is not None and session.tuning["mode"] == "on" and (session.node_count or 1) > 1
