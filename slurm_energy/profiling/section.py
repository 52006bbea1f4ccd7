"""One run of a section and its joules. How a program marks sections is told in `sections`."""

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
        start_unix: Unix seconds of its begin.
        seconds: its length; None while it runs.
        failed: name of the exception that ended it; None if none did.
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
        """Its own name."""
        return self.path[-1]

    @property
    def energy_joules(self) -> dict[str, float | None]:
        """Joules by component once it is over (None: not known), empty before. Waits for the answer."""
        self._settle()
        return self._joules

    @property
    def age_s(self) -> float | None:
        """How far the agent's samples at both ends were from the ends, together.

        Its joules belong to a window that is off by at most that.
        """
        self._settle()
        return self._age_s

    @property
    def total_joules(self) -> float | None:
        """All components together; None if nothing or not everything is known."""
        return total_joules(self.energy_joules)

    @property
    def mean_watts(self) -> float | None:
        """Mean power; None if the energy is not known or no time passed."""
        joules = self.total_joules
        return joules / self.seconds if joules is not None and self.seconds else None

    def _settle(self) -> None:
        """Collect the answers of both ends; two threads at once find the same."""
        if self._end is None:
            return
        begin, end = self._begin() if self._begin is not None else None, self._end()
        if begin is not None and end is not None:
            self._joules, self._age_s = _moved(begin, end), begin.age_s + end.age_s
        self._end = None


def total_joules(joules: Mapping[str, float | None]) -> float | None:
    """Return the sum of components; a meter of the whole node, where there is one, includes them."""
    if "node" in joules:
        return joules["node"]
    known = [value for value in joules.values() if value is not None]
    return math.fsum(known) if known and len(known) == len(joules) else None


def _moved(begin: EnergyReading, end: EnergyReading) -> dict[str, float | None]:
    joules: dict[str, float | None] = {}
    for name, after in end.joules.items():
        before = begin.joules.get(name)
        known = before is not None and after is not None and after >= before
        joules[name] = after - before if known else None  # type: ignore[operator]
    return joules
