"""Last known power state of each node, and the measured durations of boots."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.slurm.node_power_states import NodePowerStatus

MAX_BOOT_S: Final = 7200.0
_BOOTS: Final = 20
_CLOSE_S: Final = 3.0
"""Maximum distance of two readings between which the end of a boot is known well enough."""


@dataclass(frozen=True, slots=True)
class _NodeState:
    kind: str
    is_ready: bool
    is_down: bool


class NodeBoots:
    """Power states of the nodes as last read, and boots in progress. Calls may come from several threads.

    A boot lasts from the request, by senergyctld or for a job, until slurmctld has the node as responding.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, _NodeState] = {}
        self._read_s = float("-inf")
        self._requested_s: dict[str, float] = {}
        self._boots_s: dict[str, deque[float]] = {}

    def observe(self, nodes: Sequence[NodePowerStatus], now: float) -> None:
        """Store the states of all nodes.

        Args:
            nodes: the nodes.
            now: time of the reading in Unix seconds.
        """
        with self._lock:
            for one in nodes:
                self._end_boot(one, now)
            self._states = {one.name: _NodeState(one.kind, _is_ready(one), one.is_down) for one in nodes}
            self._read_s = now

    def _end_boot(self, one: NodePowerStatus, now: float) -> None:
        since = self._requested_s.get(one.name)
        if since is None:
            return
        if one.is_down or now - since > MAX_BOOT_S:
            del self._requested_s[one.name]
        elif _is_ready(one):
            del self._requested_s[one.name]
            until = now if now - self._read_s <= _CLOSE_S else one.slurmd_unix_s
            if until is not None and 1.0 <= until - since <= MAX_BOOT_S:
                self._boots_s.setdefault(one.kind, deque(maxlen=_BOOTS)).append(until - since)

    def request(self, names: Iterable[str], now: float) -> None:
        """Note that nodes boot from now on, as far as they are off and no boot has been noted."""
        with self._lock:
            for name in names:
                state = self._states.get(name)
                if state is not None and not state.is_ready:
                    self._requested_s.setdefault(name, now)

    def power_down(self, names: Iterable[str]) -> None:
        """Note that nodes are being powered down, until they are read again."""
        with self._lock:
            for name in names:
                if (state := self._states.get(name)) is not None:
                    self._states[name] = _NodeState(state.kind, is_ready=False, is_down=False)

    def is_ready(self, names: Iterable[str], now: float, max_age_s: float) -> bool:
        """Return whether all nodes were ready when they were last read, at most `max_age_s` ago."""
        with self._lock:
            known = [self._states.get(name) for name in names]
            is_recent = 0 <= now - self._read_s <= max_age_s
            return is_recent and all(one is not None and one.is_ready for one in known)

    def is_settled(self, names: Iterable[str]) -> bool:
        """Return whether no boot of these nodes is awaited: each is ready, down or unknown to Slurm."""
        with self._lock:
            known = [self._states.get(name) for name in names]
            return all(one is None or one.is_ready or one.is_down for one in known)

    def boot_s(self, kind: str | None = None) -> float | None:
        """Return the median of the measured boot times in seconds.

        Args:
            kind: kind of the nodes; None: all nodes.

        Returns:
            The median of the kind, without boots of it that of all nodes; None: no boot has been measured.
        """
        with self._lock:
            times = self._boots_s.get(kind) if kind is not None else None
            chosen = times or [one for values in self._boots_s.values() for one in values]
            return statistics.median(chosen) if chosen else None


def _is_ready(one: NodePowerStatus) -> bool:
    is_changing = one.is_off or one.is_booting or one.is_stopping
    return not is_changing and not one.is_down and "NOT_RESPONDING" not in one.words
