"""Tests of docs/priority.md against the code.

The worked example of the page must equal the computed values, and the names on it must exist.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.priority import site_factors
from slurm_energy.scheduling import Options, Queue, Users, names, policy
from slurm_energy.scheduling.queue import alternatives, jobs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "priority.md").read_text()
USERS = ["alice", "bob", "carol"]


def rows(after: str, count: int) -> list[list[str]]:
    """Return the cells of the first rows of a table in the documentation page.

    The table is the first one after the phrase `after`. Its header is left out.
    """
    table = PAGE[PAGE.index(after) :].split("\n|", 1)[1]
    lines = [line for line in f"|{table}".splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2 : 2 + count]]


def seconds(clock: str) -> float:
    hours, minutes, whole = map(int, clock.split(":"))
    return hours * 3600 + minutes * 60 + whole


def the_queue() -> tuple[Queue, list[list[str]]]:
    table_rows = rows("four jobs wait", 4)
    ids, owners = [int(row[0]) for row in table_rows], [USERS.index(row[1]) for row in table_rows]
    deadlines = [
        float(hours[0]) * 3600 if (hours := re.findall(r"\d+", row[6])) else np.nan for row in table_rows
    ]
    table = jobs(
        np.array(ids),
        -np.array([seconds(row[5]) for row in table_rows]),
        user=np.array(owners),
        deadline_s=np.array(deadlines),
    )
    shapes = alternatives(
        np.arange(5),
        np.array([seconds(row[2]) for row in table_rows]),
        np.array([float(row[3]) for row in table_rows]),
    )
    users = Users(np.array([0.5, 0.25, 0.25]), np.zeros(3), np.array([50.0, 30.0, 20.0]) * 3.6e6)
    return Queue(0.0, table, shapes, users), table_rows


def test_the_example_is_computed() -> None:
    queue, table_rows = the_queue()
    ranking = policy("blend").rank(queue, Options())
    edp = [float(row[4].removesuffix("G")) * 1e9 for row in table_rows]
    assert queue.alternatives.edp == pytest.approx(edp, rel=0.005)
    order = ranking.order(queue.jobs.job_id)
    numbers = site_factors.spread_site_factors(4)
    for place, row in enumerate(order.tolist()):
        terms = [ranking.terms[name].contribution for name in ("edp", "fair", "deadline", "age")]
        cells = [f"{term[row]:.4f}" for term in terms if term is not None]
        score = f"{ranking.score[row]:.4f}"
        found = [str(queue.jobs.job_id[row]), *cells, score, str(place + 1), str(numbers[place])]
        assert found == rows("The score is minus the sum", 4)[place]
    median = float(np.median(queue.alternatives.edp))
    assert f"here {median / 1e9:.2f}G" in PAGE


def test_the_orders_of_other_policies() -> None:
    queue, _ = the_queue()
    table_rows = re.findall(r"`(\w+)` orders ((?:10\d, ){3}10\d)", " ".join(PAGE.split()))
    assert len(table_rows) == 3
    for name, order in table_rows:
        ranked = queue.jobs.job_id[policy(name).rank(queue, Options()).order(queue.jobs.job_id)]
        assert ", ".join(map(str, ranked)) == order


def test_the_table_contains_every_policy() -> None:
    listed = {name for row in rows("## Policies and weights", 12) for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == set(names())


@pytest.mark.parametrize("name", ["priority.md", "priority-plugin.md", "install-by-hand.md"])
def test_lines_for_slurm_conf_have_a_value(name: str) -> None:
    """No line for slurm.conf in the documentation has a key without a value.

    Such a line would stop every daemon and command of Slurm on the cluster.
    """
    lines = re.findall(r"^ *[A-Z][a-zA-Z]+=.*$", (DOCS / name).read_text(), re.MULTILINE)
    assert lines
    assert [line for line in lines if line.rstrip().endswith("=")] == []
