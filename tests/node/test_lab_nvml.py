"""Tests of the library that replaces NVML in the lab (stub).

The real module nvidia-ml-py loads the library inside an emulated node.
"""

from __future__ import annotations

import json
import socket

import pytest

from slurm_energy.errors import EnergyError

pytestmark = [pytest.mark.node, pytest.mark.root]
pytest.importorskip("pynvml")

PRELUDE = "import json, pynvml as n\nn.nvmlInit()\ng = n.nvmlDeviceGetHandleByIndex(0)\n"


@pytest.fixture(scope="module")
def node(emulate):
    return emulate("epyc-7513-a100")


def ask(node, expression: str, uid: int = 0):
    return json.loads(node.python(f"{PRELUDE}print(json.dumps({expression}))", uid=uid))


def outcome(node, call: str, uid: int = 0) -> str:
    """Return the result of an NVML call on the node, or the name of the error that it raises."""
    program = (
        f"{PRELUDE}try:\n    print(repr(n.{call}))\nexcept n.NVMLError as e:\n    print(type(e).__name__)\n"
    )
    return node.python(program, uid=uid).strip()


def test_identity(node):
    assert ask(node, "n.nvmlDeviceGetCount()") == 4
    assert ask(node, "n.nvmlDeviceGetName(g)") == "NVIDIA A100-SXM4-40GB"
    assert ask(node, "n.nvmlDeviceGetArchitecture(g)") == 7
    assert ask(node, "n.nvmlDeviceGetCudaComputeCapability(g)") == [8, 0]
    assert ask(node, "n.nvmlSystemGetDriverVersion()") == "535.129.03"
    assert ask(node, "n.nvmlSystemGetCudaDriverVersion()") == 12020
    uuid = ask(node, "n.nvmlDeviceGetUUID(g)")
    same = f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID({uuid!r}))"
    assert ask(node, same) == 0
    last = ask(node, "n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(3))")
    assert ask(node, f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID({last!r}))") == 3
    buses = ask(node, "[n.nvmlDeviceGetPciInfo(n.nvmlDeviceGetHandleByIndex(i)).busId for i in range(4)]")
    assert len(set(buses)) == 4 and buses[0] == "00000000:07:00.0"
    assert ask(node, "n.nvmlDeviceGetPciInfo(g).pciDeviceId") == 0x20B010DE
    assert ask(node, "n.nvmlDeviceGetMemoryInfo(g).total") == 40960 << 20
    assert ask(node, "n.nvmlDeviceGetMemoryInfo(g, version=n.nvmlMemory_v2).free") == 40960 << 20
    assert ask(node, "n.nvmlDeviceGetMinorNumber(g)") == 0


def test_bounds_and_clocks(node):
    assert ask(node, "n.nvmlDeviceGetPowerManagementLimitConstraints(g)") == [100_000, 400_000]
    assert ask(node, "n.nvmlDeviceGetPowerManagementDefaultLimit(g)") == 400_000
    assert ask(node, "n.nvmlDeviceGetSupportedMemoryClocks(g)") == [1215]
    clocks = ask(node, "n.nvmlDeviceGetSupportedGraphicsClocks(g, 1215)")
    assert clocks[0] == 1410 and clocks[-1] == 210 and len(clocks) == 81
    assert outcome(node, "nvmlDeviceGetSupportedGraphicsClocks(g, 999)") == "NVMLError_NotFound"
    assert ask(node, "n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM)") == 1410
    assert ask(node, "n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM)") == 1215
    assert ask(node, "n.nvmlDeviceGetPersistenceMode(g)") == 1
    assert ask(node, "len(n.nvmlDeviceGetComputeRunningProcesses(g))") == 0


