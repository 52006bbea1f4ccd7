"""Test which nodes and jobs each power budget covers, and the sums of power under budgets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.controller.budgets.coverage import CoverSums, JobCover, node_cover
from slurm_energy.controller.budgets.facts import (
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetScope,
    ScopeKind,
)

LETTERS = st.sampled_from("abc")
SCOPES = st.builds(BudgetScope, st.sampled_from(ScopeKind), st.frozensets(LETTERS))
JOBS = st.dictionaries(
    st.integers(1, 6), st.builds(BudgetedJob, st.just(1), account=LETTERS, user=LETTERS, qos=LETTERS)
)
SETS = st.lists(st.lists(st.integers(1, 8), unique=True, max_size=3).map(tuple), max_size=8)


def in_force(scopes: list[BudgetScope]) -> list[BudgetInForce]:
    return [BudgetInForce(f"b{row}", scope, 1.0, 1.0) for row, scope in enumerate(scopes)]


def counts_job(scope: BudgetScope, job: BudgetedJob | None) -> bool:
    names = {ScopeKind.ACCOUNT: "account", ScopeKind.USER: "user", ScopeKind.QOS: "qos"}
    return job is not None and scope.kind in names and getattr(job, names[scope.kind]) in scope.names


@given(st.lists(SCOPES, max_size=5), JOBS, SETS)
def test_a_budget_counts_a_set_if_it_counts_one_of_its_jobs(
    scopes: list[BudgetScope], jobs: dict[int, BudgetedJob], sets: list[tuple[int, ...]]
) -> None:
    cover = JobCover(in_force(scopes), jobs)
    wanted = [[sum(counts_job(scope, jobs.get(one)) for one in ids) for scope in scopes] for ids in sets]
    counts = np.array(wanted, np.int64).reshape(len(sets), len(scopes))
    assert np.array_equal(cover.counts(sets), counts)
    assert np.array_equal(cover.of_sets(sets), counts.T > 0)


def test_names_of_jobs_are_compared_once_per_account_user_and_qos() -> None:
    comparisons = []

    class Names(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            comparisons.append(name)
            return super().__contains__(name)

    jobs = {number: BudgetedJob(number, account="ab"[number % 2], user="u") for number in range(500)}
    cover = JobCover(in_force([BudgetScope(ScopeKind.ACCOUNT, Names("a"))]), jobs)
    sets = [(number,) for number in jobs]
    assert cover.of_sets(sets).sum() == cover.counts(sets).sum() == 250
    assert sorted(comparisons) == ["a", "b"]


def test_budgets_of_nodes() -> None:
    scopes = [
        BudgetScope(ScopeKind.CLUSTER),
        BudgetScope(ScopeKind.NODES, frozenset({"n1", "n3"})),
        BudgetScope(ScopeKind.PARTITION, frozenset({"gpu"})),
        BudgetScope(ScopeKind.ACCOUNT, frozenset({"n1"})),
    ]
    nodes = {"n1": BudgetedNode(partitions=frozenset({"gpu", "cpu"})), "n2": BudgetedNode()}
    cover = node_cover(in_force(scopes), ["n1", "n2", "n3"], nodes)
    # The partitions of n3 are unknown.
    assert cover.tolist() == [
        [True, True, True],
        [True, False, True],
        [True, False, True],
        [False, False, False],
    ]


@given(st.integers(0, 4), st.lists(st.floats(0.0, 1e6), max_size=6), st.randoms(use_true_random=False))
def test_sums_under_budgets(budgets: int, values: list[float], random: object) -> None:
    cover = np.random.default_rng(random.getrandbits(32)).random((budgets, len(values))) < 0.5  # type: ignore[attr-defined]
    sums = CoverSums(cover).total(np.array(values, np.float64))
    wanted = [sum(value for value, counts in zip(values, row, strict=True) if counts) for row in cover]
    assert sums.shape == (budgets,) and np.allclose(sums, wanted, rtol=1e-12)
