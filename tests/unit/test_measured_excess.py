"""Tests of `MeasuredExcess`, which corrects a budget whose measured power is too high.

The measured power is too high if it exceeds the committed power, the maximum power that the limits in
force permit.
"""

from __future__ import annotations

import numpy as np
import pytest

from slurm_energy.budget.measured_excess import MeasuredExcess


def update(excess: MeasuredExcess, measured: float, now_s: float, committed: float = 1000.0) -> float:
    return float(excess.update(["site"], np.array([measured]), np.array([committed]), now_s)[0])


def test_measured_power_of_the_time_before_a_lowering_is_no_excess() -> None:
    excess = MeasuredExcess()
    assert [update(excess, watts, second) for second, watts in enumerate([1500.0, 1500.0, 900.0])] == [
        0.0
    ] * 3


def test_the_lowest_excess_of_the_last_seconds_counts_and_falls_slowly() -> None:
    excess = MeasuredExcess()
    values = [update(excess, watts, second) for second, watts in enumerate([1300.0, 1200.0, 1250.0, 1250.0])]
    assert values == [0.0, 0.0, 0.0, pytest.approx(190.0)]
    assert update(excess, 900.0, 4.0) == pytest.approx(190.0, rel=0.02)
    assert update(excess, 900.0, 64.0) == pytest.approx(190.0 / np.e, rel=0.02)
    assert update(excess, 900.0, 600.0) == 0.0


def test_small_and_unknown_excesses_and_other_budgets_do_not_count() -> None:
    excess = MeasuredExcess()
    assert [update(excess, 1009.0, second) for second in range(5)] == [0.0] * 5
    assert [update(excess, np.nan, second) for second in range(5, 10)] == [0.0] * 5
    excess.update(["other"], np.array([5000.0]), np.array([1000.0]), 10.0)
    assert update(excess, 900.0, 11.0) == 0.0
