"""Tests of the RAPL power limits in the lab's node model.

The long-term limit bounds the running average of the power over a time window. The short-term limit
bounds the power at every moment. At its minimum frequency, a package may draw more power than a
limit.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy_lab.model import FrequencyRequest, KernelRequest, NodeModel, load_profile

PROFILE = load_profile("xeon-8358", {"rapl.mmio": True})
LONG_KERNEL = KernelRequest("gemm", "cpu", full_speed_s=1000.0)
IDLE_WATTS = PROFILE.cpu.idle_watts


def loaded(limit_watts: float, window_s: float, constraint: str = "long_term") -> NodeModel:
    """Return the model of a node under load with a power limit on package 0.

    Matrix multiplication (GEMM) runs on all cores from 0 s on.
    """
    model = NodeModel(PROFILE)
    model.set_package_limit(0, constraint, limit_watts, window_s, True)
    model.submit(LONG_KERNEL, 0.0)
    return model


def test_the_average_may_be_exceeded_until_it_meets_the_limit():
    """A package may exceed its power limit until its running average reaches the limit.

    If the package was idle before, avg(t) = P - (P - idle) exp(-t / window). The time at which this average
    reaches the limit can be computed.
    """
    model = loaded(150.0, 2.0)
    free_watts = model.power_watts("cpu[0]")
    assert free_watts > 200
    crossing_s = 2.0 * math.log((free_watts - IDLE_WATTS) / (free_watts - 150.0))
    assert model.next_event_s() == pytest.approx(crossing_s, rel=1e-12)
    model.advance(crossing_s * 0.999)
    assert model.power_watts("cpu[0]") == free_watts
    model.advance(crossing_s * 1.001)
    assert model.power_watts("cpu[0]") == pytest.approx(150.0, abs=0.01)
    assert model.package_average_watts(0) == pytest.approx(150.0, abs=0.01)
    assert model.power_watts("cpu[1]") == free_watts


def test_a_limit_lowers_the_frequency_and_lengthens_the_work():
    free, held = NodeModel(PROFILE), NodeModel(PROFILE)
    for package in (0, 1):
        held.set_package_limit(package, "long_term", 150.0, 0.1, True)
    for model in (free, held):
        model.submit(KernelRequest("gemm", "cpu"), 0.0)
        model.advance(1.0)
    assert held.effective_khz(0) < free.effective_khz(0)
    held.advance(100.0)
    assert held.result(1).seconds > 1.2 * 10.0
    assert held.result(1).energy_joules["cpu"] / held.result(1).seconds < 2 * 152


def test_the_lowest_frequency_may_exceed_the_limit():
    model = loaded(60.0, 0.1)
    model.advance(1.0)
    assert model.effective_khz(0) == PROFILE.cpufreq.min_khz
    assert model.power_watts("cpu[0]") > 60.0
    assert model.package_average_watts(0) > 60.0


def test_a_short_term_limit_is_a_ceiling_at_once():
    model = loaded(180.0, 0.002, "short_term")
    assert model.power_watts("cpu[0]") <= 180.0
    assert model.power_watts("cpu[0]") == pytest.approx(180.0, abs=0.01)


def test_a_limit_lowered_under_load_acts_immediately_until_raised():
    model = loaded(250.0, 1.0)
    model.advance(20.0)
    free_watts = model.power_watts("cpu[0]")
    model.set_package_limit(0, "long_term", 140.0, 1.0, True)
    assert model.power_watts("cpu[0]") == pytest.approx(140.0, abs=0.01)
    model.set_package_limit(0, "long_term", 250.0, 1.0, True)
    assert model.power_watts("cpu[0]") == free_watts


def test_a_new_window_does_not_rewrite_the_past():
    model = loaded(200.0, 1.0)
    model.advance(0.5)
    before = model.package_average_watts(0)
    assert IDLE_WATTS + 50 < before < 200
    model.set_package_limit(0, "long_term", 200.0, 100.0, True)
    assert model.package_average_watts(0) == pytest.approx(before)


def test_a_disabled_limit_has_no_effect():
    model = NodeModel(PROFILE)
    model.set_package_limit(0, "long_term", 100.0, 0.01, False)
    model.submit(LONG_KERNEL, 0.0)
    model.advance(10.0)
    assert model.power_watts("cpu[0]") == model.power_watts("cpu[1]")


def test_the_lower_of_both_interfaces_is_in_force():
    model = loaded(200.0, 0.1)
    model.set_package_limit(0, "long_term", 150.0, 0.1, True, interface="mmio")
    model.advance(5.0)
    assert model.power_watts("cpu[0]") == pytest.approx(150.0, abs=0.01)


def test_throttled_time_is_counted():
    model = loaded(150.0, 1.0)
    crossing_s = model.next_event_s()
    model.advance(crossing_s + 3.0)
    assert model.package_throttled_s(0) == pytest.approx(3.0)
    assert model.package_throttled_s(1) == 0.0


def test_a_pause_gives_headroom_back():
    """A power limit of a package applies to the average power, so a pause permits more power later.

    After an idle period the average is low. The power may then exceed the limit for some time.
    """
    model = loaded(150.0, 1.0)
    model.advance(5.0)
    model.forget(1)
    model.advance(10.0)
    model.submit(LONG_KERNEL, 10.0)
    assert model.power_watts("cpu[0]") > 200
    assert model.next_event_s() > 10.2


def test_invalid_limits_are_refused():
    amd, intel = NodeModel(load_profile("epyc-7513-a100")), NodeModel(PROFILE)
    with pytest.raises(UsageError, match="package 0 has no limit msr:long_term"):
        amd.set_package_limit(0, "long_term", 100, 1, True)
    with pytest.raises(UsageError, match="no limit msr:medium_term"):
        intel.set_package_limit(0, "medium_term", 100, 1, True)
    for watts, window_s in ((-1, 1), (math.nan, 1), (100, 0), (math.inf, 1)):
        with pytest.raises(UsageError, match="is invalid"):
            intel.set_package_limit(0, "long_term", watts, window_s, True)
    assert amd.package_average_watts(0) is None


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 4),
            st.sampled_from(["limit", "load", "work", "stop", "frequency"]),
            st.floats(0, 1),
        ),
        max_size=15,
    )
)
def test_the_running_average_never_rises_above_its_limit(schedule):
    """The running average of a package's power never rises above its limit.

    There are two exceptions: the package already runs at its minimum frequency, or the limit was lowered
    below the present average.
    """
    model, limit_watts, works = NodeModel(PROFILE), 200.0, []
    model.set_package_limit(0, "long_term", limit_watts, 1.0, True)
    last = model.package_average_watts(0)
    for wait_s, what, share in schedule:
        if what == "limit":
            limit_watts = 130 + 120 * share
            model.set_package_limit(0, "long_term", limit_watts, 1.0, True)
        elif what == "load":
            model.set_real_load("x", range(128), 64 * share)
        elif what == "work":
            works.append(model.submit(LONG_KERNEL, model.now_s))
        elif what == "stop" and works:
            model.forget(works.pop())
        elif what == "frequency":
            model.set_cpufreq_all(FrequencyRequest("performance", 800000, 800000 + int(2600000 * share)))
        for part in (0.1, 0.5, 1.0):
            model.advance(model.now_s + wait_s * part)
            average = model.package_average_watts(0)
            floor = model.effective_khz(0) == PROFILE.cpufreq.min_khz
            assert average <= max(limit_watts, last) + 0.01 or floor
            last = average
