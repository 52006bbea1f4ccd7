"""Tests that Slurm's means to reorder a queue still work when slurm-energy orders the queue.

Such means are, for example, the nice value, holds, QOS and reservations. slurm-energy ranks the job with the
shortest time limit first in these tests. Each test closes the partition, queues jobs with different limits,
and changes one of the jobs. It then checks the order in which slurmctld starts the jobs.
"""

from __future__ import annotations

import pytest
from ordered_queue import ONE_BY_ONE, SMALL_NODE, OrderedQueue

SLURM = (
    *ONE_BY_ONE,
    "SchedulerParameters=enable_user_top,batch_sched_delay=0,sched_min_interval=50000",
    "PriorityWeightQOS=100000000",
    "PartitionName=first Nodes=n1 PriorityTier=10 MaxTime=INFINITE State=DOWN",
)
POLICY = "sjf"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.timeout(500),
    pytest.mark.lab(
        profiles=["xeon-8358"],
        overrides=SMALL_NODE,
        slurm=SLURM,
        priority="plugin",
        energy={"priority": {"policy": POLICY}},
        users={"nobody": 1, "daemon": 1},
    ),
]


@pytest.fixture
def queue(lab):
    found = OrderedQueue(lab)
    found.close()
    return found


def submit(queue, *minutes, options=(), user=None):
    """Submit one job per time limit, and wait until slurmctld has the same job order as senergyctld."""
    jobs = [queue.submit(f"--time={limit}", *options, user=user) for limit in minutes]
    queue.ranked(jobs, POLICY)
    queue.apply(jobs)
    return jobs


def run(queue, jobs):
    queue.open()
    return queue.starts(jobs)


def test_by_default_the_shortest_goes_first(queue):
    long, short, middle = submit(queue, 30, 1, 10)
    assert run(queue, [long, short, middle]) == [short, middle, long]


def test_nice_costs_a_place_per_thousand(queue):
    short, middle, long = submit(queue, 1, 10, 30)
    queue.lab.update("update", f"JobId={short}", "Nice=1500")
    assert run(queue, [short, middle, long]) == [middle, short, long]


def test_nice_given_at_submission_counts_too(queue):
    (short,) = submit(queue, 1, options=["--nice=1500"], user="nobody")
    middle, long = submit(queue, 10, 30)
    queue.ranked([short, middle, long], POLICY)
    queue.apply([short, middle, long])
    assert run(queue, [short, middle, long]) == [middle, short, long]


@pytest.mark.parametrize(("priority", "place"), [(2_100_000_000, 0), (5, 2)])
def test_a_priority_set_by_an_administrator_stays_unchanged(queue, priority, place):
    jobs = submit(queue, 1, 10, 30)
    middle = jobs[1]
    queue.lab.update("update", f"JobId={middle}", f"Priority={priority}")
    queue.until(lambda: queue.place(middle) is None, "the job being left alone")
    queue.ranked([jobs[0], jobs[2]], POLICY)
    assert queue.priorities()[middle] == priority
    jobs.remove(middle)
    jobs.insert(place, middle)
    assert run(queue, jobs) == jobs


def test_a_user_holds_and_releases_her_job(queue):
    short, middle, long = submit(queue, 1, 10, 30, user="nobody")
    queue.lab.update("uhold", str(short), user="nobody")
    queue.lab.update("hold", str(middle))
    assert run(queue, [long]) == [long]
    queue.close()
    assert queue.lab.job(short)["Reason"] == "JobHeldUser"
    assert queue.lab.job(middle)["Reason"] == "JobHeldAdmin"
    queue.lab.run("scontrol", "release", str(middle), user="nobody", check=False)
    assert queue.priorities()[middle] == 0  # a user cannot release a job that an administrator holds
    queue.lab.update("release", str(short), user="nobody")
    queue.lab.update("release", str(middle))
    assert run(queue, [short, middle]) == [short, middle]


def test_top_puts_a_users_job_before_her_others_and_no_one_elses(queue):
    others = submit(queue, 5, user="daemon")
    short, middle, long = submit(queue, 1, 10, 30, user="nobody")
    queue.ranked([*others, short, middle, long], POLICY)
    queue.apply([*others, short, middle, long])
    queue.lab.run("scontrol", "top", str(long), user="nobody")
    order = run(queue, [*others, short, middle, long])
    assert [job for job in order if job not in others] == [long, short, middle]


def test_a_dependent_job_waits_for_the_other(queue):
    (long,) = submit(queue, 30)
    (short,) = submit(queue, 1, options=[f"--dependency=afterok:{long}"])
    (middle,) = submit(queue, 10)
    order = run(queue, [long, short, middle])
    assert order.index(short) > order.index(long)
    assert order.index(middle) < order.index(long)


def test_a_reservation_keeps_others_out(queue):
    short, long = submit(queue, 1, 30)
    queue.lab.run(
        *("scontrol", "create", "reservation", "ReservationName=kept", "StartTime=now", "Duration=60"),
        *("Nodes=n1", "Users=nobody"),
    )
    try:
        (within,) = submit(queue, 40, options=["--reservation=kept"], user="nobody")
        assert run(queue, [within]) == [within]
        assert set(queue.priorities()) >= {short, long}
    finally:
        queue.until(lambda: delete_reservation(queue), "the end of the reservation")
    assert queue.starts([within, short, long]) == [within, short, long]


def delete_reservation(queue):
    return not queue.lab.run("scontrol", "delete", "ReservationName=kept", check=False).returncode


def test_a_qos_counts_with_the_weight_that_the_site_gives_it(queue):
    lab = queue.lab
    lab.run("sacctmgr", "-i", "add", "qos", "urgent", "Priority=100", check=False)
    lab.run("sacctmgr", "-i", "modify", "user", "nobody", "set", "QOS+=urgent")
    short, middle = submit(queue, 1, 10, user="nobody")
    (long,) = submit(queue, 30, options=["--qos=urgent"], user="nobody")
    assert run(queue, [short, middle, long]) == [long, short, middle]


def test_a_partition_of_a_higher_tier_goes_first(queue):
    short, middle = submit(queue, 1, 10)
    (long,) = submit(queue, 30, options=["--partition=first"])
    queue.lab.run("scontrol", "update", "PartitionName=first", "State=UP")
    assert run(queue, [short, middle, long])[-3:] == [long, short, middle]
