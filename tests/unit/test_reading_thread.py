"""Tests of a thread that reads a value periodically while a `with` block runs.

Benchmarks and tests use this thread, for example to record the power of an emulated node.
"""

from __future__ import annotations

import itertools
import threading

import pytest

from slurm_energy_lab.reading_thread import ReadingThread


def test_readings_have_times_of_the_clock() -> None:
    values, times, enough = itertools.count(), itertools.count(100), threading.Event()

    def read() -> int:
        value = next(values)
        if value == 5:
            enough.set()
        return value

    with ReadingThread(read, 0.001, lambda: float(next(times))) as thread:
        assert enough.wait(60.0)
    assert thread.values[:6] == [0, 1, 2, 3, 4, 5]
    assert thread.readings[:2] == [(100.0, 0), (101.0, 1)]
    assert next(values) == len(thread.readings)


def test_an_error_of_a_reading_is_raised_at_the_end_of_the_block() -> None:
    failed = threading.Event()

    def read() -> float:
        failed.set()
        raise OSError("the emulator does not respond")

    with pytest.raises(OSError, match="emulator"), ReadingThread(read, 0.001):
        assert failed.wait(60.0)


def test_an_error_of_the_block_is_not_replaced() -> None:
    failed = threading.Event()

    def read() -> float:
        failed.set()
        raise OSError("the emulator does not respond")

    with pytest.raises(ValueError, match="block"), ReadingThread(read, 0.001):
        assert failed.wait(60.0)
        raise ValueError("block")
