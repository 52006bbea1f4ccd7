"""Tests of the scheduling policy `hades` on a real queue of Slurm.

The energy of each user follows the share of the user. No job waits longer than a bound.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from earlier_runs import remember_runs
from ordering import until

from slurm_energy.slurm.script_fingerprint import fingerprint
from slurm_energy.trusted_files import replace_public

SHARES = {"daemon": 1, "games": 2, "man": 1}
JOBS = {"daemon": 46, "games": 29, "man": 17}
"""Who submits how many: half of all jobs are of a user who is entitled to a quarter."""
SLOTS = 4
MEASURED = 12 * SLOTS
"""Running jobs have used little energy yet, so a user may be some jobs ahead of its share: few of so many."""
TOLERANCE = 0.1
"""An order by submission gives one user 0.25 more than its share, and equal parts give one 0.17 less: both
fail. Jobs that start between two cycles all belong to one user, which is a deviation of 0.03 per cycle."""
LIMIT_S = 120
EARLIER_RUNS, EARLIER_S, EARLIER_JOULES = 500, 10.0, 4500.0
"""Runs of each user in the history, of more seconds and watts than those of the test. The lower bounds of the
predictions are those of the earlier runs, and thus equal for all users, however slow the machine is.

Otherwise `hades` favours the users whose last runs were the shortest by chance, or of whom more runs are
known, because a run of twice the predicted time has four times the EDP."""
SCRIPT = "#!/bin/sh\nsenergy lab run train --gpu --seconds $((2 + SLURM_JOB_ID % 3))\n"
PROGRAM = {
    "fingerprint": fingerprint(SCRIPT.encode()),
    "account": "lab",
    "partition": "all",
    "name": "work",
    "policy": "monitor",
    "nodes": 1,
    "cpus": 16,
    "gpus": 1,
    "time_limit_s": LIMIT_S,
    "energy_joules": EARLIER_JOULES,
}
SUBMITTERS = 4
UNBOUND_S = 600.0
MOST_TASKS = 500
HADES = {
    "mode": "portable",
    "policy": "hades",
    "interval_s": 1.0,
    "wait_bound_s": UNBOUND_S,
    "age_weight": 0.0,
}
ZERO = [f"PriorityWeight{name}=0" for name in ("Age", "Fairshare", "JobSize", "Partition", "QOS")]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.lab(
        profiles=["epyc-7513-a100"],
        slurm=["PriorityType=priority/multifactor", *ZERO],
        energy={"priority": HADES},
        users=SHARES,
    ),
    pytest.mark.other_user,
]


def one_gpu(lab, user, script, *options):
    """Submit a job that uses a GPU and a quarter of the node."""
    size = ["--gres=gpu:1", "--cpus-per-task=16", f"--time={LIMIT_S // 60}"]
    return lab.sbatch(script, "--job-name=work", *size, *options, user=user)


def predictions(lab):
    """Return the prediction of each ranked job, by job id.

    The predictions are read from the output of `senergy prio --json`, the command that users also run.
    """
    answer = lab.run("senergy", "prio", "--json", check=False).stdout
    return {job["job_id"]: job["predicted"] for job in json.loads(answer or "{}").get("jobs", [])}


def fill(lab):
    """Occupy the whole node with one job, so that all jobs submitted later have to wait."""
    job = lab.sbatch("exec sleep 900", "--exclusive", "--job-name=blocker", "--nice=-100000")
    until(lambda: lab.job(job)["JobState"] == "RUNNING", "the node is full")
    return job


def started(lab, jobs):
    """Return the start times of jobs, Unix seconds, by job id, with each task of an array separately."""
    lines = lab.run("squeue", "-h", "-t", "all", "-j", ",".join(map(str, jobs)), "-o", "%A %S %T").stdout
    rows = [line.split() for line in lines.splitlines()]
    return {int(j): datetime.fromisoformat(s).timestamp() for j, s, state in rows if state != "PENDING"}


def waiting(lab):
    """Return the priorities of pending jobs, by job id."""
    lines = lab.run("squeue", "-h", "-t", "PD", "-o", "%A %Q").stdout.splitlines()
    return {int(job): int(priority) for job, priority in map(str.split, lines)}


def know_shares(lab):
    """Wait until senergyctld knows the users' shares, which it reads from Slurm at its start."""

    def known():
        answer = lab.run("senergy", "share", "-a", "--json", check=False).stdout
        rows = json.loads(answer or "{}").get("rows", [])
        return SHARES.items() <= {row["user"]: row["shares"] for row in rows}.items()

    until(known, "the shares")


