"""One run of a section of a program, and its energy. Programs mark sections through `profiler`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slurm_energy.profiling.energy_reader import EnergyReading


@dataclass(slots=True)
class Section:
    """One run of a section.

    Attributes:
        path: names from the outermost section to this one.
        start_unix: Unix time of its begin in seconds.
        seconds: duration; None while it runs.
        failed: name of the exception that ended it; None if it ended normally.
    """

    path: tuple[str, ...]
    start_unix: float
    seconds: float | None = None
    failed: str | None = None
    _owner: int = 0
    _pid: int = 0
    _begin: Callable[[], EnergyReading | None] | None = None
    _end: Callable[[], EnergyReading | None] | None = None
    _begin_s: float = 0.0
    _joules: dict[str, float | None] = field(default_factory=dict)
    _age_s: float | None = None

    @property
    def name(self) -> str:
        """Name of the section itself, without the enclosing sections."""
        return self.path[-1]

    @property
    def energy_joules(self) -> dict[str, float | None]:
        """Joules by component; empty before the section has ended, None for an unknown component.

        The property waits for the agent's responses.
        """
        self._settle()
        return self._joules

    @property
    def age_s(self) -> float | None:
        """Seconds by which the agent's samples missed the two ends of the section, added up.

        The joules belong to a window that is shifted by at most this much.
        """
        self._settle()
        return self._age_s

    @property
    def total_joules(self) -> float | None:
        """Joules of all components together; None if any component is unknown or there is none."""
        return total_joules(self.energy_joules)

    @property
    def mean_watts(self) -> float | None:
        """Mean power; None if the energy is unknown or no time passed."""
        joules = self.total_joules
        return joules / self.seconds if joules is not None and self.seconds else None

    def _settle(self) -> None:
        """Read the responses for both ends; two threads that do so at once compute the same result."""
        if self._end is None:
            return
        begin, end = self._begin() if self._begin is not None else None, self._end()
        if begin is not None and end is not None:
            self._joules, self._age_s = _energy_between(begin, end), begin.age_s + end.age_s
        self._end = None


def total_joules(joules: Mapping[str, float | None]) -> float | None:
    """Return the sum of all components, or the value of `node`, which includes them; None if unknown."""
    if "node" in joules:
        return joules["node"]
    known_values = [value for value in joules.values() if value is not None]
    return math.fsum(known_values) if known_values and len(known_values) == len(joules) else None


def _energy_between(begin: EnergyReading, end: EnergyReading) -> dict[str, float | None]:
    joules: dict[str, float | None] = {}
    for name, after in end.joules.items():
        before = begin.joules.get(name)
        is_known = before is not None and after is not None and after >= before
        joules[name] = after - before if is_known else None  # type: ignore[operator]
    return joules
