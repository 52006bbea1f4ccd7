"""Constraints of a simulated cluster besides free nodes and GPUs.

The constraints are licenses, partitions, QOS and reservations. The module contains only data classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits on the jobs of a partition or a QOS in the simulator.

    A limit of 0 means that there is no limit.

    Attributes:
        priority: jobs with a higher priority are ranked before jobs with a lower one, regardless of the
            scheduling policy.
        max_jobs, max_units: maximum number of running jobs, and maximum number of units (GPUs or cores) that
            the running jobs hold together.
        max_jobs_per_user, max_units_per_user: the same limits for the jobs of each single user.
        max_units_per_job: maximum number of units of one job.
        max_time_s: maximum time limit that a job may request; infinity means no maximum.
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
        limits: limits of the jobs in this partition.
        nodes: numbers of the nodes of this partition; None means all nodes.
        default_time_s: time limit of jobs that request none. Infinity means that jobs without a request get
            `max_time_s`.
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
    """Nodes that are reserved for the jobs that request the reservation.

    A reservation has one or several time windows.

    Attributes:
        name: name that jobs request. A maintenance is a reservation that no job requests.
        nodes: numbers of the reserved nodes; None means all nodes.
        begin_s, length_s: begin and length of the first window, in seconds on the simulated clock.
        every_s: time in seconds between the begins of successive windows. 0 means that there is only one
            window.
    """

    name: str
    nodes: tuple[int, ...] | None = None
    begin_s: float = 0.0
    length_s: float = 0.0
    every_s: float = 0.0

    def windows(self, now_s: float) -> Iterator[tuple[float, float]]:
        """Yield begin and end of each time in which the nodes are reserved, in order.

        Only times that end after `now_s` are yielded. If the reservation recurs, the sequence is endless.
        """
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
        """Return the first time after `now_s` at which a window of a reservation begins or ends.

        The result is infinity if no such time follows.
        """
        times = (time_s for window in islice(self.windows(now_s), 2) for time_s in window)
        return min((time_s for time_s in times if time_s > now_s), default=math.inf)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints of the cluster. A job's request for a name that is not defined here has no effect.

    Attributes:
        partitions, qos, reservations: the definitions, by the names that jobs request.
        licenses: number of licenses by name.
    """

    partitions: tuple[Partition, ...] = ()
    qos: tuple[Qos, ...] = ()
    reservations: tuple[NodeReservation, ...] = ()
    licenses: tuple[tuple[str, int], ...] = ()

    def next_change_s(self, now_s: float) -> float:
        """Return the first begin or end of a reservation's window after `now_s`; infinity if none follows."""
        return min((one.next_change_s(now_s) for one in self.reservations), default=math.inf)
