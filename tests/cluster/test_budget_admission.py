"""Admission of jobs under a power budget on a real Slurm.

The tests check the licenses that stand for watts, the power reserved for large jobs, and attempts of owners
to evade the budget. The tests use the installed Slurm. spank-release.sh runs them with another Slurm release
in a separate root directory. There are three nodes with four CPUs each. Jobs can add 200 W on a node, and
100 W if they use one CPU.
"""

from __future__ import annotations

import logging
import math
import re
import tempfile
import time
from pathlib import Path

import pytest
from small_cluster import SmallCluster, marks, wait_until

from slurm_energy import config as configuration
from slurm_energy.budget.power_table import NodePowerRange
from slurm_energy.controller.budgets.admission import BudgetAdmission
from slurm_energy.controller.budgets.facts import BudgetScope, ScopeKind
from slurm_energy.controller.budgets.licenses import BudgetHeadroom
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.oracle.history import ObservedRun, RunEnding
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.slurm.licenses import read_license_pools, split_licenses

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = marks()

SLURM = """\
JobSubmitPlugins=lua
Licenses=watts:3000,matlab:5,watts_nobody:3000
MaxArraySize=10001
MaxJobCount=20000
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_licenses,bf_continue
"""
SUBMIT = """\
package.path = "{parts}/?.lua;" .. package.path
local senergy = require("senergy_submit")
senergy.policy_file = "{policies}"
function slurm_job_submit(job_desc, part_list, submit_uid) return senergy.check(job_desc, submit_uid) end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return senergy.modify(job_desc, job_rec, uid) end
return slurm.SUCCESS
"""
NODES = {name: NodePowerRange(200.0) for name in ("n1", "n2", "n3")}
USER = "nobody"
NO_STEPS: tuple[tuple[float, float], ...] = ()


def _site(headroom, limit=3000.0, steps=NO_STEPS):
    return BudgetHeadroom("site", BudgetScope(ScopeKind.CLUSTER), limit, headroom, steps)


class Budget:
    """The admission part of senergyctld on a test cluster. The tests call its updates themselves.

    Admission decides which jobs may start under a power budget.
    """

    def __init__(
        self, cluster: SmallCluster, admission: str, history: HistoryCache | None = None, nodes=NODES
    ) -> None:
        text = f'[budget]\nmode = "enforce"\nadmission = "{admission}"\nperiod_s = 2.0\n'
        self.cluster, self.nodes = cluster, nodes
        failures = RepeatedFailureLog(logging.getLogger("test"))
        self.config = configuration.parse(text)
        self.admission = BudgetAdmission(self.config, history, failures, max_share=1e6)

    def update(self, headroom, limit=3000.0, steps=NO_STEPS, scoped=None, counted=()):
        """Update the admission of jobs under a power budget once.

        Write the result to the policy file, from which the plugin in slurmctld reads it. Return the report
        of the update.
        """
        budgets = [_site(headroom, limit, steps)]
        if scoped is not None:
            scope = BudgetScope(ScopeKind.USER, frozenset({USER}))
            budgets.append(BudgetHeadroom("nobody", scope, limit, scoped))
        report = self.admission.update(time.time(), budgets, counted, self.nodes)
        text = policy_file_text(self.config)
        self.cluster.policy_file.write_text("\n".join([text.rstrip(), *self.admission.policy_lines(), ""]))
        assert report.problems == (), report
        return report

    def end(self):
        self.admission.update(time.time(), (), (), {})
        self.admission.close()


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="budget-") as directory:
        plugin, hook = REPOSITORY / "spank" / "energy.so", REPOSITORY / "prolog_epilog" / "senergy-hook"
        made = SmallCluster(Path(directory), plugin, hook, SLURM)
        text = SUBMIT.format(parts=REPOSITORY / "prolog_epilog", policies=made.policy_file)
        (made.directory / "job_submit.lua").write_text(text)
        with made as running:
            patch.setenv("SLURM_CONF", running.environment["SLURM_CONF"])
            yield running


@pytest.fixture
def budget(cluster):
    made = Budget(cluster, "licenses")
    yield made
    made.end()
    _set_partition(cluster, "UP")
    _cancel(cluster)


