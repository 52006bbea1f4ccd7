"""The energy of the node in periods. Periods end at fixed times of the day.

The energy of a period is the difference between two states of the energy accounts and of the jobs' meters. A
sample therefore needs no extra work, and all energy that is charged between the two states is in exactly one
period. Every checkpoint contains the open period and the closed periods that are not in the spool yet.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.component_account import ComponentAccount
from slurm_energy.agent.state.checkpoint_encoding import EncodedList, EncodedValue
from slurm_energy.errors import EnergyError
from slurm_energy.known_fields import build_from
from slurm_energy.node_period import NodePeriod, PeriodEnergy, PeriodJob

log = logging.getLogger(__name__)

_MAX_ENDED_JOBS: Final = 500
"""A period ends early when this many jobs have ended in it, because every checkpoint contains these jobs.

The period also contains running jobs, so this number is below `MAX_PERIOD_JOBS`."""
_LATE_SAMPLE_S: Final = 2.0
"""A sample that is at most this late after a full period counts as taken at the end of the period."""
_CLOCK_STEP_S: Final = 5.0
"""A larger change between wall clock and boot clock means that the wall clock was set."""
_MAX_CLOSED: Final = 1000
_MAX_STARTS: Final = 200
_MAX_LATE_S: Final = 365 * 86400.0
"""Maximum recorded time for which a counter was unreadable. The controller would refuse a longer time."""
_SLACK_S: Final = 1e-6


@dataclass(slots=True)
class OpenPeriod:
    """State of the energy accounts and jobs at the start of the current period.

    To charge energy means to assign it to a job, to idle energy or to unattributed energy.

    Attributes:
        start: start in Unix seconds.
        start_boottime: the same instant in seconds since boot.
        measured_uj, idle_uj: microjoules charged before the period by component.
        uncertain_s: uncertain seconds before the period by component, see `ComponentAccount`.
        meters_uj: energy of each job at the start of the period according to the job's meter, in
            microjoules, by job and component. A job without an entry started during the period.
        ended: energy in the period of each job that ended in the period.
        ended_json: `ended` as JSON, for checkpoints.
        late_s: seconds before the start of the period whose energy is charged in the period, because this
            energy was not charged yet when the period started.
        period_id: unique id of the period, as in its record.
    """

    start: int
    start_boottime: float
    measured_uj: dict[str, int]
    idle_uj: dict[str, int]
    uncertain_s: dict[str, float]
    meters_uj: dict[str, dict[str, int]]
    late_s: float = 0.0
    ended: list[PeriodJob] = field(default_factory=list)
    ended_json: EncodedList = field(default_factory=EncodedList)
    period_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def add_ended(self, job: PeriodJob) -> None:
        """Add the energy of a job that ended in the period."""
        self.ended.append(job)
        self.ended_json.append((job.job_id, job.restart_count, job.uid, dict(job.energy_uj)))


class NodePeriods:
    """Energy of one node in successive periods of fixed length.

    Args:
        accounts: energy accounts of the node by component.
        clock: clock of the machine.
        node: Slurm's name of the node.
        cluster: name of the cluster, used until a job reports the name.
        period_s: length of a period in seconds. A day is a multiple of this length.

    Attributes:
        node: Slurm's name of the node.
        period_s: length of a period in seconds.
        closed: ended periods that were not yet moved to the spool, from which they are sent to the
            controller.
    """

    def __init__(
        self,
        accounts: Mapping[str, ComponentAccount],
        clock: Clock,
        node: str,
        cluster: str,
        period_s: int,
    ) -> None:
        self.node = node
        self.period_s = period_s
        self.closed: list[NodePeriod] = []
        self._accounts = accounts
        self._clock = clock
        self._cluster = cluster
        self._open: OpenPeriod | None = None
        self._starts: list[int] = []
        self._closed_json: dict[str, EncodedValue] = {}

    @property
    def seconds_left(self) -> float:
        """Seconds until the current period should end; infinite before the first period."""
        if self._open is None:
            return math.inf
        if len(self._open.ended) >= _MAX_ENDED_JOBS:
            return 0.0
        return max(0.0, self._boundary(self._open.start) - self._clock.unix())

    def begin(self, boottime: float, running: Iterable[Session], oldest_reading: float | None) -> None:
        """Open the first accounting period of the node, unless the checkpoint contained an open period.

        Args:
            boottime: time of the last sample in seconds since boot.
            running: sessions of the running jobs.
            oldest_reading: the oldest time among the last readings of all counters, in seconds since boot;
                None if unknown.
        """
        if self._open is None:
            start = math.floor(self._unix_at(boottime))
            self._open = self._opened(start, boottime, running, oldest_reading)

    def close(self, boottime: float, running: Sequence[Session], oldest_reading: float | None) -> None:
        """Close the accounting period at the time of the last sample and open the next period.

        A period shorter than a second stays open, because periods start and end at whole seconds.

        Args:
            boottime: time of the last sample in seconds since boot.
            running: sessions of the running jobs.
            oldest_reading: the oldest time among the last readings of all counters, in seconds since boot;
                None if unknown.
        """
        if self._open is None:
            return
        self.follow_clock()
        unix = self._unix_at(boottime)
        end = self._boundary(self._open.start)
        if not 0 <= unix - end <= _LATE_SAMPLE_S:
            end = math.floor(unix)
        if end > self._open.start:
            self._store(self._open, end, running, boottime)
            self._open = self._opened(end, boottime, running, oldest_reading)

    def finish_job(self, session: Session) -> None:
        """Add the energy of an ended job to the current period.

        Call this method after all energy of the job has been charged.
        """
        if self._open is not None:
            self._cluster = session.cluster
            self._open.add_ended(_job_since(session, self._open.meters_uj.pop(session.owner, {})))

    def follow_clock(self) -> None:
        """Correct the start of the current period of the node's energy if the wall clock was set."""
        if self._open is None:
            return
        elapsed_s = self._clock.boottime() - self._open.start_boottime
        step_s = self._clock.unix() - (self._open.start + elapsed_s)
        if abs(step_s) > _CLOCK_STEP_S:
            start = self._unused(max(0, math.floor(self._clock.unix() - elapsed_s)))
            log.warning("the clock was set by %.0f s: the period starts at %d", step_s, start)
            self._open.start = start

    def dump(self, boottime: float) -> dict[str, Any]:
        """Return the periods as a dict that `checkpoint_encoding` can encode.

        Args:
            boottime: time of the last sample in seconds since boot. Energy is charged up to this time.
        """
        opened = None
        if self._open is not None:
            opened = {name: getattr(self._open, name) for name in OpenPeriod.__slots__}
            opened["uncertain_s"] = {
                name: account.uncertain_s - self._open.uncertain_s.get(name, 0.0)
                for name, account in self._accounts.items()
            }
            opened["ended"] = opened.pop("ended_json")
        return {
            "open": opened,
            "closed": self._encoded_closed(),
            "starts": self._starts,
            "cluster": self._cluster,
            "unix": self._unix_at(boottime),
        }

    def load(
        self,
        data: Mapping[str, Any],
        running: Sequence[Session],
        earlier_accounts: Mapping[str, Any],
        boottime: float | None,
    ) -> None:
        """Restore the periods from the output of `dump`.

        Restore the energy accounts and the jobs' meters before this call.

        The period that was open at the checkpoint ends at the last sample before the checkpoint in two cases.
        In the first case, the machine has booted since then, so the energy until the boot is unknown. In the
        second case, a component no longer exists.

        Args:
            data: output of `dump`.
            running: sessions of the jobs that ran at the time of the checkpoint.
            earlier_accounts: energy accounts at the time of the checkpoint by component, as dicts.
            boottime: time of the last sample before the checkpoint in seconds since boot; None if that sample
                was before the last boot.
        """
        try:
            self.closed = [NodePeriod.from_json(period) for period in data["closed"]]
            self._starts = [int(start) for start in data["starts"]]
            self._cluster = str(data["cluster"])
            opened = None if data["open"] is None else _loaded(data["open"])
            unix = float(data["unix"])
        except (EnergyError, LookupError, TypeError, ValueError, AttributeError) as error:
            log.error("the energy of the current period is lost: its checkpoint cannot be read: %s", error)
            return
        self._open = opened
        if opened is None:
            return
        current, vanished = self._accounts, _accounts_without(earlier_accounts, self._accounts)
        if boottime is None or vanished:
            end = self._boundary(opened.start)
            if not 0 <= unix - end <= _LATE_SAMPLE_S:
                end = max(math.floor(unix), opened.start + 1)
            self._accounts = {**current, **vanished}
            self._store(opened, end, running, None)
            self._accounts = current
            self._open = None if boottime is None else self._opened(end, boottime, running, None)

    def _encoded_closed(self) -> list[EncodedValue]:
        """Return the closed periods as JSON.

        Every checkpoint contains the closed periods, so each of them is encoded only once.
        """
        earlier = self._closed_json
        self._closed_json = {
            period.period_id: earlier.get(period.period_id) or EncodedValue(period.to_json())
            for period in self.closed
        }
        return list(self._closed_json.values())

    def _boundary(self, start: int) -> int:
        return (start // self.period_s + 1) * self.period_s

    def _unix_at(self, boottime: float) -> float:
        return self._clock.unix() - (self._clock.boottime() - boottime)

    def _unused(self, start: int) -> int:
        """Return the first second from `start` on at which no earlier period started.

        Two periods of a node must not start in the same second. Without this function, two periods could do
        so after the wall clock was set back.
        """
        while start in self._starts:
            start += 1
        return start

    def _opened(
        self, start: int, boottime: float, running: Iterable[Session], oldest_reading: float | None
    ) -> OpenPeriod:
        # A component without any reading so far has no energy that could be charged later.
        measured = [a for a in self._accounts.values() if a.measured_uj or a.uncharged_uj]
        waiting = [a.open_interval.start for a in measured if a.open_interval is not None]
        oldest = min([boottime, *waiting, *([] if oldest_reading is None else [oldest_reading])])
        return OpenPeriod(
            self._unused(start),
            boottime,
            {name: account.measured_uj for name, account in self._accounts.items()},
            {name: account.idle_uj for name, account in self._accounts.items()},
            {name: account.uncertain_s for name, account in self._accounts.items()},
            {session.owner: dict(session.meter.energy_uj) for session in running},
            late_s=min(boottime - oldest, _MAX_LATE_S),
        )

    def _store(
        self, opened: OpenPeriod, end: int, running: Sequence[Session], boottime: float | None
    ) -> None:
        """Complete an accounting period, and add it to the periods that wait for delivery.

        Nothing is added if none of the energy in the period is known.

        Args:
            opened: state of the energy accounts and jobs at the start of the period.
            end: end of the period in Unix seconds.
            running: sessions (the agent's data) of the running jobs.
            boottime: end of the period in seconds since boot; None if the period ended before the last boot.
        """
        for session in running:
            self._cluster = session.cluster
        current = [_job_since(s, opened.meters_uj.get(s.owner, {})) for s in running]
        names = [name for name, account in self._accounts.items() if self._is_known(opened, name, account)]
        if names:
            jobs = _merged([*opened.ended, *current], names)
            # A component that stayed unreadable makes the period uncertain, unless it never reported.
            measured = [n for n, a in self._accounts.items() if n in names or a.measured_uj or a.uncharged_uj]
            uncertain_s = max(self._uncertain_s(opened, name, boottime) for name in measured)
            self.closed.append(self._period(opened, end, names, jobs, uncertain_s))
            self._starts = [*self._starts, opened.start][-_MAX_STARTS:]
        if len(self.closed) > _MAX_CLOSED:
            log.error("the oldest closed period is dropped: the spool cannot store them")
            del self.closed[0]

    def _uncertain_s(self, opened: OpenPeriod, name: str, boottime: float | None) -> float:
        """Return the seconds of a period for which the energy of a component is not certain.

        Energy may be missing for these seconds, or it is not charged yet and will count in a later period.
        """
        account = self._accounts[name]
        uncertain_s = account.uncertain_s - opened.uncertain_s.get(name, 0.0)
        if boottime is not None and account.open_interval is not None:
            uncertain_s += boottime - max(account.open_interval.start, opened.start_boottime)
        return max(0.0, uncertain_s)

    def _period(
        self,
        opened: OpenPeriod,
        end: int,
        names: Iterable[str],
        jobs: tuple[PeriodJob, ...],
        uncertain_s: float,
    ) -> NodePeriod:
        return NodePeriod(
            self._cluster,
            self.node,
            opened.start,
            end,
            {name: self._energy(opened, name, jobs) for name in names},
            jobs,
            late_seconds=max(0.0, opened.late_s),
            uncertain_seconds=uncertain_s,
            period_id=opened.period_id,
        )

    def _energy(self, opened: OpenPeriod, name: str, jobs: Iterable[PeriodJob]) -> PeriodEnergy:
        """Return the energy of a component in a period.

        Energy that belongs to no known job is unattributed.
        """
        account = self._accounts[name]
        jobs_uj = sum(job.energy_uj.get(name, 0) for job in jobs)
        idle_uj = max(0, account.idle_uj - opened.idle_uj.get(name, 0))
        measured_uj = max(account.measured_uj - opened.measured_uj.get(name, 0), jobs_uj + idle_uj)
        return PeriodEnergy(measured_uj, jobs_uj, idle_uj, measured_uj - jobs_uj - idle_uj)

    @staticmethod
    def _is_known(opened: OpenPeriod, name: str, account: ComponentAccount) -> bool:
        """Return whether the energy of a component in the period is known.

        It is unknown if no counter of the component could be read during the whole period.
        """
        if account.measured_uj != opened.measured_uj.get(name, 0):
            return True
        waiting = account.open_interval
        return waiting is None or waiting.start > opened.start_boottime + _SLACK_S


def _accounts_without(
    earlier: Mapping[str, Any], current: Mapping[str, ComponentAccount]
) -> dict[str, ComponentAccount]:
    """Return the energy accounts in `earlier` whose components no longer exist.

    `earlier` has the energy accounts of a checkpoint.
    """
    vanished = {}
    for name, data in earlier.items():
        if name not in current:
            vanished[name] = ComponentAccount(())
            vanished[name].load(data)
    return vanished


def _loaded(data: Mapping[str, Any]) -> OpenPeriod:
    """Restore the energy period that was open when the checkpoint was written.

    The uncertain seconds of a component are the charged seconds in which energy may be missing. After a
    restart of the agent, each energy account counts its uncertain seconds from 0 again. The uncertain
    seconds that the period already has are therefore stored as negative start values.
    """
    uncertain_s = {name: -seconds for name, seconds in data["uncertain_s"].items()}
    period = build_from(OpenPeriod, {**data, "ended": [], "uncertain_s": uncertain_s})
    for job_id, restart_count, uid, energy in data["ended"]:
        period.add_ended(PeriodJob(job_id, restart_count, uid, dict(energy)))
    return period


def _job_since(session: Session, earlier_uj: Mapping[str, int]) -> PeriodJob:
    """Return the energy that a job has used since an earlier reading of its energy meter.

    Args:
        session: state of the job in the agent.
        earlier_uj: earlier reading in microjoules, by component.
    """
    energy = {name: uj - earlier_uj.get(name, 0) for name, uj in session.meter.energy_uj.items()}
    return PeriodJob(session.job_id, session.restart_count, session.uid, energy)


def _merged(jobs: Iterable[PeriodJob], names: Sequence[str]) -> tuple[PeriodJob, ...]:
    """Merge the entries of each run of a job to one entry, ordered by job id and restart count.

    `jobs` has several entries for a run if the prolog ran again on the node. The result contains only the
    energies of the components in `names`.
    """
    merged: dict[tuple[int, int], PeriodJob] = {}
    for job in jobs:
        energy = {name: job.energy_uj[name] for name in names if name in job.energy_uj}
        if not energy:
            continue
        earlier = merged.get((job.job_id, job.restart_count))
        for name, uj in earlier.energy_uj.items() if earlier is not None else ():
            energy[name] = energy.get(name, 0) + uj
        merged[job.job_id, job.restart_count] = PeriodJob(job.job_id, job.restart_count, job.uid, energy)
    return tuple(merged[key] for key in sorted(merged))
