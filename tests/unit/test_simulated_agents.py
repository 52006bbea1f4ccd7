"""Tests of simulated nodes and simulated agents.

senergyctld accepts the data of simulated nodes. Simulated agents repeat deliveries until
senergyctld confirms them.
"""

from __future__ import annotations

import json
import threading
import time

import pytest

from slurm_energy.accounting.records import periods, record_store
from slurm_energy.accounting.records.plausibility import PlausibilityCheck
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import UnavailableError
from slurm_energy.protocol.live_reports import LiveReport
from slurm_energy_lab import simulated_agents
from slurm_energy_lab.simulated_agents import SimulatedAgents
from slurm_energy_lab.simulated_nodes import SimulatedNode, SimulatedWorkload


@pytest.mark.parametrize("gpus", [0, 4])
def test_the_controller_accepts_what_simulated_nodes_send(gpus):
    now = time.time()
    node = SimulatedNode(SimulatedWorkload(gpus=gpus, job_s=600.0, trace_points=100), 5, 1, now - 7200.0)
    node.job_end = now - 1.0
    report = LiveReport.from_json(json.loads(json.dumps(node.live_report().to_json())))
    items = json.loads(json.dumps(node.end_job()))
    records, refused = record_store.read_items(items, PlausibilityCheck(), now)
    period = node.period(int(now) // 3600 * 3600 - 3600, int(now) // 3600 * 3600)
    kept, rejected = periods.read_periods([{"period": json.loads(json.dumps(period.to_json()))}])
    assert [record.step for record in report.records] == [None, "0"]
    assert [item.record.step for item in records] == [None, "batch", "0"]
    assert records[0].trace is not None
    assert refused == rejected == []
    assert kept[0].period == period


def test_nodes_of_a_job_end_it_together():
    model, now = SimulatedWorkload(job_nodes=4), time.time()
    nodes = [SimulatedNode(model, number, 1, now) for number in range(8)]
    assert len({node.job_end for node in nodes[:4]}) == 1
    assert nodes[3].job_end != nodes[4].job_end


def test_simulated_agents_repeat_until_confirmed(monkeypatch):
    received = []

    class Client:
        def __init__(self, *_, **__):
            pass

        def post(self, path, body):
            received.append(path)
            if len(received) == 1:
                raise UnavailableError("controller", "it is down")
            ids = [item["period"]["period_id"] for item in body["items"]]
            return {"accepted": ids, "rejected": [], "retry": [], "traces_rejected": []}

    monkeypatch.setattr(simulated_agents, "ControllerClient", Client)
    monkeypatch.setattr(simulated_agents, "_FIRST_WAIT_S", 0.01)
    agents = SimulatedAgents(
        ClusterConfig(), [SimulatedNode(SimulatedWorkload(), 0, 1, time.time())], live_report_s=0.0
    )
    agents.close_period(3600, 7200, spread_s=0.0)
    thread = threading.Thread(target=agents.run)
    thread.start()
    deadline = time.monotonic() + 60
    while agents.outstanding and time.monotonic() < deadline:
        time.sleep(0.01)
    agents.stop()
    thread.join()
    figures = agents.figures
    assert figures.confirmed == figures.handed_over
    assert figures.errors == {"/v1/periods: controller: it is down": 1}