def test_settings_of_root_are_seen_by_everyone(node):
    assert outcome(node, "nvmlDeviceSetPowerManagementLimit(g, 250000)") == "None"
    assert ask(node, "n.nvmlDeviceGetPowerManagementLimit(g)") == 250_000
    assert ask(node, "n.nvmlDeviceGetEnforcedPowerLimit(g)") == 250_000
    assert outcome(node, "nvmlDeviceSetPowerManagementLimit(g, 50000)") == "NVMLError_InvalidArgument"
    assert outcome(node, "nvmlDeviceSetGpuLockedClocks(g, 210, 900)") == "None"
    assert outcome(node, "nvmlDeviceSetGpuLockedClocks(g, 900, 210)") == "NVMLError_InvalidArgument"
    assert outcome(node, "nvmlDeviceResetGpuLockedClocks(g)") == "None"
    assert outcome(node, "nvmlDeviceSetMemoryLockedClocks(g, 1215, 1215)") == "None"
    assert outcome(node, "nvmlDeviceResetMemoryLockedClocks(g)") == "None"
    assert outcome(node, "nvmlDeviceSetPowerManagementLimit(g, 400000)") == "None"


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceSetPowerManagementLimit(g, 250000)",
        "nvmlDeviceSetGpuLockedClocks(g, 210, 900)",
        "nvmlDeviceResetGpuLockedClocks(g)",
        "nvmlDeviceSetPersistenceMode(g, 0)",
    ],
)
@pytest.mark.other_user
def test_other_users_may_not_set(node, call):
    assert outcome(node, call, uid=1001) == "NVMLError_NoPermission"
    assert ask(node, "n.nvmlDeviceGetPowerManagementLimit(g)", uid=1001) == 400_000


def test_energy_follows_the_model_and_a_kernel_raises_power(node):
    from slurm_energy_lab import client

    def true() -> float:
        return client.truth(node.socket)["energy_joules"]["gpu[0]"]

    def shown() -> tuple[float, float, float]:
        """Return the energy that the NVML stub shows, and two exact energies of the model.

        The exact energies are read before and after the stub is read. They bound the shown energy, because
        the start of Python takes time.
        """
        before = true()
        return ask(node, "n.nvmlDeviceGetTotalEnergyConsumption(g)") / 1000, before, true()

    first, before_first, after_first = shown()
    assert ask(node, "n.nvmlDeviceGetCurrentClocksEventReasons(g)") == 1
    result = client.run_kernel(node.socket, "gemm", "gpu", gpus=[0], full_speed_s=1.0)
    assert result["seconds"] == pytest.approx(1.0, rel=0.1)
    last, before_last, after_last = shown()
    step_joules = 0.02 * 400.0  # the counter is updated every 20 ms
    assert result["energy_joules"]["gpu[0]"] > 250
    assert before_last - after_first - step_joules <= last - first <= after_last - before_first + step_joules


def test_fields(node):
    wanted = "n.nvmlDeviceGetFieldValues(g, [83, 186, 185, 999, (186, 1)])"
    values = ask(node, f"[(v.nvmlReturn, v.value.ullVal) for v in {wanted}]")
    energy, instant, average, unknown, scoped = values
    assert energy[0] == 0 and energy[1] > 0
    assert instant[0] == 0 and instant[1] == pytest.approx(49_000, rel=0.05)
    assert [average[0], unknown[0], scoped[0]] == [3, 3, 3], "not supported: no average on GA100"


def test_missing_features_return_not_supported(node):
    assert outcome(node, "nvmlDeviceGetMigMode(g)") == "NVMLError_NotSupported"
    assert 30 <= ask(node, "n.nvmlDeviceGetTemperature(g, 0)") <= 80
    assert outcome(node, "nvmlDeviceGetFanSpeed(g)") == "NVMLError_FunctionNotFound"
    assert outcome(node, "nvmlDeviceGetHandleByIndex(4)") == "NVMLError_InvalidArgument"
    assert outcome(node, "nvmlDeviceGetHandleByUUID('GPU-0')") == "NVMLError_NotFound"
    program = "import pynvml as n\ntry:\n    n.nvmlDeviceGetCount()\nexcept n.NVMLError as e: print(e.value)"
    assert node.python(program).strip() == "1"


def test_nodes_without_gpus_have_no_driver(emulate):
    program = "import pynvml as n\ntry:\n    n.nvmlInit()\nexcept n.NVMLError as e: print(type(e).__name__)"
    assert emulate("xeon-8358").python(program).strip() == "NVMLError_DriverNotLoaded"


