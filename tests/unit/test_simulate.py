"""Tests of the command `senergy simulate`: tables, files, plots, resumed campaigns and sweeps."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_examples import JOBS, MODELS, SCENARIO, predict, write_scenarios

from slurm_energy.cli.main import main
from slurm_energy.errors import ConfigError, NotFoundError, UsageError
from slurm_energy.reports import simulation_page
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator import scenario_files
from slurm_energy.simulator.campaigns import sweeps
from slurm_energy.simulator.campaigns.campaign import campaign, workload_of
from slurm_energy.simulator.campaigns.campaign import run as run_task
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.model_predictions import predict as oracle
from slurm_energy.simulator.power.mean_power import power_by_interval
from slurm_energy.simulator.power.step_function import read_steps
from slurm_energy.simulator.schedule_settings import BudgetRules

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    return write_scenarios(tmp_path)


def test_the_table(folder, capsys):
    assert main(["simulate", str(folder / "small.toml")]) == 0
    title, header, fcfs, zeus = capsys.readouterr().out.splitlines()
    assert title == "A small day"
    assert header.split()[:3] == ["policy", "done", "jobs/h"] and "cost" in header
    assert fcfs.split()[:2] == ["fcfs", "40"] and zeus.split()[:2] == ["zeus", "40"]


def test_files_of_all_formats(folder, capsys):
    out = folder / "out"
    command = ["simulate", str(folder / "small.toml"), "--out", str(out), "--policies", "fcfs", "--json"]
    assert main(command) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader((out / "jobs-fcfs.csv").open()))
    assert len(rows) == 40 and rows[0]["user"] == "u0" and rows[0]["hardware"] == "n"
    power = list(csv.DictReader((out / "power-fcfs.csv").open()))
    times = np.array([float(row["time_s"]) for row in power])
    watts = np.array([float(row["watts"]) for row in power])
    kwh = float(np.sum(watts[:-1] * np.diff(times))) / 3.6e6
    assert kwh == pytest.approx(summary["summary"]["energy_kwh"], rel=1e-9)
    assert main([*command, "--format", "json"]) == 0
    assert json.loads((out / "jobs-fcfs.json").read_text())["outcome"] == ["completed"] * 40
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main([*command, "--format", "parquet"]) == 0
    table = parquet.read_table(out / "jobs-fcfs.parquet").to_pydict()
    assert table["user"] == [row["user"] for row in rows]
    assert table["energy_joules"] == [float(row["energy_joules"]) for row in rows]


def test_plots(folder, capsys):
    pytest.importorskip("matplotlib")
    plots = folder / "plots"
    assert main(["simulate", str(folder / "small.toml"), "--plots", str(plots)]) == 0
    names = {path.name for path in plots.iterdir()}
    assert names >= {"power.png", "gantt-fcfs.png", "completion-times.png", "deadline-misses.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())
    assert f"senergy: written: {plots}: {len(names)} plots" in capsys.readouterr().err


class Cells(HTMLParser):
    """HTML parser that collects the cells of all tables, row by row."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag in ("th", "td") or self.inside
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("th", "td")

    def handle_data(self, data):
        if self.inside and data.strip():
            self.rows[-1].append(data.strip())


def test_the_page_of_a_sweep_is_one_file_with_every_figure_of_the_table(folder, capsys):
    page = folder / "page.html"
    before = {path.name for path in folder.iterdir()}
    command = ["simulate", str(folder / "small.toml"), "--sweep", "schedule.age_weight=0.1,0.2"]
    assert main([*command, "--html", str(page)]) == 0
    assert {path.name for path in folder.iterdir()} - before == {"page.html"}
    printed = capsys.readouterr()
    assert printed.err == f"senergy: written: {page}: one page\n"
    text = page.read_text()
    tables = [[cell.strip() for cell in line.split("  ") if cell] for line in printed.out.splitlines()]
    assert Cells(text).rows == [row for row in tables if len(row) > 1]
    assert "prefers-color-scheme: dark" in text and "overflow-x: auto" in text
    assert not re.search(r"https?://|@import|url\(|<img| src=", text)
    assert text.count(">budget<") == 2
    assert re.findall(r'aria-label="Power of the cluster: (\w+)"', text) == ["fcfs", "zeus"] * 2
    figures = [
        json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text)
    ]
    assert [one["name"] for one in figures[0]["series"]] == ["highest", "mean", "budget"]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=2000))
def test_a_distribution_of_many_values_is_thinned(values):
    values = np.sort(np.array(values))
    thinned = simulation_page._thinned(values)
    assert len(thinned) <= 300 and thinned[-1] == values[-1] and set(thinned) <= set(values)
    assert all(np.diff(thinned) >= 0)


def test_a_page_of_many_charts_shows_fewer_jobs_in_each():
    assert [simulation_page._scheduled_jobs(charts) for charts in (1, 60, 120, 9999)] == [200, 200, 100, 40]


