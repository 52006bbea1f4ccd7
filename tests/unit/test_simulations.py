"""Tests of the Python interface for simulations.

The tests cover runs, sweeps, sessions, scheduling policies of the user, and the examples in the
documentation page and the notebook.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from slurm_energy import simulations
from slurm_energy.errors import ConfigError, EnergyError, UsageError
from slurm_energy.scheduling import registry
from slurm_energy.scheduling.ranking import least, ranked

DOCS = Path(__file__).resolve().parents[2] / "docs"
SMALL = """
[cluster.n]
nodes = 3
idle_watts = 10
[workload]
file = "jobs.csv"
watts_per_unit = 100.0
[schedule]
policies = ["fcfs"]
"""


@pytest.fixture
def scenario(tmp_path):
    rows = ["submit_s,time_s,units", *(f"{3 * i},{5 + i % 7},{1 + i % 3}" for i in range(20))]
    (tmp_path / "jobs.csv").write_text("\n".join(rows))
    return simulations.parse(SMALL, tmp_path)


@pytest.fixture(autouse=True)
def forget_policies(monkeypatch):
    registry.names()
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))


def test_a_run_has_the_figures_of_the_command_line(scenario):
    run = scenario.run("sjf")
    assert run.summary["completed"] == 20 == len(run.jobs)
    assert run.jobs.energy_joules.sum() == pytest.approx(run.summary["job_kwh"] * 3.6e6)
    joules = np.sum(np.diff(run.power.time_s) * run.power.watts[:-1])
    assert joules == pytest.approx(run.summary["energy_kwh"] * 3.6e6)
    assert scenario.workload().count == 20


def test_a_sweep_has_a_row_per_combination_and_equals_single_runs(scenario):
    axes = {"cluster.n.nodes": [3, 5], "workload.load": "0.5:1.0:0.5"}
    table = scenario.sweep(axes, ["fcfs", "sjf"], seeds=[0, 4])
    assert len(table) == 2 * 2 * 2 * 2 and set(table.seed) == {0, 4}
    row = table.iloc[-1]
    values = {"cluster.n.nodes": int(row["cluster.n.nodes"]), "workload.load": row["workload.load"]}
    single = scenario.with_values(values).run(row.policy, int(row.seed)).summary
    assert row.mean_jct_s == single["mean_jct_s"]
    for wrong in ({"workload.lod": [1]}, {"workload.load": "x"}, {"workload.load": []}):
        with pytest.raises(EnergyError):
            scenario.sweep(wrong)
    with pytest.raises(ConfigError, match=r"workload\.load"):
        scenario.with_values({"workload.load": -1})


def test_a_session_gives_the_schedule_of_a_run_and_takes_rankings(scenario):
    session, state = scenario.session("sjf"), None
    while session.queue is not None:
        state = session.state()
        session.step()
    assert state is not None and state.total_units.tolist() == [3]
    assert session.result.energy_joules == scenario.run("sjf").result.energy_joules
    with pytest.raises(UsageError, match="has ended"):
        session.step()
    other = scenario.session("fcfs")
    while other.queue is not None:
        choice, time_s = least(other.queue.alternatives.time_s, other.queue.alternatives)
        other.step(ranked(other.queue, simulations.Options(), choice, time_s))
    np.testing.assert_array_equal(other.result.accounts.start_s, session.result.accounts.start_s)
    third = scenario.session("fcfs")
    with pytest.raises(UsageError, match="the ranking"):
        third.step(ranked(third.queue, simulations.Options(), np.array([99]), np.zeros(1)))


def blocks(page):
    section = page.partition("## Simulations")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_examples_of_the_page_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {}
    texts = blocks((DOCS / "python-api.md").read_text())
    assert len(texts) >= 4
    for text in texts:
        exec(text, names)
    assert len(names["table"]) == 8
    assert names["session"].result.summary()["completed"] > 0


@pytest.mark.slow
def test_the_notebook_runs():
    import matplotlib

    matplotlib.use("Agg")
    names = {}
    for cell in json.loads((DOCS / "notebooks/comparing-policies.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["totals"]) == 9 and len(names["slowest"]) == 3
    assert names["axes"].get_ylabel() == "mean completion time (min)"


@pytest.mark.parametrize("policy", ["kairos", "metis", "zeus"])
def test_no_job_waits_for_a_shape_that_is_larger_than_the_cluster(tmp_path, policy):
    """A job does not wait for a shape (number of units) that is larger than the cluster.

    The most efficient shape of the job needs 8 units, but the cluster has only 3. The job runs with 2 units
    at once, although nothing else runs.
    """
    rows = ["submit_s,time_s,units,power_watts,job_id", "0,1000,2,400,1", "0,10,8,400,1"]
    (tmp_path / "jobs.csv").write_text("\n".join(rows))
    run = simulations.parse(SMALL, tmp_path).run(policy)
    assert run.summary["completed"] == 1 and run.jobs.run_s.tolist() == [1000.0]
