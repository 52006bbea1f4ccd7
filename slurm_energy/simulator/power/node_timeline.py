"""Free resources of each node over time.

The free resources follow from the expected ends of running jobs and from reservations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.cluster import Allocation
from slurm_energy.simulator.constraints.constraints import NodeReservation

_SLACK = 1e-9
_MAX_WINDOWS = 16
"""Number of windows of a recurring reservation in which a start is searched."""


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """Resources that a job needs, and the nodes on which it may run.

    Attributes:
        units: number of units (GPUs, cores or whole nodes) that the job needs.
        nodes: numbers of the nodes that the job may use, ascending, shape (e,).
        unit_memory_gib: memory in GiB per unit; 0 if the job requests none.
        shared: resources that belong to the cluster, not to nodes, shape (r,). They are licenses, followed by
            watts.
        length_s: expected seconds for which the job holds the resources.
        reservation: index of the reservation that the job requests; -1 if the job requests none.
    """

    units: int
    nodes: Ints
    unit_memory_gib: float
    shared: Floats
    length_s: float
    reservation: int = -1


@dataclass(frozen=True, slots=True)
class FreeResources:
    """Resources of all nodes that are free at one moment of the simulation.

    Attributes:
        units, memory_gib: free units (GPUs, cores or whole nodes) and free memory in GiB of each node,
            arrays of shape (n,). A node that jobs cannot use has 0 units.
        shared: free resources that belong to no node, array of shape (r,): the free licenses of each kind,
            and the free watts as last value.
    """

    units: Ints
    memory_gib: Floats
    shared: Floats

    def copy(self) -> FreeResources:
        """Return a copy that shares no arrays with this object."""
        return FreeResources(self.units.copy(), self.memory_gib.copy(), self.shared.copy())

    def add(self, allocation: Allocation, unit_memory_gib: float, shared: Floats) -> None:
        """Add resources. Negative numbers subtract resources."""
        for node, count in allocation:
            self.units[node] += count
            self.memory_gib[node] += count * unit_memory_gib
        self.shared[:] += shared


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """Resources that a running job is expected to release, and the time of the release in seconds."""

    time_s: float
    allocation: Allocation
    unit_memory_gib: float
    shared: Floats


class NodeTimeline:
    """Free resources as step functions of time. The last step has no end.

    Args:
        now_s: start of the timeline.
        free: resources that are free now; the timeline changes these arrays.
        is_off: whether a node is off, shape (n,). Jobs get nodes that are off last.
        reservations: reservations of the cluster. Each has a mask of its nodes, shape (n,).
        releases: resources that running jobs are expected to release.
    """

    def __init__(
        self,
        now_s: float,
        free: FreeResources,
        is_off: Bools,
        reservations: Sequence[tuple[NodeReservation, Bools]],
        releases: Iterable[NodeRelease] = (),
    ) -> None:
        self._is_off = is_off
        self._reservations = reservations
        after_s = float(np.nextafter(now_s, np.inf))  # a job that outlasts its limit still holds its units
        self._times = [now_s]
        # Each row has separate arrays: a new row copies one row, not the whole timeline.
        self._rows = [free]
        for release in sorted(releases, key=lambda one: one.time_s):
            self._begin_row(max(after_s, release.time_s))
            self._rows[-1].add(release.allocation, release.unit_memory_gib, release.shared)

    @property
    def first(self) -> FreeResources:
        """Resources that are free at the start of the timeline."""
        return self._rows[0]

    def _begin_row(self, time_s: float) -> None:
        """Append a row to the table of free resources over time.

        The row is valid from `time_s` on. It is not appended if the last row already begins at this time.
        """
        if self._times[-1] < time_s:
            self._times.append(time_s)
            self._rows.append(self._rows[-1].copy())

    def place(self, request: UnitRequest, start_s: float) -> Allocation | None:
        """Return an allocation of nodes and units for a job that would start at `start_s`.

        A unit is a GPU, a core or a node. Return None if the job cannot start at this time.
        """
        first = bisect_right(self._times, start_s) - 1
        last = max(first + 1, bisect_left(self._times, start_s + request.length_s))
        capacity = self._capacity(request, first, first + 1)
        if capacity.sum() < request.units:
            return None
        if last > first + 1:
            capacity = np.minimum(capacity, self._capacity(request, first + 1, last))
        allowed = self._allowed(request, start_s)
        if allowed is None:
            return None
        capacity = np.where(allowed, capacity, 0)
        if capacity.sum() < request.units:
            return None
        if any(np.any(row.shared + _SLACK < request.shared) for row in self._rows[first:last]):
            return None
        free = self._rows[first].units[request.nodes]
        chosen = choose_units(capacity, free, self._is_off[request.nodes], request.units)
        return [(int(request.nodes[index]), count) for index, count in chosen]

    def earliest(self, request: UnitRequest) -> tuple[float, Allocation] | None:
        """Return the earliest start of a job, and the GPUs, nodes or cores that it gets at that time.

        Return None if the job can never start.
        """
        for start_s in sorted({*self._times, *self._window_times(request)}):
            if start_s >= self._times[0]:
                allocation = self.place(request, start_s)
                if allocation is not None:
                    return start_s, allocation
        return None

    def take(self, start_s: float, request: UnitRequest, allocation: Allocation) -> None:
        """Reserve the resources of a job that starts at `start_s`."""
        first = self._split(start_s)
        last = self._split(start_s + request.length_s)
        for row in self._rows[first:last]:
            _take(row, request, allocation)

    def take_all(self, request: UnitRequest, allocation: Allocation) -> None:
        """Reserve the resources of a job from now on, without an end."""
        for row in self._rows:
            _take(row, request, allocation)

    def _capacity(self, request: UnitRequest, first: int, last: int) -> Ints:
        """Return the units that the job can get on each node during a part of the timeline.

        The part consists of the rows (intervals of time) `first` to `last` - 1. A unit counts only if it is
        free in all these rows.
        """
        units = reduce(np.minimum, (row.units for row in self._rows[first:last]))[request.nodes]
        if request.unit_memory_gib > 0:
            free_gib = reduce(np.minimum, (row.memory_gib for row in self._rows[first:last]))[request.nodes]
            by_memory = np.floor((free_gib + _SLACK) / request.unit_memory_gib)
            units = np.minimum(units, np.clip(by_memory, 0, 2**62).astype(np.int64))
        result: Ints = np.maximum(units, 0)
        return result

    def _allowed(self, request: UnitRequest, start_s: float) -> Bools | None:
        """Return the mask of the nodes that a job may use while it runs, with regard to reservations.

        A node is excluded if it is reserved for other jobs during the run. If the job itself requests a
        reservation that is not open for the whole run, the result is None.
        """
        end_s = start_s + request.length_s
        allowed: Bools = np.ones(len(request.nodes), np.bool_)
        for number, (reservation, nodes) in enumerate(self._reservations):
            begin_s, close_s = next(reservation.windows(start_s), (np.inf, np.inf))
            if number == request.reservation:
                if begin_s > start_s or end_s > close_s + _SLACK:
                    return None
            elif begin_s < end_s - _SLACK:
                allowed &= ~nodes[request.nodes]
        return allowed

    def _window_times(self, request: UnitRequest) -> Iterator[float]:
        for number, (reservation, _) in enumerate(self._reservations):
            for begin_s, end_s in islice(reservation.windows(self._times[0]), _MAX_WINDOWS):
                yield begin_s if number == request.reservation else end_s

    def _split(self, time_s: float) -> int:
        """Return the index of the timeline row that begins at `time_s`.

        If no row begins at this time, the row that contains this time is divided.
        """
        row = bisect_left(self._times, time_s)
        if np.isinf(time_s) or (row < len(self._times) and self._times[row] == time_s):
            return row
        self._times.insert(row, time_s)
        self._rows.insert(row, self._rows[row - 1].copy())
        return row


def _take(row: FreeResources, request: UnitRequest, allocation: Allocation) -> None:
    held = [(node, -count) for node, count in allocation]
    row.add(held, request.unit_memory_gib, -request.shared)


def choose_units(capacity: Ints, free: Ints, is_off: Bools, units: int) -> list[tuple[int, int]]:
    """Choose the nodes and units of a job by the rule of `Cluster.plan`.

    If one node can hold the whole job, the fullest such node is chosen. Otherwise the job gets the nodes
    that can give it most units. Nodes that are on are preferred. Each node offers a limited number of units.

    Args:
        capacity: units that the job can get on each node, shape (e,); the sum is at least `units`.
        free: free units of each node, shape (e,).
        is_off: whether a node is off, shape (e,).
        units: number of units (GPUs, cores or whole nodes) that the job needs.

    Returns:
        Pairs of a node's index in `capacity` and a number of units.
    """
    whole = np.flatnonzero(capacity >= units)
    if len(whole):
        return [(int(whole[np.lexsort((free[whole], is_off[whole]))[0]]), units)]
    nodes = np.flatnonzero(capacity)
    nodes = nodes[np.lexsort((-capacity[nodes], is_off[nodes]))]
    chosen = []
    for node in nodes.tolist():
        part = min(units, int(capacity[node]))
        chosen.append((node, part))
        units -= part
        if not units:
            break
    return chosen
