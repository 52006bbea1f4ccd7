"""The training model gives the results that were computed by hand from each of its equations.

The equations are Eq. 4.4 to 4.18 of the thesis.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy", reason="the model needs numpy")

from slurm_energy.oracle.calibration.fit_problem import combined, mape  # noqa: E402
from slurm_energy.oracle.training.demand import StepDemand  # noqa: E402
from slurm_energy.oracle.training.parameters import Scalars, Theta  # noqa: E402
from slurm_energy.oracle.training.power import (  # noqa: E402
    clock_under,
    mean_watts,
    phase_watts,
    step_watts,
    utilisation,
    voltage_square,
    working_watts,
)
from slurm_energy.oracle.training.saturation import SATURATIONS, sigmoid  # noqa: E402
from slurm_energy.oracle.training.timing import (  # noqa: E402
    DeviceParameters,
    StepTimes,
    all_reduce_s,
    efficiency,
    memory_s,
    miss_share,
    operation_s,
    overlapped_s,
    saturation_product,
    step_s,
    step_times,
)
from slurm_energy.oracle.workload import OPTIMIZERS  # noqa: E402
from slurm_energy.oracle.workload.operation_cost import OperationCost, Tally  # noqa: E402

THESIS = Theta(overlap=1.0, overlap_host=0.0)
PLAIN = Scalars(sample_s=0.0)
TIMES = StepTimes(
    gemm_s=0.03, conv_s=0.01, alu_s=0.01, memory_s=0.04, optimizer_s=0.005, link_s=0.002, launch_s=0.003,
    supply_s=0.001,
)  # fmt: skip


def test_4_4_and_4_5_traffic_of_adamw_in_mixed_precision() -> None:
    adamw = OPTIMIZERS["adamw"]
    # per weight: reads 4 (weight) + 2 (BF16 gradient) + 2 x 4 (moments), writes 4 + 2 x 4
    assert adamw.read_bytes(1000, "bf16") == 14_000
    assert adamw.read_bytes(1000, "fp32") == 16_000
    assert adamw.write_bytes(1000) == 12_000
    assert adamw.total_flops(1000) == 18_000


def test_4_6_mean_dimension_is_weighted_by_operations() -> None:
    tally = Tally()
    tally.add(OperationCost(unit="gemm", forward_flops=300.0, dims=(10.0, 4.0, 2.0)))
    tally.add(OperationCost(unit="gemm", forward_flops=100.0, dims=(50.0, 8.0, 6.0)))
    tally.add(OperationCost(forward_flops=1e9))
    assert [tally.mean_dim("gemm", axis) for axis in ("m", "n", "k")] == [20.0, 5.0, 3.0]
    assert tally.mean_dim("conv", "pixels") == 0.0


def test_4_7_step_is_longer_of_compute_and_memory_plus_the_rest() -> None:
    # max(0.05, 0.04) + 0.005 + 0.002 + 0.003 + 0.001
    assert step_s(TIMES, THESIS) == pytest.approx(0.061)


def test_4_7_accumulation_repeats_the_pass_only() -> None:
    work = StepDemand(
        2e9, 0.0, 0.0, 1.0, 10.0, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 0.0, 1e6, 0.0, 0.0, 0.0, 8.0
    )
    device = DeviceParameters(1e12, 1e12, 1e9, 1.0, 1e9, 100.0)
    theta = dataclasses.replace(THESIS, beta_gemm=1.0, kernel_s=1e-3, fixed_s=0.0, time_optimizer=1.0)
    once, four = (
        step_times(work, device, theta, PLAIN, lambda x: 1.0, accumulation=times) for times in (1.0, 4.0)
    )
    assert (once.gemm_s, four.gemm_s) == pytest.approx((2e-3, 8e-3))
    assert once.optimizer_s == four.optimizer_s == pytest.approx(1e-3)
    assert step_s(four, theta) == pytest.approx(8e-3 + 1e-3 + 40 * 1e-3)


def test_4_8_ring_all_reduce() -> None:
    # 2 x 3 hops of 1 us, 2 x 3/4 x 1 GB at 100 GB/s
    assert all_reduce_s(4.0, 1e-6, 1e9, 100e9) == pytest.approx(6e-6 + 0.015)
    assert all_reduce_s(1.0, 1e-6, 1e9, 100e9) == 0.0


def test_4_9_operations_over_reached_peak() -> None:
    assert operation_s(1e12, 100e12, 0.5, 1.2) == pytest.approx(0.024)


def test_4_10_efficiency_is_base_times_saturation_times_scalars() -> None:
    assert efficiency(0.8, 0.5) == pytest.approx(0.4)
    assert efficiency(0.8, 0.5, 0.5, 0.9) == pytest.approx(0.18)


def test_4_11_saturation_is_a_product_over_dimensions() -> None:
    halves = saturation_product((10.0, 30.0), (10.0, 10.0), lambda x: x / (1 + x))
    assert halves == pytest.approx(0.5 * 0.75)


def test_4_12_sigmoid() -> None:
    assert sigmoid(0.0) == 0.5
    assert sigmoid(math.log(3)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("name", "value"),
    [("arctan", 0.5), ("softsign", 0.5), ("algebraic", 1 / math.sqrt(2)), ("tanh", 0.761594156)],
)
def test_other_saturations_at_one(name: str, value: float) -> None:
    assert SATURATIONS[name](1.0) == pytest.approx(value)


@given(st.sampled_from(sorted(SATURATIONS)), st.floats(0, 1e4), st.floats(0, 1e4))
def test_saturations_rise_towards_one(name: str, first: float, second: float) -> None:
    low, high = sorted((first, second))
    function = SATURATIONS[name]
    assert 0.0 <= function(low) <= function(high) <= 1.0


def test_4_13_memory_time_and_misses() -> None:
    assert miss_share(20e6, 40e6, 0.3) == 0.5
    assert miss_share(4e6, 40e6, 0.3) == 0.3
    assert miss_share(80e6, 40e6, 0.3) == 1.0
    assert memory_s(1.555e12, 1555e9, 0.5, 1.1) == pytest.approx(0.55)


def test_4_14_power_of_a_phase() -> None:
    assert phase_watts(60.0, 400.0, 0.5, 1.0) == 230.0
    assert phase_watts(60.0, 400.0, 0.5, 1.2) == pytest.approx(264.0)


def test_4_15_mean_over_phases() -> None:
    assert mean_watts(((300.0, 0.08), (100.0, 0.02)), 0.1) == pytest.approx(260.0)


def test_4_16_and_4_17_mean_absolute_percentage_error() -> None:
    measured = np.array([10.0, 20.0, np.nan])
    assert mape(np.array([11.0, 18.0, 5.0]), measured) == pytest.approx(0.1)
    assert mape(np.array([[11.0, 20.0, 1.0], [10.0, 30.0, 1.0]]), measured) == pytest.approx([0.05, 0.25])


def test_4_18_time_counts_more() -> None:
    assert combined(np.array(0.10), np.array(0.05)) == pytest.approx(0.08)


def test_step_watts_by_hand() -> None:
    theta = dataclasses.replace(
        THESIS, static_share=0.25, power_scale=1.0, power_gemm=1.0, power_conv=0.5, power_alu=0.5,
        power_memory=0.5, power_link=0.1, power_wait=0.2,
    )  # fmt: skip
    # working 0.055 s: U = (0.03 + 0.005 + 0.005 + 0.5 x 0.045) / 0.055; link 0.002 s; launches 3/4 of wait
    used = 0.0625 / 0.055
    assert utilisation(TIMES, theta, PLAIN) == pytest.approx(used)
    working = 100 + used * 300
    assert working_watts(TIMES, theta, PLAIN, 400.0) == pytest.approx(working)
    mean = (working * 0.055 + 130 * 0.002 + (100 + 0.2 * 0.75 * 300) * 0.004) / 0.061
    assert mean > 400.0
    assert step_watts(TIMES, theta, PLAIN, 400.0) == 400.0  # never above the design power
    cooler = dataclasses.replace(theta, power_scale=0.5)
    mean = ((100 + used * 150) * 0.055 + 130 * 0.002 + 145 * 0.004) / 0.061
    assert step_watts(TIMES, cooler, PLAIN, 400.0) == pytest.approx(mean)


def test_voltage_is_flat_below_the_knee() -> None:
    theta = Theta(voltage_floor=0.6, voltage_knee=0.5)
    assert [voltage_square(clock, theta) for clock in (0.2, 0.5, 0.75, 1.0)] == pytest.approx(
        [0.36, 0.36, 0.64, 1.0]
    )


def test_compute_slows_with_the_clock_and_memory_below_a_knee() -> None:
    theta = dataclasses.replace(THESIS, memory_knee=0.5)
    bound_by_memory = dataclasses.replace(TIMES, memory_s=0.2)
    assert step_s(bound_by_memory, theta, 0.5) == step_s(bound_by_memory, theta, 1.0)
    assert step_s(TIMES, theta, 0.5) == pytest.approx(0.1 + 0.011)


def test_activities_may_overlap_in_part() -> None:
    assert [float(overlapped_s(3.0, 2.0, share)) for share in (0.0, 0.5, 1.0)] == [5.0, 4.0, 3.0]


@given(
    st.floats(90, 400),
    st.floats(90, 400),
    st.floats(0.001, 1.0),
    st.floats(0.001, 1.0),
    st.floats(0.0, 2.0),
)
def test_a_lower_limit_never_speeds_up_and_never_draws_more(
    first: float, second: float, compute: float, memory: float, weight: float
) -> None:
    low, high = sorted((first, second))
    times = dataclasses.replace(TIMES, gemm_s=compute, memory_s=memory)
    theta = Theta(power_gemm=weight)
    clocks = clock_under(times, theta, PLAIN, 400.0, np.array([low, high]))
    assert theta.clock_floor <= clocks[0] <= clocks[1] <= 1.0
    seconds: Any = step_s(times, theta, clocks)
    watts: Any = step_watts(times, theta, PLAIN, 400.0, clocks)
    assert seconds[0] >= seconds[1] * (1 - 1e-9)
    assert watts[0] <= watts[1] * (1 + 1e-6)


@given(st.floats(120, 400), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_the_clock_under_a_limit_exhausts_it(cap: float, compute: float, memory: float) -> None:
    times = dataclasses.replace(TIMES, gemm_s=compute, memory_s=memory)
    theta = Theta(power_gemm=1.5)
    clock = clock_under(times, theta, PLAIN, 400.0, np.array([cap]))
    watts = working_watts(times, theta, PLAIN, 400.0, clock)[0]
    if clock[0] < 1.0 and clock[0] > theta.clock_floor:
        assert watts == pytest.approx(cap, rel=2e-3)
    elif clock[0] == 1.0:
        assert watts <= cap * (1 + 1e-9)


def test_a_clock_limit_holds_without_a_power_limit() -> None:
    assert clock_under(TIMES, Theta(), PLAIN, 400.0, np.array([np.inf]), 0.6)[0] == 0.6