def test_names_in_a_workload_are_escaped_in_the_page(folder):
    evil = "</script><script>alert(1)</script><b>"
    (folder / "jobs.csv").write_text(JOBS.replace(",u1,", f",{evil},"))
    page = folder / "page.html"
    assert main(["simulate", str(folder / "small.toml"), "--html", str(page)]) == 0
    assert "<script>alert" not in page.read_text() and "<b>" not in page.read_text()
    assert "&lt;script&gt;alert" in page.read_text()


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 1e5)), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_interval_means_preserve_the_energy_of_the_steps(steps, count):
    lengths, watts = map(np.array, zip(*steps, strict=True))
    times = np.append(0.0, np.cumsum(lengths))
    interval_s, mean, highest = power_by_interval(times[:-1], watts, float(times[-1]), count)
    assert len(mean) == len(highest) == count
    assert interval_s * math.fsum(mean) == pytest.approx(float(np.sum(lengths * watts)), rel=1e-9, abs=1e-6)
    assert max(highest) == max(watts)
    assert all(m <= h * (1 + 1e-9) + 1e-6 for m, h in zip(mean, highest, strict=True))


def test_an_interrupted_campaign_resumes_unless_the_scenario_changed(folder):
    scenario = scenarios.read(str(folder / "models.toml"))
    tasks = [CampaignTask(name, seed) for name in ("pollux", "zeus") for seed in range(3)]
    first = campaign(scenario, tasks[:4], predict, jobs=1, folder=folder / "out")
    seen = []
    all_results = campaign(
        scenario, tasks, predict, jobs=1, folder=folder / "out", progress=lambda *step: seen.append(step)
    )
    assert seen[0] == (4, 6) and all_results[:4] == first
    (folder / "out/runs/zeus-0.json").write_text("{")
    seen.clear()
    again = campaign(
        scenario, tasks, predict, jobs=2, folder=folder / "out", progress=lambda *s: seen.append(s)
    )
    assert seen[0] == (5, 6) and again == all_results
    other = scenarios.parse(MODELS.replace("hours = 2.0", "hours = 1.0"), folder / "models.toml")
    seen.clear()
    campaign(other, tasks[:1], predict, jobs=1, folder=folder / "out", progress=lambda *s: seen.append(s))
    assert seen[0] == (0, 1)


@pytest.mark.parametrize(
    ("table", "policy"),
    [
        ('[signals]\nprice_file = "series.csv"', "fcfs"),
        ('[signals]\ncarbon_file = "series.csv"', "fcfs"),
        ('[site.a]\nnodes = ["n"]\nprice_file = "series.csv"', "fcfs@home"),
        ('[site.a]\nnodes = ["n"]\ncarbon_file = "series.csv"', "fcfs@home"),
    ],
)
def test_a_stored_result_is_not_used_after_a_change_of_a_series(folder, table, policy):
    text = SCENARIO.partition("[power]")[0] + table
    scenario, total = scenarios.parse(text, folder / "s.toml"), "cost" if "price" in table else "carbon_kg"

    def simulated(value):
        rows = [f"{hour * 3600},{value},{value}" for hour in range(20)]
        (folder / "series.csv").write_text("\n".join(["time_s,price,gco2_per_kwh", *rows]))
        (result,) = campaign(scenario, [CampaignTask(policy, 0)], jobs=1, folder=folder / "out")
        return result.summary[total]

    assert simulated(1000) == pytest.approx(10 * simulated(100))


def test_series_with_a_decimal_comma_is_refused(folder):
    (folder / "curve.csv").write_text("time_s,watts\n0,5000,5\n")
    with pytest.raises(UsageError, match=r"curve\.csv:2: has more fields than the header.*decimal comma"):
        read_steps(folder / "curve.csv", "watts")


def test_one_scenario_extends_another(folder):
    (folder / "base.toml").write_text(SCENARIO)
    (folder / "deep").mkdir()
    text = 'extends = "../base.toml"\ntitle = "More"\n[cluster.n]\nnodes = 3\n[schedule]\nseeds = 2\n'
    path = folder / "deep/more.toml"
    path.write_text(text)
    more = scenarios.read(str(path))
    assert (more.title, more.kinds["n"].nodes, more.kinds["n"].units) == ("More", 3, 4)
    assert more.schedule.policies == ["fcfs", "zeus"] and more.schedule.seeds == 2
    assert workload_of(more, 0, None)[0].count == 40  # paths are relative to the scenario that contains them
    path.write_text('extends = "more.toml"\n')
    with pytest.raises(ConfigError, match="does one extend itself"):
        scenarios.read(str(path))


