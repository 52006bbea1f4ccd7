"""The energy meter of a node, which combines counter readings, CPU time, energy ledger and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import SAMPLE_RANK, CpuTimeMeter, SampleReason
from slurm_energy.agent.metering.idle_power import IdlePower
from slurm_energy.agent.metering.job_meter import JobMeter, PowerMonitor
from slurm_energy.agent.metering.ledger import Ledger
from slurm_energy.agent.metering.live_power import LivePower
from slurm_energy.agent.metering.monitoring_groups import MonitoringGroups
from slurm_energy.agent.metering.node_periods import NodePeriods
from slurm_energy.agent.metering.occupancy import NOT_MONITORED, CpuTimeDelta, MonitoredDelta
from slurm_energy.agent.metering.sampler import SampleInterval, Sampler
from slurm_energy.config import Config
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.known_fields import build_from

_MIN_INTERVAL_S = 0.001
_OVERDUE_INTERVAL_S = 0.1
"""Sampling interval while the end of a period is overdue, long enough in case samples fail."""
_SHARED_BOUNDARY_S = 0.1
"""A job and its step share the sample at their start or end if both are at most this far apart."""


class NodeEnergyMeter:
    """The energy meter of one node and its jobs.

    Args:
        devices: the node's hardware.
        clock: the clock of the machine.
        node: Slurm's name of the node.
        config: the configuration, for the idle power and the length of periods.

    Attributes:
        live: the node's current power.
        periods: the node's energy in periods of time.
    """

    def __init__(self, devices: NodeDevices, clock: Clock, node: str, config: Config) -> None:
        self._clock = clock
        self._counters = {c.key: c for c in (*devices.counters, *devices.node_counters)}
        self._sampler = Sampler(list(self._counters.values()), devices.throttle_sensors, clock)
        self._cpu_time = CpuTimeMeter(devices.root, node, devices.hardware.cpu_count)
        self._monitoring = MonitoringGroups(
            devices.monitoring, devices.root, self._cpu_time.source, clock.boottime
        )
        self._ledger = Ledger(devices, IdlePower(configured_watts=dict(config.agent.idle_watts)))
        self._sequence = 0
        self._sample_began_s, self._sample_reason = -math.inf, SampleReason.QUERY
        self._earlier_readings: Mapping[str, Any] | None = None
        self.live = LivePower(devices)
        self.periods = NodePeriods(
            self._ledger.accounts, clock, node, config.cluster.name, config.agent.period_s
        )

    @property
    def time(self) -> float | None:
        """Time of the last sample in seconds since boot; None before the first sample."""
        return self._sampler.time

    @property
    def max_interval_s(self) -> float:
        """Maximum seconds between two samples.

        With a longer interval a counter could wrap unnoticed, or the sample at the end of a period could be
        missed.
        """
        left_s = self.periods.seconds_left
        until_end_s = max(_MIN_INTERVAL_S, left_s) if left_s > 0 else _OVERDUE_INTERVAL_S
        return min(self._sampler.max_interval_s, until_end_s)

    @property
    def sampled_at(self) -> float:
        """Time of the last sample in seconds since boot.

        Before the first sample, the current time is returned.
        """
        return self._clock.boottime() if self._sampler.time is None else self._sampler.time

    def sample(self, running: Iterable[Session], reason: SampleReason = SampleReason.PERIODIC) -> None:
        """Read the counters and charge the energy since the last sample to the running jobs.

        Args:
            running: sessions of all jobs that ran since the last sample.
            reason: why the sample is taken. PERIODIC and QUERY skip counters that cannot have a new value
                yet.
        """
        sessions = list(running)
        self._sample_began_s = self._clock.boottime()
        closes = reason is SampleReason.PERIODIC and self.periods.seconds_left <= 0
        if closes:
            reason = SampleReason.FINAL
        self._sample_reason = reason
        interval = self._sampler.sample(due_only=reason in (SampleReason.PERIODIC, SampleReason.QUERY))
        used = self._read_use(sessions, reason)  # directly after the counters
        if interval is not None:
            self.live.add(interval)
            self._charge(
                interval, sessions, *used, at_boundary=reason in (SampleReason.FINAL, SampleReason.STEP)
            )
        if closes:
            self.periods.close(self.sampled_at, sessions, self._oldest_reading())

    def has_sample_since(self, time_s: float, reason: SampleReason) -> bool:
        """Return whether the meter can use its last sample for a message, without taking a new sample.

        A sample separates the energy before the message from the energy after the message. The last sample
        can be used if it began when or after the message arrived, and if it is as complete as `reason`
        requires. Several messages can share a sample.

        Args:
            time_s: time in seconds since boot at which the message arrived.
            reason: reason of the sample that the message needs.
        """
        rank = SAMPLE_RANK.get(reason)
        return (
            rank is not None
            and self._sample_began_s >= time_s
            and SAMPLE_RANK.get(self._sample_reason, 0) >= rank
        )

    def has_end(self, session: Session) -> bool:
        """Return whether the last sample of the node can mark the end of a job that ends now.

        Three conditions must hold. The last sample is recent. It was taken at or after the end of the job's
        last step. All energy before the last sample is charged (assigned to jobs, idle energy or
        unattributed energy). Energy after the last sample then does not belong to the job.
        """
        is_over = session.steps_ended_at is not None and not session.steps
        separates = self._sample_reason in (SampleReason.STEP, SampleReason.FINAL)
        is_charged = all(account.open_interval is None for account in self._ledger.accounts.values())
        return is_over and separates and is_charged and self._sample_age_s <= _SHARED_BOUNDARY_S

    def stop(self, running: Iterable[Session]) -> None:
        """Take the last sample before the agent stops, and end the current energy period.

        An energy period is the span of time for which the energy of the node is reported.
        """
        sessions = list(running)
        self.sample(sessions, SampleReason.FINAL)
        self.periods.close(self.sampled_at, sessions, self._oldest_reading())

    def knows_processes(self, session: Session) -> bool:
        """Return whether the energy of a job can be charged to the job.

        It can be charged if the CPU time of the job's processes is known. A job with the whole node needs no
        CPU time, because it is charged all energy.
        """
        return session.whole_node or self._cpu_time.source(session.job_id) is not None

    def find_processes(self, session: Session) -> None:
        """Search for a job's control group (cgroup) immediately, and monitor the job's memory traffic.

        Call this when one of the job's processes becomes known.
        """
        if not session.whole_node:
            self._cpu_time.find_processes(session.metered_job)
            self._monitoring.add_processes(session.metered_job, self.sampled_at)

    def remove(self, session: Session) -> None:
        """Remove an ended job, whose last sample has been taken, from the meter.

        If the energy of a part of the job's time is not yet charged, the meter of the job counts this time
        as uncertain.
        """
        session.meter.add_uncertain(self._ledger.remove_job(session.owner, self.sampled_at))
        self.periods.finish_job(session)
        self._cpu_time.forget(session.metered_job)
        self._monitoring.forget(session.metered_job)

    def rename(self, node: str) -> None:
        """Change Slurm's name of this node to `node`."""
        self._cpu_time.rename(node)
        self.periods.node = node

    def account_totals(self) -> dict[str, dict[str, int]]:
        """Return the energy in the energy accounts so far, in microjoules by component.

        Energy is charged to a user of the node when it is assigned to this user. The keys of each component
        are `measured`, `jobs`, `idle` and `unattributed`. `measured` is the measured energy. The other keys
        state the parts of it that were charged to jobs, charged as idle energy, and not attributed.
        """
        return self._ledger.totals()

    def idle_watts(self) -> dict[str, float]:
        """Return the idle power in watts that the agent has learned, by component.

        Values from the configuration are not included.
        """
        return self._ledger.idle.dump()

    def checkpoint(self, running: Iterable[Session]) -> dict[str, Any]:
        """Return the energy accounts and the last readings as a dict that `checkpoint_encoding` can encode.

        The field `sequence` increases with every checkpoint.

        Args:
            running: sessions whose meters are included.
        """
        self._sequence += 1
        self.periods.follow_clock()
        return {
            "sequence": self._sequence,
            "sampler": self._sampler.readings(),
            "counters": {key: data for key, c in self._counters.items() if (data := c.dump()) is not None},
            "cpu_time": self._cpu_time.dump(),
            "monitoring": self._monitoring.dump(),
            "ledger": self._ledger.dump(),
            "meters": {
                s.owner: {"meter": s.meter.dump(), "power_monitor": s.power_monitor.dump()} for s in running
            },
            "periods": self.periods.dump(self.sampled_at),
        }

    def load(self, checkpoint: Mapping[str, Any], running: Iterable[Session]) -> None:
        """Restore the energy accounts of the node after a restart of the agent, from a checkpoint.

        Args:
            checkpoint: the latest checkpoint that the earlier process of the agent has written.
            running: sessions of jobs that had not ended, as read from disk. Each session contains the job's
                energy meter. If the checkpoint also contains this meter, the meter from the checkpoint is
                used, because the session file may be older.
        """
        sessions = list(running)
        self._sequence = int(checkpoint["sequence"])
        same_boot = checkpoint["sampler"]["boot_id"] == self._clock.boot_id
        self._ledger.load(checkpoint["ledger"], same_boot=same_boot)
        self._restore_meters(checkpoint["meters"], sessions)
        if "periods" in checkpoint:  # absent in checkpoints of older releases
            self.periods.load(
                checkpoint["periods"],
                sessions,
                checkpoint["ledger"]["accounts"],
                checkpoint["sampler"]["time"] if same_boot else None,
            )
        if same_boot:
            for key, data in checkpoint["counters"].items():
                if key in self._counters:
                    self._counters[key].load(data)
            self._cpu_time.load(checkpoint["cpu_time"])
            if "monitoring" in checkpoint:  # absent in checkpoints of earlier releases
                self._monitoring.load(checkpoint["monitoring"])
            self._earlier_readings = checkpoint["sampler"]

    def resume(self, running: Iterable[Session]) -> None:
        """Take the first sample after a restart of the agent.

        The energy since the last sample before the restart is charged to the jobs that are running now.

        Args:
            running: sessions (the agent's data) of the running jobs.
        """
        sessions = list(running)
        self._sampler.sample()
        self._monitoring.start(session.metered_job for session in sessions if not session.whole_node)
        used = self._read_use(sessions, SampleReason.PERIODIC)
        gap = self._sampler.since(self._earlier_readings) if self._earlier_readings is not None else None
        self._earlier_readings = None
        if gap is not None:
            self._charge(gap, sessions, *used)
        self.periods.begin(self.sampled_at, sessions, self._oldest_reading())
        if self.periods.seconds_left <= 0:  # it ended while the agent was stopped
            self.periods.close(self.sampled_at, sessions, self._oldest_reading())

    def close(self) -> None:
        """Close all file descriptors."""
        self._cpu_time.close()

    @property
    def _sample_age_s(self) -> float:
        return self._clock.boottime() - self.sampled_at

    def _oldest_reading(self) -> float | None:
        """Return the time, in seconds since boot, of the counter reading that is longest ago.

        Only the last reading of each counter is considered.
        """
        readings = self._sampler.readings()["counters"]
        return min((time for time, _ in readings.values()), default=None)

    def _read_use(self, sessions: list[Session], reason: SampleReason) -> tuple[CpuTimeDelta, MonitoredDelta]:
        """Return each job's CPU time and use of monitored quantities since the last complete reading.

        A job with the whole node is charged all energy, so its use is not read.
        """
        if len(sessions) == 1 and sessions[0].whole_node:
            self._cpu_time.pause()
            self._monitoring.pause()
            return CpuTimeDelta(), NOT_MONITORED
        jobs = [session.metered_job for session in sessions]
        monitored = self._monitoring.read(self.sampled_at, jobs, reason)
        cpu_time = self._cpu_time.read(self.sampled_at, jobs, reason)
        if reason is SampleReason.PERIODIC:
            self._monitoring.search(self.sampled_at)
        return cpu_time, monitored

    def _charge(
        self,
        interval: SampleInterval,
        sessions: list[Session],
        cpu_time: CpuTimeDelta,
        monitored: MonitoredDelta,
        *,
        at_boundary: bool = False,
    ) -> None:
        occupants = [session.occupant for session in sessions]
        charges = self._ledger.charge(interval, occupants, cpu_time, monitored, at_boundary=at_boundary)
        for session in sessions:
            session.add_charge(charges[session.owner])

    def _restore_meters(self, meters: Mapping[str, Any], sessions: Iterable[Session]) -> None:
        by_owner = {session.owner: session for session in sessions}
        for owner, data in meters.items():
            if owner in by_owner:
                by_owner[owner].meter = build_from(JobMeter, data["meter"])
                by_owner[owner].power_monitor = build_from(PowerMonitor, data["power_monitor"])
            else:  # its session file is damaged or gone
                self._ledger.remove_job(owner, 0.0)
                self._ledger.move_to_unattributed(data["meter"]["energy_uj"])
