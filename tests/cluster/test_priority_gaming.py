"""A user without rights tries to move a long job forward in the queue, against real daemons.

The user runs short jobs (decoys) before, so that the long job is predicted to be short.
"""

from __future__ import annotations

import json
import time

import pytest
from earlier_runs import remember_runs
from ordered_queue import SMALL_NODE, OrderedQueue

ATTACKER = "nobody"
HONEST = ("daemon", "games", "man")
DECOYS = 3
DAY_MIN = 1440
CORES = 16
SHARED_DECOY_S, SHARED_LIMIT_MIN = 8, 20
"""Decoys of one core take together a tenth of the limit of the long job."""
POLICY = "zeus"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.other_user,
    pytest.mark.timeout(600),
    pytest.mark.lab(
        profiles=["xeon-8358"],
        overrides=SMALL_NODE | {"cpu.cores_per_package": CORES, "cpu.turbo_bins": [[CORES, 3400000]]},
        slurm=("SchedulerType=sched/builtin", "OverTimeLimit=10"),
        priority="portable",
        energy={"priority": {"policy": POLICY, "interval_s": 1.0, "age_weight": 0.0}},
        users={ATTACKER: 1, **dict.fromkeys(HONEST, 1)},
    ),
]


@pytest.fixture
def queue(lab):
    return OrderedQueue(lab)


def waiting_jobs(queue, name="train42", limit_min=DAY_MIN):
    """Submit jobs of honest users and a long job of the attacker to a stopped queue.

    Return the long job and the other jobs.
    """
    queue.close()
    honest = [(["--time=10", "-J", "fit"], user) for user in HONEST]
    honest += [([f"--time={DAY_MIN}", "-J", "md"], user) for user in HONEST]
    others = queue.submit_all(honest)
    long = queue.submit(f"--time={limit_min}", "-J", name, user=ATTACKER)
    return long, others


def place_among(queue, long, others):
    """Return how many of the jobs `others` have a higher Slurm priority than the job `long`.

    The priorities are read while slurmctld follows the order of the scheduling policy under test.
    """
    with queue.followed([long, *others], POLICY):
        priorities = queue.priorities()
    return sum(priorities[job] > priorities[long] for job in others)


def explained(queue, job, user):
    """Return what `senergy prio --json` tells a user about one job."""
    answer = queue.lab.run("senergy", "prio", "--json", str(job), user=user).stdout
    return next(one for one in json.loads(answer)["jobs"] if one["job_id"] == job)


def learned(queue, name, runs, options=()):
    """Wait until the history contains at least `runs` runs of the attacker's job `name`."""
    path = queue.lab.layout.root / "ask.sh"
    path.write_text("#!/bin/sh\ntrue\n")
    path.chmod(0o755)
    argv = ["senergy", "predict", "--json", f"--sbatch=-J {name} --time={DAY_MIN} --exclusive", str(path)]

    def known():
        answer = json.loads(queue.lab.run(*argv, *options, user=ATTACKER).stdout)["prediction"]
        return answer["source"] == "history" and answer["observations"] >= runs

    queue.until(known, f"{runs} runs of {name} in the history")


def test_three_decoys_gain_at_most_one_place(queue):
    lab = queue.lab
    long, others = waiting_jobs(queue)
    before = place_among(queue, long, others)
    lab.run("scancel", *map(str, [long, *others]))
    queue.open()
    for _ in range(DECOYS):
        decoy = lab.sbatch("sleep 1", "-J", "train42", f"--time={DAY_MIN}", "--exclusive", user=ATTACKER)
        assert lab.wait(decoy) == "COMPLETED"
    learned(queue, "train42", DECOYS)

    long, others = waiting_jobs(queue)
    after = place_among(queue, long, others)
    told = explained(queue, long, ATTACKER)["predicted"]
    page = lab.run("senergy", "prio", str(long), user=ATTACKER).stdout
    lab.run("scancel", *map(str, [long, *others]))
    queue.open()

    assert before >= 3
    assert after >= before - 1
    assert (told["source"], told["runs"]) == ("history", DECOYS)
    assert told["source_time_s"] < 600  # what three decoys say
    assert told["time_s"] >= DAY_MIN * 60 / 2  # what counts
    assert "lower bound 12:00:00" in page


