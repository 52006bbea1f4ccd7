"""Tests of the lowest power limits that devices really keep.

The controller learns these limits from the reports of nodes about measured power.
"""

from __future__ import annotations

import pytest

from slurm_energy.budget.messages import DeviceReport, NodePoll
from slurm_energy.budget.node_trust import NodeTrust
from slurm_energy.budget.reachable_limits import ReachableLimits


def poll(watts: float | None, ceiling_watts: float | None = 40.0, minimum: float | None = 40.0) -> NodePoll:
    maximum = None if minimum is None else 140.0
    device = DeviceReport("package-0", "cpu", minimum, maximum, ceiling_watts, watts, (1,), ceiling_watts)
    return NodePoll("n1", "boot", 1, (device,), None, None)


def minima(watts: list[float | None], **values: float | None) -> list[float | None]:
    limits = ReachableLimits()
    polls = [limits.apply(poll(value, **values), float(second)) for second, value in enumerate(watts)]
    return [item.devices[0].min_watts for item in polls]


def test_a_package_that_exceeds_its_lowest_limit_gets_its_power_as_minimum() -> None:
    assert minima([76.0] * 4 + [60.0, 80.0, 80.0, 80.0, 80.0]) == [40.0] * 3 + [76.0] * 5 + [80.0]


def test_a_small_excess_above_the_lowest_limit_is_left_to_lowering() -> None:
    assert minima([76.0] * 5, ceiling_watts=66.0) == [40.0] * 5
    assert minima([76.0] * 5, ceiling_watts=55.0) == [40.0] * 3 + [76.0] * 2


def test_a_package_may_draw_nearly_its_maximum_at_the_lowest_frequency() -> None:
    """A package may draw nearly its maximum power at the lowest frequency without losing its trust.

    The budget learns the measured power as the minimum power of the package. The node stays trusted, so it
    can still get a power budget.
    """
    limits, trust = ReachableLimits(), NodeTrust()
    for second in range(40):
        learned = limits.apply(poll(135.0), float(second))
        trust.observe(learned, float(second))
    assert learned.devices[0].min_watts == 135.0
    assert trust.reason is None


def test_the_averaging_window_of_a_limit_is_no_reason() -> None:
    assert minima([76.0, 76.0, 39.0, 76.0, 76.0]) == [40.0] * 5


def test_powers_that_are_faults_and_devices_without_limits_are_left_alone() -> None:
    assert minima([141.0] * 5) == [40.0] * 5
    assert minima([500.0] * 5) == [40.0] * 5
    assert minima([None] * 5) == [40.0] * 5
    assert minima([76.0] * 5, ceiling_watts=None) == [40.0] * 5
    assert minima([76.0] * 5, minimum=None) == [None] * 5


def test_minima_from_sensors_that_turn_out_faulty_are_forgotten() -> None:
    limits = ReachableLimits()
    for second in range(5):
        learned = limits.apply(poll(120.0), float(second))
    assert learned.devices[0].min_watts == 120.0
    assert limits.apply(poll(120.0), 6.0, is_trusted=False) == poll(120.0)
    assert limits.apply(poll(40.0), 7.0).devices[0].min_watts == 40.0


def gpu_minima(
    watts: float, ceiling_watts: float = 163.0, jobs: tuple[int, ...] = (1,)
) -> list[float | None]:
    limits = ReachableLimits()
    device = DeviceReport("gpu0", "g", 163.0, 585.0, ceiling_watts, watts, jobs, ceiling_watts)
    polls = [limits.apply(NodePoll("n1", "b", 1, (device,), None, None), float(s)) for s in range(5)]
    return [item.devices[0].min_watts for item in polls]


def test_a_busy_gpu_that_exceeds_its_lowest_limit_gets_its_power_as_minimum() -> None:
    assert gpu_minima(222.0) == [163.0] * 3 + [222.0] * 2


def test_a_lowest_limit_is_that_of_the_jobs_which_showed_it() -> None:
    limits = ReachableLimits()
    learned, start = [], []
    for second, (watts, jobs) in enumerate([(222.0, (1,))] * 4 + [(70.0, ())] * 2 + [(163.0, (2,))] * 4):
        device = DeviceReport("gpu0", "g", 163.0, 585.0, 163.0, watts, jobs, 163.0)
        shown = limits.apply(NodePoll("n1", "b", 1, (device,), None, None), float(second))
        learned.append(shown.devices[0].min_watts)
        start.append(limits.start_watts("gpu0"))
    assert learned == [163.0] * 3 + [222.0] + [163.0] * 6
    # An idle or starting GPU may draw 1.4 times its lowest limit, whatever its program will be.
    assert start == pytest.approx([1.4 * 163.0] * 3 + [0.0] + [1.4 * 163.0] * 5 + [0.0])


def test_an_idle_package_may_draw_what_earlier_jobs_drew_at_the_lowest_limit() -> None:
    limits = ReachableLimits()
    assert limits.start_watts("package-0") == 0.0
    for second in range(4):
        limits.apply(poll(76.0), float(second))
    idle = DeviceReport("package-0", "cpu", 40.0, 140.0, 40.0, 20.0, (), 40.0)
    limits.apply(NodePoll("n1", "boot", 1, (idle,), None, None), 5.0)
    assert limits.start_watts("package-0") == 76.0


def test_a_gpu_keeps_the_limits_of_its_driver_when_its_sensor_is_wrong_idle_or_lowered() -> None:
    assert set(gpu_minima(500.0)) == {163.0}
    assert set(gpu_minima(222.0, jobs=())) == {163.0}
    assert set(gpu_minima(222.0, ceiling_watts=168.0)) == {163.0}


def test_a_node_with_an_unreachable_limit_keeps_its_trust() -> None:
    limits, trust, blind = ReachableLimits(), NodeTrust(), NodeTrust()
    for second in range(40):
        trust.observe(limits.apply(poll(76.0), float(second)), float(second))
        blind.observe(poll(76.0), float(second))
    assert trust.reason is None
    assert blind.reason is not None
