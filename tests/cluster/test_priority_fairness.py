"""Energy shares on a real queue under `hades`, and that nobody starves."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from datetime import datetime

import pytest

SHARES = {"daemon": 1, "games": 2, "man": 1}
JOBS = {"daemon": 40, "games": 26, "man": 14}
"""Who submits how many: half of all jobs are of a user who is entitled to a quarter."""
BOUND_S = 12.0
SLOTS = 4
HADES = {
    "mode": "portable",
    "policy": "hades",
    "interval_s": 1.0,
    "wait_bound_s": 600.0,
    "age_weight": 0.0,
}
ZERO = [f"PriorityWeight{name}=0" for name in ("Age", "Fairshare", "JobSize", "Partition", "QOS")]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.lab(
        profiles=["epyc-7513-a100"],
        slurm=["PriorityType=priority/multifactor", *ZERO],
        energy={"priority": HADES},
        users=SHARES,
    ),
    pytest.mark.other_user,
]


def one_gpu(lab, user, seconds, *options):
    """Submit a job that keeps a GPU and a quarter of the node for some seconds."""
    size = ["--gres=gpu:1", "--cpus-per-task=16", "--time=2"]
    job = f"senergy lab run train --gpu --seconds {seconds:g}"
    return lab.sbatch(job, "--job-name=work", *size, *options, user=user)


def started(lab, jobs):
    """Return when jobs started, Unix seconds, by job id; those that wait are left out."""
    lines = lab.run("squeue", "-h", "-t", "all", "-j", ",".join(map(str, jobs)), "-o", "%A %S %T").stdout
    rows = [line.split() for line in lines.splitlines()]
    return {int(j): datetime.fromisoformat(s).timestamp() for j, s, state in rows if state != "PENDING"}


def know_shares(lab):
    """Wait until senergyctld has read the shares, which it does at its start."""
    deadline = time.monotonic() + 30
    rows = []
    while not SHARES.items() <= {row["user"]: row["shares"] for row in rows}.items():
        assert time.monotonic() < deadline, f"shares are not known: {rows}"
        time.sleep(0.5)
        answer = lab.run("senergy", "share", "-a", "--json", check=False).stdout
        rows = json.loads(answer or "{}").get("rows", [])


def energies(lab, jobs):
    """Return the joules of jobs by id, when all have them."""
    for _ in range(60):
        answer = lab.run("senergy", "acct", "--json", "-X", "-j", ",".join(map(str, jobs))).stdout
        found = {job["job_id"]: job["energy_joules"] for job in json.loads(answer)["jobs"]}
        if len(found) == len(jobs) and None not in found.values():
            return found
        time.sleep(0.5)
    raise AssertionError(f"records of {sorted(set(jobs) - set(found))} are missing")


@pytest.fixture
def ageing(lab):
    """Set the bound on waiting to `BOUND_S`, for one test."""
    path = lab.layout.energy_toml
    before = path.read_text()
    path.write_text(before.replace("wait_bound_s = 600.0", f"wait_bound_s = {BOUND_S}"))
    assert path.read_text() != before
    lab.kill("senergyctld", how=signal.SIGHUP)
    yield
    path.write_text(before)
    lab.kill("senergyctld", how=signal.SIGHUP)


def test_energy_goes_by_shares_though_one_user_submits_half_of_all_jobs(lab):
    know_shares(lab)
    lab.sbatch("sleep 12", "--exclusive", "--job-name=blocker")
    owner = {}
    for user, count in JOBS.items():  # whoever submits most is first in the queue, too
        for number in range(count):
            owner[one_gpu(lab, user, 2 + 0.5 * (number % 5))] = user
    left = Counter(JOBS)
    deadline = time.monotonic() + 180
    while min(left.values()) > 0:  # as long as everybody has something to run
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
        begun = started(lab, owner)
        left = Counter(JOBS) - Counter(owner[job] for job in begun)
        left = {user: left.get(user, 0) for user in JOBS}
    lab.run("scancel", *(str(job) for job in owner if job not in begun), check=False)
    for job in begun:
        lab.wait(job)
    used = Counter()
    for job, joules in energies(lab, begun).items():
        used[owner[job]] += joules
    got = {user: used[user] / used.total() for user in SHARES}
    meant = {user: shares / sum(SHARES.values()) for user, shares in SHARES.items()}
    print(got, Counter(owner[job] for job in begun))
    assert all(abs(got[user] - meant[user]) <= 0.10 for user in SHARES), got
    assert len(begun) >= 8 * SLOTS


def test_a_job_that_others_always_pass_starts_when_it_has_waited_long_enough(lab, ageing):
    blockers = [one_gpu(lab, "games", 4) for _ in range(SLOTS)]
    dear = lab.sbatch(
        "true", "--job-name=dear", "--gres=gpu:1", "--cpus-per-task=16", "--time=600", user="man"
    )
    sent = time.time()
    small, deadline = list(blockers), time.monotonic() + 60
    while not (begun := started(lab, [*small, dear])).get(dear):
        assert time.monotonic() < deadline, "it starves"
        if len(small) - len(begun) < SLOTS:  # some always wait, none of them long
            small.append(one_gpu(lab, "games", 1.5))
        time.sleep(0.1)
    passed_by = [job for job in small if job > dear and job in begun]
    assert len(passed_by) >= SLOTS
    waited = begun[dear] - sent
    assert BOUND_S - 2 <= waited <= BOUND_S + 8  # what ran has to end, squeue tells whole seconds
