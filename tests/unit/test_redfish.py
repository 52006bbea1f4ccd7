"""Tests of reading a node's power through Redfish, from an emulated Redfish service.

The service belongs to a lab (a cluster of emulated nodes). Its resources follow DMTF DSP0268.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node import redfish
from slurm_energy.devices.node.redfish import RedfishClient

pytestmark = pytest.mark.slow

lab = pytest.importorskip("slurm_energy_lab.bmc", reason="pyghmi is not installed")
CHASSIS = "/redfish/v1/Chassis/1"


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("secret\n")
    return file


def serve(server: Any) -> threading.Thread:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    return thread


@pytest.fixture
def server() -> Iterator[Any]:
    made = lab.RedfishServer(lambda: 437.4, "operator", "secret", ("127.0.0.1", 0))
    thread = serve(made)
    yield made
    made.shutdown()
    thread.join(60)
    made.server_close()


@pytest.fixture
def bmc(server: Any, password: Path) -> Iterator[RedfishClient]:
    made = RedfishClient(f"http://127.0.0.1:{server.server_port}", "operator", password)
    yield made
    made.close()


def test_the_node_s_chassis_is_found_once_and_then_queried(server: Any, bmc: RedfishClient) -> None:
    assert bmc.power_watts() == 437.0
    before = server.requests
    assert bmc.power_watts() == 437.0
    assert server.requests == before + 1


def test_a_service_without_environment_metrics_has_the_older_power_resource(
    server: Any, bmc: RedfishClient
) -> None:
    del server.resources[f"{CHASSIS}/EnvironmentMetrics"]
    assert bmc.power_watts() == 437.0
    assert bmc._resource == f"{CHASSIS}/Power"


def test_gpu_boards_that_have_their_own_power_are_not_the_node(server: Any, bmc: RedfishClient) -> None:
    """The power of a single GPU is not taken for the power of the node.

    A GPU baseboard lists one chassis per GPU. Only the power of the chassis to which the computer system
    belongs counts.
    """
    gpu = "/redfish/v1/Chassis/HGX_GPU_0"
    server.resources["/redfish/v1/Chassis"] = lambda: {
        "Members": [{"@odata.id": gpu}, {"@odata.id": CHASSIS}]
    }
    server.resources[gpu] = lambda: {"EnvironmentMetrics": {"@odata.id": f"{gpu}/EnvironmentMetrics"}}
    server.resources[f"{gpu}/EnvironmentMetrics"] = lambda: {"PowerWatts": {"Reading": 90}}
    assert bmc.power_watts() == 437.0


def enclosure(server: Any) -> None:
    other = "/redfish/v1/Chassis/Enclosure"
    links = {"Chassis": [{"@odata.id": CHASSIS}, {"@odata.id": other}]}
    server.resources["/redfish/v1/Systems/1"] = lambda: {"Links": links}
    server.resources[other] = lambda: {"Power": {"@odata.id": f"{other}/Power"}}
    server.resources[f"{other}/Power"] = lambda: {"PowerControl": [{"PowerConsumedWatts": 1800}]}


def test_two_chassis_with_a_power_are_ambiguous(server: Any, bmc: RedfishClient) -> None:
    enclosure(server)
    with pytest.raises(DeviceError, match="2 chassis report a power"):
        bmc.power_watts()


def test_the_administrator_can_name_the_chassis(server: Any, bmc: RedfishClient) -> None:
    enclosure(server)
    bmc.chassis = "/redfish/v1/Chassis/Enclosure"
    assert bmc.power_watts() == 1800.0


def test_a_reading_that_is_null_is_unknown(server: Any, bmc: RedfishClient) -> None:
    bmc.power_watts()
    server.resources[f"{CHASSIS}/EnvironmentMetrics"] = lambda: {"PowerWatts": {"Reading": None}}
    with pytest.raises(DeviceError, match="no reading now"):
        bmc.power_watts()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"PowerWatts": 437},
        {"PowerWatts": {"Reading": "437"}},
        {"PowerWatts": {"Reading": True}},
        {"PowerWatts": {"Reading": -3}},
        {"PowerControl": {}},
        {"PowerControl": []},
        {"PowerControl": ["x"]},
        {"PowerControl": [{"PowerConsumedWatts": 1e9}]},
    ],
)
def test_odd_resources_report_no_power(server: Any, bmc: RedfishClient, data: dict[str, Any]) -> None:
    server.resources[f"{CHASSIS}/EnvironmentMetrics"] = lambda: data
    server.resources[f"{CHASSIS}/Power"] = lambda: data
    with pytest.raises(DeviceError, match="no chassis of a computer system reports its power"):
        bmc.power_watts()


def test_a_wrong_password_is_reported_and_a_new_one_is_used(bmc: RedfishClient, password: Path) -> None:
    password.write_text("wrong\n")
    with pytest.raises(DeviceError, match="user or password is wrong"):
        bmc.power_watts()
    password.write_text("secret\n")
    assert bmc.power_watts() == 437.0


def test_a_connection_closed_by_the_bmc_is_reopened(server: Any, bmc: RedfishClient) -> None:
    bmc.power_watts()
    assert bmc._connection is not None and bmc._connection.sock is not None
    bmc._connection.sock.shutdown(2)
    assert bmc.power_watts() == 437.0


@pytest.mark.parametrize("url", ["ftp://bmc7", "bmc7", "https://"])
def test_an_invalid_address_is_reported(url: str, password: Path) -> None:
    with pytest.raises(DeviceError, match="not an address"):
        RedfishClient(url, "operator", password).power_watts()


def test_an_unreachable_bmc_is_reported(password: Path) -> None:
    with pytest.raises(DeviceError, match="refused"):
        RedfishClient("http://127.0.0.1:9", "operator", password).power_watts()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_bmc_s_certificate_is_checked(tmp_path: Path, password: Path) -> None:
    pem = tmp_path / "bmc.pem"
    certificate = tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-subj", "/CN=bmc7", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command += ["-keyout", str(pem), "-out", str(certificate)]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    pem.write_text(pem.read_text() + certificate.read_text())
    server = lab.RedfishServer(lambda: 250.0, "operator", "secret", ("127.0.0.1", 0), pem)
    thread = serve(server)
    url = f"https://127.0.0.1:{server.server_port}"
    trusting = RedfishClient(url, "operator", password, authority=certificate)
    try:
        assert trusting.power_watts() == 250.0
        with pytest.raises(DeviceError, match="CERTIFICATE_VERIFY_FAILED"):
            RedfishClient(url, "operator", password).power_watts()
    finally:
        trusting.close()
        server.shutdown()
        thread.join(60)
        server.server_close()


def test_the_sensor_closes_its_connection(server: Any, bmc: RedfishClient) -> None:
    sensor = redfish.power_sensor(bmc, interval_s=0.01)
    for _ in range(20_000):
        try:
            assert sensor.read().watts == 437.0
            break
        except DeviceError:
            threading.Event().wait(0.005)
    sensor.close()
    for _ in range(20_000):
        if bmc._connection is None:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the connection is still open")
