"""Tests that common tools work inside emulated nodes.

The tools, such as cpupower, lscpu and hwloc, must read and set the emulated hardware.
"""

from __future__ import annotations

import re
import shutil

import pytest

pytestmark = [pytest.mark.node, pytest.mark.root]

DRIVERS = {
    "acpi-cpufreq": "xeon-8358",
    "intel_pstate": "xeon-8358",
    "intel_cpufreq": "xeon-8358",
    "amd-pstate": "epyc-7513-a100",
    "amd-pstate-epp": "epyc-7513-a100",
    "cppc_cpufreq": "epyc-7513-a100",
}
ACTIVE = ("intel_pstate", "amd-pstate-epp")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture(scope="module", params=DRIVERS)
def node(request, emulate):
    found = emulate(DRIVERS[request.param], "--set", f"cpufreq.driver={request.param}")
    found.driver = request.param
    return found


@needs("cpupower")
def test_cpupower_shows_the_driver(node):
    text = node.output("cpupower", "-c", "0", "frequency-info")
    assert f"driver: {node.driver}" in text
    governors = re.search(r"available cpufreq governors: (.*)", text)
    assert governors and ("userspace" in governors[1]) == (node.driver not in ACTIVE)
    low, high = re.search(r"hardware limits: ([\d.]+ [GM]Hz) - ([\d.]+ [GM]Hz)", text).groups()
    assert low == ("1.50 GHz" if DRIVERS[node.driver].startswith("epyc") else "800 MHz")
    assert float(high.split()[0]) >= 2.6


@needs("cpupower")
def test_cpupower_sets_governor_and_bounds_everywhere(node):
    policies = "/sys/devices/system/cpu/cpufreq"
    for governor in ("powersave", "performance"):
        node.output("cpupower", "-c", "all", "frequency-set", "-g", governor)
        for cpu in (0, 63):
            assert node.read(f"{policies}/policy{cpu}/scaling_governor") == governor
    node.output("cpupower", "-c", "0,1", "frequency-set", "-u", "2000MHz")
    assert 1_950_000 <= int(node.read(f"{policies}/policy1/scaling_max_freq")) <= 2_100_000
    assert int(node.read(f"{policies}/policy2/scaling_max_freq")) > 2_100_000
    shown = node.output("cpupower", "-c", "1", "frequency-info", "-p")
    assert "within" in shown and "performance" in shown
    node.output("cpupower", "-c", "0,1", "frequency-set", "-u", "9000MHz")


@needs("cpupower")
def test_cpupower_is_refused_what_the_driver_refuses(node):
    assert node.run("cpupower", "-c", "0", "frequency-set", "-g", "turbo").returncode != 0
    done = node.run("cpupower", "-c", "0", "frequency-set", "-f", "2000MHz")
    shown = node.read("/sys/devices/system/cpu/cpufreq/policy0/scaling_setspeed")
    if node.driver in ACTIVE:
        assert done.returncode != 0 and shown == "<unsupported>"
    else:
        assert done.returncode == 0 and 2_000_000 <= int(shown) <= 2_100_000
    node.output("cpupower", "-c", "0", "frequency-set", "-g", "performance")


def test_lscpu_sees_the_processor(node):
    text = node.output("lscpu")
    cells = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    cells = {key.strip(): value.strip() for key, value in cells.items()}
    amd = DRIVERS[node.driver].startswith("epyc")
    assert cells["CPU(s)"] == ("64" if amd else "128")
    assert cells["Socket(s)"] == ("1" if amd else "2")
    assert cells["Thread(s) per core"] == "2"
    assert cells["Core(s) per socket"] == "32"
    assert cells["Vendor ID"] == ("AuthenticAMD" if amd else "GenuineIntel")
    assert ("EPYC 7513" if amd else "Platinum 8358") in cells["Model name"]
    assert cells["NUMA node0 CPU(s)"].startswith("0-")
    assert "L3 cache" in text


@needs("lstopo-no-graphics")
def test_hwloc_accepts_the_topology(node):
    # Caches by CPUID and PCI locality are the host's; Slurm asks hwloc for neither.
    command = ("lstopo-no-graphics", "--no-io", "--disallowed", "--of", "console")
    done = node.run(*command, extra={"HWLOC_COMPONENTS": "-x86"})
    assert done.returncode == 0
    assert "invalid" not in (done.stdout + done.stderr).lower(), done.stderr
    amd = DRIVERS[node.driver].startswith("epyc")
    assert len(re.findall(r"Package L#", done.stdout)) == (1 if amd else 2)
    assert len(re.findall(r"Core L#", done.stdout)) == (32 if amd else 64)
    assert len(re.findall(r"PU L#", done.stdout)) == (64 if amd else 128)


@needs("powercap-info")
def test_powercap_info_lists_the_zones(node):
    text = node.output("powercap-info", "-p", "intel-rapl")
    assert "name: package-0" in text
    if DRIVERS[node.driver].startswith("xeon"):
        assert "name: package-1" in text
        assert "name: dram" in text
        assert "power_limit_uw: 250000000" in text
        assert "name: long_term" in text and "name: short_term" in text
    else:
        assert "power_limit_uw" not in text


@needs("powercap-set")
def test_powercap_set_writes_limits(node):
    if DRIVERS[node.driver].startswith("epyc"):
        pytest.skip("AMD packages have no limits to set")
    path = "/sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw"
    node.output("powercap-set", "-p", "intel-rapl", "-z", "1", "-c", "0", "-l", "150060000")
    assert node.output("cat", path) == "150000000\n"
    assert "150000000" in node.output("powercap-info", "-p", "intel-rapl", "-z", "1", "-c", "0")
    node.output("powercap-set", "-p", "intel-rapl", "-z", "1", "-c", "0", "-s", "7808")
    node.output("powercap-set", "-p", "intel-rapl", "-z", "1", "-e", "0")
    assert node.output("cat", "/sys/class/powercap/intel-rapl:1/enabled") == "0\n"
    node.output("powercap-set", "-p", "intel-rapl", "-z", "1", "-e", "1")
    assert (
        node.run("powercap-set", "-p", "intel-rapl", "-z", "1:0", "-c", "0", "-l", "1000000").returncode != 0
    )
