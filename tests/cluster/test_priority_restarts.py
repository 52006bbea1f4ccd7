"""Tests of the priority engine with a real slurmctld and its plugin.

New jobs must get their places in the queue at once. After the engine was killed, the order must stay, and
the restarted engine must continue it.
"""

from __future__ import annotations

import pytest
from ordered_queue import OrderedQueue
from test_priority_order import LAB

POLICY = "sjf"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.timeout(500),
    pytest.mark.lab(priority="plugin", **LAB),
]


@pytest.fixture
def queue(lab):
    found = OrderedQueue(lab)
    found.configure(policy=POLICY)
    found.close()
    return found


def by_limit(queue, *minutes):
    """Submit one job per time limit. Wait until slurmctld orders the jobs by their limits.

    The function only reads the priorities and changes no job.
    """
    jobs = {queue.submit(f"--time={limit}"): limit for limit in minutes}

    def right():
        priorities = queue.priorities()
        found = sorted(jobs, key=lambda job: -priorities[job])
        return len(set(priorities.values())) == len(jobs) and found == sorted(jobs, key=jobs.__getitem__)

    queue.until(right, "the order of the limits")
    return list(jobs)


def given_to_a_newcomer(queue):
    """Submit a new job, and return the site factor that it has before its first ranking.

    The site factor is the term of Slurm's job priority that slurm-energy sets. slurmctld's plugin takes
    it from a table. After a slow read of the table, the plugin waits before it reads again. The returned
    factor may therefore come from an earlier table.
    """
    job = queue.submit("--time=10")
    given = queue.priorities()[job]
    queue.lab.run("scancel", str(job))
    return given


def test_new_jobs_get_their_places_without_waiting_for_the_minute(queue):
    by_limit(queue, 30, 1, 20, 5, 40)


@pytest.mark.parametrize("engine_restarts", [False, True])
def test_new_jobs_get_their_places_without_the_queue_files(queue, engine_restarts):
    """New jobs get their places in the queue while the files with the queue are missing.

    slurmctld writes these files again at its next pass, which may be up to a minute later. In the test they
    stay missing.
    """
    queue.lab.run("scancel", *map(str, by_limit(queue, 30, 5)))
    folder = queue.lab.layout.queue_table.parent
    if engine_restarts:
        queue.lab.kill("senergyctld")
    folder.rename(folder.with_name("lost"))
    try:
        if engine_restarts:
            queue.lab.start("senergyctld")
        by_limit(queue, 40, 1, 20)
        assert "queue.table: No such file or directory" in queue.lab.log("senergyctld")
    finally:
        folder.with_name("lost").rename(folder)


def test_a_killed_engine_leaves_the_last_order_and_continues_it(queue):
    jobs = by_limit(queue, 30, 1, 20)
    with queue.followed(jobs, POLICY):
        before = queue.priorities()
        queue.lab.kill("senergyctld")

    middle = queue.newcomers()  # of all ranked jobs: jobs of earlier tests may be among them
    assert middle > 0
    queue.until(lambda: given_to_a_newcomer(queue) == middle, "slurmctld having read the last table")
    new = queue.submit("--time=10")
    assert queue.priorities() == before | {new: middle}
    queue.apply(jobs)
    assert queue.priorities() == before | {new: middle}

    queue.lab.start("senergyctld")

    def placed():
        return queue.priorities()[new] != middle

    queue.until(placed, "the place of the new job")
    after = queue.priorities()
    assert {job: after[job] for job in jobs} == before
    assert before[jobs[1]] > after[new] > before[jobs[2]]
    queue.open()
    assert queue.starts([*jobs, new]) == [jobs[1], new, jobs[2], jobs[0]]
