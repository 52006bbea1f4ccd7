"""The current power of a node by component.

The power is computed from the sample intervals, and does not depend on jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_energy.agent.metering.attribution import OTHER
from slurm_energy.agent.metering.counter_delta import CounterDelta
from slurm_energy.agent.metering.sampler import SampleInterval
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import EnergyCounter

MIN_WINDOW_S = 0.5
"""A shorter window would show the update steps of the counters instead of power."""
MAX_WINDOW_S = 60.0
"""The mean of a longer interval is not the current power."""
_HELD_WINDOWS = 2.0
"""A counter without a reading for more than this many of its windows has unknown power."""
NODE = "node"


@dataclass(slots=True)
class _Window:
    """Power from one energy counter, averaged over windows of at least MIN_WINDOW_S.

    Attributes:
        watts: mean power of the last complete window; None if unknown.
        end, length_s: time of the end of that window, in seconds since boot, and its length in seconds.
        open_from: time, in seconds since boot, at which the current, incomplete window started; None if the
            window has no energy yet.
        energy_uj: microjoules of the incomplete window.
    """

    watts: float | None = None
    end: float = float("-inf")
    length_s: float = 0.0
    open_from: float | None = None
    energy_uj: int = 0

    def add(self, delta: CounterDelta | None, end: float, unknown: bool) -> None:
        if delta is None:
            if unknown or end - self.end > _HELD_WINDOWS * self.length_s:
                self._clear()
            return
        if not delta.certain:
            self._clear()
            return
        if self.open_from is None:
            self.open_from = delta.start
        self.energy_uj += delta.energy_uj
        length_s = end - self.open_from
        if length_s >= MIN_WINDOW_S:
            self.watts = self.energy_uj / 1e6 / length_s if length_s <= MAX_WINDOW_S else None
            self.end, self.length_s = end, length_s
            self.open_from, self.energy_uj = None, 0

    def _clear(self) -> None:
        self.watts, self.open_from, self.energy_uj = None, None, 0


class LivePower:
    """The current power of a node in watts by component.

    With a node meter there are two further components: `node` is the power of the whole node, `other` is the
    difference between `node` and the measured components.
    """

    def __init__(self, devices: NodeDevices) -> None:
        self._counters = devices.counters
        self._node_counters = devices.node_counters
        self._adds = devices.selection.added_parts
        self._packages = len(devices.hardware.packages)
        self._windows = {c.key: _Window() for c in (*self._counters, *self._node_counters)}

    @property
    def window_s(self) -> float | None:
        """Longest time in seconds over which the power from a counter is averaged at present.

        None before the first measurement window.
        """
        return max((w.length_s for w in self._windows.values() if w.length_s > 0), default=None)

    def add(self, interval: SampleInterval) -> None:
        """Add the counter deltas of a sample interval."""
        for key, window in self._windows.items():
            window.add(interval.deltas.get(key), interval.end, key in interval.unknown)

    def watts(self, now: float) -> Mapping[str, float | None]:
        """Return the current power in watts by component; None stands for unknown power.

        Args:
            now: time in seconds since boot. The power from a counter is unknown if the last time window in
                which it was measured ended more than MAX_WINDOW_S ago.
        """
        power: dict[str, float | None] = {}
        for name in dict.fromkeys(counter.component for counter in self._counters):
            power[name] = self._sum((c for c in self._counters if c.component == name), now)
        if self._node_counters:
            self._put_node(power, self._sum(self._node_counters, now))
        return power

    def device_watts(self, device: str, component: str, now: float) -> float | None:
        """Return the current watts of one package or GPU; None if unknown.

        If no counter measures a package alone, the power of all packages is divided evenly.

        Args:
            device: `package-N`, `socketN` or `gpuN`.
            component: component that contains the device: `cpu` or `gpu[N]`.
            now: time in seconds since boot.
        """
        counters = [counter for counter in self._counters if counter.component == component]
        own = [counter for counter in counters if counter.key.rpartition(":")[2] == device]
        if own or component != "cpu":
            return self._sum(own or counters, now) if own or counters else None
        total = self._sum(counters, now) if counters else None
        return None if total is None else total / max(1, self._packages)

    def _put_node(self, power: dict[str, float | None], meter_watts: float | None) -> None:
        adds = [watts for name, watts in power.items() if name.partition("[")[0] in self._adds]
        inside = [watts for name, watts in power.items() if name.partition("[")[0] not in self._adds]
        if meter_watts is None or None in power.values():
            power[OTHER] = power[NODE] = None
            return
        parts_watts = sum(watts or 0.0 for watts in inside)
        power[OTHER] = max(0.0, meter_watts - parts_watts)
        power[NODE] = max(meter_watts, parts_watts) + sum(watts or 0.0 for watts in adds)

    def _sum(self, counters: Iterable[EnergyCounter], now: float) -> float | None:
        total = 0.0
        for counter in counters:
            window = self._windows[counter.key]
            if window.watts is None or now - window.end > MAX_WINDOW_S:
                return None
            total += window.watts
        return total
