"""Tests of reading energy counters whose drivers unwrap a register of the hardware only at each reading."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import EnergyCounter
from slurm_energy.profiling import counter_reader
from slurm_energy.profiling.counter_reader import CounterEnergyReader


class RegisterCounter(EnergyCounter):
    """Counter like that of an Intel GPU: it loses each wrap of a register that no reading notices."""

    key, component, source, range_uj, max_watts = "xe:gpu0", "gpu[0]", "test", None, 100.0
    unread_range_uj = 20_000_000

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> int:
        """Count the reading, and return 1 J for each one so far."""
        self.reads += 1
        return self.reads * 1_000_000


def reader_of(counter: EnergyCounter, root: Path) -> CounterEnergyReader:
    return CounterEnergyReader(dataclasses.replace(discover(root), counters=(counter,)))


def test_a_register_is_read_before_it_can_wrap(tmp_path: Path) -> None:
    counter = RegisterCounter()  # wraps after 0.2 s
    reader = reader_of(counter, tmp_path)
    deadline_s = time.monotonic() + 20
    while counter.reads < 4 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    reader.close()
    assert counter.reads >= 4


@pytest.mark.parametrize(("seconds", "joules"), [(100.0, 1.0), (190.0, None), (500.0, None)])
def test_energy_is_unknown_if_a_register_may_have_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, joules: float | None
) -> None:
    counter = RegisterCounter()
    counter.unread_range_uj = 20_000_000_000  # wraps after 200 s
    now = [1000.0]
    monkeypatch.setattr(counter_reader.time, "clock_gettime", lambda _: now[0])
    reader = reader_of(counter, tmp_path)
    now[0] += seconds
    reading = reader.read()
    reader.close()
    assert reading is not None and reading.joules == {"gpu[0]": joules}
