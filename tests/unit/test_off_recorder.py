"""Tests of the recorder of nodes that are powered off.

The recorder records for how long a node was off and how much energy it used in this time. The energy
reports include this energy.
"""

from __future__ import annotations

import itertools

from slurm_energy.accounting.records.off_periods import OffPeriod
from slurm_energy.controller.power_saving.off_recorder import PERIOD_S, OffRecorder


def test_period_has_the_mean_of_the_readings() -> None:
    recorder = OffRecorder()
    for second in range(10):
        assert recorder.update({"n1": 8.0 + second % 2, "n2": None}, 1000.25 + second) == []
    assert recorder.update({}, 1010.75) == [
        OffPeriod("n1", 1001, 1010, 76_500_000),
        OffPeriod("n2", 1001, 1010, None),
    ]
    assert recorder.update({}, 1100.0) == []


def test_long_periods_are_stored_in_pieces_without_gap() -> None:
    recorder, pieces = OffRecorder(), []
    for tick in range(4 * int(PERIOD_S)):
        pieces += recorder.update({"n1": 10.0}, 5000.5 + tick)
    assert len(pieces) >= 3
    assert all(first.end == second.start for first, second in itertools.pairwise(pieces))
    assert all(piece.energy_uj == 10_000_000 * (piece.end - piece.start) for piece in pieces)


def test_energy_is_unknown_with_few_readings_and_after_a_step_of_the_clock() -> None:
    recorder = OffRecorder()
    recorder.update({"n1": None}, 1000.0)
    recorder.update({"n1": 9.0}, 1090.0)
    assert recorder.update({}, 1100.0) == [OffPeriod("n1", 1000, 1100, None)]
    recorder.update({"n1": 9.0}, 2000.0)
    assert recorder.update({"n1": 9.0}, 1500.0) == []
    assert recorder.update({}, 1600.0) == [OffPeriod("n1", 1500, 1600, 900_000_000)]
