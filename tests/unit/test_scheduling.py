"""Tests of the scheduling policies.

The tests compare scores, fairness, admission and preemption with cases that were computed by hand. They also
check properties that must hold for every queue, and the registry of policies.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.scheduling import Options, Queue, Users, load_file, names, policy, register
from slurm_energy.scheduling.admission import admit, fits
from slurm_energy.scheduling.fairness import decayed, fair_share_factor, jain, usage_to_share_ratio
from slurm_energy.scheduling.lookahead import UnitPlan
from slurm_energy.scheduling.preemption import Running, victims
from slurm_energy.scheduling.queue import UNKNOWN_UNITS, UnitCapacity, alternatives, jobs
from slurm_energy.scheduling.ranking import AGED, NORMAL, URGENT, least

NAN = float("nan")
BUILT_IN = [
    "aurachronos",
    "blend",
    "charon",
    "chronos",
    "fcfs",
    "hades",
    "kairos",
    "lean",
    "metis",
    "multifactor",
    "pollux",
    "sjf",
    "themis",
    "zeus",
]


def example(now_s: float = 1000.0) -> Queue:
    """Return an example queue of three jobs of two users.

    An alternative is a way to run a job. Job 1 has two alternatives, the other jobs have one. The
    alternatives (time in seconds, watts) and their energy-delay products (EDP) in joule seconds are:

    - job 1: (100, 400) with EDP 4.0e6, or (50, 1000) with EDP 2.5e6;
    - job 2: (80, 500) with EDP 3.2e6;
    - job 3: (200, 100) with EDP 4.0e6. Only job 3 has a deadline.
    """
    return Queue(
        now_s,
        jobs(
            np.array([1, 2, 3]),
            np.array([900.0, 500.0, 990.0]),
            user=np.array([0, 1, 1]),
            deadline_s=np.array([NAN, NAN, 1300.0]),
        ),
        alternatives(
            np.array([0, 2, 3, 4]),
            np.array([100.0, 50.0, 80.0, 200.0]),
            np.array([400.0, 1000.0, 500.0, 100.0]),
            gpus=np.array([1, 4, 2, 1]),
            hardware=np.array([0, 0, 1, 0]),
        ),
        Users(np.array([1.0, 1.0]), np.array([0.0, 300.0]), np.array([1e6, 3e6])),
    )


def order(name: str, queue: Queue, options: Options | None = None) -> list[int]:
    ranking = policy(name).rank(queue, options or Options(age_weight=0.01))
    return [int(queue.jobs.job_id[row]) for row in ranking.order(queue.jobs.job_id)]


SCORES = {
    "fcfs": [900, 500, 990],
    "sjf": [50, 80, 200],
    "pollux": [50 - 0.01 * 100, 80 - 0.01 * 500, 200 - 0.01 * 10],
    "zeus": [2.5e6 / 2, 3.2e6 / 6, 4e6 / 1.1],
    "charon": [2.5e6 / 2, 3.2e6 / 6, 4e6 / 1.1],
    "themis": [50 * 1, 80 * 301, 200 * 301],
    "hades": [2.5e6 * 1001, 3.2e6 * 3001, 4e6 * 3001],
    "lean": [1000 / 4, 500 / 2, 100],
    "chronos": [49, 75, 1300 - 1200],
    "aurachronos": [2.5e6 / 2, 3.2e6 / 6, 100],
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_the_formulas(name):
    ranking = policy(name).rank(example(), Options(age_weight=0.01))
    assert ranking.score == pytest.approx(SCORES[name], rel=1e-12)


def test_orders():
    queue = example()
    assert order("fcfs", queue) == [2, 1, 3]
    assert order("sjf", queue) == [1, 2, 3]
    assert order("themis", queue) == [1, 2, 3]
    assert order("lean", queue) == [3, 1, 2]
    assert order("lean", queue, Options(wait_bound_s=400.0)) == [2, 3, 1]  # job 2 has waited for 500 s
    assert order("chronos", queue) == [3, 1, 2]  # the deadline first
    assert order("aurachronos", queue) == [3, 2, 1]


def one_job(now_s: float, deadline_s: float = NAN) -> Queue:
    """Return a queue with one job, submitted at time 0, that can run with two sets of resources.

    With the first set (shape), the job takes 10 s at 100 W (EDP 1e4), but the set is not free now. With the
    second set, the job takes 40 s at 100 W (EDP 16e4), and the set is free.
    """
    return Queue(
        now_s,
        jobs(np.array([1]), np.array([0.0]), deadline_s=np.array([deadline_s])),
        alternatives(
            np.array([0, 2]),
            np.array([10.0, 40.0]),
            np.array([100.0, 100.0]),
            possible=np.array([False, True]),
        ),
    )


@pytest.mark.parametrize(
    ("now_s", "weights", "choice"),
    [
        (0, {}, -1),  # 16 times the lowest EDP: waits
        (79, {}, -1),
        (81, {}, 1),  # after eight times its shortest run time
        (81, {"patience": 9.0}, -1),
        (0, {"excess": 15.0}, 1),
        (0, {"excess": 14.9}, -1),
    ],
)
def test_kairos_waits_for_a_good_shape_for_a_bounded_time(now_s, weights, choice):
    assert list(policy("kairos").rank(one_job(now_s), Options(weights=weights)).choice) == [choice]


@pytest.mark.parametrize("name", ["kairos", "aurachronos"])
def test_a_job_waits_for_a_shape_that_meets_its_deadline(name):
    options = Options(weights={"excess": 99.0})
    assert list(policy(name).rank(one_job(0, 41.0), options).choice) == [1]
    assert list(policy(name).rank(one_job(0, 39.0), options).choice) == [-1]
    assert list(policy(name).rank(one_job(35, 39.0), options).choice) == [1]  # no shape meets it any more


def busy(end_s: float, free: tuple[int, int] = (0, 1)) -> UnitCapacity:
    """Return the capacity of a cluster with two kinds of units (such as GPUs), for scheduler tests.

    One unit of kind 0 is busy until `end_s`. `free` is the number of free units of each kind.
    """
    return UnitCapacity(np.array(free), np.zeros(2), np.array([0]), np.array([1]), np.array([end_s]))


def choice_of_metis(capacity: UnitCapacity | None, deadline_s: float = NAN, possible: bool = True) -> int:
    """Return which of two alternatives the scheduling policy `metis` chooses for a job.

    The decision is made at the time 0 s. An alternative is the kind of hardware on which the job runs. With
    hardware of kind 0, the job takes 10 s at 100 W. With hardware of kind 1, it takes 40 s at 100 W.
    """
    queue = Queue(
        0.0,
        jobs(np.array([1]), np.array([0.0]), deadline_s=np.array([deadline_s])),
        alternatives(
            np.array([0, 2]),
            np.array([10.0, 40.0]),
            np.array([100.0, 100.0]),
            hardware=np.array([0, 1]),
            possible=np.array([False, possible]),
        ),
        capacity=capacity,
    )
    return int(policy("metis").rank(queue, Options()).choice[0])


def test_metis_waits_for_units_that_are_free_soon_and_only_for_these():
    assert choice_of_metis(busy(5.0)) == -1  # it waits 5 s and ends at 15 s, earlier than at 40 s
    assert choice_of_metis(busy(1000.0)) == 1
    assert choice_of_metis(busy(5.0), deadline_s=17.0) == -1
    assert choice_of_metis(busy(35.0), deadline_s=42.0) == 1  # kind 0 would miss the deadline
    assert choice_of_metis(None) == 1  # capacity unknown: the best shape that may start


def test_metis_takes_a_possible_shape_if_another_resource_than_units_bars_one():
    assert choice_of_metis(busy(5.0, free=(1, 1))) == 1
    assert choice_of_metis(busy(5.0, free=(1, 1)), possible=False) == -1


def test_a_plan_fills_gaps_only_with_jobs_that_end_in_time():
    plan = UnitPlan(
        UnitCapacity(np.array([2]), np.zeros(1), np.zeros(1, int), np.array([2]), np.array([50.0])), 0, 0
    )
    four, time_s = np.array([4]), np.array([10.0])
    assert plan.starts_s(four, time_s) == [50.0]
    plan.take(50.0, 4, 10.0)
    assert plan.starts_s(np.array([2, 2, 3, 5]), np.array([50.0, 51.0, 1.0, 1.0])).tolist() == [
        0.0,
        60.0,
        60.0,
        np.inf,
    ]
    plan.take(0.0, 2, 50.0)
    assert plan.starts_s(np.array([1]), np.array([1.0])) == [60.0]


def test_a_plan_expects_an_overdue_job_for_as_long_again_and_does_not_restrict_unknown_units():
    capacity = UnitCapacity(
        np.array([0, UNKNOWN_UNITS]), np.zeros(2), np.array([0]), np.array([1]), np.array([80.0])
    )
    one = np.array([1])
    assert UnitPlan(capacity, 0, 100.0).starts_s(one, one * 1.0) == [120.0]
    assert UnitPlan(capacity, 1, 100.0).starts_s(one * 1000, one * 1.0) == [100.0]


def test_multifactor_equals_slurms_sum():
    options = Options(weights={"age": 1000, "fairshare": 100, "qos": 0}, max_age_s=1000)
    ranking = policy("multifactor").rank(example(), options)
    shares = [1.0, 2.0 ** -(1.0 / 0.5)]
    expected = [1000 * 0.1 + 100 * shares[0], 1000 * 0.5 + 100 * shares[1], 1000 * 0.01 + 100 * shares[1]]
    assert -ranking.score == pytest.approx(expected)
    assert set(ranking.terms) == {"age", "fairshare", "jobsize", "partition", "qos", "nice"}


def test_blend_adds_its_terms():
    options = Options(weights={"edp": 1, "fair": 1, "deadline": 1, "age": 1}, wait_bound_s=1000)
    ranking = policy("blend").rank(example(), options)
    assert ranking.terms["edp"].value == pytest.approx([3.2 / (3.2 + 2.5), 0.5, 3.2 / 7.2])
    assert ranking.terms["fair"].value == pytest.approx([2**-0.5, 2**-1.5, 2**-1.5])
    assert ranking.terms["deadline"].value == pytest.approx([0, 0, 200 / 300])
    assert ranking.terms["age"].value == pytest.approx([0.1, 0.5, 0.01])


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_terms_yield_the_score(name):
    """The score of a job equals the sum or product of the terms that explain the score to users.

    Terms with a weight are added. Terms with a power are raised to this power and multiplied.
    """
    options = Options(weights={"edp": 0.7, "deadline": 1.5, "qos": 3.0, "age": 2.0})
    ranking = policy(name).rank(example(), options)
    terms = list(ranking.terms.values())
    assert all(term.value.shape == (3,) for term in terms)
    assert not any(term.weight is not None and term.power is not None for term in terms)
    sums = [-term.contribution for term in terms if term.weight is not None]
    factors = [term.value**term.power for term in terms if term.power is not None]
    expected = np.nansum(sums, axis=0) if sums else np.zeros(3)
    if factors:
        products = np.prod(factors, axis=0)
        expected = np.where(np.isnan(products), expected, products)
    assert ranking.score == pytest.approx(expected)


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_job_waits_longer_than_the_bound(name):
    """Jobs that have waited longer than the bound on waiting go before all other jobs.

    Among these jobs, the one with the longest wait goes first.
    """
    queue = example(now_s=2000.0)
    ranking = policy(name).rank(queue, Options(wait_bound_s=1050))
    assert list(ranking.tier[:2]) == [AGED, AGED]
    assert ranking.tier[2] in (NORMAL, URGENT)
    assert order(name, queue, Options(wait_bound_s=1050))[:2] == [2, 1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_job_without_a_possible_shape_comes_last_and_has_no_choice(name):
    queue = example()
    table = queue.alternatives
    blocked = Queue(
        queue.now_s,
        queue.jobs,
        alternatives(
            table.first,
            table.time_s,
            table.power_watts,
            gpus=table.gpus,
            hardware=table.hardware,
            possible=np.array([True, False, False, True]),
        ),
        queue.users,
    )
    ranking = policy(name).rank(blocked, Options())
    assert list(ranking.choice) == [0, -1, 3]
    assert np.isinf(ranking.score[1])


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_empty_queue_has_an_empty_ranking(name):
    none = np.zeros(0)
    queue = Queue(0.0, jobs(none, none), alternatives(np.array([0]), none, none), Users())
    assert len(policy(name).rank(queue, Options()).order(queue.jobs.job_id)) == 0


@given(st.data())
@examples(60)
def test_least_equals_a_loop(data):
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    count = sum(sizes)
    values = np.array(data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)), float)
    possible = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    first = np.concatenate([[0], np.cumsum(sizes)])
    table = alternatives(first, np.ones(count), np.ones(count), possible=possible)
    choice, value = least(values, table)
    for job, start in enumerate(first[:-1]):
        rows = [row for row in range(start, first[job + 1]) if possible[row]]
        best = min(rows, key=lambda row: (values[row], row), default=-1)
        assert choice[job] == best
        assert value[job] == (values[best] if rows else np.inf)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20), st.floats(0.001, 1000))
def test_jain_lies_between_one_nth_and_one_and_ignores_the_unit(values, unit):
    index = jain(np.array(values))
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain(np.array(values) * unit) == pytest.approx(index, rel=1e-6)


def test_jain_by_hand():
    assert jain(np.array([1.0, 1.0, 1.0])) == pytest.approx(1.0)
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain(np.array([1.0, 2.0])) == pytest.approx(9 / 10)
    assert np.isnan(jain(np.array([])))


def test_usage_decays_by_half_lives_and_is_divided_by_shares():
    assert decayed(np.array([8.0, 0.0]), 7200, 3600) == pytest.approx([2.0, 0.0])
    assert decayed(np.array([8.0]), 1e9, np.inf) == pytest.approx([8.0])
    with pytest.raises(ValueError, match="half_life_s"):
        decayed(np.array([8.0]), 1, 0)
    users = Users(np.array([3.0, 1.0]), np.zeros(2), np.zeros(2))
    assert usage_to_share_ratio(np.array([30.0, 10.0]), users) == pytest.approx([20.0, 20.0])
    with warnings.catch_warnings(action="error"):
        assert len(usage_to_share_ratio(np.zeros(0), Users(*[np.zeros(0)] * 3))) == 0
    assert fair_share_factor(np.array([30.0, 10.0]), users) == pytest.approx([0.5, 0.5])
    assert fair_share_factor(np.zeros(2), users) == pytest.approx([1.0, 1.0])


def test_admission_keeps_resources_and_budget():
    queue = example()
    table, ids = queue.alternatives, queue.jobs.job_id
    ranking = policy("zeus").rank(queue, Options(age_weight=0.0))  # order 1 (4 GPUs), 2, 3
    assert admit(ranking, ids, table, np.array([4, 2]), table.power_watts) == [0, 1]
    assert admit(ranking, ids, table, np.array([5, 0]), table.power_watts) == [0, 2]
    assert admit(ranking, ids, table, np.array([5, 2]), table.power_watts, 1100.0) == [0, 2]
    assert admit(ranking, ids, table, np.array([5, 2]), table.power_watts, 999.0) == [1, 2]
    assert list(fits(table, np.array([3, 1]))) == [True, False, False, True]


def test_resources_of_an_aged_job_stay_free():
    queue = example(now_s=2000.0)
    table, ids = queue.alternatives, queue.jobs.job_id
    ranking = policy("sjf").rank(queue, Options(wait_bound_s=1400))  # job 2 is aged and needs hardware 1
    assert admit(ranking, ids, table, np.array([8, 1]), table.power_watts) == []
    assert admit(ranking, ids, table, np.array([8, 2]), table.power_watts) == [1, 0, 2]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 8), st.floats(0, 100), st.booleans()), max_size=8),
    st.integers(0, 12),
    st.integers(0, 4),
)
def test_victims_suffice_and_each_is_needed(rows, needed, free):
    running = [Running(i, kind, gpus, lost, ok) for i, (kind, gpus, lost, ok) in enumerate(rows)]
    found = victims(running, 0, needed, free)
    usable = {job.job_id: job for job in running if job.preemptible and job.hardware == 0}
    if found is None:
        assert sum(job.gpus for job in usable.values()) + free < needed
        return
    assert set(found) <= set(usable)
    gained = [usable[number].gpus for number in found]
    assert free + sum(gained) >= needed
    assert all(free + sum(gained) - gpus < needed for gpus in gained)


def test_the_cheapest_victim_goes_first():
    running = [Running(1, 0, 2, 50.0), Running(2, 0, 2, 10.0), Running(3, 0, 2, 5.0, preemptible=False)]
    assert victims(running, 0, 2, 0) == [2]
    assert victims(running, 0, 4, 0) == [2, 1]
    assert victims(running, 0, 5, 0) is None


def test_a_cheap_victim_is_spared_when_a_larger_one_is_needed_anyway():
    running = [Running(1, 0, 1, 0.0), Running(2, 0, 8, 8.0)]
    assert victims(running, 0, 8, 0) == [2]


def test_the_registry_lists_policies_and_suggests_near_names():
    assert names() == BUILT_IN
    assert policy("charon").keeps_budget and policy("aurachronos").preempts
    assert all(policy(name).summary.endswith(".") for name in names())
    with pytest.raises(NotFoundError, match="'zeuss' is not known: did you mean zeus"):
        policy("zeuss")
    with pytest.raises(UsageError, match="'zeus' is registered already"):
        register("zeus")(lambda queue, options: None)


def test_a_policy_file_registers_a_policy(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from slurm_energy.scheduling import register\n"
        "from slurm_energy.scheduling.ranking import least, ranked\n"
        "@register('dearest-first')\n"
        "def rank(queue, options):\n"
        '    """Largest energy first."""\n'
        "    choice, energy = least(queue.alternatives.energy_joules, queue.alternatives)\n"
        "    return ranked(queue, options, choice, -energy)\n"
    )
    try:
        assert load_file(file) == ["dearest-first"]
        assert order("dearest-first", example()) == [1, 2, 3]
    finally:
        from slurm_energy.scheduling import registry

        registry._policies.pop("dearest-first", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "registers no policy"),
        ("a = 1\nb = c\n", r"mine\.py:2: NameError"),
        ("def :\n", r"mine\.py:1: SyntaxError"),
    ],
)
def test_a_bad_policy_file_is_named_with_its_line(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_file(file)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: jobs(np.arange(2), np.zeros(3)), "'submit_s' has 3 rows"),
        (lambda: jobs(np.arange(2), np.zeros(2), colour=np.zeros(2)), "'colour' is not known"),
        (lambda: alternatives(np.array([0, 1]), np.ones(2), np.ones(2)), "needs at least one row"),
        (lambda: alternatives(np.array([0, 0, 1]), np.ones(1), np.ones(1)), "needs at least one row"),
        (lambda: alternatives(np.array([0, 1]), np.array([0.0]), np.ones(1)), "negative or not a number"),
        (lambda: alternatives(np.array([0, 1]), np.ones(1), np.array([NAN])), "negative or not a number"),
    ],
)
def test_bad_tables_are_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()


def parked(count: int, **columns: Any) -> Queue:
    """Return a queue in which one owner has many old jobs.

    `count` jobs of owner 0 have waited for about an hour. Two jobs of owner 1 and a new job of a third owner
    follow.
    """
    submit = np.array([*range(count), 900.0, 901.0, 3990.0])
    owner = np.array([0] * count + [1, 1, 2])
    total = count + 3
    return Queue(
        4000.0,
        jobs(np.arange(1, total + 1), submit, owner=owner, **columns),
        alternatives(np.arange(total + 1), np.full(total, 100.0), np.full(total, 300.0)),
    )


def test_parked_jobs_of_one_user_do_not_occupy_the_head_of_the_queue():
    queue = parked(800)
    ranking = policy("sjf").rank(queue, Options(wait_bound_s=1000.0, aged_jobs_per_user=10))
    aged = np.flatnonzero(ranking.tier == AGED)
    assert aged.tolist() == [*range(10), 800, 801]
    assert ranking.order(queue.jobs.job_id)[:12].tolist() == aged.tolist()
    without = policy("sjf").rank(queue, Options(wait_bound_s=1000.0))
    assert np.count_nonzero(without.tier == AGED) == 802


def test_jobs_that_have_started_past_the_bound_count():
    started = np.array([7] * 50 + [0, 12, 0])
    ranking = policy("zeus").rank(
        parked(50, aged_starts=started), Options(wait_bound_s=1000.0, aged_jobs_per_user=10)
    )
    assert np.flatnonzero(ranking.tier == AGED).tolist() == [0, 1, 2, 50]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000)), max_size=30), st.integers(0, 5))
def test_no_owner_has_more_aged_jobs_than_allowed_and_they_are_the_oldest(waiting, most):
    count = len(waiting)
    queue = Queue(
        2000.0,
        jobs(
            np.arange(1, count + 1),
            np.array([submit for _, submit in waiting], np.float64),
            owner=np.array([owner for owner, _ in waiting], np.int64),
        ),
        alternatives(np.arange(count + 1), np.full(count, 1.0), np.full(count, 1.0)),
    )
    tier = policy("fcfs").rank(queue, Options(wait_bound_s=500.0, aged_jobs_per_user=most)).tier
    for owner in range(4):
        own = [row for row in range(count) if waiting[row][0] == owner]
        past = sorted((row for row in own if waiting[row][1] <= 1500), key=lambda row: (waiting[row][1], row))
        assert {row for row in own if tier[row] == AGED} == set(past[:most])
