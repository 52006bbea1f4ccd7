"""The idle power of a node's components.

The idle power of a component is configured, or it is learned while no job uses the component. The
idle energy of a component grows linearly with time (thesis, Eq. 3.2 to 3.4). One power value per
component therefore describes the idle energy. This module reads no hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WINDOW_S = 10.0
_SLACK_S = 0.1  # of a timer that fires slightly early
QUIET_BUSY_SHARE = 0.02
"""The node counts as idle up to this share of its CPU time. System daemons need some CPU time."""
_MAX_TIMING_UNCERTAINTY = 0.01
"""Maximum timing uncertainty of a window, as a fraction of its length.

Without this limit, a window whose true length is shorter than recorded would have the lowest mean."""


@dataclass(slots=True)
class _Window:
    start_uncertainty_s: float
    length_s: float = 0.0
    joules: float = 0.0


@dataclass(slots=True)
class IdlePower:
    """The idle power of each component of a node.

    It is a configured value, or the lowest mean power over an idle window. An idle window is a time in which
    no job uses the component.

    Attributes:
        configured_watts: watts from the configuration, which are never replaced. The entry `gpu` applies to
            each GPU without its own entry.
        learned_watts: lowest mean power over an idle window so far, in watts by component.
    """

    configured_watts: Mapping[str, float] = field(default_factory=dict)
    learned_watts: dict[str, float] = field(default_factory=dict)
    _windows: dict[str, _Window] = field(default_factory=dict)
    _timing_uncertainty_s: tuple[float, float] = (0.0, 0.0)

    def set_read_duration(self, read_duration_s: float) -> None:
        """Set how many seconds it takes to read the counters at the end of an interval.

        The value holds for all following intervals.

        Call this method before `observe`.
        """
        self._timing_uncertainty_s = (self._timing_uncertainty_s[1], read_duration_s / 2)

    def observe(self, length_s: float, energy_uj: Mapping[str, int], quiet: Iterable[str]) -> None:
        """Add an interval to the idle windows, from which idle power is learned.

        Args:
            length_s: length of the interval in seconds.
            energy_uj: microjoules by component.
            quiet: components that no job used in the interval. `cpu`, `dram` and `other` are listed if the
                CPUs were busy for at most QUIET_BUSY_SHARE of the interval. A GPU is listed if it was
                allocated to no job.
        """
        idle_components = set(quiet)
        if not (idle_components or self._windows):
            return
        for name, energy in energy_uj.items():
            if (
                name not in idle_components or energy <= 0
            ):  # an idle component draws power: 0 is a stuck counter
                self._windows.pop(name, None)
                continue
            window = self._windows.setdefault(name, _Window(self._timing_uncertainty_s[0]))
            window.length_s += length_s
            window.joules += energy / 1e6
            timing_uncertainty_s = window.start_uncertainty_s + self._timing_uncertainty_s[1]
            if window.length_s >= max(WINDOW_S - _SLACK_S, timing_uncertainty_s / _MAX_TIMING_UNCERTAINTY):
                watts = window.joules / window.length_s
                self.learned_watts[name] = min(watts, self.learned_watts.get(name, watts))
                del self._windows[name]

    def watts(self, component: str) -> float | None:
        """Return the idle power of a component in watts; None if unknown."""
        group = component.partition("[")[0]
        given = self.configured_watts.get(component, self.configured_watts.get(group))
        return given if given is not None else self.learned_watts.get(component)

    def static_uj(self, length_s: float, energy_uj: Mapping[str, int]) -> dict[str, int]:
        """Return the static energy of an interval: the energy that each component would have used when idle.

        The result is in microjoules by component and never exceeds the measured energy. Components with
        unknown idle power are absent.

        Args:
            length_s: length of the interval in seconds.
            energy_uj: measured microjoules by component.
        """
        return {
            name: min(energy, round(watts * length_s * 1e6))
            for name, energy in energy_uj.items()
            if (watts := self.watts(name)) is not None
        }

    def dump(self) -> dict[str, float]:
        """Return the learned idle power in watts by component, as a dict that JSON can hold."""
        return dict(self.learned_watts)
