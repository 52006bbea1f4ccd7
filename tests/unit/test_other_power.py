"""Tests of the estimated power of those parts of a node that have no power limit.

The power of these parts grows with the power of the node's devices.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.controller.budgets.other_power import MAX_SLOPE, UNKNOWN_SLOPE, OtherPower

WINDOW = 31


def learned(base_watts: float, slope: float, loads: list[float], noise: float = 0.0) -> OtherPower:
    """Return a model of a node's other power after it has learned from simulated readings.

    The other power is the power of all parts except the devices. In the readings, it is `base_watts` plus
    `slope` times the power of the devices.
    """
    other, numbers, now_s = OtherPower(), random.Random(1), 0.0
    for load in loads:
        for _ in range(WINDOW):
            now_s += 1.0
            other.add(load, base_watts + slope * load + noise * numbers.uniform(-1.0, 1.0), now_s)
    return other


def test_an_idle_node_counts_its_other_parts_at_the_devices_ceilings() -> None:
    other = learned(200.0, 0.08, [300.0])
    assert other.watts_at(300.0) == pytest.approx(224.0)
    assert other.watts_at(2300.0) == pytest.approx(224.0 + 2000.0 * UNKNOWN_SLOPE, rel=0.01)


def test_the_slope_is_learned_from_readings_at_different_loads() -> None:
    other = learned(200.0, 0.05, [300.0, 1500.0], noise=5.0)
    assert other.slope == pytest.approx(0.05, abs=0.005)
    assert other.watts_at(2500.0) == pytest.approx(200.0 + 0.05 * 2500.0, rel=0.05)


def test_readings_while_the_load_changes_are_not_learned_from() -> None:
    """The power of the other parts of a node is estimated correctly while the load changes.

    The sensor of the whole node lags behind the sensors of the devices. Readings soon after a change of the
    load are therefore not used.
    """
    other, before = OtherPower(), 300.0
    for second in range(600):
        load = 300.0 if second // 20 % 2 else 1500.0
        other.add(load, max(0.0, 200.0 + 1.05 * before - load), float(second))
        before = load
    assert other.slope == pytest.approx(0.05, abs=0.005)


def test_a_power_without_readings_of_the_node_does_not_grow() -> None:
    other = OtherPower()
    assert other.watts_at(5000.0) == 0.0
    other.update(90.0, 1.0)
    assert other.watts_at(5000.0) == 90.0


@given(
    st.floats(0.0, 0.12),
    st.lists(st.floats(100.0, 5000.0), min_size=1, max_size=4),
    st.floats(1.0, 2.0),
)
@examples(50)
def test_a_higher_load_is_covered_before_it_is_measured(
    slope: float, loads: list[float], factor: float
) -> None:
    """The estimated power at a load above all measured loads is not below the true power.

    The load is the power of the devices. The estimate concerns the power of the node's other parts, which
    have no power limit. Their true power grows linearly with the load. The slope of this growth is at
    most `MAX_SLOPE` in the test.
    """
    other = learned(300.0, slope, sorted(loads))
    load = max(loads) * factor
    assert 0.0 <= other.slope <= MAX_SLOPE
    assert other.watts_at(load) >= 300.0 + slope * load - 1e-6 * load


def test_a_lower_load_counts_half_of_the_slope_less() -> None:
    other = learned(200.0, 0.08, [300.0, 1500.0, 2300.0])
    highest = 200.0 + 0.08 * 2300.0
    assert other.watts_at(2300.0) == pytest.approx(highest, rel=0.01)
    assert other.watts_at(1300.0) == pytest.approx(highest - 0.5 * 80.0, rel=0.02)
