"""Tests of the reader of a node's power.

The tests check the configuration of the power source. They also follow the power that a BMC
(management controller) reports, until it appears as the node's energy.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hardware_tree import Tree

from slurm_energy.config import NodePowerConfig, parse
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node import ipmi
from slurm_energy.devices.node.power_options import check_private_file, node_power_options
from slurm_energy.devices.source_priority import NODE_SOURCES, NodePart, SourceSelection
from slurm_energy.devices.sources import node_energy_uj
from slurm_energy.errors import ConfigError


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("word", ["pm_counters", "power_meter", "ipmi", "redfish", "psys", "grace-module"])
def test_every_word_of_the_configuration_is_a_source(word: str) -> None:
    source = node_power_options(NodePowerConfig(source=word), "n1").source
    assert source in {known.name for known in NODE_SOURCES}


def test_the_section_is_parsed_and_its_mistakes_are_named() -> None:
    config = parse('[node_power]\nsource = "ipmi"\nexcludes = ["gpu"]\ninterval_s = 10\n').node_power
    meter = node_power_options(config, "n1")
    assert (meter.source, meter.excludes, meter.interval_s) == ("ipmi:dcmi", {NodePart.GPU}, 10)
    for line, why in {
        'source = "bmc"': "must be one of auto, none",
        'excludes = ["fans"]': "'fans' is not one of cpu, dram, gpu, rest",
        'bmc = "ssh://bmc"': "must begin with ipmi://",
        "interval_s = 0.1": "from 1 to 60",
    }.items():
        with pytest.raises(ConfigError, match=why):
            parse(f"[node_power]\n{line}\n")


def test_the_node_s_name_is_put_into_the_address(password: Path) -> None:
    config = NodePowerConfig(bmc="ipmi://{node}-bmc:6230", bmc_user="monitor", bmc_password_file=password)
    sensor = node_power_options(config, "n7").sensor
    assert sensor is not None
    transport = sensor._release.__self__  # type: ignore[attr-defined]
    assert (transport.host, transport.user) == ("n7-bmc:6230", "monitor")
    assert isinstance(transport, ipmi.Ipmitool)


def test_a_bmc_needs_an_account_and_a_private_password(password: Path) -> None:
    with pytest.raises(ConfigError, match="needs an account"):
        node_power_options(NodePowerConfig(bmc="https://bmc"), "n1")
    config = NodePowerConfig(bmc="https://bmc", bmc_user="monitor", bmc_password_file=password)
    password.chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 0640: expected .*no read permission for others: chmod 0600"):
        node_power_options(config, "n1")
    assert node_power_options(NodePowerConfig(source="none", bmc="https://bmc"), "n1").sensor is None


def test_certificates_that_other_users_could_replace_are_refused(password: Path) -> None:
    """Whoever can replace the certificates can obtain the password, so such files are refused."""
    bundle = password.with_name("ca.pem")
    bundle.touch(0o644)
    link = password.with_name("link.pem")
    link.symlink_to(bundle)
    config = NodePowerConfig(
        bmc="https://bmc", bmc_user="monitor", bmc_password_file=password, bmc_certificates=link
    )
    assert node_power_options(config, "n1").sensor is not None
    bundle.chmod(0o666)
    with pytest.raises(ConfigError, match=r"ca\.pem: .*mode 0666"):
        node_power_options(config, "n1")


def test_a_link_or_nothing_is_no_password_file(tmp_path: Path, password: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(password)
    with pytest.raises(ConfigError, match="symbolic link"):
        check_private_file(link)
    with pytest.raises(ConfigError, match="No such file"):
        check_private_file(tmp_path / "absent")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_another_user_s_file_is_no_password_file(password: Path) -> None:
    os.chown(password, 65534, 65534)
    with pytest.raises(ConfigError, match="owner uid 65534"):
        check_private_file(password)


def test_a_bmc_s_watts_become_the_node_s_joules(tmp_path: Path, password: Path) -> None:
    lab = pytest.importorskip("slurm_energy_lab.bmc", reason="pyghmi is not installed")
    server = lab.RedfishServer(lambda: 500.0, "monitor", "secret", ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    config = NodePowerConfig(bmc=url, bmc_user="monitor", bmc_password_file=password, interval_s=1.0)
    tree = Tree(tmp_path / "node").two_packages().zone("intel-rapl:2", "psys")
    devices = discover(tree.root, node_power_options(config, "n1"))
    try:
        (node,) = devices.node_counters
        assert node.key == "redfish"
        assert devices.selection.excluded == {"powercap:psys": "the node is counted by redfish:power"}
        values: list[int] = []
        for _ in range(20_000):
            try:
                values.append(node.read())
            except DeviceError:
                pass
            else:
                if values[-1] > 0:
                    break
            threading.Event().wait(0.005)
        assert values[-1] > 0
    finally:
        devices.close()
        server.shutdown()
        thread.join(60)
        server.server_close()


def test_the_node_s_energy_is_its_counters_and_the_parts_that_they_lack(tmp_path: Path) -> None:
    devices = discover(Tree(tmp_path).two_packages().zone("intel-rapl:2", "psys").root)
    energy = {counter.key: 10 for counter in devices.counters} | {"powercap:psys": 100}
    assert node_energy_uj(devices.selection, energy, devices.counters) == 100
    lacking = SourceSelection(node=("powercap:psys",), added_parts=frozenset({NodePart.DRAM}))
    assert node_energy_uj(lacking, energy, devices.counters) == 120
    del energy["powercap:dram@package-0"]
    assert node_energy_uj(lacking, energy, devices.counters) is None
    assert node_energy_uj(SourceSelection(), energy, devices.counters) is None
    devices.close()
