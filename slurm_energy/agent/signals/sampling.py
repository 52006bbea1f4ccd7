"""Sampling of the signals of running jobs. This module decides which jobs are sampled, and how often.

All methods run in the worker thread, except for the methods of `NodeSignalReader`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from slurm_energy.agent.jobs.sessions import OPEN, Session, SessionTable
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.signals.job_reader import SampledJob
from slurm_energy.agent.signals.live_diagnosis import LiveDiagnosis
from slurm_energy.agent.signals.node_reader import NodeSignalReader, SignalPass
from slurm_energy.agent.signals.recording import SignalRecording
from slurm_energy.config import Config
from slurm_energy.devices.cpu.cpu_time import JobProcesses
from slurm_energy.devices.cpu.topology import online_cpus
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.errors import UsageError
from slurm_energy.quantities import parse_sampling_interval

_AVERAGED_PASSES: Final = 20
"""Passes over which the reported cost is smoothed."""


class SignalSampling:
    """Sampling of the signals of the running jobs of a node.

    Args:
        devices: the node's hardware.
        sessions: sessions of the running jobs.
        clock: the machine's clock.
        config: returns the current configuration of this node.

    Attributes:
        reader: reads the sensors in a separate thread.
        diagnosis: findings of the jobs so far.
    """

    def __init__(
        self, devices: NodeDevices, sessions: SessionTable, clock: Clock, config: Callable[[], Config]
    ) -> None:
        self.reader = NodeSignalReader(devices, clock)
        self.diagnosis = LiveDiagnosis(sessions, clock, config)
        self._devices = devices
        self._sessions = sessions
        self._config = config
        self._seen: set[tuple[tuple[int, int], bool]] = set()
        self._passes = 0
        self._cpu_s = self._duration_s = 0.0

    @property
    def interval_s(self) -> float | None:
        """Seconds between readings: the shortest interval of a sampled job; None if no job is sampled."""
        return min((interval_s for _, interval_s in self._sampled()), default=None)

    @property
    def has_new_job(self) -> bool:
        """Whether a sampled job, or its first Slurm step, has begun since the sensors were last read.

        The control groups of a job exist only after its first step has begun.
        """
        return any(_with_step(session) not in self._seen for session, _ in self._sampled())

    def jobs(self) -> tuple[list[SampledJob], str]:
        """Return the jobs whose signals are sampled next, and the name that Slurm gives this node."""
        users = Counter(index for session in self._sessions.values() for index in session.gpus)
        sampled = [session for session, _ in self._sampled()]
        running = {session.key for session in sampled}
        self._seen = {one for one in self._seen if one[0] in running} | set(map(_with_step, sampled))
        node = next((session.node for session in sampled), "")
        return [self._sampled_job(session, users) for session in sampled], node

    def add(self, result: SignalPass) -> None:
        """Add the signals that one reading of all sensors has yielded to the recordings of the jobs.

        Jobs that no longer run are skipped.
        """
        for key, readings in result.readings.items():
            session = self._sessions.get(key)
            interval_s = self._interval_s(session) if session is not None else None
            if session is None or interval_s is None:
                continue
            if session.recording is None:
                session.recording = SignalRecording(session.meter.start, interval_s)
            earliest = result.end - interval_s
            start = earliest if result.start is None else result.start
            session.recording.add(start, result.end, readings)
        self._count(result)

    def sample(self) -> None:
        """Read all signals once, in the calling thread."""
        self.add(self.reader.read(*self.jobs()))

    def state(self) -> dict[str, Any]:
        """Return how many jobs are sampled, at which interval, and at which mean cost.

        A pass is one reading of all sensors. The cost `cpu_percent` is the CPU time of a pass in percent of
        one core over the interval. It is None before the first pass.
        """
        interval_s, passes = self.interval_s, self._passes
        known = passes > 0 and interval_s is not None
        return {
            "jobs": sum(1 for _ in self._sampled()),
            "interval_s": interval_s,
            "passes": passes,
            "cpu_percent": 100 * self._cpu_s / interval_s if known and interval_s else None,
            "pass_cpu_s": self._cpu_s if passes else None,
            "pass_duration_s": self._duration_s if passes else None,
        }

    def _sampled(self) -> list[tuple[Session, float]]:
        """Return the running jobs whose signals must be sampled.

        Each entry is (job, sampling interval in seconds).
        """
        sessions = list(self._sessions.values())  # another thread adds and removes jobs
        pairs = [(session, self._interval_s(session)) for session in sessions if session.phase == OPEN]
        return [(session, interval_s) for session, interval_s in pairs if interval_s is not None]

    def _interval_s(self, session: Session) -> float | None:
        """Return the seconds between samples of a job; None if the job's signals are not sampled.

        The job's energy flag sets the interval. Without this flag, the configured interval of the site
        applies.
        """
        site = self._config().agent.signals_interval
        try:
            return parse_sampling_interval(session.requested.get("signals", site))
        except UsageError:  # the job runs in spite of a malformed flag, and its record has a note
            return parse_sampling_interval(site)

    def _sampled_job(self, session: Session, users: Counter[int]) -> SampledJob:
        cpu_list = session.cpu_list
        if cpu_list is None and session.whole_node:
            cpu_list = tuple(online_cpus(self._devices.root))
        cpus = session.cpus
        if cpus is None and session.whole_node:
            cpus = self._devices.hardware.cpu_count
        pids = tuple(step.pid for step in session.steps.values() if step.pid is not None)
        return SampledJob(
            key=session.key,
            owner=session.owner,
            processes=JobProcesses(session.job_id, session.sluid, pids),
            gpus=session.gpus,
            shared_gpus=frozenset(index for index in session.gpus if users[index] > 1),
            cpus=cpus,
            cpu_list=cpu_list,
            has_node=session.whole_node,
            is_private=parse_sampling_interval(self._config().agent.signals_interval) is None,
        )

    def _count(self, result: SignalPass) -> None:
        """Update the moving averages of the CPU time and the duration of one reading of all signals."""
        if result.readings:
            self._passes += 1
            weight = 1 / min(self._passes, _AVERAGED_PASSES)
            self._cpu_s += (result.cpu_s - self._cpu_s) * weight
            self._duration_s += (result.duration_s - self._duration_s) * weight


def _with_step(session: Session) -> tuple[tuple[int, int], bool]:
    """Return the key of a job, and whether a Slurm step of the job is running."""
    return session.key, any(step.pid is not None for step in session.steps.values())
