"""Meter of the time and energy that a rank uses while its training loop runs."""

from __future__ import annotations

import time

from slurm_energy.profiling.energy_reader import EnergyReader, EnergyReading
from slurm_energy.profiling.section import energy_between, total_joules


class RankMeter:
    """Meter of the time and energy that one rank of a job uses.

    The meter adds up only the time and energy between a call of `resume` and the next call of `pause`. The
    energy of a rank is the job's energy on this node, divided by the number of the job's ranks on this node.

    Args:
        reader: source of the energy; None if no energy is needed.
        ranks_on_node: ranks of the job on this node.
    """

    def __init__(self, reader: EnergyReader | None, ranks_on_node: int) -> None:
        self._reader, self._ranks_on_node = reader, ranks_on_node
        self._start_s: float | None = None
        self._start: EnergyReading | None = None
        self._seconds = 0.0
        self._joules: float | None = 0.0

    def resume(self) -> None:
        """Start to measure, unless the meter already measures."""
        if self._start_s is None:
            self._start_s, self._start = time.perf_counter(), self._read()

    def pause(self) -> None:
        """Stop the measurement until the next `resume`.

        The time and the energy since the last `resume` are added to the sums.
        """
        if self._start_s is None:
            return
        reading, now_s = self._read(), time.perf_counter()
        self._seconds += now_s - self._start_s
        joules = None
        if reading is not None and self._start is not None:
            joules = total_joules(energy_between(self._start, reading))
        known = joules is not None and self._joules is not None
        self._joules = self._joules + joules / self._ranks_on_node if known else None  # type: ignore[operator]
        self._start_s = self._start = None

    def take(self) -> tuple[float, float | None]:
        """Return the time and the energy that a rank used since the last call.

        The result is (seconds, joules). Both counts restart at 0. The joules are None if unknown.
        """
        is_running = self._start_s is not None
        self.pause()
        result = self._seconds, self._joules
        self._seconds, self._joules = 0.0, 0.0
        if is_running:
            self.resume()
        return result

    def _read(self) -> EnergyReading | None:
        return self._reader.read() if self._reader is not None else None
