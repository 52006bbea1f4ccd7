"""Tests that compare `senergy doctor --json` with independent programs on one emulated node.

Each test reads the same value with an independent program and with the doctor. Loads are steady, so that two
successive time windows have the same mean power.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_node import LabNode
from serving_bmc import serving_bmc

from slurm_energy.devices.node.dram_model import model_watts
from slurm_energy_lab.client import truth

pytestmark = [pytest.mark.node, pytest.mark.root]

RAPL = "/sys/class/powercap"
PASSWORD = "secret"
STEADY = 0.03
"""Windows of half a second and of two in steps of counters up to 20 ms."""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture(scope="module")
def xeon(emulate) -> LabNode:
    return emulate("xeon-8358")


@pytest.fixture(scope="module")
def client(emulate) -> LabNode:
    """Start an emulated node with the RAPL interfaces of a processor for client computers.

    These interfaces are the zone psys (the whole platform) and MMIO. The measurement tools zeus and pyJoules
    treat the zone psys as a processor package.
    """
    return emulate("xeon-8358", "--set", "rapl.psys=true", "--set", "rapl.mmio=true")


@pytest.fixture(scope="module")
def epyc(emulate) -> LabNode:
    return emulate("epyc-7513-a100", "--set", "rapl.hsmp_max_watts=225.0", "--set", "memory.dmi=true")


@pytest.fixture(scope="module", params=["xeon", "epyc"])
def node(request) -> LabNode:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def cray(emulate) -> LabNode:
    return emulate("epyc-7513-a100", "--pm-counters")


def doctor(node: LabNode, *arguments: str) -> dict[str, Any]:
    """Return the report of `senergy doctor` on an emulated node.

    The command exits with 1, because no daemon runs on the node.
    """
    command = [sys.executable, "-m", "slurm_energy.cli.main", "doctor", "--json", *arguments]
    done = node.run(*command, extra={"SENERGY_CONFIG": ""})
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


def knobs(report: dict[str, Any], kind: str) -> dict[str, str]:
    """Return the current values of one kind of knob (setting of a device) in the doctor's report.

    The result maps each domain, that is the CPUs or the device concerned, to the value.
    """
    found = {knob["key"]: knob["value"] for knob in report["knobs"] if knob["name"] == kind}
    return {key.partition("[")[2].removesuffix("]"): value for key, value in found.items()}


def watts(report: dict[str, Any], component: str) -> float:
    found = [counter["watts"] for counter in report["counters"] if counter["component"] == component]
    assert found, component
    return sum(found)


def khz(text: str) -> int:
    number, unit = text.split()
    return round(float(number) * {"GHz": 1e6, "MHz": 1e3}[unit])


@needs("cpupower")
def test_cpupower_sees_the_same_driver_governor_and_bounds(node):
    for governor, top in (("powersave", "2000MHz"), ("performance", "9000MHz")):
        node.output("cpupower", "-c", "5", "frequency-set", "-g", governor, "-u", top)
        text = node.output("cpupower", "-c", "5", "frequency-info")
        report = doctor(node)
        policy = next(p for p in report["hardware"]["policies"] if p["name"] == "policy5")
        assert f"driver: {policy['driver']}\n" in text
        assert f"CPUs which run at the same hardware frequency: {policy['cpus'][0]}\n" in text
        governors = re.search(r"available cpufreq governors: (.*)", text)[1].split()
        assert governors == policy["governors"]
        assert f'governor "{governor}"' in text
        assert knobs(report, "cpufreq.governor")["policy5"] == governor
        limits = re.search(r"hardware limits: ([\d.]+ [GM]Hz) - ([\d.]+ [GM]Hz)", text)
        assert [khz(limits[1]), khz(limits[2])] == pytest.approx(policy["hardware_range_khz"], abs=5_000)
        bounds = re.search(r"within ([\d.]+ [GM]Hz) and ([\d.]+ [GM]Hz)", text)
        told = knobs(report, "cpufreq.frequency")["policy5"].removesuffix(" MHz").split("-")
        assert [khz(bounds[1]), khz(bounds[2])] == pytest.approx([float(t) * 1e3 for t in told], abs=5_000)
        boost = re.search(r"Supported: yes\s+Active: (\w+)", text)
        assert boost is None or knobs(report, "cpufreq.boost")["all"] == {"yes": "1", "no": "0"}[boost[1]]


@needs("powercap-info")
def test_powercap_info_sees_the_same_zones_and_limits(client):
    text = client.output("powercap-info", "-p", "intel-rapl")
    report = doctor(client)
    names = sorted(re.findall(r"^ *name: (package-\d+|dram|psys)$", text, re.MULTILINE))
    keys = [counter["key"] for counter in report["counters"] if counter["key"].startswith("powercap:")]
    excluded = [note.split()[0] for note in report["notes"] if note.startswith("powercap:")]
    seen = sorted(key.removeprefix("powercap:").partition("@")[0] for key in (*keys, *excluded))
    assert seen == names == ["dram", "dram", "package-0", "package-1", "psys"]
    limits = re.findall(r"power_limit_uw: (\d+)", text)
    assert knobs(report, "powercap.power_limit")["package-1"] == f"{int(limits[0]) / 1e6:g} W"


@needs("powercap-set")
def test_a_limit_set_with_powercap_set_is_the_doctor_s(client):
    try:
        client.output("powercap-set", "-p", "intel-rapl", "-z", "0", "-c", "0", "-l", "180000000")
        client.output("powercap-set", "-p", "intel-rapl-mmio", "-z", "0", "-c", "0", "-l", "170000000")
        report = doctor(client)
        limits = knobs(report, "powercap.power_limit")
        assert (limits["package-0"], limits["package-0:mmio"], limits["package-1"]) == (
            "180 W",
            "170 W",
            "250 W",
        )
        shown = client.output("powercap-info", "-p", "intel-rapl-mmio", "-z", "0", "-c", "0")
        assert "power_limit_uw: 170000000" in shown
    finally:
        for control in ("intel-rapl", "intel-rapl-mmio"):
            client.output("powercap-set", "-p", control, "-z", "0", "-c", "0", "-l", "250000000")


@needs("powercap-info")
def test_powercap_info_finds_no_limit_where_the_doctor_finds_none(epyc):
    assert "power_limit_uw" not in epyc.output("powercap-info", "-p", "intel-rapl")
    report = doctor(epyc)
    assert knobs(report, "powercap.power_limit") == {}
    assert knobs(report, "hsmp.power_limit") == {"socket0": "200 W"}


def test_lscpu_sees_the_same_processors(node):
    cells = {
        entry["field"].rstrip(":"): entry["data"]
        for entry in json.loads(node.output("lscpu", "--json"))["lscpu"]
    }
    hardware = doctor(node)["hardware"]
    assert int(cells["CPU(s)"]) == hardware["cpu_count"] == len(hardware["policies"])
    assert cells["Model name"] == hardware["cpu_model"]
    assert int(cells["Socket(s)"]) == len(hardware["packages"])


ZEUS = """
import json, time
from zeus.monitor import ZeusMonitor
monitor = ZeusMonitor()
for seconds in (0.1, 2.0):  # its processes that monitor wraps start with the first window
    monitor.begin_window("w", sync_execution=False)
    time.sleep(seconds)
    found = monitor.end_window("w", sync_execution=False)