@pytest.fixture
def measured_budget(cluster):
    """Yield a budget with a history of runs that draw 180 W above idle per node.

    The nodes have power limits.
    """
    history = HistoryCache(None, RepeatedFailureLog(logging.getLogger("test")), 90.0)
    runs = [
        ObservedRun(
            ending=RunEnding.COMPLETED,
            end=time.time() - 1000.0 * number,
            duration_s=300.0,
            energy_joules=300.0 * 230.0,
            user=USER,
            name=name,
            nodes=1,
            cpus=cpus,
        )
        for name, cpus in (("measured", 4), ("whole node", 1))
        for number in range(1, 9)
    ]
    history.run(lambda known: [known.learn(run) for run in runs])
    power = NodePowerRange(200.0, package_idle_watts=50.0, package_min_watts=100.0, package_model="Xeon")
    made = Budget(cluster, "licenses", history, dict.fromkeys(NODES, power))
    yield made
    made.end()
    history.close()
    _cancel(cluster)


def _set_partition(cluster, state):
    """Set the state of the partition to UP or DOWN. While it is DOWN, Slurm starts no job."""
    done = cluster.run("scontrol", "update", "PartitionName=all", f"State={state}")
    assert done.returncode == 0, done.stderr


def _cancel(cluster):
    cluster.run("scancel", *cluster.run("squeue", "-h", "-o", "%A").stdout.split())
    wait_until(lambda: not cluster.run("squeue", "-h").stdout, "end of all jobs", cluster)


@pytest.fixture
def sbatch(cluster):
    """Return a function that submits a job as an ordinary user and returns its id."""

    def submit(*options, name="job"):
        script = cluster.script("sleep 100")
        words = ("--parsable", "--output=/dev/null", f"--job-name={name}", "-t5")
        done = cluster.run("sbatch", *words, *options, script, user=USER)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split(";")[0])

    return submit


def licenses(cluster, job):
    """Return the licenses that squeue shows for a job. The job must not be a job array."""
    shown = cluster.run("squeue", "-h", "-j", str(job), "-o", "%W|%i").stdout.split()
    return shown[0].partition("|")[0]


def state(cluster, job):
    return cluster.run("squeue", "-h", "-j", str(job), "-o", "%T").stdout.split()[0]


def free_watts(cluster):
    """Return the watts that new jobs can get now, according to the licenses that Slurm shows."""
    shown = cluster.run("scontrol", "-o", "show", "licenses").stdout
    line = next(one for one in shown.splitlines() if "LicenseName=watts " in one)
    numbers = {name: int(count) for name, count in re.findall(r"(Total|Used|Reserved)=(\d+)", line)}
    return numbers["Total"] - numbers["Used"] - numbers["Reserved"]


def test_requests_for_watts_are_replaced_by_the_power_of_the_job(cluster, budget, sbatch):
    budget.update(0.0)
    jobs = {
        sbatch("-n1"): "watts:100",
        sbatch("-n1", "-L", "watts:1"): "watts:100",
        sbatch("-n1", "-L", "watts:4294967297"): "watts:100",
        sbatch("-n1", "-L", "matlab:1,watts"): "matlab:1,watts:100",
        sbatch("-n1", "-L", "watts:1,matlab:2,watts:2"): "matlab:2,watts:100",
        sbatch("-n8"): "watts:800",
        sbatch("-N2", "--exclusive"): "watts:400",
        sbatch("-n2", "-c2", name="watts:1 <~>|,\n x"): "watts:400",
        sbatch("-n1", "--array=1-10000", name="watts:1"): "watts:100",
    }
    assert {job: licenses(cluster, job) for job in jobs} == jobs
    refused = cluster.run("sbatch", "-L", "watts:1|matlab:1", cluster.script("true"), user=USER)
    assert refused.returncode == 1 and "a choice with '|' is not possible" in refused.stderr
    budget.update(0.0)
    assert {job: licenses(cluster, job) for job in jobs} == jobs
    assert free_watts(cluster) == 0 and all(state(cluster, job) == "PENDING" for job in jobs)


