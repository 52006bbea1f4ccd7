"""Tests of the emulated cpufreq files in /sys, for each cpufreq driver.

The tests check the content of the files, the values that can be written, and their effect.
"""

from __future__ import annotations

import errno

import pytest
from lab_bench import CPUFREQ, INTEL, Bench

pytestmark = pytest.mark.slow

DRIVERS = ("acpi-cpufreq", "intel_pstate", "intel_cpufreq", "amd-pstate", "amd-pstate-epp", "cppc_cpufreq")
ACTIVE = ("intel_pstate", "amd-pstate-epp")


def bench(driver: str, **overrides) -> Bench:
    profile = "epyc-7513-a100" if driver.startswith("amd") else "xeon-8358"
    return Bench(profile, cpufreq__driver=driver, **overrides)


def refusal(node: Bench, path: str, text: str) -> int:
    with pytest.raises(OSError) as caught:
        node.write(path, text)
    return caught.value.errno


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_driver_offers_its_governors(driver):
    node = bench(driver)
    assert node.read(node.policy("scaling_driver")) == driver
    offered = node.read(node.policy("scaling_available_governors")).split()
    assert set(offered) >= {"performance", "powersave"}
    assert ("userspace" in offered) == (driver not in ACTIVE)
    for governor in offered:
        node.write(node.policy("scaling_governor"), governor + "\n")
        assert node.read(node.policy("scaling_governor")) == governor
    assert refusal(node, node.policy("scaling_governor"), "turbo") == errno.EINVAL
    if driver in ACTIVE:
        assert refusal(node, node.policy("scaling_governor"), "userspace") == errno.EINVAL


@pytest.mark.parametrize("driver", DRIVERS)
def test_setspeed_needs_governor_userspace(driver):
    node = bench(driver)
    path = node.policy("scaling_setspeed")
    node.write(node.policy("scaling_governor"), "performance")
    assert node.read(path) == "<unsupported>"
    assert refusal(node, path, "2000000") == errno.EINVAL
    if driver not in ACTIVE:
        node.write(node.policy("scaling_governor"), "userspace")
        node.write(path, "2000000")
        shown = int(node.read(path))
        assert shown >= 2000000 and shown - 2000000 <= 100000
        assert int(node.read(node.policy("scaling_cur_freq"))) == pytest.approx(shown, rel=0.06)


@pytest.mark.parametrize("driver", DRIVERS)
def test_bounds_are_clamped_to_the_hardware_and_minimum_gives_way(driver):
    node = bench(driver)
    low, high = node.policy("scaling_min_freq"), node.policy("scaling_max_freq")
    bottom, top = int(node.read(low)), int(node.read(node.policy("cpuinfo_max_freq")))
    assert int(node.read(node.policy("cpuinfo_min_freq"))) == bottom
    node.write(low, "1")
    node.write(high, "999999999")
    assert (int(node.read(low)), int(node.read(high))) == (bottom, top)
    node.write(high, str(bottom))
    node.write(low, str(top))
    assert int(node.read(low)) == int(node.read(high)) == bottom
    node.write(high, str(top))
    assert int(node.read(low)) == int(node.read(high)) == top, "the request for the minimum was kept"


def test_bounds_refuse_what_is_not_a_number():
    node = bench("intel_pstate")
    for text in ("abc", "", "-1", "1.5e6", "2GHz"):
        assert refusal(node, node.policy("scaling_max_freq"), text) == errno.EINVAL
    assert refusal(node, node.policy("scaling_max_freq"), str(2**64)) == errno.ERANGE


def test_table_driver_rounds_inwards():
    node = bench("acpi-cpufreq")
    table = sorted(map(int, node.read(node.policy("scaling_available_frequencies")).split()))
    between = (table[1] + table[2]) // 2
    node.write(node.policy("scaling_max_freq"), str(between))
    assert int(node.read(node.policy("scaling_max_freq"))) == table[1]
    node.write(node.policy("scaling_max_freq"), str(table[-1]))
    node.write(node.policy("scaling_min_freq"), str(between))
    assert int(node.read(node.policy("scaling_min_freq"))) == table[2]


