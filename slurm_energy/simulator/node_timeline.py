"""Free resources of each node over time, from the expected ends of running jobs and from reservations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.cluster import Allocation
from slurm_energy.simulator.constraints import Reservation

_SLACK = 1e-9
_MAX_WINDOWS = 16
"""Number of windows of a recurring reservation in which a start is searched."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Resources that a job needs, and the nodes on which it may run.

    Attributes:
        units: number of units.
        nodes: numbers of the nodes that it may use, ascending, shape (e,).
        unit_memory_gib: memory per unit; 0: none.
        shared: resources of the cluster, not of nodes: licenses and, last, watts. Shape (r,).
        length_s: expected seconds for which it holds the resources.
        reservation: number of the reservation that it requests; -1: none.
    """

    units: int
    nodes: Ints
    unit_memory_gib: float
    shared: Floats
    length_s: float
    reservation: int = -1


@dataclass(frozen=True, slots=True)
class FreeResources:
    """Free resources at one time.

    Attributes:
        units, memory_gib: by node, shape (n,). A node that jobs cannot use has no units.
        shared: licenses and watts, shape (r,).
    """

    units: Ints
    memory_gib: Floats
    shared: Floats


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """Resources that a running job is expected to release at a time in seconds."""

    time_s: float
    allocation: Allocation
    unit_memory_gib: float
    shared: Floats


class NodeTimeline:
    """Free resources as step functions of time. The last step has no end.

    Args:
        now_s: begin of the timeline.
        free: resources that are free now.
        is_off: whether a node is off, shape (n,). Jobs get such nodes last.
        reservations: reservations of the cluster, each with the nodes as a mask, shape (n,).
        releases: resources that running jobs release.
    """

    def __init__(
        self,
        now_s: float,
        free: FreeResources,
        is_off: Bools,
        reservations: Sequence[tuple[Reservation, Bools]],
        releases: Iterable[NodeRelease] = (),
    ) -> None:
        self._is_off = is_off
        self._reservations = reservations
        after_s = float(
            np.nextafter(now_s, np.inf)
        )  # a job that runs longer than expected still holds its units
        later = [(max(after_s, release.time_s), release) for release in releases]
        times = sorted({now_s, *(time_s for time_s, _ in later)})
        self._times = times
        rows = {time_s: row for row, time_s in enumerate(times)}
        units = np.zeros((len(times), len(free.units)), np.int64)
        memory, shared = np.zeros(units.shape), np.zeros((len(times), len(free.shared)))
        units[0], memory[0], shared[0] = free.units, free.memory_gib, free.shared
        for time_s, release in later:
            row = rows[time_s]
            for node, count in release.allocation:
                units[row, node] += count
                memory[row, node] += count * release.unit_memory_gib
            shared[row] += release.shared
        self._units: Ints = np.cumsum(units, axis=0)
        self._memory: Floats = np.cumsum(memory, axis=0)
        self._shared: Floats = np.cumsum(shared, axis=0)

    @property
    def first(self) -> FreeResources:
        """Resources that are free at the begin."""
        return FreeResources(self._units[0], self._memory[0], self._shared[0])

    def place(self, request: NodeRequest, start_s: float) -> Allocation | None:
        """Return the units that a job would get at `start_s`; None: it cannot start then."""
        first = int(np.searchsorted(self._times, start_s, "right")) - 1
        last = max(first + 1, int(np.searchsorted(self._times, start_s + request.length_s, "left")))
        capacity = self._capacity(request, slice(first, first + 1))
        if capacity.sum() < request.units:
            return None
        if last > first + 1:
            capacity = self._capacity(request, slice(first, last))
        allowed = self._allowed(request, start_s)
        if allowed is None:
            return None
        capacity = np.where(allowed, capacity, 0)
        if capacity.sum() < request.units:
            return None
        if np.any(self._shared[first:last].min(axis=0) + _SLACK < request.shared):
            return None
        free = self._units[first, request.nodes]
        chosen = choose_units(capacity, free, self._is_off[request.nodes], request.units)
        return [(int(request.nodes[index]), count) for index, count in chosen]

    def earliest(self, request: NodeRequest) -> tuple[float, Allocation] | None:
        """Return the earliest start of a job and its units then; None: it can never start."""
        for start_s in sorted({*self._times, *self._window_times(request)}):
            if start_s >= self._times[0]:
                allocation = self.place(request, start_s)
                if allocation is not None:
                    return start_s, allocation
        return None

    def take(self, start_s: float, request: NodeRequest, allocation: Allocation) -> None:
        """Reserve the resources of a job that starts at `start_s`."""
        first = self._split(start_s)
        last = self._split(start_s + request.length_s)
        for node, count in allocation:
            self._units[first:last, node] -= count
            self._memory[first:last, node] -= count * request.unit_memory_gib
        self._shared[first:last] -= request.shared

    def take_all(self, request: NodeRequest, allocation: Allocation) -> None:
        """Reserve the resources of a job for ever."""
        for node, count in allocation:
            self._units[:, node] -= count
            self._memory[:, node] -= count * request.unit_memory_gib
        self._shared -= request.shared

    def _capacity(self, request: NodeRequest, rows: slice) -> Ints:
        """Return the units that the job can get on each of its nodes at all times in `rows`, shape (e,)."""
        units = self._units[rows, request.nodes].min(axis=0)
        if request.unit_memory_gib > 0:
            free_gib = self._memory[rows, request.nodes].min(axis=0)
            by_memory = np.floor((free_gib + _SLACK) / request.unit_memory_gib)
            units = np.minimum(units, np.clip(by_memory, 0, 2**62).astype(np.int64))
        result: Ints = np.maximum(units, 0)
        return result

    def _allowed(self, request: NodeRequest, start_s: float) -> Bools | None:
        """Return which nodes no other reservation claims while the job runs; None: its own is not open."""
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

    def _window_times(self, request: NodeRequest) -> Iterator[float]:
        for number, (reservation, _) in enumerate(self._reservations):
            for begin_s, end_s in islice(reservation.windows(self._times[0]), _MAX_WINDOWS):
                yield begin_s if number == request.reservation else end_s

    def _split(self, time_s: float) -> int:
        """Return the row that begins at `time_s`. Split a row if none begins there."""
        row = int(np.searchsorted(self._times, time_s, "left"))
        if row < len(self._times) and self._times[row] == time_s:
            return row
        if np.isinf(time_s):
            return row
        self._times.insert(row, time_s)
        self._units = np.insert(self._units, row, self._units[row - 1], axis=0)
        self._memory = np.insert(self._memory, row, self._memory[row - 1], axis=0)
        self._shared = np.insert(self._shared, row, self._shared[row - 1], axis=0)
        return row


def choose_units(capacity: Ints, free: Ints, is_off: Bools, units: int) -> list[tuple[int, int]]:
    """Choose units by the rule of `Cluster.plan`, on nodes that offer the job a limited number of them.

    Args:
        capacity: units that the job can get on each node, shape (e,); the sum is at least `units`.
        free: free units of each node, shape (e,).
        is_off: whether a node is off, shape (e,).
        units: number of units.

    Returns:
        Pairs of an index of a node and a number of units.
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
