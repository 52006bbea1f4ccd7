"""From counters to jobs: one sample reads everything, and the ledger says whose it is. Knows no hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import Moment, Usage
from slurm_energy.agent.metering.idle_power import IdlePower
from slurm_energy.agent.metering.job_meter import Meter, PowerWatch
from slurm_energy.agent.metering.ledger import Ledger
from slurm_energy.agent.metering.live_power import LivePower
from slurm_energy.agent.metering.occupancy import Used
from slurm_energy.agent.metering.sampler import Interval, Sampler
from slurm_energy.devices.discovery import NodeDevices


class Measuring:
    """The energy of one node and its jobs.

    Args:
        devices: the node's hardware.
        clock: time.
        node: Slurm's name of the node.
        idle_watts: idle power by component as the site gives it.

    Attributes:
        live: the node's power now.
    """

    def __init__(
        self, devices: NodeDevices, clock: Clock, node: str, idle_watts: Mapping[str, float]
    ) -> None:
        self._clock = clock
        self._counters = {c.key: c for c in (*devices.counters, *devices.node_counters)}
        self._sampler = Sampler(list(self._counters.values()), devices.throttle_sensors, clock)
        self._usage = Usage(devices.root, node, devices.hardware.cpu_count)
        self._ledger = Ledger(devices, IdlePower(given_watts=dict(idle_watts)))
        self._sequence = 0
        self._earlier: Mapping[str, Any] | None = None
        self.live = LivePower(devices)

    @property
    def time(self) -> float | None:
        """Boot time of the last sample, in seconds; None before the first."""
        return self._sampler.time

    @property
    def max_interval_s(self) -> float:
        """Seconds between samples in which no wrap can be missed."""
        return self._sampler.max_interval_s

    @property
    def sampled_at(self) -> float:
        """Boot time up to which energy is booked."""
        return self._clock.boottime() if self._sampler.time is None else self._sampler.time

    def sample(self, running: Iterable[Session], moment: Moment = Moment.TICK) -> None:
        """Read everything, and book it for the jobs that ran since the last sample."""
        sessions = list(running)
        interval = self._sampler.sample(due_only=moment in (Moment.TICK, Moment.LOOK))
        used = self._used(sessions, moment)  # right beside the counters
        if interval is not None:
            self.live.add(interval)
            self._book(interval, sessions, used, settle=moment in (Moment.LAST, Moment.STEP))

    def learn(self, session: Session) -> None:
        """A process of the job is known now."""
        if not session.whole_node:
            self._usage.learn(session.worker)

    def leave(self, session: Session) -> None:
        """A job ends with the last sample: what of its energy is still to be told is missing."""
        session.meter.doubt(self._ledger.leave(session.owner, self.sampled_at))
        self._usage.forget(session.worker)

    def rename(self, node: str) -> None:
        """Take another name of this node."""
        self._usage.rename(node)

    def sums(self) -> dict[str, dict[str, int]]:
        """Return the node's books, see `Ledger.sums`."""
        return self._ledger.sums()

    def idle_watts(self) -> dict[str, float]:
        """Return the idle power that was learned, by component."""
        return self._ledger.idle.dump()

    def checkpoint(self, running: Iterable[Session]) -> dict[str, Any]:
        """Return the books and the last readings, JSON-ready; later ones have a higher `sequence`."""
        self._sequence += 1
        return {
            "sequence": self._sequence,
            "sampler": self._sampler.readings(),
            "counters": {key: data for key, c in self._counters.items() if (data := c.dump()) is not None},
            "usage": self._usage.dump(),
            "ledger": self._ledger.dump(),
            "meters": {s.owner: {"meter": s.meter.dump(), "watch": s.watch.dump()} for s in running},
        }

    def load(self, checkpoint: Mapping[str, Any], running: Iterable[Session]) -> None:
        """Take over the books of an earlier run.

        Args:
            checkpoint: the latest of that run.
            running: jobs that had not ended then, as they were written; the checkpoint may know more of them.
        """
        self._sequence = int(checkpoint["sequence"])
        same_boot = checkpoint["sampler"]["boot_id"] == self._clock.boot_id
        self._ledger.load(checkpoint["ledger"], same_boot=same_boot)
        self._restore_meters(checkpoint["meters"], running)
        if same_boot:
            for key, data in checkpoint["counters"].items():
                if key in self._counters:
                    self._counters[key].load(data)
            self._usage.load(checkpoint["usage"])
            self._earlier = checkpoint["sampler"]

    def resume(self, running: Iterable[Session]) -> None:
        """Take the first sample, and book the time since the earlier run's last for jobs that still run."""
        sessions = list(running)
        self._sampler.sample()
        used = self._used(sessions, Moment.TICK)
        gap = self._sampler.since(self._earlier) if self._earlier is not None else None
        self._earlier = None
        if gap is not None:
            self._book(gap, sessions, used)

    def close(self) -> None:
        """Give descriptors back."""
        self._usage.close()

    def _used(self, sessions: list[Session], moment: Moment) -> Used:
        if len(sessions) == 1 and sessions[0].whole_node:
            self._usage.rest()
            return Used()
        return self._usage.read(self.sampled_at, (session.worker for session in sessions), moment)

    def _book(self, interval: Interval, sessions: list[Session], used: Used, *, settle: bool = False) -> None:
        occupants = [session.occupant for session in sessions]
        bookings = self._ledger.add(interval, occupants, used, settle=settle)
        for session in sessions:
            session.book(bookings[session.owner])

    def _restore_meters(self, meters: Mapping[str, Any], sessions: Iterable[Session]) -> None:
        known = {session.owner: session for session in sessions}
        for owner, data in meters.items():
            if owner in known:
                known[owner].meter = Meter(**data["meter"])
                known[owner].watch = PowerWatch(**data["watch"])
            else:  # its file is damaged or gone
                self._ledger.leave(owner, 0.0)
                self._ledger.write_off(data["meter"]["energy_uj"])
