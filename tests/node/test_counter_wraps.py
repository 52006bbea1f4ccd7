"""The energy record of a job is exact or marked as uncertain if counters wrap very often.

The counters of the test wrap several times per second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from agent_node import NodeAgent

from slurm_energy_lab import client

pytestmark = [pytest.mark.node, pytest.mark.root]

UPDATE_S = 0.001
SECONDS = 4.0
ONE_PACKAGE = ("--set", "cpu.packages=1", "--set", "cpu.numa_nodes=1", "--set", "cpu.core_dynamic_watts=7.0")


@pytest.fixture(params=[100, 400])
def node(request, emulate) -> Iterator:
    node = emulate("xeon-8358", *ONE_PACKAGE, "--counter-range", str(request.param))
    load = threading.Thread(
        target=client.run_kernel, args=(node.socket, "gemm"), kwargs={"full_speed_s": 3.0}
    )
    load.start()
    yield node
    load.join()


@pytest.mark.parametrize("sampling_hz", [1.0, 10.0])
def test_a_record_is_exact_or_marked(node, sampling_hz):
    agent = NodeAgent(node, sampling_hz=sampling_hz).start()
    try:
        before = agent.truth()
        agent.begin(1, policy="monitor")
        begun = agent.truth()
        time.sleep(SECONDS)
        ending = agent.truth()
        record = agent.end(1)
        after = agent.truth()
    finally:
        agent.remove()
    assert record.uncertain_seconds <= record.elapsed_s + 1e-3
    for part in record.components:
        if part.name not in ("cpu", "dram"):
            continue
        assert part.energy_joules is not None
        slack = 2 * UPDATE_S * 400
        least = ending["energy_joules"][part.name] - begun["energy_joules"][part.name] - slack
        most = after["energy_joules"][part.name] - before["energy_joules"][part.name] + slack
        exact = least <= part.energy_joules <= most
        assert exact or record.uncertain_seconds > 0, (part, least, most)
        assert part.energy_joules <= most, "never more than there was"
