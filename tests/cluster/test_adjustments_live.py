"""Tests of how the diagnosis changes programs, from the finding to the verified change.

The tests run in a lab, a Slurm cluster of emulated nodes. They cover the policy `auto` and the
options `--apply` and `--submit`, on one and two nodes. They take minutes, because senergyctld
verifies a run half a minute after its end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1500),
    pytest.mark.lab(
        profiles=("xeon-8358", "xeon-8358"),
        energy={
            "agent": {"signals_interval": "1s"},
            "controller": {"enrich_interval_s": 5.0},
            "diagnosis": {"thresholds": {"minimum_time": 10, "idle_tail": 10, "idle_stretch": 15}},
        },
        accounting=False,
    ),
]

PROGRAM = Path(__file__).with_name("checkpointing_program.py")
DECISION_S = 180.0
EARLIER_RUNS = 2
LAST_WORK = "timeout 20 sh -c 'while :; do :; done'; true"
TWO_NODES_NEEDED = '[ "$SLURM_JOB_NUM_NODES" -ge 2 ] || exit 1'


def script(folder, name, command):
    """Write a batch script and return its path. Its content identifies the program."""
    path = folder / f"{name}.sh"
    path.write_text(f"#!/bin/sh\n#SBATCH --exclusive\n#SBATCH --energy-signals=1s\n{command}\n")
    return path


def run(lab, path, *options):
    """Run a batch script to its end and return the job id."""
    job = lab.sbatch(path, *options)
    lab.wait(job, timeout=180)
    return job


def adjustments(lab, job):
    return json.loads(lab.run("senergy", "diagnose", str(job), "--adjustments", "--json").stdout)


def trial_of(lab, job, condition):
    """Wait until the newest trial of a job's program satisfies a condition, and return the trial.

    A trial tests adjustments of the program. After `DECISION_S` seconds, the newest trial is returned even
    if the condition does not hold. The result is None if there is no trial.
    """
    end_s = time.monotonic() + DECISION_S
    while True:
        try:
            trials = adjustments(lab, job)["trials"]
        except AssertionError:  # the record of the job has not arrived
            trials = []
        if (trials and condition(trials[-1])) or time.monotonic() > end_s:
            return trials[-1] if trials else None
        time.sleep(2)


def verified(runs):
    """Return a function that checks the progress of a trial of adjusted values in later runs.

    The function takes a trial. It returns True if the trial is decided, or if at least `runs` runs with the
    adjusted values were measured. A test can wait for this condition.
    """
    return lambda trial: trial["state"] != "pending" or len(trial["after"]) >= runs


@pytest.mark.parametrize(("nodes", "growth", "state"), [(1, 0, "kept"), (1, 1.2, "undone"), (2, 0, "kept")])
def test_policy_auto_keeps_what_helps_and_undoes_what_does_not(lab, tmp_path, nodes, growth, state):
    tmp_path.chmod(0o755)
    lab.run("senergy", "diagnose", "--permit", "checkpoint-interval")
    command = f"# {nodes} nodes\nsrun {sys.executable} {PROGRAM} 200 1.0 {growth}"
    path = script(tmp_path, "train", command)
    size = (f"--nodes={nodes}", f"--ntasks={nodes}")
    for _ in range(EARLIER_RUNS):  # on a busy machine the noise of one run is unknown
        run(lab, path, *size)
    options = ("--energy-policy=auto", *size)
    first = run(lab, path, *options)
    trial = trial_of(lab, first, lambda trial: True)
    assert trial is not None and trial["source"] == "auto", trial
    for number in range(1, 4):
        last = run(lab, path, *options)
        trial = trial_of(lab, first, verified(number))
        if trial["state"] != "pending":
            break
    assert trial["state"] == state, trial
    assert trial["finding"] == "checkpoint-stall"
    values = adjustments(lab, last)["values"]
    assert bool(values) == (state == "kept")
    assert len(trial["after"]) >= 1 and trial["after"][0]["nodes"] == nodes


@pytest.mark.parametrize(("needs_both", "state"), [(False, "kept"), (True, "undone")])
def test_submit_delivers_options_of_sbatch_and_undoes_them_if_the_run_fails(lab, tmp_path, needs_both, state):
    tmp_path.chmod(0o755)
    command = f"{TWO_NODES_NEEDED}\n{LAST_WORK}" if needs_both else LAST_WORK
    path = script(tmp_path, "work", command)
    first = run(lab, path, "--nodes=2")
    wait_for_observation(lab, first)
    # The start of a job takes seconds on a busy machine.
    lab.run("senergy", "diagnose", str(first), "--apply", "--permit", "nodes=1..2,slowdown=20")
    for number in range(1, 4):
        done = lab.run("senergy", "diagnose", str(first), "--submit", str(path), "--json", cwd=tmp_path)
        submitted = json.loads(done.stdout)
        assert submitted["options"] == ["--nodes=1"]
        lab.wait(submitted["job_id"], timeout=180)
        trial = trial_of(lab, first, verified(number))
        if trial["state"] != "pending":
            break
    assert trial["state"] == state, trial
    assert trial["after"][0]["nodes"] == 1


def wait_for_observation(lab, job):
    """Wait until the records and signals of a job have arrived."""
    end_s = time.monotonic() + 90
    while True:
        done = lab.run("senergy", "diagnose", str(job), "--json", check=time.monotonic() > end_s)
        if done.returncode == 0:
            result = json.loads(done.stdout)
            if result["summary"]["signals"] and result["job"]["state"] == "COMPLETED":
                return
        assert time.monotonic() < end_s, done.stderr
        time.sleep(2)


def test_advice_about_a_running_job_is_refused_in_one_line(lab, tmp_path):
    tmp_path.chmod(0o755)
    job = lab.sbatch(script(tmp_path, "wait", "sleep 60"))
    end_s = time.monotonic() + 60
    while lab.job(job)["JobState"] != "RUNNING" and time.monotonic() < end_s:
        time.sleep(0.1)
    done = lab.run("senergy", "diagnose", str(job), "--apply", "--permit", "nodes", check=False)
    lab.run("scancel", str(job))
    assert done.returncode != 0 and len(done.stderr.strip().splitlines()) == 1
    assert "running" in done.stderr, done.stderr