@pytest.mark.parametrize(
    ("sweep", "labels"),
    [
        ("schedule.age_weight=0.1,1", ["schedule.age_weight = 0.1", "schedule.age_weight = 1"]),
        ("cluster.n.nodes=2,4", ["cluster.n.nodes = 2", "cluster.n.nodes = 4"]),
        ('schedule.discipline="strict"', ['schedule.discipline = "strict"']),
    ],
)
def test_a_sweep_runs_once_per_value(folder, capsys, sweep, labels):
    command = ["simulate", str(folder / "small.toml"), "--sweep", sweep, "--policies", "fcfs", "--json"]
    assert main([*command, "--out", str(folder / "out")]) == 0
    assert [entry["variant"] for entry in json.loads(capsys.readouterr().out)] == labels
    assert sum(path.is_dir() for path in (folder / "out").iterdir()) == len(labels)


@pytest.mark.slow
def test_a_sweep_has_plots_per_value(folder):
    pytest.importorskip("matplotlib")
    command = ["simulate", str(folder / "small.toml"), "--policies", "fcfs"]
    command += ["--sweep", "schedule.age_weight=0.1,0.2"]
    assert main([*command, "--plots", str(folder / "plots")]) == 0
    labels = ["schedule.age-weight-0.1", "schedule.age-weight-0.2"]
    assert sorted(path.name for path in (folder / "plots").iterdir() if path.is_dir()) == labels
    assert (folder / "plots/sweep-energy-kwh.png").stat().st_size > 1000


def test_a_sweep_changes_every_model(folder):
    scenario = replace(
        scenarios.read(str(folder / "models.toml")), sweep=sweeps.parse(["model.gpus=[1],[1,2]"])
    )
    one, two = sweeps.variants(scenario)
    assert {tuple(model.gpus) for model in one.models} == {(1,)}
    assert {tuple(model.gpus) for model in two.models} == {(1, 2)}


def test_a_site_policy_runs_in_parallel_processes(folder):
    """A user can simulate a scheduling policy that is defined in the user's own Python file.

    The example file has fewer than 40 lines. The simulations run in several processes.
    """
    example = Path(__file__).parents[2] / "examples/my_policy.py"
    assert len(example.read_text().splitlines()) < 40
    command = [
        sys.executable,
        "-m",
        "slurm_energy.cli.main",
        "simulate",
        "small.toml",
        "--json",
        "--jobs",
        "2",
    ]
    command += ["--policy-file", str(example), "--policies", "frugal,fcfs", "--seeds", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    results = json.loads(done.stdout)
    assert [(r["policy"], r["seed"]) for r in results] == [
        ("frugal", 0),
        ("frugal", 1),
        ("fcfs", 0),
        ("fcfs", 1),
    ]
    assert all(r["summary"]["completed"] == 40 for r in results)


def test_the_list_names_scenarios_and_policies(capsys):
    assert main(["simulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert "  zeus " in out and all(name in out for name in scenario_files.shipped())


def test_every_shipped_scenario_runs(capsys):
    """Every scenario that slurm-energy contains can be simulated.

    The test uses one seed and one hour of arrivals.
    """
    for name in scenario_files.shipped():
        scenario = scenarios.read(name)
        if name != "replay":
            short = replace(scenario.workload, hours=1.0)
            outcome = run_task(
                replace(scenario, workload=short), CampaignTask(scenario.schedule.policies[0], 0), oracle
            )
            assert len(outcome.done) > 0, name


def test_the_oracles_predictions():
    (vit, *_) = scenarios.read("training").models
    free, capped_ = oracle(vit, "a100", 8, 32), oracle(vit, "a100", 8, 32, 200.0)
    assert 300 < free.time_s < 600
    assert capped_.time_s > free.time_s and capped_.power_watts <= 1600 == capped_.max_watts
    assert oracle(vit, "a100", 1, 4096) is None  # the batch does not fit in memory
    with pytest.raises(NotFoundError):
        oracle(replace(vit, profile="nothing"), "a100", 1, 32)


def test_a_part_of_a_campaign_stores_its_results_and_prints_nothing(folder, capsys):
    command = ["simulate", str(folder / "small.toml"), "--out", str(folder / "out"), "--seeds", "3"]
    assert main([*command, "--part", "1/4"]) == 0
    assert capsys.readouterr().out == ""
    assert {path.stem for path in (folder / "out/runs").iterdir()} == {"fcfs-1", "zeus-2"}


def test_a_scenario_states_how_its_budget_is_kept(folder):
    """Every key of a scenario that concerns the power budget reaches the settings of the simulation."""
    text = SCENARIO.replace("unit_idle_watts = 20.0", "unit_idle_watts = 20.0\nunit_min_watts = 60.0")
    keys = """hard_budget = true
distribution = "equal"
control_period_s = 5.0
floor_percent = 10.0
slowdown_percent = 30.0
announced = false
interrupt = false
"""
    scenario = scenarios.parse(text + keys, folder / "small.toml")
    rules = scenario.settings(0).budget_rules
    assert rules == BudgetRules("equal", 5.0, 0.1, 0.3, announced=False, interrupts=False)
    assert scenario.nodes()[0].unit_min_watts == 60.0
    assert math.isnan(
        scenarios.parse(SCENARIO, folder / "small.toml").settings(0).budget_rules.slowdown_limit
    )