def test_limits_are_lost_with_the_last_client_without_persistence_mode(emulate):
    node = emulate("xeon-4210-rtx6000", "--no-gpu-persistence")
    assert outcome(node, "nvmlDeviceSetPowerManagementLimit(g, 150000)") == "None"
    assert ask(node, "n.nvmlDeviceGetPowerManagementLimit(g)") == 260_000
    held = "[n.nvmlDeviceSetPowerManagementLimit(g, 150000), n.nvmlDeviceGetPowerManagementLimit(g)][1]"
    assert ask(node, held) == 150_000
    assert outcome(node, "nvmlDeviceSetPersistenceMode(g, 1)") == "None"
    assert outcome(node, "nvmlDeviceSetPowerManagementLimit(g, 150000)") == "None"
    assert ask(node, "n.nvmlDeviceGetPowerManagementLimit(g)") == 150_000
    assert outcome(node, "nvmlDeviceSetMemoryLockedClocks(g, 405, 405)") == "NVMLError_NotSupported"


SIGNALS = """
import json, time
from slurm_energy.devices.gpu import nvml
devices = nvml.discover()
begin = time.monotonic()
first = {one.signal: (one.value, one.source) for one in devices.signal_sensors[0].read(begin)}
begun = time.monotonic()
devices.signal_sensors[1].read(time.monotonic())
time.sleep(0.3)
end = time.monotonic()
later = [devices.signal_sensors[0].read(end)]
ended = time.monotonic()
later.append(devices.signal_sensors[1].read(time.monotonic()))
busy, idle = ({one.signal: (one.value, one.source) for one in readings} for readings in later)
bounds = (end - begun) / (end - begin), (ended - begin) / (end - begin)
print(json.dumps([first | busy, idle, bounds]))
"""
STATED = {
    "sm_active_percent": 25.0,
    "gpu_busy_percent": 90.0,
    "pcie_receive_bytes_per_s": 4e9,
    "nvlink_transmit_bytes_per_s": 2e9,
    "gpu_memory_used_bytes": 8 * 2**30,
    "gpu_temperature_celsius": 91.0,
    "throttle_thermal_percent": 100.0,
}


@pytest.mark.parametrize("profile", ["xeon-h100", "epyc-7513-a100"])
def test_the_signals_of_a_program_are_read_through_nvml(emulate, profile):
    """senergyd reads the signals of a GPU program through NVML on two generations of emulated GPUs.

    A Hopper GPU reports metrics through GPM. Older GPUs report throttling counters, NVLink counters and
    sampled PCIe traffic.
    """
    emulated = emulate(profile)
    kernel = {"op": "kernel", "kernel": "gemm", "device": "gpu", "gpus": [0], "full_speed_s": 600.0}
    with socket.socket(socket.AF_UNIX) as connection:  # its end cancels the kernel
        connection.connect(str(emulated.socket))
        connection.sendall(json.dumps({**kernel, "signals": STATED}).encode() + b"\n")
        busy, idle, bounds = json.loads(emulated.python(SIGNALS))
    values = {name: value for name, (value, _) in busy.items()}
    exact = ("gpu_busy_percent", "gpu_memory_used_bytes", "gpu_temperature_celsius")
    assert {name: values[name] for name in exact} == {name: STATED[name] for name in exact}
    rates = {"throttle_thermal_percent", "pcie_receive_bytes_per_s", "nvlink_transmit_bytes_per_s"}
    if profile == "xeon-h100":
        rates.add("sm_active_percent")
        assert busy["sm_active_percent"][1] == busy["pcie_receive_bytes_per_s"][1] == "nvml:gpm"
    else:
        assert "sm_active_percent" not in values
        assert busy["pcie_receive_bytes_per_s"][1] == "nvml:pcie (20 ms)"
    low, high = bounds  # by how much a rate may deviate, because a reading takes time
    for name in rates:
        assert 0.95 * low * STATED[name] <= values[name] <= 1.05 * high * STATED[name], name
    assert idle["gpu_busy_percent"][0] == idle["gpu_memory_used_bytes"][0] == 0


@pytest.mark.parametrize(
    "signals", [{"watts": 1}, {"sm_active_percent": -1}, {"sm_active_percent": "5"}, [1]]
)
def test_only_known_signals_are_accepted(node, signals):
    from slurm_energy_lab import client

    message = {"op": "kernel", "kernel": "gemm", "device": "gpu", "size": 1, "signals": signals}
    with pytest.raises(EnergyError, match="signals"):
        client.ask(node.socket, message, timeout_s=5)
