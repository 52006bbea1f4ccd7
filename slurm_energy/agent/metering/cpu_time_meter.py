"""CPU time of jobs and of the node between samples: what was read, and when to look for more.

Reading a known control group is quick and done with every sample. Looking for the group of a job, or adding
up its processes, is not: that is left to samples that no hook waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from slurm_energy.agent.metering.attribution import node_rest
from slurm_energy.agent.metering.occupancy import Used
from slurm_energy.devices.cpu.cpu_time import PROCESS_TREE, JobCpuTimeReader, JobProcesses, node_busy_ns
from slurm_energy.devices.driver import DeviceError
from slurm_energy.log_once import Complaints

_TREE_PAUSE_S = 0.9
"""All processes of the node are gone through about once a second at most."""
_SEARCH_PAUSE_S, _LONGEST_PAUSE_S = 0.9, 15.0
"""A job of which nothing is found, e.g. an allocation without steps, is looked for less and less often."""
_MOST_DEBT_NS = 20_000_000
"""/proc/stat counts in ticks of 10 ms on every CPU: it may be behind the groups' nanoseconds by two."""


class Moment(Enum):
    """Why a sample is taken, which says how long reading may take."""

    TICK = auto()
    """The timer: nobody waits."""
    HOOK = auto()
    """A hook waits, and another sample will follow."""
    STEP = auto()
    """The same, and a step's record counts from here or up to here."""
    LOOK = auto()
    """Somebody looks: only what can tell anything new is read."""
    LAST = auto()
    """A hook waits, and a job's time ends here."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A job whose CPU time is wanted.

    Attributes:
        job: unique name.
        start: boot time of its begin, in seconds; it had used nothing then. None if it began before we knew.
        place: how its processes are found.
    """

    job: str
    start: float | None
    place: JobProcesses


class Usage:
    """Keeps the last reading of every job and of the node.

    Args:
        root: where /sys and /proc are found.
        node: Slurm's name of this node.
        cpus: logical CPUs of the node.
    """

    def __init__(self, root: Path, node: str, cpus: int) -> None:
        self._root = root
        self._times = JobCpuTimeReader(root, node)
        self._most_debt_ns = cpus * _MOST_DEBT_NS
        self._last: dict[str, tuple[int, float]] = {}
        self._busy_ns: int | None = None
        self._time: float | None = None
        self._debt_ns = 0
        self._due: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._complaints = Complaints()

    def read(self, now: float, workers: Iterable[Worker], moment: Moment = Moment.TICK) -> Used:
        """Return the CPU time since the last complete reading.

        Args:
            now: boot time in seconds.
            workers: the jobs on the node.
            moment: why.
        """
        wanted = list(workers)
        if moment in (Moment.HOOK, Moment.STEP, Moment.LOOK) and any(
            self._can_wait(worker) for worker in wanted
        ):
            return Used(complete=False)
        searched = [worker for worker in wanted if self._must_search(worker, now, moment)]
        if any(self._is_tree(worker) and worker not in searched for worker in wanted):
            return Used(complete=False)  # their processes are gone through a little later
        times: dict[int, int | None] = dict(self._times.read_open(worker.place for worker in wanted))
        if searched:
            times |= self._times.read(worker.place for worker in searched)
            self._plan(searched, times, now)
        return self._since_last(now, wanted, times)

    def learn(self, worker: Worker) -> None:
        """Look at once for a job of which a process is known now."""
        if not self._times.find(worker.place):
            self._due.pop(worker.job, None)
            self._pause_s.pop(worker.job, None)

    def rest(self) -> None:
        """Nobody asks for CPU time now: the next reading is the first of a new time."""
        self._busy_ns = None

    def rename(self, node: str) -> None:
        """Take another name of this node."""
        self._times.node = node

    def forget(self, worker: Worker) -> None:
        """Drop a job that has ended."""
        for kept in (self._last, self._due, self._pause_s):
            kept.pop(worker.job, None)
        self._times.forget(worker.place.job_id)

    def close(self) -> None:
        """Give descriptors back."""
        self._times.close()

    def dump(self) -> dict[str, Any]:
        """Return the readings, JSON-ready."""
        return {"time": self._time, "busy_ns": self._busy_ns, "debt_ns": self._debt_ns, "jobs": self._last}

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from readings of an earlier run on the same boot."""
        self._time, self._busy_ns, self._debt_ns = data["time"], data["busy_ns"], data["debt_ns"]
        self._last = {job: (int(time_ns), float(when)) for job, (time_ns, when) in data["jobs"].items()}

    def _is_tree(self, worker: Worker) -> bool:
        return self._times.source(worker.place.job_id) == PROCESS_TREE

    def _can_wait(self, worker: Worker) -> bool:
        """Return whether a later sample will tell about this interval what this one cannot."""
        return self._is_tree(worker) or not (
            self._times.source(worker.place.job_id) or worker.job in self._due
        )

    def _must_search(self, worker: Worker, now: float, moment: Moment) -> bool:
        if moment is Moment.TICK:
            found = self._times.source(worker.place.job_id) not in (None, PROCESS_TREE)
            return not found and now >= self._due.get(worker.job, now)
        return self._is_tree(worker) and moment is Moment.LAST

    def _plan(self, searched: Iterable[Worker], times: Mapping[int, int | None], now: float) -> None:
        for worker in searched:
            if times.get(worker.place.job_id) is not None:
                self._pause_s.pop(worker.job, None)
                self._due[worker.job] = now + _TREE_PAUSE_S
                continue
            pause_s = self._pause_s.get(worker.job, _SEARCH_PAUSE_S)
            self._due[worker.job] = now + pause_s
            self._pause_s[worker.job] = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _since_last(self, now: float, workers: list[Worker], times: Mapping[int, int | None]) -> Used:
        jobs: dict[str, int | None] = {}
        for worker in workers:
            time_ns = times.get(worker.place.job_id)
            jobs[worker.job] = None if time_ns is None else self._moved(worker, time_ns, now)
        busy_ns = self._busy(sum(used for used in jobs.values() if used is not None))
        self._time = now
        return Used(busy_ns, jobs)

    def _moved(self, worker: Worker, time_ns: int, now: float) -> int | None:
        """Return what a job used since the last complete reading; None if that did not know it."""
        last = self._last.get(worker.job)
        self._last[worker.job] = time_ns, now
        if last is None and worker.start is None:
            return None
        last_ns, since = last or (0, worker.start or 0.0)
        return None if self._time is not None and since < self._time else max(0, time_ns - last_ns)

    def _busy(self, jobs_ns: int) -> int | None:
        """Return the CPU time of all, never less than that of the jobs."""
        before = self._busy_ns
        try:
            self._busy_ns = node_busy_ns(self._root)
        except DeviceError as error:
            self._complaints.tell("CPU time of the node", f"not known: {error}")
            self._busy_ns = None
        if before is None or self._busy_ns is None:
            return None
        rest_ns, debt_ns = node_rest(max(0, self._busy_ns - before), jobs_ns, self._debt_ns)
        self._debt_ns = min(debt_ns, self._most_debt_ns)
        return jobs_ns + rest_ns