parts = {"cpu": found.cpu_energy, "dram": found.dram_energy, "gpu": found.gpu_energy}
print(json.dumps({n: list(v.values()) if v else [] for n, v in parts.items()} | {"s": found.time}))
"""
PYJOULES = """
import json, time
from pyJoules.device.device_factory import DeviceFactory
from pyJoules.energy_meter import EnergyMeter
meter = EnergyMeter(DeviceFactory.create_devices())
meter.start()
time.sleep(2.0)
meter.stop()
(sample,) = meter.get_trace()
print(json.dumps({"s": sample.duration, **sample.energy}))
"""


Measured = tuple[dict[str, list[float]], float]


def differences(node: LabNode, measured: Measured) -> list[str]:
    """Compare the power that `senergy doctor` shows with the energy that a program has measured.

    Each component of the node is compared. The function returns one line for each component whose values
    differ too much.
    """
    joules, length_s = measured
    report, found = doctor(node), []
    for component, parts in joules.items():
        if component == "gpu":
            told = [watts(report, f"gpu[{index}]") for index in range(len(parts))]
            assert len(told) == len(report["hardware"]["gpus"])
        else:
            told = [watts(report, component)]
            parts = [sum(parts)]
        # A GPU's counter moves every 20 ms: one step more or less in half a second.
        rel = 0.06 if component == "gpu" else STEADY
        pairs = [(mine, theirs / length_s) for mine, theirs in zip(told, parts, strict=True)]
        found += [f"{component}: {pair}" for pair in pairs if pair[0] != pytest.approx(pair[1], rel=rel)]
    return found


def compare_energy(node: LabNode, judge: Callable[[], Measured]) -> None:
    """Compare the energy that several programs report, at most three times, until the values agree.

    A single comparison may fail, because the programs used for comparison do not notice a delay between
    clock and counter.
    """
    for _ in range(3):
        if not (found := differences(node, judge())):
            return
    raise AssertionError(found)


def test_zeus_measures_the_same_power(node):
    pytest.importorskip("zeus", reason="zeus is not installed")

    def judge() -> Measured:
        found = json.loads(node.python(ZEUS).splitlines()[-1])
        parts = {name: found[name] for name in ("cpu", "dram", "gpu") if found[name]}
        assert set(parts) == ({"cpu", "gpu"} if node.arguments[0].startswith("epyc") else {"cpu", "dram"})
        return parts, found["s"]

    compare_energy(node, judge)


def test_pyjoules_measures_the_same_power(node):
    pytest.importorskip("pyJoules", reason="pyJoules is not installed")
    tags = {"cpu": "package_", "dram": "dram_", "gpu": "nvidia_gpu_"}
    scale = {"cpu": 1e-6, "dram": 1e-6, "gpu": 1e-3}

    def judge() -> Measured:
        found = json.loads(node.python(PYJOULES).splitlines()[-1])
        parts = {
            name: [value * scale[name] for tag, value in found.items() if tag.startswith(prefix)]
            for name, prefix in tags.items()
        }
        return {name: values for name, values in parts.items() if values}, found["s"]

    compare_energy(node, judge)


def test_energy_between_two_reports_is_what_the_node_used(xeon):
    """The doctor and an independent program read the same energy counter.

    Each value that the program reads lies between the doctor's readings before and after it.
    """
    path = f"{RAPL}/intel-rapl:0/energy_uj"

    def readings() -> tuple[int, int]:
        report = doctor(xeon)
        (counter,) = [c for c in report["counters"] if c["key"] == "powercap:package-0"]
        return counter["energy_uj"], int(xeon.output("cat", path))

    first, first_cat = readings()
    time.sleep(0.5)
    second, second_cat = readings()
    assert first < first_cat < second < second_cat


NVML = """
import json, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([{
    "name": n.nvmlDeviceGetName(g),
    "minor": n.nvmlDeviceGetMinorNumber(g),
    "limit": n.nvmlDeviceGetPowerManagementLimit(g) / 1000,
    "bounds": [w / 1000 for w in n.nvmlDeviceGetPowerManagementLimitConstraints(g)],
    "persistence": n.nvmlDeviceGetPersistenceMode(g),
    "energy": n.nvmlDeviceGetTotalEnergyConsumption(g),
    "power": n.nvmlDeviceGetPowerUsage(g) / 1000,
} for g in gpus]))
"""


def test_pynvml_sees_the_same_gpus(epyc):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    epyc.python(
        "import pynvml as n; n.nvmlInit();"
        "n.nvmlDeviceSetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(2), 250000)"
    )
    judged = json.loads(epyc.python(NVML))
    report = doctor(epyc)
    gpus = report["hardware"]["gpus"]
    assert [gpu["name"] for gpu in gpus] == [gpu["name"] for gpu in judged]
    assert [gpu["minor"] for gpu in gpus] == [gpu["minor"] for gpu in judged]
    assert [gpu["limit_watts"] for gpu in gpus] == [gpu["limit"] for gpu in judged]
    assert judged[2]["limit"] == 250
    assert [[g["min_limit_watts"], g["max_limit_watts"]] for g in gpus] == [gpu["bounds"] for gpu in judged]
    limits = knobs(report, "nvml.power_limit")
    assert limits == {f"gpu{index}": f"{gpu['limit']:g} W" for index, gpu in enumerate(judged)}
    persistence = knobs(report, "nvml.persistence")
    assert persistence == {f"gpu{index}": str(gpu["persistence"]) for index, gpu in enumerate(judged)}
    later = json.loads(epyc.python(NVML))
    for index, (first, last) in enumerate(zip(judged, later, strict=True)):
        (counter,) = [c for c in report["counters"] if c["component"] == f"gpu[{index}]"]
        assert first["energy"] * 1000 <= counter["energy_uj"] <= last["energy"] * 1000
        assert counter["watts"] == pytest.approx(last["power"], rel=0.1)


@contextlib.contextmanager
def bmc(node: LabNode, folder: Path) -> Iterator[tuple[int, str, Path]]:
    """Run the node's management controller; yield its IPMI port, Redfish address and password file."""
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    with serving_bmc(node.socket, password) as ports:
        yield ports.ipmi, f"http://127.0.0.1:{ports.redfish}", password


