"""Tests of senergyd and senergyctld of different releases together.

The tests check that no record is lost or stored twice. In one test, processes are killed at random moments.
The daemons use a real munged.

A process of another release is emulated: it runs the present code with a changed version number and a
changed newest schema of records.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from own_controller import Controller, munged, place, reserved_port, wait_for  # noqa: F401

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed")

JOBS = 12
RELEASE = """
import sys
import slurm_energy
slurm_energy.__version__ = sys.argv[1]
from slurm_energy import records
records.SCHEMA_VERSION = int(sys.argv[2])
if sys.argv[3] == "strict":  # as before there was an answer for newer schemas
    def check(schema):
        if schema != 1:
            raise records.UsageError(f"energy record: schema {schema!r} is not 1")
    records._check_schema = check
from slurm_energy.MODULE import main
sys.exit(main.main(sys.argv[4:]))
"""
ANCIENT, OLD, NEW = ("0.1", "1", "strict"), ("1.0", "1", ""), ("2.0", "2", "")


def release_argv(module: str, release: tuple[str, str, str], file: Path) -> list[str]:
    return [sys.executable, "-c", RELEASE.replace("MODULE", module), *release, "--config", str(file)]


class ReleasedController(Controller):
    """A senergyctld of a given release of slurm-energy."""

    release = OLD

    def argv(self, *arguments):
        return [*release_argv("controller", self.release, self.file), *arguments]

    def change_to(self, release):
        self.stop(signal.SIGKILL)
        self.release = release
        self.start()

    def runs(self):
        """Return the number of stored records and the number of traces of each job, both by job id."""
        records = self.client().get("/v1/records", {"duplicates": "1", "steps": "1"})["records"]
        jobs = Counter(record["job_id"] for record in records)
        traces = {
            job_id: sum(r["trace"] is not None for r in self.client().get(f"/v1/jobs/{job_id}")["records"])
            for job_id in jobs
        }
        return jobs, traces


class Agent:
    """A senergyd process of a chosen release of slurm-energy, on a node without devices."""

    def __init__(self, folder: Path, controller: Controller, release=NEW) -> None:
        folder.mkdir(mode=0o700)
        self.folder, self.release = folder, release
        self.socket, self.file, self.log = folder / "run/agent.sock", folder / "energy.toml", folder / "log"
        self.process = None
        self.file.write_text(
            f'[cluster]\ncontroller_url = "{controller.url}"\nmunge_socket = "{controller.munge_socket}"\n'
            f'controller_users = ["{os.getuid()}"]\n'
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{folder}/state"\nsampling_hz = 50.0\n'
        )

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(release_argv("agent", self.release, self.file), stderr=log)
        wait_for(lambda: self.ask(op="status").get("ok"))

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def ask(self, **message):
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.socket))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as lines:
                return json.loads(lines.readline())
        return {}

    def run_job(self, job_id):
        env = {"SLURM_JOB_ID": str(job_id), "SLURM_JOB_UID": "0", "SLURMD_NODENAME": "n1"}
        env |= {"SLURM_JOB_CPUS_PER_NODE": "1", "SLURM_CLUSTER_NAME": "c1"}
        assert self.ask(op="begin", env=env)["ok"]
        time.sleep(0.1)  # some samples, so that there is a trace
        assert self.ask(op="end", env=env)["ok"]

    def kept(self):
        """Return the job ids of the records that this agent still stores together with their power trace.

        The agent stores undelivered records in its spool, and rejected records in a folder of the spool.
        """
        spool = self.folder / "state/spool"
        paths = [*spool.glob("*.json"), *spool.glob("rejected/*.json")]
        return sorted(
            json.loads(path.read_bytes())["job_id"] for path in paths if path.with_suffix(".trace").exists()
        )

    def counts(self):
        status = self.ask(op="status")
        return {name: status.get(name) for name in ("spooled", "deferred", "rejected")}


@pytest.fixture
def controller(tmp_path, munged):  # noqa: F811
    with reserved_port() as port:
        made = ReleasedController(tmp_path, munged, port)
        yield made
        made.stop(signal.SIGKILL)


@pytest.fixture
def agents(place, controller):  # noqa: F811
    made = []

    def make(name, release=NEW):
        made.append(Agent(place / name, controller, release))
        return made[-1]

    yield make
    for agent in made:
        agent.kill()
        shutil.rmtree(agent.folder)


def test_a_newer_node_keeps_its_records_until_the_controller_is_upgraded(controller, agents):
    controller.start()
    newer, older = agents("newer"), agents("older", OLD)
    newer.start()
    older.start()
    for job_id in (1, 2, 3):
        newer.run_job(job_id)
    older.run_job(10)
    wait_for(lambda: newer.counts() == {"spooled": 3, "deferred": 3, "rejected": 0})
    wait_for(lambda: controller.runs() == ({10: 1}, {10: 1}))
    assert newer.kept() == [1, 2, 3]
    asked = controller.client().get("/v1/status")["nodes"]
    assert [node["node"] for node in asked] == ["n1"]
    controller.stop()
    controller.release = NEW
    controller.start()
    newer.run_job(4)  # its response reveals the new release
    older.run_job(11)  # an older node and a newer controller
    once = dict.fromkeys((1, 2, 3, 4, 10, 11), 1)
    wait_for(lambda: controller.runs() == (once, once))
    wait_for(lambda: newer.counts() == {"spooled": 0, "deferred": 0, "rejected": 0})


def test_records_refused_by_an_old_controller_arrive_after_its_upgrade(controller, agents):
    controller.release = ANCIENT
    controller.start()
    agent = agents("refused")
    agent.start()
    for job_id in (1, 2):
        agent.run_job(job_id)
    wait_for(lambda: agent.counts() == {"spooled": 0, "deferred": 0, "rejected": 2})
    assert agent.kept() == [1, 2]
    listed = agent.ask(op="spool")["rejected_records"]
    assert all("schema 2 is not 1" in record["reason"] and record["trace"] for record in listed)
    controller.change_to(NEW)
    agent.run_job(3)
    wait_for(lambda: controller.runs() == ({1: 1, 2: 1, 3: 1}, {1: 1, 2: 1, 3: 1}))
    wait_for(lambda: agent.counts() == {"spooled": 0, "deferred": 0, "rejected": 0})


@pytest.mark.parametrize("rounds", [5, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_kill_9_at_random_moments_loses_and_duplicates_nothing(controller, agents, rounds):
    chance = random.Random(9)
    agent = agents("killed")
    agent.start()  # no controller yet
    for job_id in range(1, JOBS + 1):
        agent.run_job(job_id)
    wait_for(lambda: agent.kept() == list(range(1, JOBS + 1)))
    agent.kill()
    for _ in range(rounds):
        controller.change_to(chance.choice([ANCIENT, OLD]))
        agent.start()
        if chance.random() < 0.5:
            agent.ask(op="resend", record_ids=None)
        time.sleep(chance.uniform(0.0, 0.3))
        if chance.random() < 0.3:
            controller.stop(signal.SIGKILL)
            time.sleep(chance.uniform(0.0, 0.1))
        agent.kill()
    controller.change_to(NEW)
    for _ in range(3):  # a node may also die during the upgrade
        agent.start()
        time.sleep(chance.uniform(0.0, 0.3))
        agent.kill()
    agent.start()
    wait_for(lambda: agent.counts() == {"spooled": 0, "deferred": 0, "rejected": 0})
    jobs, traces = controller.runs()
    assert jobs == traces == dict.fromkeys(range(1, JOBS + 1), 1)
    left = [path for path in (agent.folder / "state/spool").rglob("*") if path.is_file()]
    assert left == []
