"""Test that a real Slurm starts jobs in the order that the package `scheduling` computes.

The priority engine transfers the order to slurmctld by a plugin or by scontrol commands. The test
covers both ways, each with a few scheduling policies. Another test, test_priority_portable, starts
fewer jobs under all policies.

First, the state that determines the order is recorded from senergyctld. Then senergyctld is stopped,
so that the state does not change. The package `scheduling` ranks the recorded state again, and
slurmctld starts the jobs one after the other.
"""

from __future__ import annotations

import pwd
import random
import time

import pytest
from ordered_queue import CORES, ONE_BY_ONE, SMALL_NODE, OrderedQueue, recomputed

from slurm_energy.records import ComponentEnergy, EnergyRecord

FAIR = ("hades", "themis", "blend")
JOBS = 24
USED = {"nobody": (4e5, 3000.0), "daemon": (5e4, 200.0), "games": (1.5e6, 90.0)}
"""Joules and GPU seconds that users had before."""
USERS = {"nobody": 1, "daemon": 2, "games": 4}

LAB = {"profiles": ["xeon-8358"], "overrides": SMALL_NODE, "slurm": ONE_BY_ONE, "users": USERS}
pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.timeout(600)]


@pytest.mark.lab(priority="plugin", **LAB)
@pytest.mark.parametrize("policy", ["zeus", "themis", "blend"])
def test_jobs_start_in_the_computed_order_with_the_plugin(lab, policy):
    judge_order(lab, policy)


@pytest.mark.lab(priority="portable", energy={"priority": {"updates_per_s": 1000.0}}, **LAB)
@pytest.mark.parametrize("policy", ["hades", "aurachronos"])
def test_jobs_start_in_the_computed_order_in_portable_mode(lab, policy):
    judge_order(lab, policy)


def judge_order(lab, policy):
    queue = OrderedQueue(lab)
    remember_usage(queue)
    queue.configure(policy=policy, age_weight=200.0)
    queue.close()
    several = mixed(policy)
    jobs = queue.submit_all(several[: JOBS // 2])
    time.sleep(1.5)  # for their age: Slurm counts in seconds
    jobs += queue.submit_all(several[JOBS // 2 :])

    with queue.followed(jobs, policy) as seen:
        expected = [job for job in recomputed(seen["state"]) if job in jobs]
        queue.open()
        started = queue.starts(jobs)

    assert [job["job_id"] for job in seen["jobs"] if job["job_id"] in jobs] == expected
    assert started == expected
    assert recomputed(blinded(seen["state"], policy)) != recomputed(seen["state"])


def blinded(state, policy):
    """Return the recorded state of the engine without one quantity that affects the order of jobs.

    The test can then check that the order depends on this quantity. For fair policies, the removed
    quantity is the usage of the users. For all other policies, it is the weight of the age of the jobs.
    """
    if policy in FAIR:
        nothing = [0.0] * len(state["users"]["share"])
        return state | {"users": state["users"] | {"energy_joules": nothing, "gpu_seconds": nothing}}
    return state | {"options": state["options"] | {"age_weight": 0.0}}


def remember_usage(queue):
    """Deliver records of runs of these users to senergyctld; a repeated delivery adds no runs."""
    items = []
    for number, (user, (joules, gpu_seconds)) in enumerate(USED.items(), 1):
        end = time.time() - 60
        record = EnergyRecord(
            cluster="lab",
            node="n1",
            job_id=4_000_000_000 + number,
            uid=pwd.getpwnam(user).pw_uid,
            user=user,
            policy="monitor",
            start=end - gpu_seconds,
            end=end,
            gpus=(0,),
            components=(ComponentEnergy("node", joules, "made up"),),
            record_id=f"{number:032x}",
        )
        items.append({"record": record.to_json(), "trace": None})
    assert len(queue.controller.post("/v1/records", {"items": items})["accepted"]) == len(items)


def mixed(seed):
    """Return the sbatch options and the user of random jobs.

    The jobs differ in size, time limit and user. Some of them have a deadline.
    """
    draw = random.Random(seed)
    jobs = []
    for number in range(JOBS):
        options = [f"--time={draw.randint(1, 45)}", f"--ntasks={draw.randint(1, CORES)}"]
        if number % 6 == 0:
            late = time.localtime(time.time() + 3600 + draw.randint(0, 7200))
            options.append(f"--deadline={time.strftime('%Y-%m-%dT%H:%M:%S', late)}")
        jobs.append((options, draw.choice([None, *USERS])))
    return jobs
