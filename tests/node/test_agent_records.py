"""Energy of records against the emulator's own integral, and records of agents that were killed."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from agent_node import NodeAgent

from slurm_energy.lab import client
from slurm_energy.reports.trace import decode_trace

pytestmark = [pytest.mark.node, pytest.mark.root]


@pytest.fixture
def started(emulate):
    agents: list[NodeAgent] = []

    def start(profile: str, *arguments: str, **options) -> NodeAgent:
        agents.append(NodeAgent(emulate(profile, *arguments), **options).start())
        return agents[-1]

    yield start
    for agent in agents:
        agent.remove()


def energy(record) -> dict[str, float]:
    return {part.name: part.energy_joules for part in record.components}


def measured_job(agent: NodeAgent, work, **flags: str):
    """Run `work` as a job; return its record and the model's own integral over the same time."""
    agent.begin(1, **flags)
    before = agent.truth()["energy_joules"]
    work()
    after = agent.truth()["energy_joules"]
    record = agent.end(1)
    return record, {name: after[name] - before[name] for name in before}


def kernel(agent: NodeAgent, name: str, device: str, seconds: float, **where):
    return lambda: client.run_kernel(agent.node.socket, name, device, full_speed_s=seconds, **where)


@pytest.mark.parametrize("name", ["gemm", "triad"])
def test_energy_of_a_cpu_job_is_the_model_s_integral(started, name):
    agent = started("xeon-8358")
    record, truth = measured_job(agent, kernel(agent, name, "cpu", 10))
    found = energy(record)
    assert record.elapsed_s > 9.5
    for part in ("cpu", "dram"):
        assert found[part] == pytest.approx(truth[part], rel=0.01)
    assert record.uncertain_seconds == 0
    assert record.mean_watts <= record.peak_watts < 800  # a second's mean, as exact as the moments of reading
    (trace,) = [decode_trace(item["trace"]) for item in agent.items() if item["trace"]]
    assert sum(trace.watts["cpu"]) * trace.interval_s == pytest.approx(found["cpu"], rel=0.02)


def test_energy_of_a_gpu_job_under_a_cap(started):
    agent = started("epyc-7513-a100")
    record, truth = measured_job(agent, kernel(agent, "gemm", "gpu", 8, gpus=[0, 1]), gpu_cap="200")
    found = energy(record)
    for index in range(4):
        assert found[f"gpu[{index}]"] == pytest.approx(truth[f"gpu[{index}]"], rel=0.01)
    assert found["cpu"] == pytest.approx(truth["cpu"], rel=0.01)
    assert "dram" not in found  # this platform has no DRAM counter
    assert record.throttled_seconds == pytest.approx(record.elapsed_s, rel=0.2)
    assert record.seconds_above_cap < 2


def test_a_counter_that_wraps_every_second_is_exact_whatever_rate_is_configured(started):
    """128 J of range: a package wraps every half second under load."""
    agent = started("xeon-8358", "--set", "rapl.energy_unit_exponent=25", sampling_hz=1.0)
    record, truth = measured_job(agent, kernel(agent, "gemm", "cpu", 6))
    if record.uncertain_seconds == 0:  # the machine was never late for a fifth of a second
        assert energy(record)["cpu"] == pytest.approx(truth["cpu"], rel=0.01)
    else:
        assert energy(record)["cpu"] <= truth["cpu"] * 1.01


def test_a_counter_that_wraps_too_often_for_any_rate_is_uncertain(started):
    """4 J of range: a package wraps every 10 ms under load."""
    agent = started("xeon-8358", "--set", "rapl.energy_unit_exponent=29", sampling_hz=1.0)
    record, truth = measured_job(agent, kernel(agent, "gemm", "cpu", 4))
    assert record.uncertain_seconds > 0.7 * record.elapsed_s
    assert energy(record)["cpu"] <= truth["cpu"] * 1.01
    assert {part.quality for part in record.components if part.name == "cpu"} == {"partial"}


def test_a_job_over_a_killed_agent_has_all_its_energy(started):
    agent = started("xeon-8358")
    before = agent.settings()

    def work() -> None:
        runner = threading.Thread(target=kernel(agent, "gemm", "cpu", 6))
        runner.start()
        time.sleep(2)
        agent.stop(signal.SIGKILL)
        time.sleep(1)
        agent.start()
        runner.join(timeout=60)

    record, truth = measured_job(agent, work, policy="edp")
    assert energy(record)["cpu"] == pytest.approx(truth["cpu"], rel=0.01)
    assert energy(record)["dram"] == pytest.approx(truth["dram"], rel=0.01)
    assert record.uncertain_seconds == 0
    assert agent.settings() == before
    assert len([r for r in agent.records() if r.step is None]) == 1


def test_a_counter_that_fails_for_a_while_costs_certainty_not_the_job(started):
    agent = started("xeon-8358")
    path = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj"

    def work() -> None:
        time.sleep(1)
        client.set_fault(agent.node.socket, path, "EIO")
        time.sleep(1)
        client.set_fault(agent.node.socket, path, None)
        time.sleep(1)

    record, truth = measured_job(agent, work)
    assert energy(record)["cpu"] == pytest.approx(truth["cpu"], rel=0.02)
    assert 0.7 < record.uncertain_seconds < 2
    assert agent.log().count("cannot be read") == 1
    assert agent.log().count("can be read again") == 1


def test_gpus_that_fall_off_the_bus_come_back_and_cost_their_own_energy_only(started):
    agent = started("epyc-7513-a100")
    gpus = agent.gpus()

    def work() -> None:
        time.sleep(1)
        client.set_fault(agent.node.socket, "/dev/nvidiactl", "EIO")
        time.sleep(1)
        client.set_fault(agent.node.socket, "/dev/nvidiactl", None)
        deadline = time.monotonic() + 60
        while agent.log().count("can be read again") < gpus and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)

    record, truth = measured_job(agent, work)
    found = energy(record)
    assert found["cpu"] == pytest.approx(truth["cpu"], rel=0.02)
    assert 0 < found["gpu[0]"] < 0.95 * truth["gpu[0]"]
    quality = {part.name: part.quality for part in record.components}
    assert (quality["cpu"], quality["gpu[0]"]) == ("measured", "partial")
    assert 0.9 < record.uncertain_seconds < record.elapsed_s - 1
    assert agent.log().count("cannot be read") == gpus
