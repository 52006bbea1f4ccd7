"""Test the GPU of the lab's hardware model.

The tests check clocks, power limits, throttle reasons, the sharing of a GPU by two kernels, and the mean
power of the last second.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy_lab.model import KernelRequest, NodeModel, load_profile

PROFILE = load_profile("epyc-7513-a100")
GEMM = KernelRequest("gemm", "gpu", gpus=(0,), full_speed_s=100.0)
TRIAD = KernelRequest("triad", "gpu", gpus=(0,), full_speed_s=100.0)


def test_an_idle_gpu():
    state = NodeModel(PROFILE).gpu_state(0)
    assert (state.idle, state.utilisation, state.memory_utilisation) == (True, 0.0, 0.0)
    assert (state.graphics_clock_mhz, state.memory_clock_mhz) == (210, 1215)
    assert state.power_watts == state.power_average_watts == PROFILE.gpu.idle_watts
    assert not (state.throttle_power_cap or state.throttle_clocks_setting)


def test_only_the_gpus_of_the_kernel_work():
    model = NodeModel(PROFILE)
    model.submit(KernelRequest("triad", "gpu", gpus=(1, 3)), 0.0)
    model.advance(1.0)
    assert [model.gpu_state(i).utilisation for i in range(4)] == [0, 1, 0, 1]
    assert model.gpu_state(1).memory_utilisation == pytest.approx(1.0, abs=0.02)
    assert model.power_watts("gpu[0]") == PROFILE.gpu.idle_watts


def test_each_gpu_runs_the_whole_problem():
    model = NodeModel(PROFILE)
    one = model.submit(KernelRequest("triad", "gpu", size=1e9, gpus=(0,)), 0.0)
    two = model.submit(KernelRequest("triad", "gpu", size=1e9, gpus=(1, 2)), 0.0)
    model.advance(100.0)
    first, second = model.result(one), model.result(two)
    assert second.seconds == first.seconds
    assert (second.flops, second.bytes) == (2 * first.flops, 2 * first.bytes)


@examples(30)
@given(st.floats(100, 400), st.sampled_from(["gemm", "triad", "train", "dist"]))
def test_power_follows_the_limit_at_once_and_says_so(limit_watts, kernel):
    model = NodeModel(PROFILE)
    model.set_gpu(0, limit_watts)
    model.submit(KernelRequest(kernel, "gpu", gpus=(0,), full_speed_s=50.0), 0.0)
    state = model.gpu_state(0)
    assert state.power_watts <= limit_watts or state.graphics_clock_mhz == 210
    assert state.throttle_power_cap == (state.graphics_clock_mhz < 1410)
    assert state.limit_watts == limit_watts


def test_a_limit_below_the_lowest_clock_is_exceeded():
    """A GPU exceeds a power limit that it cannot keep even at its lowest clock.

    As in hardware, the clock cannot fall below the minimum.
    """
    profile = load_profile("epyc-7513-a100", {"gpu.min_limit_watts": 20})
    model = NodeModel(profile)
    model.set_gpu(0, 20.0)
    model.submit(GEMM, 0.0)
    assert model.gpu_state(0).graphics_clock_mhz == 210
    assert model.power_watts("gpu[0]") > 20


def test_locked_clocks_hold_the_clock_and_name_the_reason():
    model = NodeModel(PROFILE)
    model.set_gpu(0, 400.0, (600, 1005))
    assert model.gpu_state(0).graphics_clock_mhz == 600
    model.submit(GEMM, 0.0)
    state = model.gpu_state(0)
    assert state.graphics_clock_mhz == 1005
    assert (state.throttle_clocks_setting, state.throttle_power_cap) == (True, False)
    model.set_gpu(0, 400.0)
    assert model.gpu_state(0).throttle_power_cap


def test_memory_clock_scales_the_bandwidth():
    profile = load_profile("xeon-4210-rtx6000")
    seconds = {}
    for clocks in (None, (405, 810)):
        model = NodeModel(profile)
        model.set_gpu(0, 260.0, None, clocks)
        model.submit(KernelRequest("triad", "gpu", size=1e9, gpus=(0,)), 0.0)
        assert model.gpu_state(0).memory_clock_mhz == (7001 if clocks is None else 810)
        model.advance(1e4)
        seconds[clocks] = model.result(1).seconds
    assert seconds[(405, 810)] / seconds[None] == pytest.approx(7001 / 810, rel=0.01)


def test_two_kernels_on_one_gpu_share_it_equally():
    model = NodeModel(PROFILE)
    short = model.submit(KernelRequest("triad", "gpu", gpus=(0,), full_speed_s=2.0), 0.0)
    long = model.submit(KernelRequest("triad", "gpu", gpus=(0,), full_speed_s=5.0), 0.0)
    model.advance(100.0)
    assert model.result(short).seconds == pytest.approx(4.0)
    assert model.result(long).seconds == pytest.approx(7.0)


def test_the_mean_covers_the_last_second():
    model = NodeModel(PROFILE)
    model.advance(10.0)
    model.submit(KernelRequest("triad", "gpu", gpus=(0,), full_speed_s=3.0), 10.0)
    idle, busy = PROFILE.gpu.idle_watts, model.power_watts("gpu[0]")
    means = []
    for now_s in (10.25, 10.5, 11.0, 12.0, 13.5, 14.5):
        model.advance(now_s)
        means.append(model.gpu_state(0).power_average_watts)
    step = busy - idle
    expected = [idle + 0.25 * step, idle + 0.5 * step, busy, busy, idle + 0.5 * step, idle]
    assert means == pytest.approx(expected)


def test_the_energy_counter_is_whole_millijoules_of_the_exact_energy():
    model = NodeModel(PROFILE)
    model.submit(GEMM, 0.0)
    model.advance(1.23456789)
    assert model.gpu_state(0).energy_mj == int(model.energy_joules("gpu[0]") * 1000)


def test_a_busy_gpu_wakes_its_host():
    model = NodeModel(PROFILE)
    model.submit(GEMM, 0.0)
    assert 65 < model.power_watts("cpu[0]") < 76  # thesis, Table 3.17
    two = NodeModel(load_profile("xeon-h100"))
    two.submit(KernelRequest("gemm", "gpu", gpus=(0,)), 0.0)
    assert two.power_watts("cpu[0]") > two.power_watts("cpu[1]")


@pytest.mark.parametrize("watts", [99.9, 400.1, float("nan")])
def test_limits_outside_the_bounds_are_refused(watts):
    model = NodeModel(PROFILE)
    with pytest.raises(UsageError, match=r"GPU 0: limit .* is out of range: 100 to 400 W"):
        model.set_gpu(0, watts)
    assert model.gpu_state(0).limit_watts == 400.0