def test_concurrent_one_core_jobs_prove_little_about_a_job_that_holds_the_node(queue):
    lab = queue.lab
    limit = f"--time={SHARED_LIMIT_MIN}"
    options = ("-J", "shared", "--ntasks=1", f"--array=1-{CORES}", limit)
    assert lab.wait(lab.sbatch(f"sleep {SHARED_DECOY_S}", *options, user=ATTACKER)) == "COMPLETED"
    learned(queue, "shared", CORES)

    long, others = waiting_jobs(queue, "shared", SHARED_LIMIT_MIN)
    after = place_among(queue, long, others)
    told = explained(queue, long, ATTACKER)["predicted"]
    lab.run("scancel", *map(str, [long, *others]))
    queue.open()

    assert after >= len(HONEST)
    assert (told["source"], told["runs"]) == ("history", CORES)
    assert told["source_time_s"] < 2 * SHARED_DECOY_S + 60
    assert told["time_s"] >= SHARED_LIMIT_MIN * 60 / 2


def test_a_pending_job_is_recognised_by_its_script(queue):
    lab = queue.lab
    path = lab.layout.root / "same.sh"
    path.write_text("#!/bin/sh\n#SBATCH --time=1\nsleep $1\n")
    argv = ["--exclusive", "--output=/dev/null", "--parsable"]
    first = int(lab.run("sbatch", *argv, "-J", "one", str(path), "3", user=ATTACKER).stdout)
    assert lab.wait(first) == "COMPLETED"
    queue.close()
    second = int(lab.run("sbatch", *argv, "-J", "two", "--time=9", str(path), "3", user=ATTACKER).stdout)
    basis = "1 run: same script, arguments, resources and policy"
    queue.until(
        lambda: any(job["predicted"]["basis"] == basis for job in queue.ask(job=str(second))["jobs"]),
        "a prediction by the script",
    )
    lab.run("scancel", str(second))
    queue.open()


def test_a_running_overrun_counts_against_the_next_job_also_after_a_restart(queue):
    lab = queue.lab
    # Runs of a tenth of the limit, so that a run exceeds its prediction soon.
    usual = {"name": "usual", "partition": "all", "nodes": 1, "cpus": CORES, "gpus": 0, "time_limit_s": 60.0}
    remember_runs(lab, [ATTACKER], 50, 6.0, account="lab", policy="monitor", **usual)
    queue.close()
    seen = lab.layout.root / "seen"
    script = f"sleep 25; until [ -e {seen} ]; do sleep 0.5; done"
    job = lab.sbatch(script, "-J", "over", "--time=1", "--exclusive", user=ATTACKER)
    queue.ranked([job], POLICY)
    queue.open()
    queue.until(lambda: lab.job(job)["JobState"] == "RUNNING", "the job's start")
    next_one = lab.sbatch("true", "-J", "next", f"--time={DAY_MIN}", "--exclusive", user=ATTACKER)
    honest = lab.sbatch("true", "-J", "next", f"--time={DAY_MIN}", "--exclusive", user=HONEST[0])

    def factor(which):
        (found,) = queue.ask(job=str(which))["jobs"]
        return found["predicted"]["misprediction_factor"]

    queue.ranked([next_one, honest], POLICY)
    queue.until(lambda: factor(next_one) > 1.005, "the misprediction factor of a job that still runs")
    assert lab.job(job)["JobState"] == "RUNNING"
    assert factor(honest) == 1.0
    queue.close()
    lab.run("scancel", str(next_one), str(honest))
    seen.touch()
    assert lab.wait(job) == "COMPLETED"
    learned(queue, "over", 1)

    lab.kill("senergyctld")
    lab.start("senergyctld")
    after = lab.sbatch("true", "-J", "next", f"--time={DAY_MIN}", "--exclusive", user=ATTACKER)
    started = time.monotonic()
    queue.ranked([after], POLICY)
    queue.until(
        lambda: factor(after) > 1.01, f"the factor after a restart, {time.monotonic() - started:.0f} s"
    )
    lab.run("scancel", str(after))
    queue.open()