def test_owners_cannot_change_the_watts_of_their_jobs(cluster, budget, sbatch):
    budget.update(100.0)
    running = sbatch("-n1", "-L", "matlab:1")
    wait_until(lambda: state(cluster, running) == "RUNNING", "first job", cluster)
    waiting = sbatch("-n1")
    for change in ("Licenses=", "Licenses=watts:1", "Licenses=watts:4294967297"):
        cluster.run("scontrol", "update", f"JobId={running}", change, user=USER)
        cluster.run("scontrol", "update", f"JobId={waiting}", change, user=USER)
        assert licenses(cluster, running) == "matlab:1,watts:100"
        assert licenses(cluster, waiting) == "watts:100"
    cluster.run("scontrol", "update", f"JobId={waiting}", "Licenses=matlab:2", user=USER)
    assert licenses(cluster, waiting) == "matlab:2,watts:100"
    larger = cluster.run("scontrol", "update", f"JobId={waiting}", "NumTasks=3", user=USER)
    assert larger.returncode == 0, larger.stderr
    watts = split_licenses(licenses(cluster, waiting), ["watts"])[1]["watts"]
    budget.update(0.0, counted=[running])
    assert watts >= 200  # 26.05 knows that the job gets one node only
    assert split_licenses(licenses(cluster, waiting), ["watts"])[1]["watts"] >= 300
    assert state(cluster, waiting) == "PENDING"


def test_licenses_that_a_running_job_lost_are_restored(cluster, budget, sbatch):
    budget.update(400.0)
    job = sbatch("-n1")
    wait_until(lambda: state(cluster, job) == "RUNNING", "job", cluster)
    budget.update(300.0, counted=[job])
    cluster.policy_file.write_text("senergy-policies 1\n")  # as without the job_submit module
    cluster.run("scontrol", "update", f"JobId={job}", "Licenses=", user=USER)
    lost = licenses(cluster, job)
    forged = sbatch("-n1", "-L", "watts:1", "--hold")
    report = budget.update(300.0, counted=[job])
    assert lost in ("", "(null)") or "|" not in lost
    assert licenses(cluster, job) == "watts:100" and licenses(cluster, forged) == "watts:100"
    assert report.corrected == 2 and free_watts(cluster) == 300


def test_free_licenses_follow_the_headroom(cluster, budget, sbatch):
    for headroom in (1000.0, 250.4, 0.0, -50.0, 700.0):
        budget.update(headroom)
        assert free_watts(cluster) == max(0, int(headroom))
    job = sbatch("-n4")
    wait_until(lambda: state(cluster, job) == "RUNNING", "job", cluster)
    # The decision does not count the job yet: its watts are taken from the headroom.
    budget.update(700.0)
    assert free_watts(cluster) == 300
    budget.update(650.0, counted=[job])
    assert free_watts(cluster) == 650
    budget.end()
    assert "senergy_budget" not in cluster.run("scontrol", "show", "reservations").stdout
    assert read_license_pools()["watts"].used == 400


def test_jobs_run_together_if_the_power_allows_and_one_by_one_otherwise(cluster, budget, sbatch):
    budget.update(400.0)
    together = [sbatch("-n2"), sbatch("-n2")]
    wait_until(lambda: all(state(cluster, job) == "RUNNING" for job in together), "both jobs", cluster)
    _cancel(cluster)
    budget.update(300.0)
    first, second = sbatch("-n3"), sbatch("-n3")
    wait_until(lambda: state(cluster, first) == "RUNNING", "first job", cluster)
    reason = ("squeue", "-h", "-j", str(second), "-o", "%r")
    wait_until(lambda: cluster.run(*reason).stdout.strip() == "Licenses", "reason", cluster)
    report = budget.update(0.0, counted=[first])
    assert "waits for power: it adds 300 W, and 0 W are free under budget 'site'" in report.waiting[second]
    cluster.run("scancel", str(first))
    wait_until(lambda: state(cluster, second) == "RUNNING", "second job", cluster)


def test_backfill_keeps_the_power_of_a_large_job_and_starts_small_ones_in_the_gap(cluster, budget, sbatch):
    budget.update(600.0)
    running = sbatch("-n4", "-t3")
    wait_until(lambda: state(cluster, running) == "RUNNING", "running job", cluster)
    budget.update(200.0, counted=[running])
    large = sbatch("-n6", "-t5")
    _set_partition(cluster, "DOWN")  # no job starts before the update of the budget
    small, long = sbatch("-n1", "-t1"), sbatch("-n1", "-t5")
    report = budget.update(200.0, counted=[running])
    _set_partition(cluster, "UP")
    assert report.waiting[long] == (
        f"held by senergyctld: it would delay job {large}, which waits for power under budget 'site'"
    )
    wait_until(lambda: state(cluster, small) == "RUNNING", "job in the gap", cluster)
    assert [state(cluster, job) for job in (large, long)] == ["PENDING", "PENDING"]
    _set_partition(cluster, "DOWN")
    cluster.run("scancel", str(running), str(small))
    # Until the epilog of the large job's node has ended, Slurm would start the long job in its place.
    taken = f"held by senergyctld: it would take the power of job {large}, whose nodes are not free yet"
    assert budget.update(600.0).waiting == {long: taken}
    _set_partition(cluster, "UP")
    wait_until(lambda: state(cluster, large) == "RUNNING", "large job", cluster)
    assert budget.update(100.0, counted=[large]).waiting == {}
    wait_until(lambda: state(cluster, long) == "RUNNING", "released job", cluster)


