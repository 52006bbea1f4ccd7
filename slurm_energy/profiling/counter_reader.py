"""Reader of the energy of the whole node from its energy counters, if this process may read them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.driver import DeviceError, EnergyCounter
from slurm_energy.devices.sampling_interval import max_sampling_interval_s, min_wrap_s
from slurm_energy.profiling.energy_reader import EnergyReader, EnergyReading
from slurm_energy.quantities import counter_delta

_SAFE_FRACTION_OF_RANGE = 0.9


class CounterEnergyReader(EnergyReader):
    """Reader that adds up all counters of a component and continues the sums when counters wrap.

    A thread reads the counters often enough to detect every wrap. This includes wraps of hardware registers
    that the driver detects only when the counter is read. If a counter may have missed a wrap, was reset or
    could not be read, the energy of its component is None from then on.
    """

    name = "devices"

    def __init__(self, devices: NodeDevices) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}
        self._total_uj: dict[str, int] = {}
        self._lost: set[str] = set()
        self._done = threading.Event()
        interval_s = max_sampling_interval_s(devices.counters)
        self.read()
        if math.isfinite(interval_s):
            arguments = (interval_s,)
            threading.Thread(target=self._watch, args=arguments, daemon=True, name="senergy-wraps").start()

    def read(self) -> EnergyReading | None:
        """Return the joules that each component has used since this reader was created."""
        with self._lock:
            for counter in self._devices.counters:
                self._add(counter)
            return EnergyReading(self._joules(self._devices.counters))

    def close(self) -> None:
        """Stop the reader's thread and close the energy counters."""
        self._done.set()
        self._devices.close()

    def _add(self, counter: EnergyCounter) -> None:
        try:
            now, value = time.clock_gettime(time.CLOCK_BOOTTIME), counter.read()
        except DeviceError:
            self._lost.add(counter.key)
            return
        then, before = self._last.get(counter.key, (now, value))
        self._last[counter.key] = (now, value)
        if counter.range_uj is None:
            moved_uj = value - before
        else:
            moved_uj = counter_delta(before, value, counter.range_uj)
        if moved_uj < 0 or now - then > _SAFE_FRACTION_OF_RANGE * min_wrap_s((counter,)):
            self._lost.add(counter.key)
        self._total_uj[counter.key] = self._total_uj.get(counter.key, 0) + moved_uj

    def _joules(self, counters: Sequence[EnergyCounter]) -> dict[str, float | None]:
        joules: dict[str, float | None] = {}
        for counter in counters:
            so_far = joules.get(counter.component, 0.0)
            is_known = so_far is not None and counter.key not in self._lost
            joules[counter.component] = (
                so_far + self._total_uj[counter.key] / 1e6 if is_known and so_far is not None else None
            )
        return joules

    def _watch(self, interval_s: float) -> None:
        while not self._done.wait(interval_s):
            self.read()


def open_counter_reader(root: Path = Path("/")) -> CounterEnergyReader | None:
    """Return a reader of the node's energy counters; None if this process may read none of them.

    Args:
        root: directory that contains /sys and /proc.
    """
    devices = discover(root)
    for counter in devices.counters:
        try:
            counter.read()
        except DeviceError:
            continue
        return CounterEnergyReader(devices)
    devices.close()
    return None
