"""The explanation of why one job goes before another names the term that favours the first job."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_energy.priority.explanation import decisive, order_reason
from slurm_energy.scheduling import Options, Queue, Ranking, Users, names, policy
from slurm_energy.scheduling.queue import alternatives, jobs
from slurm_energy.scheduling.ranking import AGED, NORMAL, URGENT, Term

NAN = math.nan


def ranking(scores: list[float], tiers: list[int] | None = None, **terms: Term) -> Ranking:
    tier = np.array(tiers or [NORMAL] * len(scores))
    return Ranking(tier, np.array(scores), np.zeros(len(scores), np.int64), terms)


def test_in_a_sum_the_greatest_difference_decides() -> None:
    edp, fair = Term(np.array([0.9, 0.2]), "", 1.0), Term(np.array([0.1, 0.2]), "", 0.5)
    found = ranking([-0.95, -0.3], edp=edp, fair=fair)
    assert decisive(found.terms, 0, 1) == "edp"
    assert order_reason(found, 0, 1) == "for energy-delay product (0.9000 against 0.2000)"


def test_in_a_product_the_greatest_ratio_decides() -> None:
    edp, ageing = Term(np.array([6e9, 3e9]), "J s", power=1.0), Term(np.array([9.0, 3.0]), power=-1.0)
    assert (
        order_reason(ranking([6e9 / 9, 1e9], edp=edp, ageing=ageing), 0, 1)
        == "for waiting (9.0000 against 3.0000)"
    )
    cheap = Term(np.array([1e9, 3e9]), "J s", power=1.0)
    assert order_reason(ranking([1e9 / 9, 1e9], edp=cheap, ageing=ageing), 0, 1).startswith("for ")
    equal = Term(np.array([3.0, 3.0]), power=-1.0)
    text = order_reason(ranking([1e9 / 3, 1e9], edp=cheap, ageing=equal), 0, 1)
    assert text == "for energy-delay product (1.000e+09 against 3.000e+09 J s)"


@pytest.mark.parametrize(
    ("scores", "tiers", "words"),
    [
        ([5, 1], [AGED, NORMAL], "as it waited past the bound"),
        ([5, 1], [URGENT, NORMAL], "as it has a deadline"),
        ([1, 5], [AGED, AGED], "as it was submitted earlier"),
        ([1, math.inf], [NORMAL, NORMAL], "as the other cannot run now"),
        ([1, 1], [NORMAL, NORMAL], "at equal scores, by its lower number"),
        ([1, 2], [NORMAL, NORMAL], "by its score (1.0000 against 2.0000)"),
    ],
)
def test_tiers_decide_before_terms(scores: list[float], tiers: list[int], words: str) -> None:
    same = Term(np.array([1.0, 1.0]), "", 1.0)
    assert order_reason(ranking(scores, tiers, same=same), 0, 1) == words


ROWS = st.lists(
    st.tuples(
        st.floats(60, 1e5),
        st.floats(50, 5000),
        st.floats(0, 2e4),
        st.integers(0, 2),
        st.sampled_from([NAN, 3e5]),
    ),
    min_size=2,
    max_size=8,
)


@settings(deadline=None)
@given(ROWS, st.sampled_from(names()))
def test_the_decisive_term_favours_the_first_of_two_neighbours(
    rows: list[tuple[float, float, float, int, float]], name: str
) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    table = jobs(np.arange(len(rows)), -columns[2], user=columns[3], deadline_s=columns[4])
    shapes = alternatives(np.arange(len(rows) + 1), columns[0], columns[1])
    users = Users(np.ones(3), np.array([0.0, 5e3, 7e5]), np.array([1e9, 2e7, 0.0]))
    found = policy(name).rank(Queue(0.0, table, shapes, users), Options())
    order = found.order(table.job_id).tolist()
    for first, second in itertools.pairwise(order):
        text = order_reason(found, first, second)
        assert text
        close = math.isclose(found.score[first], found.score[second], rel_tol=1e-9, abs_tol=1e-9)
        if found.tier[first] == found.tier[second] and not close:
            assert text.startswith("for ")
            assert decisive(found.terms, first, second) is not None
