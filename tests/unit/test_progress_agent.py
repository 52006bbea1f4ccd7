"""Tests of the reports with which a program tells a running senergyd its progress.

The reports come from a program of the job's owner, from the command line, and from another user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_agent_daemon import Agent, eventually, started_agent
from test_job_manager import env

from slurm_energy.diagnosis.json_codec import node_from_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start programs of other users"),
]

OWNER, OTHER = 65534, 65533
ASK = """
import json, sys
from pathlib import Path
from slurm_energy.protocol.agent_socket import ask_agent
print(json.dumps(ask_agent(Path(sys.argv[1]), json.loads(sys.argv[2]))))
"""
PROGRAM = """
import json, time
import slurm_energy
from slurm_energy.profiling import progress
for batch in slurm_energy.track(range(5), total=50):
    pass
deadline = time.monotonic() + 60
while progress._reporter._unanswered and time.monotonic() < deadline:
    time.sleep(0.05)
    progress._reporter._receive()
slurm_energy.progress(45)
progress._reporter.flush()
print(json.dumps([progress._reporter._units, progress._reporter._connection is not None]))
"""
WATCHED = """
import json, time
import slurm_energy
from slurm_energy.profiling import progress
watched = slurm_energy.watch(range(60), total=60)
deadline = time.monotonic() + 60
for number in watched:
    if number == 1:
        while progress._reporter._unanswered and time.monotonic() < deadline:
            time.sleep(0.05)
            progress._reporter._receive()
with slurm_energy.phase("checkpoint"):
    pass
print("[]")
"""


def run(agent: Agent, uid: int, program: str, *arguments: str) -> Any:
    """Run a Python program as a user in job 5 and return the JSON that it prints."""
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "5", "SENERGY_CONFIG": str(agent.config)}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def report(**fields: Any) -> str:
    return json.dumps({"op": "progress", "job_id": 5, "process": "0", **fields})


@pytest.mark.other_user
def test_the_owner_of_a_job_reports_its_progress() -> None:
    with started_agent() as agent:
        agent.ask({"op": "begin", "env": {**env(5), "SLURM_JOB_UID": str(OWNER)}})
        assert run(agent, OWNER, PROGRAM) == [50, True]
        answer = run(agent, OWNER, ASK, str(agent.socket), report(units=3, total=10))
        assert answer == {
            "ok": True,
            "units": 3.0,
            "remaining_s": None,
            "interval_s": 30.0,
            "steps_bytes": 49152,
        }
        run(agent, OWNER, WATCHED)
        answer = run(agent, OTHER, ASK, str(agent.socket), report(units=4))
        assert (answer["ok"], answer["code"]) == (False, 5)
        command = [sys.executable, "-m", "slurm_energy.cli.main", "progress", "2", "--json", "--strict"]
        environment = {**os.environ, "SLURM_JOB_ID": "5", "SENERGY_CONFIG": str(agent.config)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(done.stdout) == {"units": 2.0, "remaining_s": None}
        agent.ask({"op": "end", "env": {**env(5), "SLURM_JOB_UID": str(OWNER)}})
        eventually(lambda: len(agent.spooled()) == 1, "the record is in the spool")
        path = next((agent.folder / "state/spool").glob("*.observation"))
        observed = node_from_json(json.loads(path.read_text()))
        counts = [{name: phase.count for name, phase in rank.phases.items()} for rank in observed.ranks]
        # The program sends its last steps at its exit, without waiting.
        assert counts == [{"data": 60, "step": 60, "checkpoint": 1}]
