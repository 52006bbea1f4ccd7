"""Constraints of a cluster besides free units: licenses, partitions, QOS and reservations. Plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of a partition or a QOS. 0 is no limit.

    Attributes:
        priority: jobs with a higher priority go before all others, whatever the policy ranks.
        max_jobs, max_units: running jobs, and units that they hold.
        max_jobs_per_user, max_units_per_user: the same for the jobs of one user.
        max_units_per_job: size of a job.
        max_time_s: time limit of a job; infinity: none.
    """

    priority: int = 0
    max_jobs: int = 0
    max_units: int = 0
    max_jobs_per_user: int = 0
    max_units_per_user: int = 0
    max_units_per_job: int = 0
    max_time_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the cluster.

    Attributes:
        name: name that jobs request.
        limits: limits of its jobs.
        nodes: numbers of its nodes; None: all nodes.
        default_time_s: time limit of jobs that request none; infinity: the maximum.
    """

    name: str
    limits: JobLimits = field(default_factory=JobLimits)
    nodes: tuple[int, ...] | None = None
    default_time_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Qos:
    """A quality of service: a name with limits."""

    name: str
    limits: JobLimits = field(default_factory=JobLimits)


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """Nodes that are reserved for the jobs that request the reservation, in one or several windows of time.

    Attributes:
        name: name that jobs request. A maintenance is a reservation that no job requests.
        nodes: numbers of its nodes; None: all nodes.
        begin_s, length_s: first window on the simulated clock.
        every_s: time between the begins of two windows; 0: there is one window.
    """

    name: str
    nodes: tuple[int, ...] | None = None
    begin_s: float = 0.0
    length_s: float = 0.0
    every_s: float = 0.0

    def windows(self, now_s: float) -> Iterator[tuple[float, float]]:
        """Yield begin and end of the windows that end after `now_s`, in order; endless if they recur."""
        if not self.every_s:
            if self.begin_s + self.length_s > now_s:
                yield self.begin_s, self.begin_s + self.length_s
            return
        index = max(0, math.floor((now_s - self.begin_s - self.length_s) / self.every_s))
        while True:
            begin_s = self.begin_s + index * self.every_s
            if begin_s + self.length_s > now_s:
                yield begin_s, begin_s + self.length_s
            index += 1

    def next_change_s(self, now_s: float) -> float:
        """Return the first begin or end of a window after `now_s`; infinity: there is none."""
        times = (time_s for window in islice(self.windows(now_s), 2) for time_s in window)
        return min((time_s for time_s in times if time_s > now_s), default=math.inf)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints of the cluster. A request for a name that is not among them has no effect.

    Attributes:
        partitions, qos, reservations: by the names that jobs request.
        licenses: number of licenses by name.
    """

    partitions: tuple[Partition, ...] = ()
    qos: tuple[Qos, ...] = ()
    reservations: tuple[NodeReservation, ...] = ()
    licenses: tuple[tuple[str, int], ...] = ()

    def next_change_s(self, now_s: float) -> float:
        """Return the first begin or end of a window after `now_s`; infinity: there is none."""
        return min((one.next_change_s(now_s) for one in self.reservations), default=math.inf)
