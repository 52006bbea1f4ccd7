"""Tests of the priority engine in portable mode on a real Slurm of any release.

In portable mode, the engine reads the queue with squeue and changes jobs with scontrol. It needs no
slurmdbd. These tests run on the Slurm that is installed on the test machine. The script
spank-release.sh runs the tests on another release of Slurm, in a minimal root directory. Of Python
packages, the tests need only pytest, numpy and ClusterShell.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_cluster import SmallCluster, marks, wait_until

from slurm_energy import config as configuration
from slurm_energy.accounting.quotas import Quota, QuotaPeriod, QuotaResource
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.deferral.planner import DeferralPlanner
from slurm_energy.controller.deferral.signals import signal_columns
from slurm_energy.controller.grid.quota_holds import QuotaHolds
from slurm_energy.controller.queue import priority_pipeline
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.priority.quota_levels import QuotaStandings, QuotaUse
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.queue.gpu_request import read_gpu_request
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.node_resources import read_nodes
from slurm_energy.slurm.queue.squeue_source import SqueueSource
from slurm_energy.trusted_files import replace_public

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = marks()

SLURM = "PriorityType=priority/multifactor\nGresTypes=gpu\nJobRequeue=1"
AWKWARD = "a|b <~x~>,\n%j `q` ünï"
JOBS = int(os.environ.get("SENERGY_TEST_QUEUE_JOBS", "8"))
NOT_OURS = ("REQUEST_STATS_INFO", "REQUEST_COMPLETE_", "REQUEST_STEP_COMPLETE")
BUSY = ("-w", "n1", "-n4", "-t5")
"""What keeps a job waiting while `busy` has node n1."""


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="queue-") as directory:
        plugin, hook = REPOSITORY / "spank" / "energy.so", REPOSITORY / "prolog_epilog" / "senergy-hook"
        with SmallCluster(Path(directory), plugin, hook, SLURM) as running:
            (running.directory / "starts").touch()
            (running.directory / "starts").chmod(0o666)
            patch.setenv("SLURM_CONF", running.environment["SLURM_CONF"])
            yield running


@pytest.fixture
def sbatch(cluster):
    """Yield a function that submits a job with sbatch and returns the job id.

    All submitted jobs are cancelled at the end of the test.
    """

    jobs = []

    def submit(*options, user=None, script="sleep 100"):
        quiet = ("--parsable", "--output=/dev/null")
        done = cluster.run("sbatch", *quiet, *options, cluster.script(script), user=user)
        assert done.returncode == 0, done.stderr
        jobs.append(done.stdout.strip())
        return int(jobs[-1])

    yield submit
    cluster.run("scancel", *jobs)
    wait_until(lambda: SqueueSource().read().count == 0, "no job")


@pytest.fixture
def busy(cluster, sbatch):
    """A job that occupies node n1 until `cluster.run("scancel", ...)`."""
    job = sbatch(*BUSY)
    wait_until(lambda: row_of(SqueueSource().read(), job)["state"] == 1, "the job before", cluster)
    return job


def row_of(queue, job_id):
    """Return the values of one job in the queue, by name of the column."""
    (at,) = np.flatnonzero(queue.job_id == job_id)
    return {name: getattr(queue, name)[at] for name in queue.__slots__[1:]}


def engine(policy, **keys):
    """Return a pipeline that ranks the queue, constructed as in senergyctld, for a given policy.

    The pipeline works in portable mode: it sets the priorities of jobs with scontrol, without a plugin in
    slurmctld. `keys` are further keys of the section `[priority]`.
    """
    lines = [f"{key} = {value}" for key, value in keys.items()]
    text = "\n".join(['[priority]\nmode = "portable"', f'policy = "{policy}"', *lines])
    return priority_pipeline.build_pipeline(configuration.parse(text), None, None)


def mixed_jobs(cluster, sbatch, starts):
    """Submit jobs of mixed sizes, limits, users and deadlines for one node; every second job is held."""
    chance = random.Random(1)
    jobs = []
    for number in range(JOBS):
        options = [f"-t{chance.randint(1, 5)}", f"-n{chance.randint(1, 4)}"]
        options += ["-H"] * (number % 2)
        options += [f"--deadline=now+{chance.randint(20, 60)}minutes"] * (chance.random() < 0.3)
        user = chance.choice([None, "nobody", "daemon"])
        script = f"echo $SLURM_JOB_ID >>{starts}"
        jobs.append(sbatch("-w", "n1", "--exclusive", *options, user=user, script=script))
    return jobs


@pytest.mark.parametrize("policy", ["zeus", "hades", "themis", "chronos", "aurachronos", "blend"])
def test_jobs_start_in_the_order_of_scheduling(cluster, sbatch, busy, policy):
    starts = cluster.directory / "starts"
    starts.write_text("")
    jobs = mixed_jobs(cluster, sbatch, starts)
    pipeline = engine(policy, updates_per_s=1000.0, age_weight=1.0)  # a second counts
    assert pipeline.publish(pipeline.rank()) is None
    for job in jobs:  # held jobs have their places when they are released
        cluster.run("scontrol", "release", str(job))
    for _ in range(30):  # jobs of nearly the same score may change places as they grow older
        snapshot = pipeline.rank()
        if not snapshot.site_factor_changes():
            break
        assert pipeline.publish(snapshot) is None
    assert not snapshot.site_factor_changes()
    ranking = pipeline.engine.policy.rank(snapshot.scheduled, snapshot.options)
    expected = snapshot.scheduled.jobs.job_id[ranking.order(snapshot.scheduled.jobs.job_id)].tolist()
    assert sorted(expected) == sorted(jobs) != expected
    cluster.run("scancel", str(busy))
    wait_until(lambda: len(starts.read_text().split()) == JOBS, "all jobs", cluster, 100 + 2 * JOBS)
    assert [int(word) for word in starts.read_text().split()] == expected


def quotas(percent):
    """Return the use of a monthly energy quota of account physics."""
    quota = Quota("physics", "", QuotaResource.ENERGY, QuotaPeriod.MONTH, 3.6e6, "J", 80.0, 100.0)
    return QuotaStandings((QuotaUse(quota, 0.0, 1.0, 3.6e4 * percent, "", frozenset({"physics"})),))


def test_quotas_move_and_hold_jobs(cluster, sbatch, busy):
    """A quota whose use exceeds a level changes the queue.

    Over the warning level, a job goes behind a job that was submitted later. Over the hold level, the job is
    held. When the use is lower again, the job is released.
    """
    first, second = sbatch(*BUSY, "-Aphysics"), sbatch(*BUSY, "-Abiology")
    pipeline = engine("fcfs")
    assert pipeline.publish(pipeline.rank()) is None
    queue = SqueueSource().read()
    assert row_of(queue, first)["priority"] > row_of(queue, second)["priority"]
    pipeline.state.quotas = quotas(90.0)
    assert pipeline.publish(pipeline.rank()) is None
    queue = SqueueSource().read()
    assert row_of(queue, first)["priority"] < row_of(queue, second)["priority"]
    holds = QuotaHolds(SqueueSource(), JobUpdater(100.0))
    assert holds.apply(quotas(100.0), time.time()) == ()
    queue = SqueueSource().read()
    assert row_of(queue, first)["dependent"] and row_of(queue, first)["eligible_s"] > time.time()
    assert not row_of(queue, second)["dependent"] and holds.count == 1
    assert holds.apply(quotas(50.0), time.time()) == ()
    assert row_of(SqueueSource().read(), first)["eligible_s"] <= time.time() + 1.0
    assert holds.count == 0


DEFERRAL = '[price]\nprovider = "csv"\nfile = "/x"\n[deferral]\npolicy = "cheapest"\n'


def test_deferrable_jobs_are_held_on_slurm(cluster, sbatch, busy):
    """A job or job array that may be delayed (with slack) is held until the price is low.

    All tasks of an array are held together. If the price is unknown, all held jobs are released.
    """
    noted = "AdminComment=energy-flags: ENERGY_SLACK=36000s"
    jobs = [sbatch(*BUSY), sbatch(*BUSY, "--array=1-3")]
    urgent = sbatch(*BUSY)
    for job in jobs:
        assert cluster.run("scontrol", "update", f"JobId={job}", noted).returncode == 0
    now = time.time()
    hours = [
        (now - 7200 + 3600 * hour, now - 3600 + 3600 * hour, 0.03 if hour == 5 else 0.1) for hour in range(48)
    ]
    prices = {"price_per_kwh": GridSeries(SeriesSource("csv"), hours, 3600.0)}
    config = configuration.parse(DEFERRAL)
    planner = DeferralPlanner(config, SqueueSource(), JobUpdater(100.0), BeginTimes(), None, read_nodes)

    def cycle(series):
        planned = planner.plan(signal_columns(config, series, time.time()), time.time())
        return planner.apply(planned)

    assert cycle(prices) == ([], ())
    queue = SqueueSource().read()
    for job in jobs:
        assert now + 200 < row_of(queue, job)["eligible_s"] <= time.time() + 300
        assert row_of(queue, job)["dependent"]
    assert not row_of(queue, urgent)["dependent"]
    ended, problems = cycle({})
    assert (sorted(one.job_id for one in ended), problems) == (sorted(jobs), ())
    queue = SqueueSource().read()
    assert all(row_of(queue, job)["eligible_s"] <= time.time() + 1.0 for job in jobs)


def test_the_queue_is_read_exactly(sbatch, busy):
    array = sbatch(*BUSY, "--array=1-5,7-90:2%2")
    plain = sbatch(*BUSY, "-J", AWKWARD, "--nice=50", "--no-requeue", "--deadline=now+1hour", user="nobody")
    begin = sbatch(*BUSY, "--begin=now+1hour")
    after = sbatch(*BUSY, f"--dependency=afterok:{begin}")
    gpus = sbatch("-H", "-t1", "-N2-3", "--gpus-per-node=a100:2")
    per_task = sbatch("-H", "-t1", "-n3", "--gpus-per-task=h100:1")
    leader = sbatch("-H", "-t1", "-n1", ":", "-n2")
    queue = SqueueSource().read()
    found = {job: row_of(queue, job) for job in queue.job_id.tolist()}
    assert (found[array]["tasks"], found[array]["array_job_id"]) == (47, array)
    job = found[plain]
    assert (job["name"], job["user"], job["nice"], job["requeue"]) == (AWKWARD, "nobody", 50, False)
    assert job["deadline_s"] - job["submit_s"] == pytest.approx(3600, abs=60)  # sbatch uses its own clock
    assert (job["time_limit_s"], job["cpus"], job["nodes"], job["held"]) == (300, 4, 1, False)
    assert found[begin]["dependent"] and found[after]["dependent"] and not job["dependent"]
    assert (found[gpus]["gpus"], found[gpus]["gpu_kind"], found[gpus]["held"]) == (4, "a100", True)
    assert (found[per_task]["gpus"], found[per_task]["gpu_kind"]) == (3, "h100")
    assert [row["het_job_id"] for row in found.values()].count(leader) == 2
    running = found[busy]
    assert running["end_s"] - running["start_s"] == 300


def test_holds_nice_and_explicit_priorities_stay(cluster, sbatch, busy):
    held = sbatch(*BUSY, "-H")
    nice = sbatch(*BUSY, "--nice=50")
    explicit = sbatch(*BUSY)
    array = sbatch(*BUSY, "--array=1-3")
    leader = sbatch("-H", "-t1", "-n1", ":", "-n2")
    late = sbatch(*BUSY, "--begin=now+1hour")
    gone = sbatch(*BUSY)
    pipeline = engine("fcfs")
    snapshot = pipeline.rank()
    cluster.run("scancel", str(gone))  # between reading and setting: no error
    assert pipeline.publish(snapshot) is None
    cluster.run("scontrol", "update", f"JobId={explicit}", "Priority=99")
    snapshot = pipeline.rank()
    queue = snapshot.queue
    factor = dict(zip(queue.job_id.tolist(), queue.site_factor.tolist(), strict=True))
    assert row_of(queue, held)["priority"] == 0 and factor[held] > 0
    assert row_of(queue, nice)["priority"] == factor[nice] - 50
    assert row_of(queue, array)["priority"] == factor[array] > factor[late] > 0
    assert factor[leader] == factor[leader + 1] > 0
    assert row_of(queue, explicit)["fixed"] and row_of(queue, explicit)["priority"] == 99
    assert explicit not in snapshot.scheduled.jobs.job_id
    assert gone not in queue.job_id
    assert snapshot.site_factor_changes() == {}
    later = engine("fcfs")  # as after a restart of senergyctld
    assert later.publish(later.rank()) is None
    assert row_of(later.rank().queue, explicit)["fixed"]
    cluster.run("scontrol", "release", str(explicit))  # gives an explicit priority back
    assert not row_of(pipeline.rank().queue, explicit)["fixed"]


def test_places_survive_a_restart_of_slurmctld(cluster, sbatch, busy):
    jobs = [sbatch(*BUSY, *options) for options in ((), ("-H",), ("--nice=9",), ("--array=1-3",))]
    pipeline = engine("zeus")
    assert pipeline.publish(pipeline.rank()) is None
    before = {job: row_of(SqueueSource().read(), job)["priority"] for job in jobs}
    cluster.restart_controller()
    assert {job: row_of(SqueueSource().read(), job)["priority"] for job in jobs} == before
    assert pipeline.rank().site_factor_changes() == {}


def test_requeue_affects_running_jobs_only(cluster, sbatch):
    runs, stays = sbatch("-w", "n2", "-t5"), sbatch("-w", "n2", "-t5", "--no-requeue")
    over = sbatch("-w", "n2", "-t5", script="true")
    wait_until(lambda: "n2" in cluster.run("squeue", "-ho%N", "-tR", f"-j{stays}").stdout, "job", cluster)
    wait_until(
        lambda: "COMPLETED" in cluster.run("scontrol", "show", "job", str(over)).stdout, "end", cluster
    )
    updater = JobUpdater(100.0)
    updater.set_site_factors({runs: 5000})
    outcome = updater.requeue({job: str(job) for job in (runs, stays, over, 4_000_000)})
    assert outcome.done[:1] == (runs,)
    assert list(outcome.refused) == [stays]
    assert 4_000_000 in outcome.gone
    wait_until(lambda: runs in SqueueSource().read().job_id, "the job's return", cluster)
    again = row_of(
        SqueueSource().read(), runs
    )  # as after a restart: the applied factors are derived from the queue
    assert (again["restart_count"], again["site_factor"]) == (1, 5000)
    assert "Restarts=0" in cluster.run("scontrol", "show", "job", str(over)).stdout
    assert "COMPLETED" in cluster.run("scontrol", "show", "job", str(over)).stdout


def test_requests_to_slurmctld(cluster, sbatch, busy):
    """One ranking cycle of senergyctld causes few requests to slurmctld.

    Reading the queue causes one request of squeue plus one for the partitions. Each changed job causes one
    further request. Requests of nodes about the start and end of jobs are not counted.
    """
    jobs = [sbatch(*BUSY) for _ in range(3)]

    def requests(action):
        cluster.run("sdiag", "--reset")
        action()
        lines = cluster.run("sdiag").stdout.splitlines()
        words = [line.split() for line in lines if line.startswith("\tREQUEST_") and "count:" in line]
        counts = {line[0]: int(next(w for w in line if w.startswith("count:"))[6:]) for line in words}
        return {name: count for name, count in counts.items() if not name.startswith(NOT_OURS)}

    assert requests(SqueueSource().read) == {"REQUEST_JOB_INFO": 1, "REQUEST_PARTITION_INFO": 1}
    changes = dict.fromkeys(jobs, 5000)
    assert requests(lambda: JobUpdater(100.0).set_site_factors(changes)) == {"REQUEST_UPDATE_JOB": 3}


def test_other_weights_are_refused(cluster, sbatch, busy):
    sbatch(*BUSY)
    conf = cluster.directory / "slurm.conf"
    before = conf.read_text()
    replace_public(conf, f"{before}PriorityWeightAge=1000\n".encode())  # slurmds may be reading it
    cluster.run("scontrol", "reconfigure")
    try:
        pipeline = engine("fcfs")
        with pytest.raises(ConfigError, match="PriorityWeightAge=1000: it would change the order"):
            pipeline.publish(pipeline.rank())
    finally:
        replace_public(conf, before.encode())
        cluster.run("scontrol", "reconfigure")
    pipeline = engine("fcfs")
    assert pipeline.publish(pipeline.rank()) is None


def test_a_site_factor_plugin_is_refused_though_slurmctld_does_not_report_it(cluster, sbatch, busy):
    job = sbatch(*BUSY)
    conf = cluster.directory / "slurm.conf"
    before = conf.read_text()
    replace_public(cluster.directory / "more.conf", b"PrioritySiteFactorPlugin=site_factor/other\n")
    replace_public(conf, f"{before}Include more.conf\n".encode())  # as it was when slurmctld started
    try:
        assert "site_factor/other" not in cluster.run("scontrol", "show", "config").stdout
        pipeline = engine("fcfs")
        with pytest.raises(ConfigError, match=r"slurm\.conf: PrioritySiteFactorPlugin=site_factor/other"):
            pipeline.publish(pipeline.rank())
        assert row_of(SqueueSource().read(), job)["site_factor"] == 0
    finally:
        replace_public(conf, before.encode())


def test_a_query_about_one_job_works_with_any_name(cluster, sbatch, busy):
    name = "x JobState=RUNNING ReqNodeList=n3 ExcNodeList=n3 TresPerNode=gpu:9\nFeatures=f|" + AWKWARD
    job = sbatch("--exclude=n2", "-n4", "-w", "n1", "-J", name)
    asked = read_gpu_request(str(job))
    assert (asked.pending, asked.excluded, asked.pins_nodes, asked.gpus) == (True, "n2", True, 0)
    array = sbatch("--exclude=n[2-3]", "-n4", "--array=3-5", "--hold", "-J", name)
    assert read_gpu_request(str(array)) == replace(
        asked, excluded="n[2-3]", pins_nodes=False, obstacle=read_gpu_request(str(array)).obstacle
    )
    assert "all of its tasks" in read_gpu_request(str(array)).obstacle
    cluster.run("scontrol", "update", f"JobId={array}_4", "Comment=split")
    assert (read_gpu_request(f"{array}_4").obstacle, read_gpu_request(f"{array}_4").excluded) == (
        "",
        "n[2-3]",
    )


def test_an_outage_of_slurmctld_loses_nothing(cluster, sbatch, busy, tmp_path, monkeypatch):
    job = sbatch(*BUSY)
    pipeline = engine("fcfs")
    assert pipeline.publish(pipeline.rank()) is None
    known = dict(pipeline.state.applied_factors)
    assert known[job] > 0
    conf = (cluster.directory / "slurm.conf").read_text()
    lines = [line for line in conf.splitlines() if not line.startswith("SlurmctldPort=")]
    (tmp_path / "slurm.conf").write_text("\n".join([*lines, "SlurmctldPort=1", "SlurmctldTimeout=1", ""]))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    source = SqueueSource(CommandRunner(1.0), known)
    with pytest.raises(UnavailableError, match="squeue"):
        source.read()
    assert known == pipeline.state.applied_factors
