"""One execution of a section of a program, with its energy.

Programs mark sections with `profiler.profile`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slurm_energy.profiling.energy_reader import EnergyReading


@dataclass(slots=True)
class Section:
    """One execution of a section of a program. The program marks the section to measure its energy.

    Attributes:
        path: names of the nested sections, from the outermost section to this section.
        start_unix: Unix time of the start in seconds.
        seconds: duration; None while the section runs.
        failed: name of the exception that ended the section; None if the section ended normally.
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
        """Name of this section, without the names of the enclosing sections."""
        return self.path[-1]

    @property
    def energy_joules(self) -> dict[str, float | None]:
        """Joules of the measured section of the program, by component.

        The value is None for a component whose energy is unknown. The dict is empty while the section runs,
        and if the energy of the whole section is unknown. Reading this property waits for the agent's
        responses.
        """
        self._settle()
        return self._joules

    @property
    def age_s(self) -> float | None:
        """Uncertainty of the time to which the section's energy belongs, in seconds.

        The energy is measured between two samples of the agent, near the start and near the end of the
        section. The value is the sum of both time differences. It is None if the section has not ended, or
        if its energy is unknown.
        """
        self._settle()
        return self._age_s

    @property
    def total_joules(self) -> float | None:
        """Joules of all components together; None if any component is unknown or there is no energy yet."""
        return total_joules(self.energy_joules)

    @property
    def mean_watts(self) -> float | None:
        """Mean power; None if the energy or the duration is unknown, or the duration is 0."""
        joules = self.total_joules
        return joules / self.seconds if joules is not None and self.seconds else None

    def _settle(self) -> None:
        """Compute the energy of an ended section from the agent's responses at its start and its end.

        If two threads call the method at the same time, both compute the same energy.
        """
        if self._end is None:
            return
        begin, end = self._begin() if self._begin is not None else None, self._end()
        if begin is not None and end is not None:
            self._joules, self._age_s = energy_between(begin, end), begin.age_s + end.age_s
        self._end = None


def total_joules(joules: Mapping[str, float | None]) -> float | None:
    """Return the energy of all components together; None if any component is unknown.

    If there is a component `node`, its value is returned, because it includes all other components.

    Args:
        joules: joules by component; None for an unknown component.
    """
    if "node" in joules:
        return joules["node"]
    known_values = [value for value in joules.values() if value is not None]
    return math.fsum(known_values) if known_values and len(known_values) == len(joules) else None


def energy_between(begin: EnergyReading, end: EnergyReading) -> dict[str, float | None]:
    """Return the joules by component between two readings.

    The value of a component is None if its energy is unknown in one of the readings.
    """
    joules: dict[str, float | None] = {}
    for name, after in end.joules.items():
        before = begin.joules.get(name)
        is_known = before is not None and after is not None and after >= before
        joules[name] = after - before if is_known else None  # type: ignore[operator]
    return joules
