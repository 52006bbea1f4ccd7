"""Constraints on job starts in the simulated cluster.

The constraints are memory, licenses, partitions, QOS, reservations and time limits.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from constraint_checks import ResourceChecks, check_case

from slurm_energy.errors import EnergyError
from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator.campaigns.campaign import run
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.campaigns.sweeps import with_values
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.constraints import Constraints, Partition
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.inputs import read_workload
from slurm_energy.simulator.kernels import column_engine, fast_path
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import JobOutcome
from slurm_energy.simulator.scenario import parse
from slurm_energy.simulator.schedule_settings import Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload


def jobs_of(*rows, **columns):
    """Return a workload for the simulator.

    Each row is one job: (submission time, units, run time, time limit). A unit is a GPU, a node or a core.
    Every job draws 100 W per unit.
    """
    return workload(
        np.arange(len(rows) + 1),
        {"submit_s": [row[0] for row in rows], "time_limit_s": [row[3] for row in rows], **columns},
        {
            "units": [row[1] for row in rows],
            "time_s": [row[2] for row in rows],
            "power_watts": [100.0 * row[1] for row in rows],
        },
    )


def test_requests_of_jobs_keep_their_rows_when_jobs_are_sorted_by_submission():
    jobs = workload(
        np.arange(4),
        {
            "submit_s": [20.0, 0.0, 10.0],
            "partition": [0, 1, -1],
            "unit_memory_gib": [1.0, np.nan, 3.0],
            "licenses": [[1, 0], [0, 2], [0, 0]],
        },
        {"units": [1, 2, 3], "time_s": [5.0, 5.0, 5.0]},
        partitions=("a", "b"),
        license_names=("x", "y"),
    )
    assert jobs.partition.tolist() == [1, -1, 0]
    assert jobs.licenses.tolist() == [[0, 2], [0, 0], [1, 0]]
    np.testing.assert_array_equal(jobs.unit_memory_gib, [np.nan, 3.0, 1.0])
    assert jobs.qos.tolist() == jobs.reservation.tolist() == [-1, -1, -1]


def test_jobs_end_at_their_time_limit_if_it_is_enforced():
    """The simulator ends a job at its time limit if time limits are enforced.

    Four jobs run one after another. Job 1 ends before its limit. Job 2 would run longer than its limit of
    50 s. Job 3 has no limit. Job 4 ends exactly at its limit.
    """
    jobs = jobs_of(
        (0.0, 1, 30.0, 40.0),
        (0.0, 1, 90.0, 50.0),
        (0.0, 1, 90.0, math.nan),
        (0.0, 1, 40.0, 40.0),
        deadline_s=[math.nan, 60.0, math.nan, 60.0],
    )
    kinds = [NodeKind("n", 1, 1)]
    result = simulate(jobs, kinds, policy("fcfs"), ScheduleSettings(Discipline.STRICT, kill_at_limit=True))
    assert result.accounts.end_s.tolist() == [30.0, 80.0, 170.0, 210.0]
    names = [JobOutcome(value).name for value in result.accounts.outcome]
    assert names == ["COMPLETED", "TIMEOUT", "COMPLETED", "COMPLETED"]
    assert result.accounts.energy_joules.tolist() == [3000.0, 5000.0, 9000.0, 4000.0]
    totals = result.summary()
    assert (totals["completed"], totals["timeouts"]) == (3, 1)
    assert totals["timeout_kwh"] == pytest.approx(5000.0 / 3.6e6)
    assert result.deadline_misses() == (2, 2)  # a killed job has not met its deadline
    free = simulate(jobs, kinds, policy("fcfs"), ScheduleSettings(Discipline.STRICT))
    assert free.accounts.end_s.tolist() == [30.0, 120.0, 210.0, 250.0]
    assert free.summary()["timeouts"] == 0


def test_a_time_limit_counts_from_the_end_of_the_boot_and_anew_after_a_requeue():
    """A time limit counts from the end of the boot, and starts again after a requeue.

    The node boots until 130 s. An urgent job interrupts the first job at 140 s. The first job then
    starts from its beginning.
    """
    kind = NodeKind("n", 1, 1, boot_s=30.0, boot_watts=1.0)
    jobs = jobs_of((100.0, 1, 80.0, 80.0), (140.0, 1, 5.0, 5.0), deadline_s=[math.nan, 146.0])
    settings = ScheduleSettings(
        Discipline.PACKING,
        idle_off_s=10.0,
        kill_at_limit=True,
        preemption=Preemption(checkpoint_s=math.inf, margin_s=2.0),
    )
    result = simulate(jobs, [kind], policy("aurachronos"), settings)
    assert result.accounts.outcome.tolist() == [JobOutcome.COMPLETED] * 2
    assert result.accounts.end_s.tolist() == [225.0, 145.0]


def test_a_power_limit_does_not_extend_an_enforced_time_limit():
    """A job that a power limit slows down still ends at its time limit.

    At half power, the job would need longer than its time limit.
    """
    kind = NodeKind("n", 1, 1, unit_min_watts=10.0)
    jobs = jobs_of((0.0, 1, 50.0, 60.0), compute_share=[1.0])
    budget = StepFunction([0.0, 10.0], [100.0, 50.0])
    settings = ScheduleSettings(budget_watts=budget, hard_budget=True, kill_at_limit=True)
    result = simulate(jobs, [kind], policy("fcfs"), settings)
    assert result.accounts.outcome.tolist() == [JobOutcome.TIMEOUT]
    assert result.accounts.end_s.tolist() == [60.0]


def test_the_compiled_fast_path_leaves_enforced_limits_to_the_other_engines():
    kinds, fcfs = [NodeKind("n", 2, 1)], policy("fcfs")
    settings = ScheduleSettings(kill_at_limit=True)
    longer, within = jobs_of((0.0, 1, 9.0, 8.0)), jobs_of((0.0, 1, 8.0, 8.0), (0.0, 1, 8.0, math.nan))
    assert not fast_path.supports(longer, kinds, fcfs, settings)
    assert column_engine.supports(longer, kinds, fcfs, settings)
    for compiled in (column_engine, fast_path):
        assert compiled.supports(longer, kinds, fcfs, ScheduleSettings())
        assert compiled.supports(within, kinds, fcfs, settings)  # no job is killed


@pytest.mark.parametrize("discipline", list(Discipline))
def test_no_resource_is_ever_exceeded_and_the_first_job_does_not_wait(discipline):
    """A simulated schedule never exceeds a resource, and does not delay the first pending job.

    A brute-force check examines each event of random simulations. It covers nodes, memory, licenses, limits,
    time windows of reservations, and the first pending job. A job may be called unrunnable only if it does
    not fit even on the empty cluster.
    """
    for seed in range(6):
        result, force = check_case(seed, discipline)
        again, _ = check_case(seed, discipline)
        np.testing.assert_array_equal(result.accounts.start_s, again.accounts.start_s)
        assert np.all(np.isin(result.accounts.outcome, (JobOutcome.COMPLETED, JobOutcome.UNRUNNABLE)))
        for job in np.flatnonzero(result.accounts.outcome == JobOutcome.UNRUNNABLE).tolist():
            if (own := force.reservation(job)) and not own.every_s:
                continue  # its window may have passed while others held the nodes
            times = [
                0.0,
                *(time + 1e-9 for one in force.constraints.reservations for time in force.windows(one)[0]),
            ]
            late = [time for time in times if time >= force.jobs.submit_s[job]]
            assert not any(force.fits(job, time, []) for time in [force.jobs.submit_s[job], *late])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zeus", "kairos", "metis"])
def test_no_resource_is_exceeded_with_failures_interruptions_and_nodes_that_are_off(name):
    interrupted = 0
    for seed in range(8):
        checks = ResourceChecks(seed, list(Discipline)[seed % 4], name)
        result = checks.simulation.run()
        interrupted += int(np.sum(result.accounts.preemptions + result.accounts.failures))
        assert np.all(result.accounts.outcome != JobOutcome.RUNNING)
    assert interrupted > 0


@pytest.mark.parametrize("discipline", [Discipline.EASY, Discipline.CONSERVATIVE])
def test_backfill_does_not_delay_the_first_job(discipline):
    """Backfill does not delay the first waiting job of the queue.

    A job that must wait gets an expected start, computed as if no further job started. The job must not
    start later than that. The jobs have no priorities in this test.
    """
    promises = 0
    for seed in range(100, 112):
        result, force = check_case(seed, discipline, priorities=False)
        for job, promised_s in force.promised.items():
            assert result.accounts.start_s[job] <= promised_s + 1e-6, (seed, job)
            promises += 1
    assert promises > 10


def scenario_of(tmp_path, text, rows):
    """Return a parsed scenario of eight nodes with a CSV file of jobs."""
    (tmp_path / "jobs.csv").write_text("\n".join(rows))
    path = tmp_path / "s.toml"
    base = '[cluster.n]\nnodes = 8\nmemory_gib = 10.0\n[workload]\nfile = "jobs.csv"\n'
    return parse(base + text, path)


HEADER = "submit_s,time_s,units,time_limit_s,user,partition,qos,reservation,licenses,unit_memory_gib"


@pytest.mark.parametrize(
    ("tables", "request_", "starts"),
    [
        ("", ",,,,", [0, 0, 100]),  # 4 + 4 + 4 nodes of 8
        ("[licenses]\nmatlab = 3\n", ",,,matlab:2,", [0, 100, 200]),
        ("[partition.small]\nnodes = ['n-[0-3]']\n", "small,,,,", [0, 100, 200]),
        ("[partition.small]\nmax_jobs = 1\n", "small,,,,", [0, 100, 200]),
        ("[qos.low]\nmax_units_per_user = 7\n", ",low,,,", [0, 100, 200]),
        ("[reservation.maint]\nbegin_hours = 0.05\nhours = 0.05\n", ",,,,", [0, 0, 360]),
        (
            "[reservation.course]\nbegin_hours = 0.05\nhours = 1\nnodes = ['n']\n",
            ",,course,,",
            [180, 180, 280],
        ),
        ("[qos.low]\nmax_units_per_job = 3\n", ",low,,,", [math.nan] * 3),
        ("[partition.p]\nmax_hours = 0.01\n", "p,,,,", [math.nan] * 3),
        ("[licenses]\nmatlab = 3\n", ",,,matlab:4,", [math.nan] * 3),
        ("", ",,,,10.5", [math.nan] * 3),
    ],
)
def test_each_table_of_a_scenario_and_each_column_has_an_effect(tmp_path, tables, request_, starts):
    rows = [HEADER, *(f"{submit},100,4,100,ann,{request_}" for submit in (0, 0, 0))]
    scenario = scenario_of(tmp_path, tables, rows)
    result = run(scenario, CampaignTask("fcfs", 0))
    np.testing.assert_array_equal(result.accounts.start_s, starts)
    assert any("jobs never ran: " in note for note in result.notes) == math.isnan(starts[0])


def test_memory_of_a_node_divides_its_units(tmp_path):
    """The memory that jobs request per unit limits how many units of a node can be used.

    Each of the nodes has 4 units and 10 GiB. The jobs request 5 GiB per unit. Therefore only two units of
    each node can be used.
    """
    rows = [HEADER, "0,100,4,100,ann,,,,,5", "0,100,1,100,ann,,,,,5", "0,100,2,100,ann,,,,,"]
    scenario = scenario_of(tmp_path, "", rows)
    changed = with_values(scenario, {"cluster.n.units": 4, "cluster.n.nodes": 2})
    assert run(changed, CampaignTask("fcfs", 0)).accounts.start_s.tolist() == [0, 100, 0]


def test_priorities_precede_the_policy_and_default_limits_apply(tmp_path):
    rows = [HEADER, *(f"0,100,8,,u,{name}" + ",,,," for name in ("a", "b", "a", "b"))]
    tables = "[partition.a]\ndefault_hours = 0.01\n[partition.b]\npriority = 5\nmax_hours = 1\n"
    text = tables + "[schedule]\nkill_at_limit = true\n"
    result = run(scenario_of(tmp_path, text, rows), CampaignTask("fcfs", 0))
    assert result.accounts.start_s.tolist() == [200, 0, 236, 100]
    assert result.accounts.outcome.tolist() == [JobOutcome.TIMEOUT, JobOutcome.COMPLETED] * 2


def test_a_request_that_the_scenario_does_not_define_binds_nothing_and_is_noted(tmp_path):
    rows = [HEADER, "0,100,4,100,ann,gpu,,,,", "0,100,4,100,ann,debug,,,,"]
    result = run(scenario_of(tmp_path, "[partition.debug]\n", rows), CampaignTask("fcfs", 0))
    assert result.accounts.start_s.tolist() == [0, 0]
    note = "1 jobs request a partition that the scenario does not define (gpu); it does not bind them"
    assert result.notes[-1] == note


def test_a_sweep_changes_constraints(tmp_path):
    scenario = scenario_of(
        tmp_path, "[licenses]\nm = 3\n[qos.q]\nmax_jobs = 1\n", [HEADER, "0,1,1,1,u,,q,,m,"]
    )
    values = with_values(scenario, {"licenses.m": 7, "qos.q.max_jobs": 2}).constraints
    assert (values.licenses["m"], values.qos["q"].max_jobs) == (7, 2)
    for key in ("licenses.other", "qos.none.max_jobs", "qos.q.max_job"):
        with pytest.raises(EnergyError, match="no such key"):
            with_values(scenario, {key: 1})


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ("[partition.p]\nnodes = ['x']\n", "there is no node 'x'"),
        ("[partition.p]\nnodes = ['n-[0-8]']\n", "there is no node 'n-8'"),
        ("[partition.p]\nnodes = ['n-[0-9999999999]']\n", "more than"),
        ("[partition.p]\nmax_hours = 1\ndefault_hours = 2\n", "default_hours"),
        ("[reservation.r]\nhours = 2\nevery_hours = 1\n", "every_hours"),
        ("[reservation.r]\nhours = 1e-6\nevery_hours = 1e-5\n", "at least 0.01"),
        ("[licenses]\nm = -1\n", "licenses.m"),
        ("[licenses]\nm = true\n", "licenses.m"),
        ("[qos]\nq = 3\n", "must be tables"),
        ("[qos.q]\nmax_job = 3\n", "unknown key"),
    ],
)
def test_a_wrong_constraint_is_an_error_with_key(tmp_path, tables, reason):
    with pytest.raises(EnergyError, match=re.escape(reason)):
        scenario_of(tmp_path, tables, [HEADER])


def test_constraints_need_the_general_engine(tmp_path):
    jobs, fcfs = jobs_of((0.0, 1, 9.0, 9.0), unit_memory_gib=[1.0]), policy("fcfs")
    limited = ScheduleSettings(constraints=Constraints(licenses=(("m", 1),)))
    for compiled in (column_engine, fast_path):
        assert compiled.supports(jobs, [NodeKind("n", 2, 1)], fcfs, ScheduleSettings())
        assert not compiled.supports(jobs, [NodeKind("n", 2, 1, memory_gib=4.0)], fcfs, ScheduleSettings())
        assert not compiled.supports(jobs, [NodeKind("n", 2, 1)], fcfs, limited)


def test_a_budget_with_nodes_that_are_switched_off_is_refused_under_constraints():
    settings = ScheduleSettings(
        budget_watts=StepFunction.constant(100.0),
        hard_budget=True,
        idle_off_s=5.0,
        constraints=Constraints(licenses=(("m", 1),)),
    )
    with pytest.raises(EnergyError, match="not simulated together"):
        simulate(jobs_of((0.0, 1, 9.0, 9.0)), [NodeKind("n", 2, 1)], policy("fcfs"), settings)


def test_preemption_interrupts_only_jobs_whose_nodes_and_licenses_help():
    """The simulator interrupts only jobs that use nodes or licenses which the urgent job needs.

    In the test, the urgent job 2 may use node 0 only. Job 1 would be the cheapest to interrupt, but it runs
    on node 1. Therefore no job is interrupted.
    """
    partition = Partition("p", nodes=(0,))
    jobs = jobs_of(
        (0.0, 1, 1000.0, 1000.0),
        (5.0, 1, 1000.0, 1000.0),
        (10.0, 1, 5.0, 5.0),
        deadline_s=[math.nan, math.nan, 16.0],
        partition=[-1, -1, 0],
    )
    named = replace(jobs, partitions=("p",))
    settings = ScheduleSettings(constraints=Constraints(partitions=(partition,)))
    result = simulate(named, [NodeKind("n", 2, 1)], policy("aurachronos"), settings)
    assert int(np.sum(result.accounts.preemptions)) == 0
    free = simulate(named, [NodeKind("n", 2, 1)], policy("aurachronos"), ScheduleSettings())
    assert int(np.sum(free.accounts.preemptions)) == 1


def test_requests_in_swf_and_sacct_files_are_read(tmp_path):
    swf = tmp_path / "t.swf"
    swf.write_text("1 0 0 10 2 -1 -1 2 20 2097152 1 1 1 -1 1 -1 -1 -1\n")
    assert read_workload(swf, []).workload.unit_memory_gib.tolist() == [2.0]
    sacct = tmp_path / "sacct.txt"
    sacct.write_text(
        "JobIDRaw|User|Submit|ElapsedRaw|NNodes|ReqMem|Reservation|ReqTRES\n"
        "1|ann|2026-01-01T00:00:00|60|2|64G|course|billing=2,license/matlab=3,node=2\n"
        "2|ann|2026-01-01T00:00:00|60|2|4Gn||billing=2\n"
        "3|ann|2026-01-01T00:00:00|60|2|1.50P||billing=2\n"
    )
    jobs = read_workload(sacct, []).workload
    np.testing.assert_array_equal(jobs.unit_memory_gib, [32.0, math.nan, 0.75 * 2**20])
    assert (jobs.reservations, jobs.reservation.tolist()) == (("course",), [0, -1, -1])
    assert (jobs.license_names, jobs.licenses.tolist()) == (("matlab",), [[3], [0], [0]])


def test_unreadable_licenses_and_memory_skip_the_line(tmp_path):
    path = tmp_path / "t.csv"
    lines = [
        "submit_s,time_s,units,licenses,unit_memory_gib",
        '0,1,1,"a:1,b",1',
        '0,1,1,"a:x",1',
        "0,1,1,a,-1",
    ]
    path.write_text("\n".join([*lines, "0,1,1,a,1e300"]))
    loaded = read_workload(path, [])
    assert (loaded.workload.count, loaded.problems.skipped) == (1, 3)
    assert loaded.workload.license_names == ("a", "b")
