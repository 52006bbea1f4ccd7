"""Test how the node model of the emulator determines the frequency of a core.

The tests cover the governors of the cpufreq drivers, the frequency bounds, boost, and the threads of
a core. They also cover turbo frequencies, which depend on the number of active cores.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy_lab.model import FrequencyRequest, KernelRequest, NodeModel, load_profile

DRIVERS = ("acpi-cpufreq", "intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp")
GENERIC = ("acpi-cpufreq", "intel_cpufreq", "amd-pstate")
LOW, HIGH = 800000, 3400000


def model_of(driver: str, name: str = "xeon-8358") -> NodeModel:
    return NodeModel(load_profile(name, {"cpufreq.driver": driver}))


def khz(model: NodeModel, request: FrequencyRequest, busy: float = 1.0) -> int:
    """Return the effective frequency of CPU 0 in kHz.

    Args:
        model: the node model.
        request: cpufreq settings for all CPUs.
        busy: busy share of CPU 0, 0 to 1.
    """
    model.set_cpufreq_all(request)
    model.set_real_load("program", (0,), busy)
    return model.effective_khz(0)


@pytest.mark.parametrize("driver", DRIVERS)
def test_performance_is_the_top_and_a_bound_holds(driver):
    model = model_of(driver)
    assert khz(model, FrequencyRequest("performance", LOW, HIGH)) == 3400000
    assert khz(model, FrequencyRequest("performance", LOW, 1600000)) == 1600000
    assert khz(model, FrequencyRequest("performance", LOW, LOW)) == LOW


@pytest.mark.parametrize("driver", GENERIC)
def test_powersave_of_generic_drivers_pins_the_minimum(driver):
    model = model_of(driver)
    assert khz(model, FrequencyRequest("powersave", LOW, HIGH)) == LOW
    assert khz(model, FrequencyRequest("powersave", 1400000, HIGH)) == 1400000


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp"])
def test_active_powersave_follows_load_and_epp(driver):
    model = model_of(driver)
    full = {
        epp: khz(model, FrequencyRequest("powersave", LOW, HIGH, epp=epp))
        for epp in ("performance", "balance_performance", "balance_power", "power", "0", "255")
    }
    assert full["performance"] == full["balance_performance"] == full["0"] == 3400000
    assert full["power"] == full["255"] == pytest.approx(800000 + 0.75 * 2600000)
    assert full["power"] < full["balance_power"] < 3400000
    idle = khz(model, FrequencyRequest("powersave", LOW, HIGH, epp="balance_performance"), busy=0.0)
    assert idle == LOW
    assert khz(model, FrequencyRequest("performance", LOW, HIGH, epp="power")) == 3400000


@pytest.mark.parametrize("driver", GENERIC)
@pytest.mark.parametrize("governor", ["ondemand", "conservative", "schedutil"])
def test_load_following_governors(driver, governor):
    model = model_of(driver)
    request = FrequencyRequest(governor, LOW, HIGH)
    speeds = [khz(model, request, busy) for busy in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert speeds[0] == LOW
    assert speeds == sorted(speeds)
    assert speeds[-1] == 3400000


@pytest.mark.parametrize("driver", GENERIC)
def test_userspace_takes_setspeed_within_the_bounds(driver):
    model = model_of(driver)
    asked = FrequencyRequest("userspace", 1200000, 2400000, setspeed_khz=2000000)
    assert khz(model, asked) == 2000000
    assert khz(model, FrequencyRequest("userspace", 1200000, 2400000, setspeed_khz=3300000)) == 2400000
    assert khz(model, FrequencyRequest("userspace", 1200000, 2400000, setspeed_khz=900000)) == 1200000


def test_table_drivers_round_down_and_boost_at_the_first_entry():
    model = NodeModel(load_profile("epyc-7513-a100"))
    assert khz(model, FrequencyRequest("performance", 1500000, 2600000)) == 3650000
    assert khz(model, FrequencyRequest("performance", 1500000, 2600000, boost=False)) == 2600000
    assert khz(model, FrequencyRequest("performance", 1500000, 2500000)) == 2100000
    assert khz(model, FrequencyRequest("powersave", 1500000, 2600000)) == 1500000


def test_without_boost_the_base_frequency_is_the_top():
    model = model_of("intel_pstate")
    assert khz(model, FrequencyRequest("performance", LOW, HIGH, boost=False)) == 2600000


def test_more_active_cores_mean_less_turbo():
    model = model_of("intel_pstate")
    model.set_cpufreq_all(FrequencyRequest("performance", LOW, HIGH))
    seen = []
    for cores in (1, 16, 20, 32):
        work = model.submit(KernelRequest("triad", "cpu", cpus=tuple(range(cores))), model.now_s)
        seen.append((model.effective_khz(0), model.effective_khz(32)))
        model.forget(work)
    assert seen == [(3400000, 3400000), (3400000, 3400000), (3300000, 3400000), (3000000, 3400000)]


def test_a_core_runs_at_the_maximum_of_its_threads():
    model = model_of("intel_cpufreq")
    model.set_cpufreq_all(FrequencyRequest("powersave", LOW, HIGH))
    model.set_cpufreq(64, FrequencyRequest("userspace", LOW, HIGH, setspeed_khz=2000000))
    assert (model.effective_khz(0), model.effective_khz(64), model.effective_khz(1)) == (
        2000000,
        2000000,
        LOW,
    )


def test_a_bound_on_some_cores_slows_only_those():
    model = model_of("intel_cpufreq")
    model.set_cpufreq_all(FrequencyRequest("performance", LOW, HIGH))
    for cpu in (0, 64):
        model.set_cpufreq(cpu, FrequencyRequest("performance", LOW, 1000000))
    slow = model.submit(KernelRequest("monte_carlo", "cpu", size=1e9, cpus=(0,)), 0.0)
    fast = model.submit(KernelRequest("monte_carlo", "cpu", size=1e9, cpus=(1,)), 0.0)
    model.advance(1e4)
    ratio = model.result(slow).seconds / model.result(fast).seconds
    assert ratio == pytest.approx(3.4, rel=0.05)


@pytest.mark.parametrize(
    ("driver", "request_", "message"),
    [
        (
            "intel_pstate",
            FrequencyRequest("ondemand", LOW, HIGH),
            "governor 'ondemand' is not offered by intel_",
        ),
        ("acpi-cpufreq", FrequencyRequest("turbo", LOW, HIGH), "one of conservative, ondemand"),
        ("intel_pstate", FrequencyRequest("powersave", LOW, HIGH, epp="256"), "EPP '256' is not known"),
        ("intel_pstate", FrequencyRequest("powersave", LOW, HIGH, epp="fast"), "EPP 'fast' is not known"),
        ("intel_pstate", FrequencyRequest("powersave", 0, HIGH), "frequencies 0..3400000 kHz"),
    ],
)
def test_invalid_settings_of_a_driver_are_refused(driver, request_, message):
    model = model_of(driver)
    before = model.cpufreq(3)
    with pytest.raises(UsageError, match=message):
        model.set_cpufreq(3, request_)
    assert model.cpufreq(3) == before


@given(
    st.sampled_from(DRIVERS),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from(["performance", "powersave"]),
    st.floats(0, 1),
    st.booleans(),
)
def test_the_frequency_is_always_one_the_hardware_has(driver, low_mhz, high_mhz, governor, busy, boost):
    model = model_of(driver)
    request = FrequencyRequest(governor, low_mhz * 1000, high_mhz * 1000, boost=boost)
    assert LOW <= khz(model, request, busy) <= (3400000 if boost else 2600000)