def get(address: str, path: str) -> dict[str, Any]:
    """Return a resource of an emulated BMC, read by a plain HTTP client without Redfish code."""
    token = base64.b64encode(f"operator:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(address + path, headers={"Authorization": f"Basic {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def config_of(folder: Path, source: str, address: str, password: Path) -> str:
    path = folder / f"{source}.toml"
    path.write_text(
        f'[node_power]\nsource = "{source}"\nbmc = "{address}"\nbmc_user = "operator"\n'
        f'bmc_password_file = "{password}"\n'
    )
    path.chmod(0o600)
    return str(path)


@needs("ipmitool")
def test_ipmitool_reads_the_same_node_power(xeon, tmp_path):
    with bmc(xeon, tmp_path) as (port, _, password):
        config = config_of(tmp_path, "ipmi", f"ipmi://127.0.0.1:{port}", password)
        report = doctor(xeon, "--config", config)
        command = ["ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", str(port), "-U", "operator"]
        text = xeon.output(*command, "-f", str(password), "dcmi", "power", "reading")
    judged = int(re.search(r"Instantaneous power reading:\s+(\d+) Watts", text)[1])
    (counter,) = [c for c in report["counters"] if c["component"] == "node"]
    assert counter["source"] == "ipmi:dcmi"
    assert counter["watts"] == pytest.approx(judged, abs=1.0)
    assert judged == pytest.approx(truth(xeon.socket)["power_watts"]["node"], abs=1.0)


def test_a_plain_redfish_client_reads_the_same_node_power(xeon, tmp_path):
    with bmc(xeon, tmp_path) as (_, address, password):
        report = doctor(xeon, "--config", config_of(tmp_path, "redfish", address, password))
        (chassis,) = get(address, "/redfish/v1/Chassis")["Members"]
        power = get(address, get(address, chassis["@odata.id"])["Power"]["@odata.id"])
    (counter,) = [c for c in report["counters"] if c["component"] == "node"]
    assert counter["source"] == "redfish:power"
    assert counter["watts"] == pytest.approx(power["PowerControl"][0]["PowerConsumedWatts"], abs=1.0)


def test_sushy_reads_the_same_node_power(xeon, tmp_path):
    sushy = pytest.importorskip("sushy", reason="sushy is not installed")
    with bmc(xeon, tmp_path) as (_, address, password):
        report = doctor(xeon, "--config", config_of(tmp_path, "redfish", address, password))
        root = sushy.Sushy(address, auth=sushy.auth.BasicAuth("operator", PASSWORD))
        (path,) = root.get_chassis_collection().members_identities
        chassis = root.get_chassis(path)
        found = chassis._conn.get(f"{path}/Power").json()["PowerControl"][0]["PowerConsumedWatts"]
    assert watts(report, "node") == pytest.approx(found, abs=1.0)


def test_memory_without_a_counter_is_modelled_from_the_firmware_s_table(epyc):
    """The power of memory without an energy counter is computed from the memory modules.

    The firmware's table lists the modules. The node has 8 modules of 64 GiB. The power follows from the
    modules and from the used part of the memory: thesis, Eq. 4.1 and 4.2.
    """
    (counter,) = [c for c in doctor(epyc)["counters"] if c["component"] == "dram"]
    assert (counter["source"], counter["quality"]) == ("model:dram", "modelled")
    least, most = (model_watts([64 << 30] * 8, share) for share in (0.0, 1.0))
    assert least * 0.97 <= counter["watts"] <= most * 1.03
    assert epyc.run("cat", "/sys/firmware/dmi/tables/DMI", uid=65534).returncode != 0


def test_the_power_meter_file_is_the_doctor_s_node(xeon):
    report = doctor(xeon)
    (counter,) = [c for c in report["counters"] if c["component"] == "node"]
    assert counter["source"] == "power_meter:acpi"
    judged = int(xeon.output("cat", "/sys/class/hwmon/hwmon0/power1_average")) / 1e6
    assert counter["watts"] == pytest.approx(judged, rel=STEADY)


def test_the_blade_s_counters_are_the_doctor_s_node(cray):
    report = doctor(cray)
    (counter,) = [c for c in report["counters"] if c["component"] == "node"]
    assert counter["source"] == "pm_counters:node"
    text = cray.output("cat", "/sys/cray/pm_counters/energy", "/sys/cray/pm_counters/power")
    joules, power = (int(line.split()[0]) for line in text.splitlines())
    assert counter["energy_uj"] <= joules * 1_000_000
    # In half a second, with counters up to 0.1 s old and read up to 0.05 s before the doctor takes the value.
    assert counter["watts"] == pytest.approx(power, rel=(0.1 + 0.05) / 0.5 + STEADY)