def last_start(starts, owner):
    """Return the end of the time span in which the test counts job starts.

    The span ends when `MEASURED` jobs have started, or earlier, when the first user has no jobs left to
    start. None means that neither has happened.
    """
    ends = [sorted(starts.values())[MEASURED - 1]] if len(starts) >= MEASURED else []
    for user, count in JOBS.items():
        of_user = [start for job, start in starts.items() if owner[job] == user]
        if len(of_user) == count:
            ends.append(max(of_user))
    return min(ends, default=None)


def energies(lab, jobs):
    """Return the energy of jobs in joules, by job id. Wait until the energy of all is recorded."""
    found = {}

    def complete():
        answer = lab.run("senergy", "acct", "--json", "-X", "-j", ",".join(map(str, jobs))).stdout
        printed = json.loads(answer)["jobs"]
        found.update({job["job_id"]: job["energy"]["energy_joules"] for job in printed if job["energy"]})
        return len(found) == len(jobs) and None not in found.values()

    until(complete, f"records of {len(jobs)} jobs")
    return found


@pytest.fixture
def bound(lab):
    """A function that sets the maximum waiting time of jobs in the configuration during one test."""
    path = lab.layout.energy_toml
    before = path.read_text()

    def change(wait_bound_s):
        text = before.replace(f"wait_bound_s = {UNBOUND_S}", f"wait_bound_s = {float(wait_bound_s)}")
        assert text != before
        replace_public(path, text.encode())
        lab.kill("senergyctld", how=signal.SIGHUP)

    yield change
    replace_public(path, before.encode())
    lab.kill("senergyctld", how=signal.SIGHUP)


def test_energy_follows_shares_though_one_user_submits_half_of_all_jobs(lab):
    remember_runs(lab, SHARES, EARLIER_RUNS, EARLIER_S, **PROGRAM)
    know_shares(lab)
    blocker = fill(lab)
    # The user with most submissions is also first in the queue. One program, whose runs differ in length.
    wanted = [user for user, count in JOBS.items() for _ in range(count)]
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        jobs = list(pool.map(lambda user: one_gpu(lab, user, SCRIPT), wanted))
    owner = dict(zip(jobs, wanted, strict=True))
    until(lambda: predictions(lab).keys() == owner.keys(), "the ranking of all jobs")
    known = {(one["source"], one["time_s"], one["power_watts"]) for one in predictions(lab).values()}
    assert [(source, time_s >= EARLIER_S) for source, time_s, _ in known] == [("history", True)]
    until(lambda: min(waiting(lab).values()) > 1, "the priorities of all jobs")
    lab.run("scancel", str(blocker))
    until(lambda: last_start(started(lab, owner), owner), f"{MEASURED} starts", 400)
    starts = started(lab, owner)
    last = last_start(starts, owner)
    begun = [job for job, start in starts.items() if start <= last]
    lab.run("scancel", *(str(job) for job in owner if job not in begun), check=False)
    for job in begun:
        lab.wait(job)
    used = Counter()
    for job, joules in energies(lab, begun).items():
        used[owner[job]] += joules
    got = {user: used[user] / used.total() for user in SHARES}
    meant = {user: shares / sum(SHARES.values()) for user, shares in SHARES.items()}
    print(got, Counter(owner[job] for job in begun))
    assert all(abs(got[user] - meant[user]) <= TOLERANCE for user in SHARES), got
    assert len(begun) >= 8 * SLOTS


def test_a_job_that_others_always_overtake_starts_past_the_bound_on_waiting(lab, bound):
    blocker = fill(lab)
    dear = lab.sbatch(
        "true", "--job-name=dear", "--gres=gpu:1", "--cpus-per-task=16", "--time=600", user="man"
    )
    crowd = one_gpu(
        lab, "games", "senergy lab run train --gpu --seconds 1.5", f"--array=1-{MOST_TASKS}"
    )  # some always wait, all for a shorter time
    until(lambda: (now := waiting(lab))[crowd] > now[dear], "the crowd's place before the dear job")
    lab.run("scancel", str(blocker))
    until(lambda: len(started(lab, [crowd])) >= 2 * SLOTS, "the crowd's start")
    assert started(lab, [dear]) == {}

    since = datetime.fromisoformat(lab.job(dear)["EligibleTime"]).timestamp()
    wait_bound_s = int(time.time() - since) + 8
    bound(wait_bound_s)
    until(lambda: started(lab, [dear]), "the dear job's start: it starves")
    tasks, dear_start = started(lab, [crowd]), started(lab, [dear])[dear]
    lab.run("scancel", str(crowd))
    due = since + wait_bound_s
    before = sum(at < due for at in tasks.values())
    after = sum(due <= at < dear_start for at in tasks.values())
    print(f"{before} started before it was due, {after} after, in {dear_start - due:.0f} s")
    assert before >= 2 * SLOTS
    assert dear_start >= due
    assert after <= 6 * SLOTS  # while senergyctld notices it and the running jobs have to end
    assert len(tasks) < MOST_TASKS
