"""Tests of kill -9 on senergyd while it searches for an operating point.

The original settings must be restored at the next start of senergyd and at the end of the job.
"""

from __future__ import annotations

import signal
import time

import pytest
from agent_node import NodeAgent

pytestmark = [pytest.mark.node, pytest.mark.root, pytest.mark.timeout(300)]

PATIENCE_S = 120.0
UNITS_PER_S = 5.0


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def report(agent: NodeAgent, job_id: int) -> None:
    """Report the progress of a program whose speed depends on no setting."""
    now_s = boot_s()
    answer = agent.ask(
        op="progress", job_id=job_id, process="0", units=UNITS_PER_S * now_s, total=None, time_s=now_s
    )
    assert answer["ok"], answer


def wait_for_probe(agent: NodeAgent, job_id: int, before: dict[str, str]) -> dict[str, str]:
    """Report progress of a job until the agent's tuning search tries other settings.

    Pause the agent and return these settings, which it therefore cannot change any more.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        report(agent, job_id)
        phase = agent.ask(op="status")["jobs"][0]["tuning"]
        if phase == "probe":
            agent.pause()
            if (settings := agent.settings()) != before:
                return settings
            agent.go_on()
        time.sleep(0.1)
    raise AssertionError(f"no setting was tried: {agent.log()}")


def test_kill_9_during_a_search(emulate) -> None:
    agent = NodeAgent(emulate("xeon-8358"))
    try:
        before = agent.start().settings()
        agent.begin(1, policy="edp")
        tried = wait_for_probe(agent, 1, before)
        agent.stop(signal.SIGKILL)
        assert agent.settings() == tried  # nothing restores without an agent
        agent.start()
        assert agent.settings() == before  # the search starts again from the untuned job
        record = agent.end(1)
        assert agent.settings() == before
        assert record.tuning is not None
        assert (record.tuning["mode"], record.tuning["objective"]) == ("on", "edp")
        assert "senergyd was restarted while the job ran" in record.notes
        assert not (agent.folder / "state/journal.json").exists()
    finally:
        agent.remove()
