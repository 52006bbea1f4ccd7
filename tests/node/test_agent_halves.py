"""Test of two jobs on a node that each use half of the node.

Independent programs must see the settings of each job, and the settings that both jobs share.
"""

from __future__ import annotations

import re
import shutil
import time

import pytest
from agent_node import NodeAgent

pytestmark = [
    pytest.mark.node,
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("cpupower") is None, reason="cpupower is not installed"),
]

HALF = 64  # of 2 packages with 32 cores and 2 threads each


class SharedAgent(NodeAgent):
    """An agent on an emulated node with Xeon Platinum 8358 processors that jobs share.

    The cores of jobs are reported as Slurm reports them: cores of package 0 first.
    """

    def share(self, job_id: int, cpus: int, **flags: str) -> None:
        env = {**self.env(job_id, **flags), "SLURM_JOB_CPUS_PER_NODE": str(cpus)}
        assert self.ask(op="begin", env=env)["ok"]

    def step(self, job_id: int, cores: str) -> None:
        message = {"op": "step", "event": "start", "job_id": job_id, "step": "batch", "pid": 1}
        assert self.ask(**message, cpus=cores, job_cpus=cores)["known"]

    def governors(self) -> list[str]:
        """Return the governors of the first and last CPU of each package, as cpupower shows them."""
        text = self.node.output("cpupower", "-c", "0,31,32,63,64,95,96,127", "frequency-info", "-p")
        found = re.findall(r'The governor "(\w+)"', text)
        assert len(found) == 8, text
        return found

    def limits(self) -> list[int]:
        """Return the limits of package-0 and package-1 in watts, as powercap-info shows them."""
        found = {}
        for zone in ("0", "1"):
            text = self.node.output("powercap-info", "-p", "intel-rapl", "-z", zone)
            name = re.search(r"^\s*name: (\S+)", text, re.MULTILINE)
            limit = re.search(r"Constraint 0.*?power_limit_uw: (\d+)", text, re.DOTALL)
            assert name and limit, text
            found[name[1]] = int(limit[1]) // 1_000_000
        return [found["package-0"], found["package-1"]]


def wait_for(look, expected) -> None:
    """Wait until `look` returns the value `expected`. It fails after a minute.

    The function `look` reads settings. senergyd changes the settings only after its response to the
    message about a job step.
    """
    deadline = time.monotonic() + 60
    while (found := look()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.fixture(scope="module")
def agent(emulate):
    found = SharedAgent(emulate("xeon-8358", "--set", "cpufreq.driver=intel_cpufreq"))
    found.start()
    yield found
    found.remove()


def test_each_half_has_its_own_governor(agent):
    before = agent.settings()
    original = agent.governors()[0]
    agent.share(1, HALF, policy="performance")
    agent.share(2, HALF, policy="powersave")
    assert agent.settings() == before
    agent.step(1, "0-31")
    agent.step(2, "32-63")
    first, second = ["performance"] * 2, ["powersave"] * 2
    wait_for(agent.governors, (first + second) * 2)  # second threads are 64 further on
    agent.stop(9)
    agent.start()
    assert agent.governors() == (first + second) * 2
    record = agent.end(1)
    assert agent.governors() == ([original] * 2 + second) * 2
    agent.end(2)
    assert agent.settings() == before
    assert record.policy == "performance"
    assert all(setting.restored and not setting.note for setting in record.applied)


@pytest.mark.skipif(shutil.which("powercap-info") is None, reason="powercap-info is not installed")
def test_the_limit_of_a_package_is_the_combined_one(agent):
    before = agent.settings()
    whole = agent.limits()
    # A quarter of the node keeps 19 of 76 W for memory; the rest is for half of package-0.
    agent.share(3, HALF // 2, cap="109")
    agent.step(3, "0-15")
    wait_for(agent.limits, [180, whole[1]])
    agent.share(4, HALF // 2, cap="119")
    assert agent.limits() == whole  # its CPUs are unknown yet: no cap may slow it down
    agent.step(4, "16-31")
    wait_for(agent.limits, [200, whole[1]])
    agent.share(5, HALF, policy="monitor")
    assert agent.limits() == whole
    agent.step(5, "32-63")
    wait_for(agent.limits, [200, whole[1]])
    agent.end(4)
    assert agent.limits() == [180, whole[1]]
    agent.end(3)
    agent.end(5)
    assert agent.settings() == before