@pytest.mark.parametrize("driver", ["acpi-cpufreq", "amd-pstate", "amd-pstate-epp", "cppc_cpufreq"])
def test_boost_resets_the_maximum(driver):
    node = bench(driver)
    node.write(f"{CPUFREQ}/boost", "1")
    top = int(node.read(node.policy("scaling_max_freq")))
    node.write(node.policy("scaling_max_freq"), node.read(node.policy("cpuinfo_min_freq")))
    node.write(f"{CPUFREQ}/boost", "1")
    assert int(node.read(node.policy("scaling_max_freq"))) == top
    node.write(f"{CPUFREQ}/boost", "0")
    assert int(node.read(node.policy("scaling_max_freq"))) == int(node.read(node.policy("cpuinfo_max_freq")))
    assert refusal(node, f"{CPUFREQ}/boost", "2") == errno.EINVAL
    node.write(node.policy("scaling_governor"), "performance")
    assert int(node.read(node.policy("scaling_cur_freq"))) <= 2_600_000


@pytest.mark.parametrize("driver", ["intel_pstate", "intel_cpufreq"])
def test_no_turbo_lowers_the_range_and_keeps_requests(driver):
    node = bench(driver)
    assert node.node.tree.get(f"{CPUFREQ}/boost") is None
    node.write(f"{INTEL}/no_turbo", "1")
    assert int(node.read(node.policy("cpuinfo_max_freq"))) == 2_600_000
    assert int(node.read(node.policy("scaling_max_freq"))) == 2_600_000
    node.write(f"{INTEL}/no_turbo", "0")
    assert int(node.read(node.policy("scaling_max_freq"))) == 3_400_000


def test_max_perf_pct_bounds_every_cpu():
    node = bench("intel_pstate")
    node.write(node.policy("scaling_governor"), "performance")
    before = int(node.read(node.policy("scaling_cur_freq")))
    node.write(f"{INTEL}/max_perf_pct", "50")
    assert int(node.read(node.policy("scaling_cur_freq"))) <= 1_700_000 < before
    node.write(f"{INTEL}/max_perf_pct", "1")
    assert node.read(f"{INTEL}/max_perf_pct") == node.read(f"{INTEL}/min_perf_pct")


@pytest.mark.parametrize("driver", ACTIVE)
def test_preference_is_refused_while_governor_performance(driver):
    node = bench(driver)
    epp, governor = node.policy("energy_performance_preference"), node.policy("scaling_governor")
    node.write(governor, "powersave")
    node.write(epp, "power")
    assert node.read(epp) == "power"
    node.write(governor, "performance")
    assert node.read(epp) == "performance"
    assert refusal(node, epp, "power") == errno.EBUSY
    node.write(epp, "performance")
    assert refusal(node, epp, "eco") == errno.EINVAL
    node.write(governor, "powersave")
    expected = "power" if driver == "intel_pstate" else "performance"
    assert node.read(epp) == expected, "only Intel's driver gives the old preference back"


def test_intel_takes_preferences_as_numbers():
    node = bench("intel_pstate")
    epp = node.policy("energy_performance_preference")
    node.write(node.policy("scaling_governor"), "powersave")
    node.write(epp, "192")
    assert node.read(epp) == "balance_power"
    node.write(epp, "17")
    assert node.read(epp) == "17"
    assert refusal(node, epp, "256") == errno.EINVAL
    node.write(epp, "default")
    assert node.read(epp) == "balance_performance"


@pytest.mark.parametrize("driver", ["acpi-cpufreq", "amd-pstate", "cppc_cpufreq"])
def test_passive_drivers_have_no_preference(driver):
    node = bench(driver)
    assert node.node.tree.get(node.policy("energy_performance_preference")) is None


def test_passive_intel_with_hardware_p_states_takes_a_preference_under_any_governor():
    """The passive frequency driver of Intel accepts an energy preference under any governor.

    In contrast, the active driver rejects some values under the governor `performance`. Both drivers have
    the same attributes (hwp_cpufreq_attrs). Source: kernel, intel_pstate.c.
    """
    node = bench("intel_cpufreq")
    epp = node.policy("energy_performance_preference")
    assert node.read(epp) == "balance_performance"
    node.write(node.policy("scaling_governor"), "performance")
    node.write(epp, "power")
    assert node.read(epp) == "power"
    without = bench("intel_cpufreq", cpu__flags="fpu sse2")
    assert without.node.tree.get(without.policy("energy_performance_preference")) is None


def test_active_amd_offers_one_preference_under_governor_performance():
    """With governor `performance`, AMD's active driver offers only the preference `performance`.

    The preference is the energy performance preference of a CPU. Source: kernel, amd-pstate.c:
    show_energy_performance_available_preferences.
    """
    node = bench("amd-pstate-epp")
    offered = node.policy("energy_performance_available_preferences")
    node.write(node.policy("scaling_governor"), "powersave")
    assert len(node.read(offered).split()) == 5
    node.write(node.policy("scaling_governor"), "performance")
    assert node.read(offered) == "performance"


