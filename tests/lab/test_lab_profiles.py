"""Tests of the hardware profiles of emulated nodes.

The tests check the profiles in the package, overrides of single values, and errors in profile files.
"""

import dataclasses
import re
from pathlib import Path

import pytest

import slurm_energy_lab
from slurm_energy.errors import ConfigError
from slurm_energy_lab.model import NodeModel, load_profile, profile_names

SHIPPED = ("epyc-7513-a100", "xeon-4210-rtx6000", "xeon-8358", "xeon-h100")
DIRECTORY = Path(slurm_energy_lab.__file__).parent / "profiles"


def test_the_four_profiles_ship():
    assert profile_names() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_of_a_profile_says_where_it_comes_from(name):
    """Every number in a hardware profile states its source.

    The source mark is on the line of the number or in the comment above it.
    """
    previous = ""
    for number, line in enumerate((DIRECTORY / f"{name}.toml").read_text().splitlines(), 1):
        if re.match(r"\w+ = [\[{\d]", line):
            lab_processes = re.search(r"\[(T \d|DS|K|fit|assumed|PC|Z|M)|thesis", line + previous)
            assert lab_processes, f"{name}.toml:{number}: {line}"
        previous = line if line.startswith("#") else ""


@pytest.mark.parametrize(
    ("name", "cpus", "gpus", "driver"),
    [
        ("xeon-8358", 128, 0, "intel_pstate"),
        ("epyc-7513-a100", 64, 4, "acpi-cpufreq"),
        ("xeon-4210-rtx6000", 40, 8, "intel_cpufreq"),
        ("xeon-h100", 128, 8, "intel_pstate"),
    ],
)
def test_profiles_are_the_machines_they_claim(name, cpus, gpus, driver):
    profile = load_profile(name)
    assert (profile.name, profile.cpu.cpus, profile.gpu_count) == (name, cpus, gpus)
    assert profile.cpufreq.driver == driver
    assert NodeModel(profile).power_watts("node") > 0


def test_cpu_numbering_is_that_of_linux():
    cpu = load_profile("xeon-8358").cpu
    assert (cpu.core_of(0), cpu.core_of(63), cpu.core_of(64)) == (0, 63, 0)
    assert (cpu.package_of(31), cpu.package_of(32), cpu.package_of(96)) == (0, 1, 1)
    assert cpu.siblings(65) == (1, 65)
    assert cpu.package_cpus(1) == (*range(32, 64), *range(96, 128))
    assert (cpu.numa_node_of(0), cpu.numa_node_of(100)) == (0, 1)


def test_amd_has_package_energy_only():
    rapl = load_profile("epyc-7513-a100").rapl
    assert rapl.constraints == ()
    assert rapl.dram_energy_unit_exponent is None


@pytest.mark.parametrize(
    ("driver", "governor", "epp", "cpuinfo_max_khz"),
    [
        ("acpi-cpufreq", "schedutil", None, 2601000),
        ("intel_cpufreq", "schedutil", None, 3400000),
        ("amd-pstate", "schedutil", None, 3400000),
        ("amd-pstate-epp", "powersave", "balance_performance", 3400000),
        ("intel_pstate", "performance", "balance_performance", 3400000),
    ],
)
def test_a_driver_override_brings_its_own_defaults(driver, governor, epp, cpuinfo_max_khz):
    cpufreq = load_profile("xeon-8358", {"cpufreq.driver": driver}).cpufreq
    assert (cpufreq.driver, cpufreq.governor, cpufreq.epp) == (driver, governor, epp)
    assert cpufreq.cpuinfo_max_khz == cpuinfo_max_khz
    assert bool(cpufreq.available_khz) == (driver == "acpi-cpufreq")


def test_overrides_win_over_a_drivers_defaults():
    overrides = {"cpufreq.driver": "amd-pstate", "cpufreq.governor": "ondemand", "rapl.mmio": True}
    profile = load_profile("xeon-8358", overrides)
    assert (profile.cpufreq.governor, profile.rapl.mmio) == ("ondemand", True)


def test_a_profile_of_ones_own_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    text = (DIRECTORY / "xeon-8358.toml").read_text()
    path.write_text(text.replace('name = "xeon-8358"', 'name = "mine"', 1))
    assert load_profile(path) == dataclasses.replace(load_profile("xeon-8358"), name="mine")


def test_an_unknown_name_lists_the_valid_names():
    with pytest.raises(ConfigError, match=r"'nope' is not known: one of epyc-7513-a100, .*xeon-h100"):
        load_profile("nope")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cpu.speed": 3}, r"cpu.speed: unknown key"),
        ({"cpu.packages": "two"}, r"cpu.packages: 'two' is not int"),
        ({"cpu.packages": True}, r"cpu.packages: True is not int"),
        ({"cpu.idle_watts": -1}, r"cpu.idle_watts: -1 is below 0"),
        ({"cpu.idle_watts": float("nan")}, r"cpu.idle_watts: nan"),
        ({"cpu.caches": {}}, r"cpu.caches: not a list"),
        ({"cpu.turbo_bins": [[1, 2, 3]]}, r"cpu.turbo_bins\[0\]: not 2 values"),
        ({"cpu.turbo_bins": [[4, 3000000]]}, r"cpu.turbo_bins: not rising cores"),
        ({"cpufreq.driver": "magic"}, r"cpufreq.driver: one of acpi-cpufreq"),
        ({"cpufreq.governor": "ondemand"}, r"cpufreq.governor: not offered by the driver"),
        ({"cpufreq.table_khz": []}, r"cpufreq.table_khz: not a list of kHz"),
        ({"gpu.graphics_clocks": {}}, r"gpu.graphics_clocks: needs highest_mhz"),
        ({"gpu.default_limit_watts": 10}, r"gpu.default_limit_watts: not between"),
        ({"nowhere.key": 1}, r"override 'nowhere.key': no such section"),
    ],
)
def test_wrong_values_name_file_and_key(overrides, message):
    with pytest.raises(ConfigError, match=rf"xeon-h100\.toml: {message}"):
        load_profile("xeon-h100", overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "Invalid value"),
        ("", "cpufreq: section missing"),
        ('name = "x"\n[cpufreq]\ntable_khz = [1]\n', "description: missing"),
    ],
)
def test_broken_files_are_named(tmp_path, text, message):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"broken\.toml.*{message}"):
        load_profile(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml.*No such file"):
        load_profile(tmp_path / "absent.toml")