def test_a_job_that_would_run_into_a_lower_limit_waits(cluster, budget, sbatch):
    now = time.time()
    budget.update(400.0, limit=1000.0, steps=((now + 150, 700.0), (now + 4000, 1000.0)))
    assert free_watts(cluster) == 400
    long, short = sbatch("-n2", "-t5"), sbatch("-n2", "-t1")
    wait_until(lambda: state(cluster, short) == "RUNNING", "short job", cluster)
    assert state(cluster, long) == "PENDING"
    budget.update(200.0, limit=1000.0, counted=[short])
    wait_until(lambda: state(cluster, long) == "RUNNING", "job after the plan has changed", cluster)


def test_a_job_that_would_run_into_the_begin_of_a_limit_waits(cluster, budget, sbatch):
    now = time.time()
    budget.update(math.inf, limit=math.inf, steps=((now + 150, 100.0), (now + 4000, math.inf)))
    long, short = sbatch("-n2", "-t5"), sbatch("-n2", "-t1")
    wait_until(lambda: state(cluster, short) == "RUNNING", "short job", cluster)
    assert state(cluster, long) == "PENDING"


def test_reservations_follow_a_live_limit_that_ends_before_the_next_step(cluster, budget):
    evening = round(time.time()) + 3000.0
    steps = ((evening, 1500.0),)
    budget.update(400.0, limit=1000.0, steps=steps)
    budget.update(200.0, limit=800.0, steps=((evening - 2000.0, 1000.0), *steps))
    assert free_watts(cluster) == 200
    budget.update(400.0, limit=1000.0, steps=steps)
    assert free_watts(cluster) == 400


def test_reservations_follow_a_live_limit_under_a_schedule_of_many_steps(cluster, budget):
    evening = round(time.time()) + 3000.0
    steps = tuple((evening + 3600.0 * hour, 5000.0 if hour % 2 else 500.0) for hour in range(8))
    budget.update(400.0, limit=1000.0, steps=steps)
    budget.update(700.0, limit=1300.0, steps=((evening - 2000.0, 1000.0), *steps))
    assert free_watts(cluster) == 700
    budget.update(390.0, limit=1000.0, steps=steps)
    assert free_watts(cluster) == 390


def test_components_of_a_heterogeneous_job_get_one_license_together(cluster, budget, sbatch):
    budget.update(200.0)
    job = sbatch("-n1", "-L", "watts:1", ":", "-n2", ":", "-n1", "-L", "watts:7")
    assert licenses(cluster, job) == "watts:100"
    budget.update(200.0)
    shown = cluster.run("squeue", "-h", "-o", "%i=%W").stdout.split()
    assert sorted(shown)[0] == f"{job}+0=watts:400"
    assert {one.partition("=")[2] for one in shown[1:]} <= {"(null)", ""}
    budget.update(400.0)
    wait_until(lambda: state(cluster, job) == "RUNNING", "job", cluster)
    assert read_license_pools()["watts"].used == 400


@pytest.mark.parametrize("matlab", [f"matlab:{'0' * (1024 - len('matlab:1,watts:100'))}1", "matlab: 1"])
def test_users_cannot_keep_the_watts_of_a_job_from_being_changed(cluster, budget, sbatch, matlab):
    """The list with the watts of all components would be longer than 1024 characters, or has a blank."""
    budget.update(0.0)
    job = sbatch("-n1", "-L", matlab, ":", "-n8", ":", "-n8")  # the first component requests watts:100
    budget.update(2000.0)
    assert licenses(cluster, job) == "matlab:1,watts:1700"
    assert free_watts(cluster) == 2000


