"""Tests of node power on emulated hardware.

The tests check the measured power of a node, the power limit of a socket, and which source is used if
several sources measure the same component.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from serving_bmc import serving_bmc

from slurm_energy.devices.node import ipmi
from slurm_energy_lab.client import truth

pytestmark = [pytest.mark.node, pytest.mark.root]

LOOK = """
import json
from slurm_energy.devices.discovery import discover
devices = discover()
print(json.dumps({
    "components": sorted({counter.source for counter in devices.counters}),
    "node": [counter.key for counter in devices.node_counters],
    "packages": [[p.name, p.interface, p.limit_watts, p.limit_domains] for p in devices.hardware.packages],
    "excluded": dict(devices.selection.excluded),
}))
devices.close()
"""
CAP = """
import json
from slurm_energy.devices.discovery import discover
devices = discover()
knob = devices.knobs["hsmp.power_limit[socket0]"]
knob.write("120000000")
print(json.dumps([knob.read(), knob.is_equivalent("120000000", knob.read())]))
devices.close()
"""


@pytest.fixture(scope="module")
def epyc(emulate):
    return emulate("epyc-7513-a100", "--set", "rapl.hsmp_max_watts=225.0", "--pm-counters")


@pytest.fixture(scope="module")
def xeon(emulate):
    return emulate("xeon-8358")


def look(node) -> dict[str, object]:
    return json.loads(node.python(LOOK))


def test_a_cray_blade_is_measured_by_its_controller(epyc):
    found = look(epyc)
    assert found["node"] == ["pm_counters:energy"]
    assert found["components"] == ["nvml:total_energy", "pm_counters:dram", "powercap:intel-rapl"]
    assert found["excluded"]["pm_counters:accel0"] == "gpu is counted by nvml:total_energy"
    assert found["excluded"]["power_meter"] == "the node is counted by pm_counters:node"
    assert found["packages"] == [["socket0", "hsmp", 200.0, ["socket0"]]]


def test_a_socket_is_capped_through_hsmp(epyc):
    assert json.loads(epyc.python(CAP)) == ["120000000", True]
    assert epyc.read("/sys/class/hwmon/hwmon1/power1_cap") == "120000000"


def test_a_xeon_has_its_acpi_meter_for_the_node(xeon):
    found = look(xeon)
    assert found["node"] == ["power_meter"]
    assert found["components"] == ["powercap:intel-rapl"]
    assert found["packages"][0][1] == "powercap"


@pytest.mark.skipif(shutil.which("ipmitool") is None, reason="ipmitool is not installed")
def test_the_bmc_of_a_node_reports_the_emulated_power(xeon, tmp_path: Path):
    password = tmp_path / "password"
    password.write_text("secret\n")
    with serving_bmc(xeon.socket, password) as ports:
        watts = ipmi.power_watts(ipmi.Ipmitool(f"127.0.0.1:{ports.ipmi}", "operator", password))
    assert watts == pytest.approx(truth(xeon.socket)["power_watts"]["node"], abs=1.0)
