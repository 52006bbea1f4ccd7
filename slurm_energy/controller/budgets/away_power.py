"""Power of nodes that are off, booting or shutting down.

A program of the site measures this power.

senergyd does not run on these nodes, so the program reads the power elsewhere, for example at their outlets.
The readings yield the power of a node that is off, and the energy and duration of boots and shutdowns, for
each kind of node. A file stores the learned values, so that they survive a restart.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import statistics
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slurm_energy import atomic_file
from slurm_energy.controller.power_saving.node_boots import NodeBoots, PowerPhase, PowerTransition
from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.quantities import is_number
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.hostlist import fold_hostlist

MAX_WATTS: Final = 1e6
_ROW: Final = re.compile(r"(\S+)[ \t]+(\d{1,7}(?:\.\d{1,9})?)")
_MAX_SAMPLES: Final = 2000
_KEPT_WHILE_OFF: Final = 2
_LAST: Final = 50
_SETTLE_S: Final = 1.0
"""Time after the end of a shutdown before which a reading may still be one of the shutdown."""
_MIN_SHARE: Final = 0.5
"""Minimum share of a boot or shutdown that readings must cover."""

log = logging.getLogger(__name__)


class KindPower:
    """Learned power of one kind of nodes. Each list contains only the most recent measurements.

    Attributes:
        off_watts: power readings of nodes that are off, in watts.
        boots, shutdowns: duration in seconds and mean power in watts of each boot or shutdown.
    """

    def __init__(self) -> None:
        self.off_watts: deque[float] = deque(maxlen=_LAST)
        self.boots: deque[tuple[float, float]] = deque(maxlen=_LAST)
        self.shutdowns: deque[tuple[float, float]] = deque(maxlen=_LAST)


class AwayPower:
    """Learner of the power of nodes that are off, booting or shutting down.

    `read` and `learn` must not run at the same time.

    Args:
        boots: power states of the nodes, and their completed boots and shutdowns.
        path: file for the learned values; None means that the values are not stored.
    """

    def __init__(self, boots: NodeBoots, path: Path | None = None) -> None:
        self._boots, self._path = boots, path
        self._kinds: dict[str, KindPower] = {}
        self._samples: dict[str, deque[tuple[float, float]]] = {}
        self._off_since: dict[str, float] = {}
        self._off_watts: dict[str, float] = {}
        self._load()

    @property
    def off_watts(self) -> Mapping[str, float]:
        """Last measured power in watts of each node that is powered off now, by name of the node."""
        return self._off_watts

    def read(self, program: Path, run: Runner, now: float) -> None:
        """Read the power of all nodes that are off, booting or shutting down.

        Args:
            program: the program of the site. Its argument is a host list. The program prints lines `NODE
                WATTS`.
            run: runs the program.
            now: Unix seconds.

        Raises:
            UnavailableError: the program failed.
        """
        away = self._boots.away()
        if not away:
            self._off_watts = {}
            return
        for name, watts in parse_watts(run([str(program), fold_hostlist(away)])).items():
            if name in away:
                self._samples.setdefault(name, deque(maxlen=_MAX_SAMPLES)).append((now, watts))
        self._note_off(away, now)

    def _note_off(self, away: Mapping[str, tuple[PowerPhase, str]], now: float) -> None:
        off = {name: kind for name, (phase, kind) in away.items() if phase is PowerPhase.OFF}
        self._off_since = {name: self._off_since.get(name, now) for name in off}
        self._off_watts = {}
        for name, kind in off.items():
            samples = self._samples.get(name)
            while samples and len(samples) > _KEPT_WHILE_OFF:
                samples.popleft()
            if samples and samples[-1][0] > self._off_since[name] + _SETTLE_S:
                self._off_watts[name] = samples[-1][1]
                self._kind(kind).off_watts.append(samples[-1][1])

    def learn(self) -> None:
        """Learn the power of nodes from the boots and shutdowns that have ended since the last call."""
        ended = self._boots.take_ended()
        for one in ended:
            self._learn(one)
        away = self._boots.away()
        for name in [name for name in self._samples if name not in away]:
            del self._samples[name]
        if ended:
            self._save()

    def _learn(self, one: PowerTransition) -> None:
        inside = [
            (when, watts)
            for when, watts in self._samples.get(one.node, ())
            if one.begin_s <= when <= one.end_s
        ]
        if len(inside) < 2 or inside[-1][0] - inside[0][0] < _MIN_SHARE * one.duration_s:
            return
        energies = [
            (after - before) * (low + high) / 2 for (before, low), (after, high) in itertools.pairwise(inside)
        ]
        mean_watts = sum(energies) / (inside[-1][0] - inside[0][0])
        values = self._kind(one.kind).boots if one.is_boot else self._kind(one.kind).shutdowns
        values.append((one.duration_s, mean_watts))

    def _kind(self, kind: str) -> KindPower:
        return self._kinds.setdefault(kind, KindPower())

    def energy(self, kind: str, declared: NodeEnergy) -> NodeEnergy:
        """Return the power of nodes of one kind while they are off, booting or shutting down.

        The result also contains the durations of a boot and of a shutdown. A quantity that has not been
        measured yet has its configured value.

        Args:
            kind: kind of the nodes.
            declared: power and durations from the configuration.
        """
        learned = self._kinds.get(kind) or KindPower()
        boot_s = self._boots.boot_s(kind)
        return NodeEnergy(
            declared.idle_watts,
            min(declared.idle_watts, _median(learned.off_watts, declared.off_watts)),
            declared.boot_s if boot_s is None else boot_s,
            _median([watts for _, watts in learned.boots], declared.boot_watts),
            _median([seconds for seconds, _ in learned.shutdowns], declared.shutdown_s),
            _median([watts for _, watts in learned.shutdowns], declared.shutdown_watts),
        )

    def _save(self) -> None:
        if self._path is None:
            return
        data = {
            "boots_s": self._boots.boot_times(),
            "kinds": {
                kind: {
                    "off_watts": list(power.off_watts),
                    "boots": list(power.boots),
                    "shutdowns": list(power.shutdowns),
                }
                for kind, power in self._kinds.items()
            },
        }
        try:
            atomic_file.write(self._path, json.dumps(data).encode())
        except OSError as error:
            log.warning("%s: %s: learned boot times are not stored", self._path, error.strerror or error)

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            data = json.loads(self._path.read_bytes())
            boots_s = {kind: _numbers(values) for kind, values in data["boots_s"].items()}
            kinds = {kind: _kind_power(values) for kind, values in data["kinds"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: not readable, boots are measured again: %s", self._path, error)
            return
        self._boots.restore_boot_times(boots_s)
        self._kinds = kinds


def parse_watts(text: str) -> dict[str, float]:
    """Parse lines `NODE WATTS`. Other lines are ignored: the power of their nodes is unknown."""
    rows = (_ROW.fullmatch(line.strip()) for line in text.splitlines())
    values = {row[1]: float(row[2]) for row in rows if row}
    return {name: watts for name, watts in values.items() if watts <= MAX_WATTS}


def _median(values: Any, default: float) -> float:
    return statistics.median(values) if values else default


def _numbers(values: Any) -> list[float]:
    numbers = [float(value) for value in values if is_number(value) and 0 <= value <= MAX_WATTS]
    if len(numbers) != len(values):
        raise ValueError("a value is not a number, negative or too large")
    return numbers


def _kind_power(values: Mapping[str, Any]) -> KindPower:
    power = KindPower()
    power.off_watts.extend(_numbers(values["off_watts"]))
    for target, pairs in ((power.boots, values["boots"]), (power.shutdowns, values["shutdowns"])):
        for pair in pairs:
            seconds, watts = _numbers(pair)
            target.append((seconds, watts))
    return power
