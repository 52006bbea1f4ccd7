"""Tests of slurmctld with the plugin site_factor/energy, which sets the priorities of jobs.

The plugin orders Slurm's queue by the table that senergyctld writes. It also writes Slurm's queue to a file.
"""

from __future__ import annotations

import math
import re

import pytest
from lab_driver import LabDriver
from ordering import PASS_S, WISH, blocker, held, priorities, put_in_force, queue, release, until, write

from slurm_energy.slurm.queue.columns import PENDING, RUNNING

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.lab(**WISH)]


def test_released_jobs_start_in_the_order_of_the_table(lab: LabDriver):
    order = lab.layout.root / "order"
    order.touch()
    blocking = blocker(lab)
    jobs = [held(lab, f"echo $SLURM_JOB_ID >>{order}") for _ in range(6)]
    places = {job: 1000 * (1 + index * 5 % 7) for index, job in enumerate(jobs)}
    put_in_force(lab, places)
    release(lab, *jobs)
    assert priorities(lab) == places
    lab.run("scancel", str(blocking))
    for job in jobs:
        assert lab.wait(job) == "COMPLETED"
    assert [int(line) for line in order.read_text().split()] == sorted(
        jobs, key=places.__getitem__, reverse=True
    )


def test_nice_holds_and_fixed_priorities_keep_their_meaning(lab: LabDriver):
    blocker(lab)
    plain, nice, fixed, stays = (held(lab) for _ in range(4))
    put_in_force(lab, {plain: 5000, nice: 5000, fixed: 5000, stays: 5000}, default=700)
    lab.update("update", f"jobid={nice}", "nice=1000")
    release(lab, plain, nice, fixed)
    lab.update("update", f"jobid={fixed}", "priority=123")
    new = lab.sbatch("true", "--exclusive", "-wn1", "-t5")
    assert priorities(lab) == {plain: 5000, nice: 4000, fixed: 123, stays: 0, new: 700}
    lab.run("scontrol", "top", str(nice))  # by nice values of the user's jobs, so the plugin's pass keeps it
    shown = priorities(lab)
    assert shown[nice] > max(shown[job] for job in (plain, fixed, new))


def test_a_pass_reorders_pending_jobs_and_writes_the_queue(lab: LabDriver):
    """Check all effects of one pass of slurmctld over the priorities of all jobs.

    Only this pass reorders the jobs and writes the queue. Slurm may take up to a minute until a pass. All
    effects are therefore checked in one test, which waits only once.
    """
    running = blocker(lab)
    options = ["--exclusive", "-wn1", "-t5"]
    first = lab.sbatch("true", *options, "--energy-policy=edp", "--energy-cap=300", "--job-name=näme '; x")
    fixed = held(lab)
    release(lab, fixed)
    lab.update("update", f"jobid={fixed}", "priority=123")
    after = lab.sbatch("true", *options, f"--dependency=afterok:{first}", "--no-requeue", "--nice=7")
    later = lab.sbatch("true", *options, "--begin=now+3600", "--deadline=now+7200")
    array = lab.sbatch("true", *options, "--array=0-4")
    waiting = held(lab, user="nobody")
    shape = lab.sbatch("true", "-N1", "-n3", "-c2", "-wn1", "-t90")
    noted = "admincomment=site; energy-flags: ENERGY_FINGERPRINT=0123456789abcdef"
    lab.update("update", f"jobid={shape}", noted)
    write(lab, {first: 900, fixed: 800, after: 700, shape: 600})
    wanted = {first: 900, fixed: 123, shape: 600, waiting: 0}
    until(lambda: wanted.items() <= priorities(lab).items(), "the pass", PASS_S)

    until(lambda: running in queue(lab).job_id, "a snapshot")
    table = queue(lab)
    rows = {int(job): index for index, job in enumerate(table.job_id)}
    assert set(rows) == {running, first, fixed, after, later, array, waiting, shape}

    def of(job: int, name: str):
        return getattr(table, name)[rows[job]]

    assert [int(of(job, "state")) for job in (running, first)] == [RUNNING, PENDING]
    assert of(first, "flags") == {"ENERGY_POLICY": "edp", "ENERGY_CAP": "300"}
    assert of(shape, "flags") == {"ENERGY_FINGERPRINT": "0123456789abcdef"}
    assert of(first, "name") == "näme '; x"
    assert {job for job in rows if of(job, "held")} == {waiting}
    assert {job for job in rows if of(job, "fixed")} == {fixed}
    assert {job for job in rows if of(job, "dependent")} == {after, later}
    assert {job for job in rows if not of(job, "requeue")} == {after}
    assert (of(after, "nice"), of(after, "site_factor")) == (7, 700)
    assert of(later, "deadline_s") - of(later, "submit_s") == pytest.approx(7200, abs=60)
    assert of(later, "eligible_s") - of(later, "submit_s") == pytest.approx(3600, abs=60)
    assert (of(array, "array_job_id"), of(array, "array_task_id"), of(array, "tasks")) == (array, -1, 5)
    assert (of(shape, "nodes"), of(shape, "cpus"), of(shape, "time_limit_s")) == (1, 6, 5400)
    assert of(running, "end_s") - of(running, "start_s") == 1200
    assert math.isnan(of(first, "start_s"))
    assert (of(waiting, "user"), of(waiting, "account"), of(waiting, "partition")) == ("nobody", "lab", "all")
    assert of(waiting, "reason") == "JobHeldUser"
    assert 0 < of(waiting, "shares_norm") <= 1


def test_new_jobs_are_noticed_without_a_pass(lab: LabDriver):
    blocker(lab)
    job = lab.sbatch("true", "-wn1", "-t7", "--energy-model=resnet50", "--job-name=new")
    table = queue(lab)
    (row,) = [index for index in range(table.count) if table.job_id[index] == job]
    assert (table.name[row], table.time_limit_s[row]) == ("new", 420)
    assert table.flags[row] == {"ENERGY_MODEL": "resnet50"}
    assert not table.held[row]


def test_sprio_and_sshare_work_beside_the_plugin(lab: LabDriver):
    blocker(lab)
    job = held(lab)
    put_in_force(lab, {job: 4321})
    release(lab, job)
    shown = re.compile(rf"\b{job}\s+4321\s+4321\b")
    until(lambda: shown.search(lab.run("sprio", "-h", "-o", "%i %Y %S").stdout), "sprio shows the job")
    assert "nobody" in lab.run("sshare", "-a").stdout
