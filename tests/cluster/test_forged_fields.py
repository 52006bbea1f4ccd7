"""Test that job fields chosen by a user cannot harm jobs of other users, on a real slurmctld.

For example, a user submits jobs whose names imitate Slurm's output, to deceive senergyctld's parsers.
"""

from __future__ import annotations

import json
import time

import pytest

from slurm_energy.slurm.fair_share import read_shares
from slurm_energy.slurm.job_accounting import read_job_facts
from slurm_energy.slurm.queue.gpu_request import GpuRequest, read_gpu_request
from slurm_energy.slurm.queue.squeue_source import SqueueSource

WAIT_S = 120.0
FORGED = "x ReqNodeList=(null) Features=(null) Reservation=(null)"
SHORT = ("--deadline=now+120", "--time=1")
"""A job at risk of missing its deadline at once, as its slack is the margin of 60 s for a preemption."""
HOSTILE = {
    "fields": "x JobState=RUNNING ExcNodeList=n1 TresPerNode=gres:gpu:h100:8 Features=fast",
    "lines": "a\nb|c\n1|1|c|root|gpu|root|RUNNING\n\n",
    "blanks": "  a" + " " * 300 + "7",
    "unicode": "ünï \x1f %A%i <0123456789abcdef> \\n",
    "quotes": "\"'`$(id)`,;:@^*+{}[]",
}

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.other_user,
    pytest.mark.lab(
        profiles=["epyc-7513-a100", "xeon-h100"],
        priority="portable",
        energy={"priority": {"policy": "aurachronos", "interval_s": 1.0, "preempt": True}},
    ),
]


def until(condition, what):
    """Wait until a condition holds and return its value."""
    deadline = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
    return value


def state(lab, job_id, field="%T"):
    return lab.run("squeue", "-h", "-t", "all", "-j", str(job_id), "-o", field).stdout.strip()


def restarts(lab, job_id):
    return int(lab.run("squeue", "-h", "-t", "all", "-j", str(job_id), "-O", "RestartCnt").stdout)


def block(lab, node, *options):
    job_id = lab.sbatch("sleep 600", "--exclusive", f"-w{node}", *options)
    until(lambda: state(lab, job_id) == "RUNNING", lambda: lab.log("slurmctld"))
    return job_id


def rankings(lab, job_id):
    """Return the time of the last ranking that contains the job; None if no ranking contains it."""
    done = lab.run("senergy", "prio", "-j", str(job_id), "--json", check=False)
    return json.loads(done.stdout)["computed"] if done.returncode == 0 else None


def test_a_job_name_preempts_no_job_of_another_user(lab):
    victim = block(lab, "n1", "--requeue")
    block(lab, "n2", "--no-requeue")
    # It can run only on n2, where no job may be preempted.
    forged = lab.sbatch("sleep 1", "-J", FORGED, "-wn2", *SHORT, user="nobody")
    first = until(lambda: rankings(lab, forged), lambda: lab.log("senergyctld"))
    until(lambda: (rankings(lab, forged) or 0) > first + 5, lambda: lab.log("senergyctld"))
    assert (restarts(lab, victim), state(lab, victim)) == (0, "RUNNING")
    # The same job without the forged name does preempt the victim.
    honest = lab.sbatch("sleep 1", *SHORT, user="nobody")
    until(lambda: restarts(lab, victim) == 1, lambda: lab.log("senergyctld"))
    assert f"job {victim} is preempted for job {honest}" in lab.log("senergyctld")
    assert f"is preempted for job {forged}" not in lab.log("senergyctld")


@pytest.fixture
def login(lab, monkeypatch):
    """Give this process the environment of the login node."""
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("name", HOSTILE)
def test_every_parser_returns_the_values_stored_in_slurm(lab, name):
    options = ("--hold", "--gres=gpu:2", "--exclude=n2")
    job_id = lab.sbatch("true", "-J", HOSTILE[name], *options, user="nobody")
    assert read_gpu_request(str(job_id)) == GpuRequest(True, "", 2, (), "n2")
    queue = SqueueSource().read()
    assert queue.job_id.tolist() == [job_id]
    assert (queue.name, queue.user, queue.gpus.tolist()) == ([HOSTILE[name]], ["nobody"], [2])
    (facts,) = until(lambda: read_job_facts([job_id]).get(job_id), lambda: lab.log("slurmdbd"))
    assert (facts.user, facts.state, facts.nodes) == ("nobody", "PENDING", 1)
    stored = HOSTILE[name].replace('"', "`").encode()[:255].decode().rstrip(" ")  # slurmdbd itself changes it
    assert facts.name == stored or facts.name.endswith("+")
    assert facts.submit == queue.submit_s[0]


@pytest.mark.usefixtures("login")
def test_an_account_name_forges_no_share(lab):
    name = "x\nlab|nobody||lab|9999\nz"
    lab.run("sacctmgr", "-i", "add", "account", name, "Fairshare=5")
    try:
        shares = read_shares(
            cluster=lab.run("sacctmgr", "-n", "-P", "list", "cluster", "format=cluster").stdout.strip()
        )
        assert {user for _, user in shares.users} >= {"nobody"}
        assert all((share.raw or 0) < 9999 for share in shares.users.values())
        assert "z" not in shares.accounts and shares.accounts[name].raw == 5
    finally:
        lab.run("sacctmgr", "-i", "delete", "account", name, check=False)