def test_cppc_begins_without_boost_and_has_neither_table_nor_mode():
    """The emulated driver cppc_cpufreq starts with boost switched off, as the kernel's driver does.

    Until boost is switched on, the range of frequencies ends at nominal performance. Source: kernel,
    cppc_cpufreq.c. The driver has no table of frequencies and no mode of operation.
    """
    node = bench("cppc_cpufreq")
    base = node.realtime_model.profile.cpufreq.base_khz
    assert node.read(f"{CPUFREQ}/boost") == "0"
    assert int(node.read(node.policy("cpuinfo_max_freq"))) == base
    assert int(node.read(node.policy("scaling_max_freq"))) == base
    node.write(node.policy("scaling_governor"), "performance")
    assert int(node.read(node.policy("scaling_cur_freq"))) <= base
    node.write(f"{CPUFREQ}/boost", "1")
    assert int(node.read(node.policy("scaling_max_freq"))) == node.realtime_model.profile.cpufreq.max_khz
    assert int(node.read(node.policy("scaling_cur_freq"))) > base
    for name in ("scaling_available_frequencies", "base_frequency", "bios_limit"):
        assert node.node.tree.get(node.policy(name)) is None
    assert node.node.tree.get(f"{INTEL}/status") is None
    assert node.read(node.policy("freqdomain_cpus")) == "0"


def test_switching_amd_pstate_goes_through_all_three_modes():
    """The modes of amd_pstate behave as the kernel documents them for the file `status`.

    Source: Documentation/admin-guide/pm/amd-pstate.rst.
    """
    node = bench("amd-pstate-epp")
    status = f"{CPUFREQ.removesuffix('/cpufreq')}/amd_pstate/status"
    assert node.read(status) == "active"
    for mode, driver in (("guided", "amd-pstate"), ("passive", "amd-pstate"), ("active", "amd-pstate-epp")):
        node.write(status, mode)
        assert (node.read(status), node.read(node.policy("scaling_driver"))) == (mode, driver)
        epp = node.node.tree.get(node.policy("energy_performance_preference"))
        assert (epp is not None) == (mode == "active")
        offered = node.read(node.policy("scaling_available_governors")).split()
        assert ("schedutil" in offered) == (mode != "active")
    assert refusal(node, status, "sleepy") == errno.EINVAL


def test_switching_intel_pstate_swaps_driver_and_files():
    node = bench("intel_pstate")
    node.write(node.policy("scaling_max_freq"), "1000000")
    node.write(f"{INTEL}/status", "passive\n")
    assert node.read(node.policy("scaling_driver")) == "intel_cpufreq"
    assert node.read(node.policy("scaling_governor")) == "schedutil"
    assert int(node.read(node.policy("scaling_max_freq"))) == 3_400_000
    node.write(node.policy("scaling_governor"), "powersave")
    assert int(node.read(node.policy("scaling_cur_freq"))) == 800_000, "passive powersave pins the minimum"
    node.write(node.policy("scaling_governor"), "userspace")
    node.write(node.policy("scaling_setspeed"), "1500000")
    assert int(node.read(node.policy("scaling_cur_freq"))) == 1_500_000
    assert refusal(node, f"{INTEL}/status", "off") == errno.EBUSY
    assert refusal(node, f"{INTEL}/status", "sleepy") == errno.EINVAL
    node.write(f"{INTEL}/status", "active")
    assert node.read(node.policy("scaling_driver")) == "intel_pstate"


@pytest.mark.parametrize("driver", DRIVERS)
def test_settings_reach_the_model(driver):
    node = bench(driver)
    node.write(node.policy("scaling_governor"), "performance")
    fast = int(node.read(node.policy("scaling_cur_freq")))
    node.write(node.policy("scaling_max_freq"), node.read(node.policy("cpuinfo_min_freq")))
    with node.realtime_model.now() as model:
        sibling = node.realtime_model.profile.cpu.siblings(0)
        request = model.cpufreq(0)
    assert request.max_khz == int(node.read(node.policy("cpuinfo_min_freq")))
    for cpu in sibling:
        node.write(node.policy("scaling_max_freq", cpu), str(request.max_khz))
    assert int(node.read(node.policy("scaling_cur_freq"))) == request.max_khz < fast
