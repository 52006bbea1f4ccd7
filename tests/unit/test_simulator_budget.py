"""Tests of power budgets in the simulator.

The tests check that limits are kept, that jobs wait for power, and that running jobs keep a minimum of power
(floor). The simulator and the controller must make the same decisions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from budget_world import RESERVE_WATTS, FakeCluster, FakeNode
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.budget.power_table import NodePowerRange, PartitionNode, partition_powers
from slurm_energy.budget.start_order import PowerRequest, order_starts
from slurm_energy.budget.work_price import MIN_GAIN, price_levels
from slurm_energy.controller.budgets.engine import BudgetEngine
from slurm_energy.controller.budgets.facts import BudgetInForce, BudgetScope, EngineSettings, ScopeKind
from slurm_energy.controller.budgets.pending_power import ProgramKey, pending_power
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator.cluster import Cluster, NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.job_admission import JobAdmission
from slurm_energy.simulator.power.power_columns import PowerColumns
from slurm_energy.simulator.power.power_response import LEVELS, PowerResponses
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import JobOutcome
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.schedule_settings import BudgetRules, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload
from slurm_energy.slurm.queue.columns import queue_columns
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

pytestmark = pytest.mark.slow

PERIOD_S = 5.0
NODE = NodeKind("n", 4, 2, idle_watts=100.0, unit_idle_watts=30.0, unit_min_watts=100.0)
"""All units at their lowest limit: 4 x (100 + 2 x 70) = 960 W; idle 400 W; at 300 W: 2,560 W."""
LOWEST_WATTS = 960.0
IDLE_WATTS = 50.0


def random_jobs(rows):
    """Return a workload with one job per row.

    A row contains the submission time in seconds, the number of units (such as GPUs), the run time in
    seconds, the watts per unit, and the share of compute in the run time.
    """
    return workload(
        np.arange(len(rows) + 1),
        {
            "submit_s": [row[0] for row in rows],
            "time_limit_s": [2.0 * row[2] for row in rows],
            "compute_share": [row[4] for row in rows],
        },
        {
            "units": [row[1] for row in rows],
            "time_s": [row[2] for row in rows],
            "power_watts": [row[1] * row[3] for row in rows],
        },
    )


def rules(**changes):
    return BudgetRules(**{"period_s": PERIOD_S, "interrupts": False, **changes})


def run(jobs, budget, rule, discipline=Discipline.EASY, kinds=(NODE,), **settings):
    """Simulate jobs under a power budget and the scheduling policy `charon`.

    Returns:
        The result of the simulation, and samples (time, power of the cluster). There is one sample for
        each point in time at which the simulator processed events.
    """
    samples = []
    setting = ScheduleSettings(discipline, budget_watts=budget, budget_rules=rule, **settings)
    outcome = simulate(jobs, kinds, policy("charon"), setting, lambda *sample: samples.append(sample))
    return outcome, samples


ROWS = st.lists(
    st.tuples(
        st.floats(0.0, 200.0),
        st.integers(1, 6),
        st.floats(1.0, 90.0),
        st.floats(80.0, 300.0),
        st.floats(0.05, 1.0),
    ),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(st.floats(LOWEST_WATTS, 2600.0), min_size=3, max_size=3)


@pytest.mark.parametrize("discipline", [Discipline.EASY, Discipline.PACKING])
@given(rows=ROWS, steps=STEPS, distribution=st.sampled_from(["least-edp", "equal", "proportional"]))
@examples(8)
def test_power_never_exceeds_a_budget_that_is_known_ahead(discipline, rows, steps, distribution):
    """The simulated power never exceeds a budget whose changes are known in advance.

    The test also checks that no job is interrupted, and that all jobs end.
    """
    budget = StepFunction([0.0, 47.0, 121.0], steps)
    outcome, samples = run(random_jobs(rows), budget, rules(distribution=distribution), discipline)
    assert all(watts <= budget.at(time_s) + 1e-5 for time_s, watts in samples)
    assert outcome.over_budget_s == 0.0
    assert not np.any(outcome.accounts.preemptions)
    assert np.all(outcome.accounts.outcome == JobOutcome.COMPLETED)


def test_power_that_fills_the_budget_does_not_count_as_above_it():
    """Power that exactly fills the budget does not count as above the budget.

    The workload of the test uses the budget to the last bit, so rounding of sums could exceed it.
    """
    rows = [
        (0, 1, 27.744156215566626, 171.86941031836432, 0.05),
        (105.22567945996519, 3, 52.00678932016571, 281.0, 0.05),
        (26.916243208536695, 2, 63.55954328229103, 297.9329418190493, 0.4324458781035158),
        (200, 3, 1, 80, 0.8211416579355394),
        (0, 6, 1, 300, 0.5359024280215976),
        (180.0026399606909, 2, 90, 300, 0.8082527056936195),
    ]
    outcome, _ = run(random_jobs(rows), StepFunction([0.0, 47.0, 121.0], [974.0, 1759.0, 1797.0]), rules())
    assert outcome.over_budget_s == 0.0


@given(rows=ROWS, steps=STEPS)
@examples(8)
def test_power_exceeds_an_unknown_step_for_at_most_one_control_period(rows, steps):
    budget = StepFunction([0.0, 47.0, 121.0], steps)
    outcome, samples = run(random_jobs(rows), budget, rules(announced=False))
    for time_s, watts in samples:
        since_s = time_s - max(step for step in (-math.inf, 47.0, 121.0) if step <= time_s)
        assert watts <= budget.at(time_s) + 1e-5 or since_s < PERIOD_S
    assert outcome.over_budget_s <= 2 * PERIOD_S + 1e-9
    assert not np.any(outcome.accounts.preemptions)


def test_running_jobs_keep_their_floors_and_no_job_starts_below_them():
    """Running jobs keep their minimum power limits (floors) when the budget falls far below them.

    The floors are in the middle of the range of power limits. The budget falls from 1500 W to 500 W after
    50 s. No job is interrupted. The power remains at the sum of the floors, and is reported as above the
    budget.
    """
    jobs = random_jobs([(0.0, 2, 100.0, 300.0, 0.5), (20.0, 1, 10.0, 300.0, 0.5)])
    budget = StepFunction([0.0, 50.0], [1500.0, 500.0])
    outcome, samples = run(jobs, budget, rules(announced=False, floor_share=0.5))
    assert outcome.accounts.start_s[1] == 20.0 and not np.any(outcome.accounts.preemptions)
    late = [watts for time_s, watts in samples if 60.0 <= time_s < 90.0]
    assert late == pytest.approx([400.0 + 2 * 170.0] * len(late))  # reported as above the budget
    assert outcome.over_budget_s > 50.0


def test_a_job_does_not_start_if_its_floor_exceeds_a_budget_that_will_hold_while_it_runs():
    jobs = random_jobs([(10.0, 2, 100.0, 300.0, 0.5), (10.0, 2, 10.0, 300.0, 0.5)])
    budget = StepFunction([0.0, 50.0, 400.0], [1500.0, 450.0, 1500.0])
    outcome, _ = run(jobs, budget, rules())
    assert list(outcome.accounts.start_s) == [400.0, 10.0]
    assert outcome.over_budget_s == 0.0


def test_a_job_starts_after_running_jobs_have_confirmed_lower_limits():
    """A waiting job starts once the running jobs have confirmed lower power limits.

    The first job uses the whole budget. When the second job arrives at 20 s, the limit of the first job is
    lowered. The second job starts one control period later, at 25 s.
    """
    jobs = random_jobs([(0.0, 4, 100.0, 300.0, 0.5), (20.0, 1, 100.0, 300.0, 0.5)])
    full_watts = 400.0 + 4 * 270.0
    outcome, samples = run(jobs, StepFunction.constant(full_watts), rules())
    assert list(outcome.accounts.start_s) == [0.0, 25.0]
    assert max(watts for _, watts in samples) <= full_watts + 1e-5
    assert max(watts for time_s, watts in samples if time_s >= 25.0) > 0.99 * full_watts


def test_jobs_run_one_after_the_other_where_the_slowdown_limit_forbids_to_share_the_power():
    jobs = random_jobs([(0.0, 4, 100.0, 300.0, 1.0), (20.0, 4, 100.0, 300.0, 1.0)])
    outcome, _ = run(jobs, StepFunction.constant(400.0 + 4 * 270.0), rules(slowdown_limit=0.05))
    assert list(outcome.accounts.start_s) == [0.0, 100.0]
    assert list(outcome.accounts.run_s) == [100.0, 100.0]


def test_responses_of_jobs_to_power_limits():
    """The simulator knows three ways in which a power limit slows a job down.

    If the job has shapes (ways to run it) with power caps, their times and powers apply. Otherwise the
    predictor's model applies if it knows the hardware. All other jobs are rigid: their power cannot be
    limited.
    """
    jobs = workload(
        np.array([0, 3, 4, 5]),
        {"submit_s": [0.0, 0.0, 0.0]},
        {
            "units": [2, 2, 2, 1, 1],
            "hardware": [0, 0, 0, 0, 1],
            "time_s": [100.0, 110.0, 150.0, 10.0, 10.0],
            "power_watts": [600.0, 500.0, 300.0, 300.0, 300.0],
        },
    )
    responses = PowerResponses(jobs, [NODE, NodeKind("m", 1, 1)])
    shapes = responses.response(0, 0)
    assert shapes.point(250.0) == (250.0, pytest.approx(1.1), pytest.approx(5 / 6))
    assert shapes.point(200.0).time_ratio == pytest.approx(1.3)
    assert shapes.point(100.0).power_ratio == pytest.approx(0.5)
    assert shapes.point(300.0) == (math.inf, 1.0, 1.0)
    model = responses.response(1, 3)
    assert model.level_watts[0] == 100.0 and model.level_watts[-1] == 300.0
    assert np.all(np.diff(model.time_ratio) <= 0) and model.time_ratio[-1] == 1.0
    rigid = responses.response(2, 4)
    assert set(rigid.level_watts) == {300.0} and len(rigid.level_watts) == LEVELS


@pytest.mark.parametrize("slowdown_limit", [math.nan, 0.2])
def test_the_power_of_a_shape_does_not_depend_on_the_other_shapes_of_its_job(slowdown_limit):
    """The power of one shape of a job does not depend on the job's other shapes.

    A shape is a possible set of resources; a job uses only one of its shapes. The power of a shape must
    therefore be the same whether the job has one shape or three. In particular, the slowdown limit of the
    job must not be divided among its shapes.
    """
    jobs = workload(
        np.array([0, 3]),
        {"submit_s": [0.0]},
        {"units": [1, 2, 4], "time_s": [400.0, 210.0, 120.0], "power_watts": [300.0, 600.0, 1200.0]},
    )
    rule = rules(slowdown_limit=slowdown_limit)

    def added_watts(*shapes):
        kinds = [NodeKind("n", 4, 4, idle_watts=100.0, unit_idle_watts=20.0, unit_min_watts=100.0)]
        return JobAdmission(jobs, kinds, rule, PowerColumns(jobs, kinds, rule)).added_watts(shapes, math.inf)

    alone = [added_watts(shape)[0] for shape in range(3)]
    assert added_watts(0, 1, 2) == alone
    assert alone[0] < 300.0 - 20.0  # a limit lowers the power


def simulated_state(columns, pending):
    """Return a simulator state that corresponds to the running jobs of a controller.

    The test compares the simulator's budget with the controller's budget. The state consists of three parts:
    the admission (decision which jobs may start), the running jobs, and the rows of the pending jobs in the
    table of shapes. A shape is a way to run a job.

    Args:
        columns: columns of the running jobs in the controller. The simulated jobs have the same power
            response.
        pending: power of each pending job, which has one GPU without a power limit.
    """
    shapes = [
        (1000.0 * ratio, watts)
        for row in range(columns.count)
        for ratio, watts in zip(columns.time_ratio[row][::-1], columns.level_watts[row][::-1], strict=True)
    ] + [(1000.0, watts) for watts in pending]
    first = [row * LEVELS for row in range(columns.count)]
    jobs = workload(
        np.array([*first, *(columns.count * LEVELS + row for row in range(len(pending) + 1))]),
        {"submit_s": [0.0] * (columns.count + len(pending))},
        {
            "units": [1] * len(shapes),
            "time_s": [time_s for time_s, _ in shapes],
            "power_watts": [watts for _, watts in shapes],
        },
    )
    kinds = [NodeKind("gpu", columns.count + len(pending), 1, IDLE_WATTS, IDLE_WATTS)]
    cluster = Cluster(kinds)
    runs = RunningJobs(jobs, cluster, ScheduleSettings())
    for job, shape in enumerate(first):
        runs.work(runs.start(job, shape, cluster.allocate(0, 1), 0.0, 0.0), 0.0)
    admission = JobAdmission(jobs, kinds, rules(), PowerColumns(jobs, kinds, rules()))
    return admission, list(runs.running.values()), range(len(shapes) - len(pending), len(shapes))


@given(
    demands=st.lists(st.integers(150, 390), min_size=1, max_size=4),
    pending=st.lists(st.integers(60, 400), min_size=1, max_size=6),
    share=st.floats(0.5, 2.0),
)
@examples(15)
def test_the_simulator_and_the_controller_admit_the_same_jobs_in_the_same_state(demands, pending, share):
    """The simulator and the controller admit the same pending jobs under a power budget.

    Both have the same running jobs. They then compute the same free power (headroom), and the same pending
    jobs fit in the same order.
    """
    nodes = [FakeNode(f"n{number}", gpus=1) for number in range(len(demands) + len(pending))]
    engine = BudgetEngine(EngineSettings(margin_percent=0.0))
    world = FakeCluster(engine, nodes)
    for number, watts in enumerate(demands):
        nodes[number].run(number + 1, {"gpu0": float(watts)})
    world.announce()
    idle_watts = len(nodes) * (RESERVE_WATTS + 60.0 + 100.0)
    limit_watts = idle_watts + share * sum(demands)
    engine.set_budgets([BudgetInForce("all", BudgetScope(ScopeKind.CLUSTER), limit_watts, limit_watts)])
    world.step(10)
    outcome, (status,) = engine.outcome, world.cycle.budgets
    pending = sorted(pending)  # so that no job that fits comes after one that does not
    requests = [PowerRequest(number, watts - IDLE_WATTS, (0,)) for number, watts in enumerate(pending)]
    # No curve is known of the pending jobs: they need their full power, and their prices follow from it.
    levels = price_levels((1.0 - MIN_GAIN) / (np.array(pending) - IDLE_WATTS))
    requests = [
        PowerRequest(one.job_id, one.watts + status.retained_watts[level], one.budgets)
        for one, level in zip(requests, levels.tolist(), strict=True)
    ]
    live = order_starts(requests, [], [status.headroom_watts])

    admission, running, shapes = simulated_state(outcome.groups.columns, [float(one) for one in pending])
    fixed_watts = status.committed_watts - math.fsum(outcome.counted_watts[outcome.grouped])
    headroom = admission.headroom_at_prices(running, limit_watts, fixed_watts, 0.0)
    kept = headroom[-1] - headroom
    assert headroom[-1] == pytest.approx(status.headroom_watts, abs=1e-6)
    assert kept == pytest.approx(status.retained_watts, abs=1e-6)
    assert admission.price_levels(shapes) == levels.tolist()
    starts, left_watts = [], float(headroom[-1])
    for watts, level in zip(admission.added_watts(shapes, math.inf), levels.tolist(), strict=True):
        fits, left_watts = admission.admit(watts + kept[level], left_watts)
        starts.append(fits)
    assert {number for number, fits in enumerate(starts) if fits} == live.startable


@pytest.mark.parametrize("slowdown_limit", [math.nan, 0.1])
@pytest.mark.parametrize("draw_watts", [210, 390])
def test_the_license_of_a_job_with_a_curve_is_the_power_with_which_the_simulator_admits_it(
    draw_watts, slowdown_limit
):
    limits = np.linspace(100.0, draw_watts, LEVELS)
    ratios = draw_watts / limits
    points = tuple(
        ResponsePoint(
            OperatingPoint(gpu_limit_watts=float(watts)),
            float(ratio),
            float(1 / ratio),
            CurveSource.EARLIER_RUNS,
        )
        for watts, ratio in zip(limits, ratios, strict=True)
    )
    curve = ResponseCurve("H100", "llama", points)
    range_watts = NodePowerRange(0.0, 350.0, 0.0, IDLE_WATTS, gpu_min_watts=100.0, gpu_model="H100")
    powers = partition_powers([PartitionNode(frozenset({"gpu"}), 8, {"h100": 1}, range_watts)])
    flags = {"ENERGY_MODEL": "llama"}
    columns = {"partition": ["gpu"] * 2, "user": ["ada"] * 2, "nodes": [1] * 2, "cpus": [8] * 2}
    queue = queue_columns(0.0, [1, 2], gpus=[1] * 2, gpu_kind=["h100"] * 2, flags=[flags] * 2, **columns)
    full = np.full(2, draw_watts - int(IDLE_WATTS))
    limited = np.full(2, slowdown_limit)
    key = ProgramKey("ada", None, "llama", "H100")
    live = pending_power(queue, full, [True, False], powers, limited, 0.0, {key: curve})

    jobs = workload(
        np.array([0, LEVELS]),
        {"submit_s": [0.0]},
        {"units": [1] * LEVELS, "time_s": 1000.0 * ratios[::-1], "power_watts": limits[::-1]},
    )
    kinds, rule = [NodeKind("gpu", 1, 1, IDLE_WATTS, IDLE_WATTS)], rules(slowdown_limit=slowdown_limit)
    admission = JobAdmission(jobs, kinds, rule, PowerColumns(jobs, kinds, rule))
    (needed_watts,) = admission.added_watts([0], math.inf)
    assert live.watts.tolist() == [math.ceil(needed_watts - 1e-6), full[1]]
    assert live.floor_watts[0] <= live.watts[0] < full[0]
    assert live.programs == {key}
