"""Test the energy in senergyd's records against the true energy in the emulator's model.

Some tests kill the agent while a job runs.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass

import pytest
from agent_node import NodeAgent

from slurm_energy.records import EnergyRecord
from slurm_energy.reports.trace import decode_trace
from slurm_energy_lab import client

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


@dataclass(frozen=True)
class Truth:
    """Bounds of the energy of a record, by component, from the model's integrals.

    The lower bound `least` is the energy inside the job. The upper bound `most` is the energy from
    before the job's begin until after its end. The energy of a record lies between the bounds,
    however long the test, senergyd or the emulator is delayed.
    """

    least: dict[str, float]
    most: dict[str, float]

    def fits(self, record: EnergyRecord, component: str) -> bool:
        least, found, most = self.least[component], energy(record)[component], self.most[component]
        print(f"{component}: {least:.1f} <= {found:.1f} <= {most:.1f} J")
        return 0.99 * least <= found <= 1.01 * most


def measured_job(agent: NodeAgent, work, **flags: str) -> tuple[EnergyRecord, Truth]:
    """Run the function `work` as a job on the node.

    Return the energy record of the job, and a lower and an upper bound of its true energy.
    """
    earlier = agent.record_ids()
    moments = [agent.truth()]
    agent.begin(1, **flags)
    moments.append(agent.truth())
    work()
    moments.append(agent.truth())
    assert agent.ask(op="end", env=agent.env(1))["known"]
    moments.append(agent.truth())
    first, begun, ending, last = (moment["energy_joules"] for moment in moments)
    least = {name: ending[name] - begun[name] for name in begun}
    most = {name: last[name] - first[name] for name in first}
    return agent.new_record(earlier), Truth(least, most)


def kernel(agent: NodeAgent, name: str, device: str, seconds: float, **where):
    return lambda: client.run_kernel(agent.node.socket, name, device, full_speed_s=seconds, **where)


class Failure:
    """Failure of some energy counters for about a second; senergyd notices the failure and its end.

    Attributes:
        most_s: upper bound of the duration of the failure in seconds. It is the time from the last sample
            before the failure to the first sample after it.
    """

    def __init__(self, agent: NodeAgent, path: str, counters: int) -> None:
        self.agent, self.path, self.counters = agent, path, counters
        self.most_s = 0.0

    def happens(self) -> None:
        time.sleep(1)
        first = self.agent.sampled_s(1)
        client.set_fault(self.agent.node.socket, self.path, "EIO")
        self.agent.wait_for_log("cannot be read", self.counters)
        time.sleep(1)
        client.set_fault(self.agent.node.socket, self.path, None)
        self.agent.wait_for_log("can be read again", self.counters)
        self.most_s = self.agent.sampled_s(1) - first
        time.sleep(1)


def test_energy_of_a_cpu_job_is_the_model_s_integral(started):
    agent = started("xeon-8358")
    record, truth = measured_job(agent, kernel(agent, "gemm", "cpu", 5))
    assert record.elapsed_s > 4.5
    assert truth.fits(record, "cpu")
    assert truth.fits(record, "dram")
    assert record.uncertain_seconds == 0
    assert (
        record.mean_watts <= record.peak_watts < 800
    )  # the mean of a second, as exact as the times of its readings
    (trace,) = [decode_trace(item["trace"]) for item in agent.items() if item["trace"]]
    assert sum(trace.watts["cpu"]) * trace.interval_s == pytest.approx(energy(record)["cpu"], rel=0.02)


def test_energy_of_a_gpu_job_under_a_cap(started):
    agent = started("epyc-7513-a100")
    run = kernel(agent, "gemm", "gpu", 5, gpus=[0, 1])
    ran: dict[str, float] = {}
    record, truth = measured_job(agent, lambda: ran.update(run()), gpu_cap="200")
    for name in ("gpu[0]", "gpu[1]", "gpu[2]", "gpu[3]", "cpu"):
        assert truth.fits(record, name)
    assert "dram" not in energy(record)  # this platform has no DRAM counter
    # It is searched periodically, and counts as present until the next search.
    assert 0.7 * (ran["end"] - ran["start"]) < record.throttled_seconds <= record.elapsed_s
    assert record.seconds_above_cap < 2


def test_a_counter_that_wraps_every_second_is_exact_whatever_rate_is_configured(started):
    """The energy is exact if a counter wraps more than once per second, whatever rate is configured.

    The counter has a range of 128 J. Under load, the counter of a package wraps every half second. In the
    test, one sample per second is configured.
    """
    agent = started("xeon-8358", "--set", "rapl.energy_unit_exponent=25", sampling_hz=1.0)
    record, truth = measured_job(agent, kernel(agent, "gemm", "cpu", 4))
    if record.uncertain_seconds == 0:  # the machine was never delayed by a fifth of a second
        assert truth.fits(record, "cpu")
    else:
        assert energy(record)["cpu"] <= truth.most["cpu"] * 1.01


def test_a_counter_that_wraps_too_often_for_any_rate_is_uncertain(started):
    """The energy from a counter that wraps too often for every sampling rate is uncertain.

    The energy counter has a range of 4 J and wraps every 10 ms under load.
    """
    agent = started("xeon-8358", "--set", "rapl.energy_unit_exponent=29", sampling_hz=1.0)
    record, truth = measured_job(agent, kernel(agent, "gemm", "cpu", 4))
    assert record.uncertain_seconds > 0.7 * record.elapsed_s
    assert energy(record)["cpu"] <= truth.most["cpu"] * 1.01
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

    record, truth = measured_job(agent, work, policy="edp", model="gemm", tuning="off")
    assert truth.fits(record, "cpu")
    assert truth.fits(record, "dram")
    assert record.uncertain_seconds == 0
    assert agent.settings() == before
    assert len([r for r in agent.records() if r.step is None]) == 1


def test_a_counter_that_fails_for_a_while_costs_certainty_not_the_job(started):
    agent = started("xeon-8358")
    path = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj"
    failure = Failure(agent, path, 1)
    record, truth = measured_job(agent, failure.happens)
    assert truth.fits(record, "cpu")
    assert 1 <= record.uncertain_seconds <= failure.most_s
    assert agent.log().count("cannot be read") == 1
    assert agent.log().count("can be read again") == 1


def test_gpus_that_fall_off_the_bus_come_back_and_cost_their_own_energy_only(started):
    agent = started("epyc-7513-a100")
    gpus = agent.gpus()
    failure = Failure(agent, "/dev/nvidiactl", gpus)
    record, truth = measured_job(agent, failure.happens)
    assert truth.fits(record, "cpu")
    assert 0 < energy(record)["gpu[0]"] < 0.95 * truth.most["gpu[0]"]
    quality = {part.name: part.quality for part in record.components}
    assert (quality["cpu"], quality["gpu[0]"]) == ("measured", "partial")
    assert 1 <= record.uncertain_seconds <= failure.most_s
    assert agent.log().count("cannot be read") == gpus
