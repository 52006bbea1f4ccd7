"""Test of a lab (cluster of emulated nodes) with different node speeds and an emulated network.

The test starts a lab. Tasks on different nodes communicate over a network with latency and limited
bandwidth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_energy_lab import client
from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.interconnect.links import LinkSpec

pytestmark = pytest.mark.soak
PING = """
import json, os, socket, time
if os.environ["SLURM_PROCID"] == "1":
    with socket.create_server(("", 7000)) as server:
        connection = server.accept()[0]
        while data := connection.recv(1 << 16):
            connection.sendall(b"." if data.endswith(b"!") else b"")
else:
    for _ in range(100):
        try:
            link = socket.create_connection(("n2", 7000))
            break
        except OSError:
            time.sleep(0.1)
    times = []
    for message in [b"!"] * 5 + [bytes(1_000_000) + b"!"]:
        start = time.perf_counter()
        link.sendall(message)
        link.recv(1)
        times.append(time.perf_counter() - start)
    print(json.dumps({"addresses": link.getsockname()[0], "round_s": min(times[:5]), "large_s": times[5]}))
"""


@pytest.fixture
def root():
    with tempfile.TemporaryDirectory(prefix="senergy-test-", dir="/var/tmp") as folder:
        yield Path(folder) / "lab"


def test_tasks_have_a_network_with_latency_and_bandwidth_and_nodes_have_speeds(root):
    place = layout.locate_lab(root)
    nodes = nodes_file.with_speeds(nodes_file.from_profiles(["xeon-8358", "xeon-8358"]), [1, 0.5])
    spec = LabSpec(nodes, accounting=False, product=False, cpu_share=0.8, links=LinkSpec(0.02, 2e7))
    lab = lifecycle.up(place, spec)
    try:
        shares = [client.status(place.emulator_socket(name))["throttle"]["share_cores"] for name in lab.nodes]
        assert shares == pytest.approx([0.8, 0.4])
        argv = ["srun", "--nodes=2", "--ntasks=2", "--exclusive", sys.executable, "-c", PING]
        done = subprocess.run(
            argv,
            env={**os.environ, **lab.environment()},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd="/",
        )
    finally:
        lifecycle.down(place)
    measured = json.loads(done.stdout)
    assert measured["addresses"] == "10.98.0.1"
    assert measured["round_s"] >= 0.04
    assert measured["large_s"] >= 0.04 + 8e6 / 2e7
