"""Test that senergyd records the energy of the node from the node's own power meter.

The meters are a blade controller and a BMC. A kernel with steady load runs on the emulated node.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from agent_node import NodeAgent
from serving_bmc import serving_bmc

from slurm_energy.records import EnergyRecord
from slurm_energy_lab import client

pytestmark = [pytest.mark.node, pytest.mark.root]

INTERVAL_S = 1.0


@contextmanager
def steady_load(agent: NodeAgent, device: str) -> Iterator[None]:
    """Context manager that runs a compute kernel during the whole `with` block.

    The kernel starts some seconds before the block. Power meters with a delay therefore already show the
    power of the kernel when the block begins.
    """
    run = f"run_kernel({str(agent.node.socket)!r}, 'gemm', {device!r}, full_speed_s=600.0)"
    load = subprocess.Popen([sys.executable, "-c", f"from slurm_energy_lab.client import *\n{run}"])
    try:
        eventually(lambda: client.status(agent.node.socket)["kernels"])
        time.sleep(4)
        yield
        assert load.poll() is None
    finally:
        load.kill()
        load.wait(60)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def measured(agent: NodeAgent, device: str) -> tuple[EnergyRecord, float, float]:
    """Run a job of six seconds. Return its energy record and two bounds of its true energy.

    The bounds are energies of the whole node in joules, from the node's model. The first one covers a
    time within the job. The second one covers a longer time that includes the whole job.
    """
    eventually(lambda: agent.ask(op="status")["watts"]["node"])  # the meter has a value
    with steady_load(agent, device):
        moments = [agent.truth()]
        agent.begin(1)
        moments.append(agent.truth())
        time.sleep(6)
        moments.append(agent.truth())
        assert agent.ask(op="end", env=agent.env(1))["known"]
        moments.append(agent.truth())
        record = agent.new_record(set())
    first, begun, ending, last = (moment["energy_joules"]["node"] for moment in moments)
    return record, ending - begun, last - first


def check(record: EnergyRecord, least: float, most: float, source: str) -> None:
    found = {part.name: part for part in record.components}
    assert found["node"].source.split("+")[0] == found["other"].source == source
    assert 0.96 * least <= found["node"].energy_joules <= 1.04 * most
    parts = sum(part.energy_joules for name, part in found.items() if name != "node")
    assert parts == pytest.approx(found["node"].energy_joules, abs=1e-3)
    assert record.energy_joules == pytest.approx(found["node"].energy_joules, abs=1e-3)


def test_a_blade_controller_s_counter(emulate):
    agent = NodeAgent(emulate("epyc-7513-a100", "--pm-counters")).start()
    try:
        check(*measured(agent, "gpu"), "pm_counters:node")
    finally:
        agent.remove()


@pytest.mark.skipif(shutil.which("ipmitool") is None, reason="ipmitool is not installed")
def test_a_bmc_over_the_network(emulate, tmp_path):
    node = emulate("xeon-8358")
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    with serving_bmc(node.socket, password) as ports:
        extra = (
            f'[node_power]\nsource = "ipmi"\nbmc = "ipmi://127.0.0.1:{ports.ipmi}"\nbmc_user = "operator"\n'
            f'bmc_password_file = "{password}"\ninterval_s = {INTERVAL_S}\n'
        )
        agent = NodeAgent(node, extra=extra)
        try:
            agent.start()
            check(*measured(agent, "cpu"), "ipmi:dcmi")
        finally:
            agent.remove()