@pytest.mark.other_user
def test_measured_jobs_start_together_at_the_power_to_which_the_budget_may_lower_them(
    cluster, measured_budget, sbatch
):
    measured_budget.update(0.0)
    jobs = [sbatch("-n4", name="measured") for _ in range(2)]
    limited = sbatch("-n4", "--energy-policy=edp", "--energy-slowdown=1%", name="measured")
    whole_node = sbatch("-N1", "--exclusive", name="whole node")  # shows one CPU while it waits
    unknown = sbatch("-n4", name="first run")
    measured_budget.update(0.0)
    shown = (*jobs, limited, whole_node, unknown)
    watts = [int(licenses(cluster, job).removeprefix("watts:")) for job in shown]
    assert watts[0] == watts[1] and 50 <= watts[0] < 180 * 0.95  # 50 W at the lowest limit
    assert watts[0] < watts[2] < 200 and watts[3:] == [200, 400]
    measured_budget.update(2.0 * watts[0])
    for job in jobs:
        wait_until(lambda job=job: state(cluster, job) == "RUNNING", f"job {job}", cluster)
    assert [state(cluster, job) for job in (limited, whole_node, unknown)] == ["PENDING"] * 3


def test_jobs_under_a_second_budget_need_its_licenses_too(cluster, budget, sbatch):
    budget.update(1000.0, scoped=100.0)
    first, second = sbatch("-n1"), sbatch("-n1")
    assert licenses(cluster, second) == "watts:100,watts_nobody:100"
    wait_until(lambda: state(cluster, first) == "RUNNING", "first job", cluster)
    report = budget.update(900.0, scoped=0.0, counted=[first])
    reason = ("squeue", "-h", "-j", str(second), "-o", "%r")
    wait_until(lambda: cluster.run(*reason).stdout.strip() == "Licenses", "reason", cluster)
    report = budget.update(900.0, scoped=0.0, counted=[first])
    assert "under budget 'nobody'" in report.waiting[second]
    budget.update(900.0, scoped=500.0, counted=[first])
    wait_until(lambda: state(cluster, second) == "RUNNING", "second job", cluster)


def test_a_job_larger_than_the_budget_starts_alone(cluster, budget, sbatch):
    budget.update(500.0, limit=500.0)
    job = sbatch("-n12")
    assert licenses(cluster, job) == "watts:1200"
    budget.update(500.0, limit=500.0)
    wait_until(lambda: state(cluster, job) == "RUNNING", "job", cluster)
    assert split_licenses(licenses(cluster, job), ["watts"])[1]["watts"] <= 500


def test_a_job_larger_than_the_budget_of_its_user_starts_alone(cluster, budget, sbatch):
    budget.update(3000.0, scoped=500.0)
    job = sbatch("-n12")
    assert licenses(cluster, job) == "watts:1200,watts_nobody:1200"
    budget.update(3000.0, scoped=500.0)
    wait_until(lambda: state(cluster, job) == "RUNNING", "job", cluster)
    counts = split_licenses(licenses(cluster, job), ["watts", "watts_nobody"])[1]
    assert 480 >= counts["watts"] == counts["watts_nobody"] >= 400


def test_without_licenses_jobs_are_held_by_their_begin_time(cluster, sbatch):
    cluster.policy_file.write_text("senergy-policies 1\n")
    holder = Budget(cluster, "hold")
    jobs = [sbatch("-n3", "--begin=now+2"), sbatch("-n3", "--begin=now+2"), sbatch("-n3", "--begin=now+2")]
    wait_until(lambda: state(cluster, jobs[2]) == "RUNNING", "jobs", cluster)
    waiting = sbatch("-n4", "-w", "n1")
    report = holder.update(100.0, counted=jobs)
    assert "held by senergyctld: it adds 400 W, and 100 W are free" in report.waiting[waiting]
    cluster.run("scancel", str(jobs[0]), str(jobs[1]), str(jobs[2]))
    reason = ("squeue", "-h", "-j", str(waiting), "-o", "%r")
    wait_until(lambda: cluster.run(*reason).stdout.strip() == "BeginTime", "reason", cluster)
    cluster.run("scontrol", "update", f"JobId={waiting}", "StartTime=now+200", user=USER)
    assert state(cluster, waiting) == "PENDING"
    assert holder.update(500.0).waiting == {}
    wait_until(lambda: state(cluster, waiting) == "RUNNING", "released job", cluster)
    holder.end()
    _cancel(cluster)
