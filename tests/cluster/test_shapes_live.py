"""Tests of jobs that can run in several shapes (types and numbers of GPUs), and of preemption.

A job is preempted so that another meets its deadline. A real slurmctld has two GPU types.
"""

from __future__ import annotations

import json
import time

import pytest

MODEL = ["--energy-model=resnet50", "--time=5"]
BOTH = "--energy-alternatives=gpu:a100:4,gpu:h100:2"
LOOK_S = 120.0  # slurmctld visits every job at least once a minute, and so does its plugin

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.lab(
        profiles=["epyc-7513-a100", "xeon-h100"],
        priority="portable",
        energy={"priority": {"policy": "aurachronos", "interval_s": 1.0, "preempt": True}},
    ),
]


def until(condition, what):
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + LOOK_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
    return found


def waits_as(lab, job_id, **fields):
    """Wait until the output of scontrol about a pending job contains the given fields and values."""

    def has():
        job = lab.job(job_id)
        assert job["JobState"] == "PENDING", job
        return all(job.get(key) == value for key, value in fields.items())

    until(has, lambda: lab.job(job_id))


def runs(lab, job_id):
    """Wait until a job is in state RUNNING. Return the output of `scontrol` about the job."""
    until(lambda: lab.job(job_id)["JobState"] == "RUNNING", lambda: lab.job(job_id))
    return lab.job(job_id)


def block(lab, node, *options):
    """Occupy a node until the job is cancelled."""
    job_id = lab.sbatch("sleep 600", "--exclusive", f"-w{node}", *options)
    runs(lab, job_id)
    return job_id


def decisions(lab, job_id):
    """Return the decisions about an ended job as `senergy job` shows them.

    Wait until senergyctld has read the job from Slurm.
    """

    def told():
        done = lab.run("senergy", "job", str(job_id), "--json", check=False)
        found = json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else {}
        return found.get("decisions") or None

    return until(told, lambda: _known(lab, job_id))


def _known(lab, job_id):
    """Return what Slurm's accounting and slurm-energy store about a job, for a failure message.

    The text also contains the log of senergyctld.
    """
    fields = "JobIDRaw,State,Submit,Start,End,Restarts"
    sacct = lab.run("sacct", "-D", "-X", "-P", "-j", str(job_id), "-o", fields, check=False).stdout
    ours = lab.run("senergy", "job", str(job_id), "--json", check=False).stdout
    return f"{sacct}\n{ours}\n{lab.log('senergyctld')}"


@pytest.fixture
def gpus(tmp_path):
    """Return a batch script that reports its number of GPUs, and a reader of the report.

    The script writes its host name and its number of GPUs to a file. The reader returns both.
    """
    path = tmp_path / "gpus"
    tmp_path.chmod(0o777)
    script = (
        f'#!/bin/sh\necho "$(hostname) $SLURM_GPUS_ON_NODE" >{path}.part; mv {path}.part {path}; sleep 1\n'
    )
    return script, lambda: path.read_text().split()


def test_a_job_waits_in_the_best_shape_and_starts_in_it(lab, gpus):
    script, found = gpus
    _, second = block(lab, "n1"), block(lab, "n2")
    job_id = lab.sbatch(script, "--gres=gpu:4", BOTH, *MODEL)
    waits_as(lab, job_id, TresPerNode="gres:gpu:2", ExcNodeList="n1")
    (job,) = json.loads(lab.run("senergy", "prio", "-j", str(job_id), "--json").stdout)["jobs"]
    assert {s["text"]: (s["chosen"], s["fits"]) for s in job["shapes"]} == {
        "gpu:a100:4": (False, False),
        "gpu:h100:2": (True, False),
    }
    lab.kill("senergyctld")  # it remembers its decisions
    lab.start("senergyctld")
    until(
        lambda: lab.run("senergy", "prio", "-j", str(job_id), check=False).returncode == 0,
        lambda: lab.log("senergyctld"),
    )
    lab.run(
        "scancel", str(second)
    )  # only these: if n1 were free a moment earlier, the job would get the shape for n1
    assert lab.wait(job_id) == "COMPLETED"
    assert found() == ["n2", "2"]
    (made,) = decisions(lab, job_id)
    assert (made["kind"], made["chosen"], made["offered"]) == (
        "shape",
        "gpu:h100:2",
        ["gpu:a100:4", "gpu:h100:2"],
    )


def test_a_job_gets_the_shape_that_fits(lab, gpus):
    script, found = gpus
    free, _ = block(lab, "n1"), block(lab, "n2")
    job_id = lab.sbatch(script, "--gres=gpu:4", BOTH, *MODEL)
    waits_as(lab, job_id, TresPerNode="gres:gpu:2", ExcNodeList="n1")
    lab.run("scancel", str(free))
    assert lab.wait(job_id) == "COMPLETED"
    assert found() == ["n1", "4"]
    assert [made["chosen"] for made in decisions(lab, job_id)] == ["gpu:h100:2", "gpu:a100:4"]


def test_an_unrunnable_shape_is_reverted(lab, gpus):
    script, found = gpus
    blocker = block(lab, "n1")
    job_id = lab.sbatch(script, "--gres=gpu:3", "--exclude=n2", "--energy-alternatives=gpu:h100:2", *MODEL)
    said = f"job {job_id}: Slurm cannot run it with gpu:h100:2; its original request is restored"
    until(lambda: said in lab.log("senergyctld"), lambda: lab.log("senergyctld"))
    waits_as(lab, job_id, TresPerNode="gres:gpu:3", ExcNodeList="n2")
    lab.run("scancel", str(blocker))
    assert lab.wait(job_id) == "COMPLETED"
    assert found() == ["n1", "3"]


def test_a_requested_gpu_type_stays_where_slurm_cannot_change_it(lab, gpus):
    script, found = gpus
    first, second = block(lab, "n1"), block(lab, "n2")
    job_id = lab.sbatch(script, "--gres=gpu:a100:4", BOTH, *MODEL)
    until(lambda: f"job {job_id} keeps its shape" in lab.log("senergyctld"), lambda: lab.log("senergyctld"))
    lab.run("scancel", str(first), str(second))
    assert lab.wait(job_id) == "COMPLETED"
    assert found() == ["n1", "4"]
    (made,) = decisions(lab, job_id)
    assert made["chosen"] is None
    assert "submit with --gres=gpu:COUNT" in made["why"]


def test_a_job_is_preempted_for_a_deadline_but_no_protected_one(lab):
    there = block(lab, "n1", "--requeue", "--gres=gpu:a100:4")
    stays = block(lab, "n2", "--no-requeue", "--gres=gpu:h100:8")
    urgent = lab.sbatch("sleep 1", "--gres=gpu:a100:2", "--deadline=now+120", "--time=1")
    hopeless = lab.sbatch("sleep 1", "--gres=gpu:h100:2", "--deadline=now+120", "--time=1")
    assert lab.wait(urgent) == "COMPLETED"
    assert lab.job(there)["Restarts"] == "1"
    assert lab.job(hopeless)["JobState"] in ("PENDING", "DEADLINE")  # Slurm gives it up after a minute
    assert (lab.job(stays)["JobState"], lab.job(stays)["Restarts"]) == ("RUNNING", "0")
    lab.run("scancel", str(hopeless))
    (made,) = decisions(lab, there)
    assert (made["kind"], made["for_job"]) == ("requeue", urgent)
