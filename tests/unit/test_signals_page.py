"""The examples of docs/signals.md work."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.scheduling import Queue, load_file, policy, registry
from slurm_energy.scheduling.queue import alternatives, jobs
from slurm_energy.scheduling.ranking import Options
from slurm_energy.signals import SignalColumns, SignalForecast
from slurm_energy.simulator import scenario

PAGE = Path(__file__).parents[2] / "docs" / "signals.md"


def block(language: str) -> str:
    match = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert match
    return match[1]


def test_the_scenario_is_valid(tmp_path):
    workload = '[cluster.node]\nnodes = 1\n[workload]\nfile = "jobs.csv"\n'
    read = scenario.parse(workload + block("toml"), tmp_path / "s.toml")
    assert read.deferral.slack_hours == 12
    assert read.signals.forecast == "day-ahead"


@pytest.mark.parametrize(("prices", "first"), [([0.3, 0.1], 1), ([0.1, 0.3], 0)])
def test_the_policy_of_a_site_ranks_by_the_price(monkeypatch, tmp_path, prices, first):
    registry.names()  # loads the built-in policies
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))
    (tmp_path / "mine.py").write_text(block("python"))
    assert load_file(tmp_path / "mine.py") == ["shortest-when-expensive"]
    column = SignalForecast(np.array(prices), np.zeros(2))
    table = alternatives(np.arange(3), np.array([100.0, 10.0]), np.ones(2))
    queue = Queue(
        5.0,
        jobs(np.arange(2), np.arange(2.0)),
        table,
        signals=SignalColumns(0.0, 900.0, price_per_kwh=column),
    )
    ranking = policy("shortest-when-expensive").rank(queue, Options())
    assert ranking.order(queue.jobs.job_id)[0] == first
