"""Record of the last known power state of each node, and of finished shutdowns and boots."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from slurm_energy.slurm.node_power_states import NodePowerStatus

MAX_BOOT_S: Final = 7200.0
_BOOTS: Final = 20
_CHANGES: Final = 1000
_CLOSE_S: Final = 3.0
"""Maximum time between two readings for the second one to count as the end of a boot."""


class PowerPhase(Enum):
    """Power state of a node, from which it follows whether the node is ready for jobs."""

    READY, STOPPING, OFF, BOOTING, DOWN = range(5)


@dataclass(frozen=True, slots=True)
class PowerTransition:
    """A shutdown or a boot that has ended.

    Attributes:
        node: name of the node.
        kind: kind of the node's hardware, see `NodePowerStatus.kind`.
        is_boot: whether the node booted; otherwise it shut down.
        begin_s, end_s: begin and end of the shutdown or boot in Unix seconds.
    """

    node: str
    kind: str
    is_boot: bool
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Duration in seconds."""
        return self.end_s - self.begin_s


class NodeBoots:
    """Power states of the nodes as last read, and the nodes that are booting. Thread-safe.

    A boot begins with a request, which senergyctld makes, or which Slurm makes for a job. The boot ends when
    the node responds to slurmctld.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, tuple[PowerPhase, str]] = {}
        self._read_s = float("-inf")
        self._boot_s: dict[str, float] = {}
        self._stop_s: dict[str, float] = {}
        self._boots_s: dict[str, deque[float]] = {}
        self._ended: deque[PowerTransition] = deque(maxlen=_CHANGES)

    def observe(self, nodes: Sequence[NodePowerStatus], now: float) -> None:
        """Take note of the current states of all nodes, to measure how long boots and shutdowns take.

        Args:
            nodes: states of all nodes, as read from Slurm.
            now: time of the reading in Unix seconds.
        """
        with self._lock:
            for one in nodes:
                phase = _phase(one)
                self._follow_shutdown(one, phase, now)
                self._follow_boot(one, phase, now)
            self._states = {one.name: (_phase(one), one.kind) for one in nodes}
            self._read_s = now

    def _follow_shutdown(self, one: NodePowerStatus, phase: PowerPhase, now: float) -> None:
        if phase is PowerPhase.STOPPING:
            self._stop_s.setdefault(one.name, now)
        elif (since := self._stop_s.pop(one.name, None)) is not None and phase is PowerPhase.OFF:
            self._ended.append(PowerTransition(one.name, one.kind, False, since, now))

    def _follow_boot(self, one: NodePowerStatus, phase: PowerPhase, now: float) -> None:
        since = self._boot_s.get(one.name)
        if since is None:
            return
        if phase is PowerPhase.DOWN or now - since > MAX_BOOT_S:
            del self._boot_s[one.name]
        elif phase is PowerPhase.READY:
            del self._boot_s[one.name]
            until = now if now - self._read_s <= _CLOSE_S else one.slurmd_unix_s
            if until is not None and 1.0 <= until - since <= MAX_BOOT_S:
                self._boots_s.setdefault(one.kind, deque(maxlen=_BOOTS)).append(until - since)
                self._ended.append(PowerTransition(one.name, one.kind, True, since, until))

    def request(self, names: Iterable[str], now: float) -> None:
        """Record that nodes boot from now on. Skip nodes that are ready or already recorded as booting."""
        with self._lock:
            for name in names:
                state = self._states.get(name)
                if state is not None and state[0] is not PowerPhase.READY:
                    self._boot_s.setdefault(name, now)

    def power_down(self, names: Iterable[str], now: float) -> None:
        """Record that nodes are being powered down."""
        with self._lock:
            for name in names:
                if (state := self._states.get(name)) is not None:
                    self._states[name] = (PowerPhase.STOPPING, state[1])
                    self._stop_s[name] = now

    def is_ready(self, names: Iterable[str], now: float, max_age_s: float) -> bool:
        """Return whether all given nodes were ready at the last query of their states.

        The result is False if the last query is older than `max_age_s`.
        """
        with self._lock:
            phases = [self._states[name][0] if name in self._states else None for name in names]
            is_recent = 0 <= now - self._read_s <= max_age_s
            return is_recent and all(phase is PowerPhase.READY for phase in phases)

    def is_settled(self, names: Iterable[str]) -> bool:
        """Return whether no boot of these nodes is pending: each is ready, down or unknown to Slurm."""
        with self._lock:
            phases = [self._states[name][0] for name in names if name in self._states]
            return all(phase in (PowerPhase.READY, PowerPhase.DOWN) for phase in phases)

    def away(self) -> dict[str, tuple[PowerPhase, str]]:
        """Return the power state and the kind of each node that is off, booting or shutting down.

        The keys of the result are the names of the nodes.
        """
        with self._lock:
            away = (PowerPhase.STOPPING, PowerPhase.OFF, PowerPhase.BOOTING)
            return {name: state for name, state in self._states.items() if state[0] in away}

    def take_ended(self) -> list[PowerTransition]:
        """Return the shutdowns and boots that have ended since the last call."""
        with self._lock:
            ended = list(self._ended)
            self._ended.clear()
            return ended

    def boot_s(self, kind: str | None = None) -> float | None:
        """Return the median of the measured boot times in seconds.

        Args:
            kind: kind of the nodes; None means all nodes.

        Returns:
            The median of this kind. If no boot of this kind has been measured, the median of all nodes. None
            means that no boot has been measured at all.
        """
        with self._lock:
            times = self._boots_s.get(kind) if kind is not None else None
            chosen = times or [one for values in self._boots_s.values() for one in values]
            return statistics.median(chosen) if chosen else None

    def boot_times(self) -> dict[str, list[float]]:
        """Return the last measured boot times by kind of node."""
        with self._lock:
            return {kind: list(times) for kind, times in self._boots_s.items()}

    def restore_boot_times(self, times: dict[str, list[float]]) -> None:
        """Add boot times that an earlier process measured."""
        with self._lock:
            for kind, values in times.items():
                self._boots_s[kind] = deque([*values, *self._boots_s.get(kind, ())], maxlen=_BOOTS)


def _phase(one: NodePowerStatus) -> PowerPhase:
    if one.is_down:
        return PowerPhase.DOWN
    if one.is_booting:
        return PowerPhase.BOOTING
    if one.is_stopping:
        return PowerPhase.STOPPING
    if one.is_off:
        return PowerPhase.OFF
    return PowerPhase.BOOTING if "NOT_RESPONDING" in one.words else PowerPhase.READY
