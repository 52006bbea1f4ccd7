"""Tests of the command `senergy simulate`.

The tests run scenarios, resume interrupted campaigns, and check the written files and plots. An error must
be reported with its file, line and key.
"""

from __future__ import annotations

import csv
import importlib.util
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

from slurm_energy.cli.main import main
from slurm_energy.errors import ConfigError, NotFoundError, UnavailableError
from slurm_energy.reports import simulation_page
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator import scenario_files
from slurm_energy.simulator.campaigns import campaign as campaign_module
from slurm_energy.simulator.campaigns import sweeps
from slurm_energy.simulator.campaigns.campaign import campaign, workload_of
from slurm_energy.simulator.campaigns.campaign import run as run_task
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.model_predictions import predict as oracle
from slurm_energy.simulator.power.mean_power import power_by_interval
from slurm_energy.simulator.schedule_settings import BudgetRules
from slurm_energy.simulator.workloads.workload_generator import ShapePrediction, generate, rigid

pytestmark = pytest.mark.slow

JOBS = "job_id,user,submit_s,units,time_s,power_watts,deadline_s\n" + "\n".join(
    f"{i},u{i % 3},{10 * i},{1 + i % 4},{60 + 7 * (i % 5)},{100 * (1 + i % 4)},"
    + (f"{10 * i + 400}" if i % 6 == 0 else "")
    for i in range(40)
)
SCENARIO = """\
title = "A small day"
[cluster.n]
nodes = 2
units = 4
idle_watts = 200.0
unit_idle_watts = 20.0
[workload]
file = "jobs.csv"
[schedule]
policies = ["fcfs", "zeus"]
discipline = "easy"
[power]
budget_watts = 1000.0
price_file = "price.csv"
"""
MODELS = """\
[cluster.a]
nodes = 1
units = 8
[cluster.b]
nodes = 1
units = 8
[workload]
arrivals_per_s = 0.01
hours = 2.0
urgent_share = 0.2
users = 4
majority_share = 0.5
prediction_error = 0.1
[[model]]
name = "x"
profile = "x"
gpus = [1, 2, 4]
batches = [32, 64]
[[model]]
profile = "y"
gpus = [2]
batches = [64]
rigid_gpus = 2
rigid_batch = 64
[schedule]
policies = ["pollux", "zeus"]
discipline = "packing"
interval_s = 1.0
seeds = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "price.csv").write_text("time_s,price\n0,100\n300,50\n900,50\n")
    (tmp_path / "small.toml").write_text(SCENARIO)
    (tmp_path / "models.toml").write_text(MODELS)
    return tmp_path


def predict(model, hardware, gpus, batch, cap_watts=math.inf):
    """Return the predicted time and power of a training job on a kind and number of GPUs.

    Twice as many GPUs are 1.8 times as fast. Hardware `b` is twice as fast and draws twice the power.
    """
    fast = 2.0 if hardware == "b" else 1.0
    time_s = 600.0 / (fast * gpus**0.85) * (32 / batch) ** 0.1
    return ShapePrediction(time_s, 300.0 * fast * gpus, 400.0 * fast * gpus)


def test_the_table(folder, capsys):
    assert main(["simulate", str(folder / "small.toml")]) == 0
    title, header, fcfs, zeus = capsys.readouterr().out.splitlines()
    assert title == "A small day"
    assert header.split()[:3] == ["policy", "done", "jobs/h"] and "cost" in header
    assert fcfs.split()[:2] == ["fcfs", "40"] and zeus.split()[:2] == ["zeus", "40"]


def test_jobs_without_power_and_shares_of_absent_users_are_noted(folder):
    (folder / "jobs.csv").write_text("user,submit_s,time_s,units,power_watts\nu0,0,60,1,\nu1,5,60,1,90\n")
    text = SCENARIO.replace('"easy"', '"easy"\nshares = { u1 = 2.0, u7 = 1.0 }')

    def notes(text):
        return run_task(scenarios.parse(text, folder / "small.toml"), CampaignTask("fcfs", 0)).notes

    absent = "schedule.shares without effect: there is no job of u7"
    without = "1 rows of the workload have no power and draw 0 W: set workload.watts_per_unit"
    assert notes(text) == [without, absent]
    assert notes(text.replace("[schedule]", "watts_per_unit = 50.0\n[schedule]")) == [absent]


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


@pytest.mark.parametrize("option", ["--html", "--plots", "--format"])
def test_unwritable_outputs_are_reported_before_the_simulation(folder, option, monkeypatch, capsys):
    monkeypatch.setattr(campaign_module, "campaign", lambda *_, **__: pytest.fail("it was simulated"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = {"--html": [str(folder)], "--plots": ["plots"], "--format": ["parquet", "--out", "out"]}
    assert main(["simulate", str(folder / "small.toml"), option, *values[option]]) in (1, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("senergy: error: ")


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


def test_a_result_that_cannot_be_stored_is_an_error_with_the_path(folder):
    scenario = scenarios.read(str(folder / "small.toml"))
    (folder / "out/runs/fcfs-0.new").mkdir(parents=True)
    with pytest.raises(UnavailableError, match=r"out/runs/fcfs-0.json: Is a directory"):
        campaign(scenario, [CampaignTask("fcfs", 0)], jobs=1, folder=folder / "out")


@pytest.mark.parametrize(
    ("prices", "is_noted"),
    [("0,100\n300,50\n", True), ("0,100\n300,50\n900,50\n", False), ("0,100\n", False)],
)
def test_prices_that_end_before_the_simulation_are_noted(folder, capsys, prices, is_noted):
    (folder / "price.csv").write_text("time_s,price\n" + prices)
    assert main(["simulate", str(folder / "small.toml"), "--jobs", "1"]) == 0
    assert ("price.csv ends at 300 s, before the simulation" in capsys.readouterr().err) == is_noted


def test_the_same_seed_gives_the_same_jobs_under_every_policy(folder):
    scenario = scenarios.read(str(folder / "models.toml"))
    one, two, other = (generate(scenario, seed, predict) for seed in (1, 1, 2))
    for name in ("submit_s", "user", "deadline_s", "time_s", "power_watts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert len(other.submit_s) != len(one.submit_s) or np.any(other.submit_s != one.submit_s)


def test_random_workloads_follow_the_scenario(folder):
    text = MODELS.replace("hours = 2.0", "hours = 200.0")
    work = generate(scenarios.parse(text, folder / "m.toml"), 0, predict)
    assert work.count == pytest.approx(7200, rel=0.05)
    assert np.mean(~np.isnan(work.deadline_s)) == pytest.approx(0.2, abs=0.02)
    assert np.mean(work.user == 0) == pytest.approx(0.5, abs=0.03)
    assert {len(work.shapes(job)) for job in range(work.count)} == {12, 2}
    exact = [
        predict(None, "ab"[kind], units, batch)
        for kind, units, batch in zip(work.hardware[:50], work.units[:50], work.batch[:50], strict=True)
    ]
    error = work.time_s[:50] / [found.time_s for found in exact]
    assert np.all(np.abs(error - 1) <= 0.1 + 1e-12) and np.ptp(error) > 0.1
    assert np.all(work.power_watts[:50] <= [found.max_watts for found in exact])
    job = int(np.flatnonzero(~np.isnan(work.deadline_s))[0])
    least = (
        predict(None, "b", 4, 64).time_s if len(work.shapes(job)) == 12 else predict(None, "b", 2, 64).time_s
    )
    assert work.deadline_s[job] - work.submit_s[job] == pytest.approx(3.5 * least)


def test_rigid_jobs_have_one_shape_per_kind_of_hardware(folder):
    text = MODELS.replace("hours = 2.0", "hours = 20.0")
    work = generate(rigid(scenarios.parse(text, folder / "m.toml")), 0, predict)
    assert {len(work.shapes(job)) for job in range(work.count)} == {2}
    assert set(work.units) == {1, 2} and set(work.hardware) == {0, 1}
    pinned = text.replace('profile = "x"', 'profile = "x"\nrigid_hardware = "b"')
    work = generate(rigid(scenarios.parse(pinned, folder / "m.toml")), 0, predict)
    assert {len(work.shapes(job)) for job in range(work.count)} == {1, 2}


def test_models_under_power_caps(folder):
    text = MODELS.replace('name = "x"', 'name = "x"\ncaps_watts = [200.0]')
    work = generate(scenarios.parse(text, folder / "m.toml"), 0, capped)
    job = next(j for j in range(work.count) if len(work.shapes(j)) == 24)
    rows = list(work.shapes(job))
    assert {None if math.isnan(cap) else cap for cap in work.cap_watts[rows]} == {None, 200.0}
    slower = work.time_s[rows][1::2] / work.time_s[rows][::2]
    assert np.all(slower > 1.2)  # adjacent shapes with and without cap, each with an error of its own of 10 %


def capped(model, hardware, gpus, batch, cap_watts=math.inf):
    found = predict(model, hardware, gpus, batch)
    if math.isinf(cap_watts):
        return found
    return ShapePrediction(found.time_s * 1.5, cap_watts * gpus, cap_watts * gpus)


def test_a_trace_gives_users_submissions_and_run_times(folder):
    """A trace determines users, submission times and run times of jobs that train a model.

    The shapes (kinds and numbers of GPUs) of a job come from its model. One shape has the number of GPUs
    that the trace states. Its run time is that of the trace.
    """
    text = MODELS.replace("arrivals_per_s = 0.01", 'file = "jobs.csv"').replace("error = 0.1", "error = 0.0")
    scenario = scenarios.parse(text, folder / "m.toml")
    work, loaded = workload_of(scenario, 0, predict)
    trace = loaded.workload
    np.testing.assert_array_equal(work.submit_s, trace.submit_s)
    assert work.users == trace.users
    for job in range(work.count):
        rows = np.array(work.shapes(job))
        model_is_x = len(rows) == 12
        units = {1: 1, 2: 2, 3: 2, 4: 4}[int(trace.units[job])] if model_is_x else 2
        same = rows[(work.units[rows] == units) & (work.hardware[rows] == 0)]
        same = same[work.batch[same] == (32 if model_is_x else 64)]
        assert work.time_s[same] == pytest.approx([trace.time_s[job]])


def test_parts_of_a_file_by_seed(folder):
    text = SCENARIO.replace('file = "jobs.csv"', 'file = "jobs.csv"\npart_jobs = 15')
    scenario = scenarios.parse(text, folder / "m.toml")
    first, second, again = (workload_of(scenario, seed, None)[0] for seed in (0, 1, 2))
    assert [first.count, second.count] == [15, 15]
    assert list(second.job_id) == list(range(16, 31)) and second.submit_s[0] == 0
    np.testing.assert_array_equal(first.time_s, again.time_s)
    whole = workload_of(scenarios.parse(SCENARIO, folder / "m.toml"), 0, None)[0]
    np.testing.assert_array_equal(second.time_s, whole.time_s[15:30])
    np.testing.assert_array_equal(second.deadline_s + 150, whole.deadline_s[15:30])


@pytest.mark.parametrize(
    ("part_jobs", "seeds", "notes"),
    [
        (15, 1, []),
        (15, 2, ["last jobs of the file that are in no part: 10 of 40"]),
        (20, 2, []),
        (20, 4, ["seeds from 2 on repeat jobs of earlier seeds (jobs: 40)"]),
        (90, 1, []),
        (90, 2, ["seeds from 1 on repeat jobs of earlier seeds (jobs: 40)"]),
        (0, 2, []),
    ],
)
def test_repeated_and_omitted_parts_of_a_file_are_noted_once(folder, capsys, part_jobs, seeds, notes):
    text = SCENARIO.replace('file = "jobs.csv"', f'file = "jobs.csv"\npart_jobs = {part_jobs}')
    (folder / "small.toml").write_text(text)
    assert main(["simulate", str(folder / "small.toml"), "--seeds", str(seeds), "--jobs", "1"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition("part_jobs: ")[2] for line in said if "part_jobs" in line] == notes


def test_means_state_for_how_many_seeds_the_total_is_known(folder, capsys):
    hour_s = 3600
    times = ((0, hour_s), (10, hour_s), (20, 9 * hour_s))  # prices are known for 3 h
    (folder / "jobs.csv").write_text(
        "submit_s,units,time_s,power_watts\n" + "\n".join(f"{at},8,{time_s},1000" for at, time_s in times)
    )
    prices = "\n".join(f"{n * hour_s},0.1" for n in range(3))
    (folder / "price.csv").write_text("time_s,EUR/kWh\n" + prices)
    text = SCENARIO.partition("[power]")[0] + '[signals]\nprice_file = "price.csv"\n'
    (folder / "small.toml").write_text(text.replace('"jobs.csv"', '"jobs.csv"\npart_jobs = 1'))
    for seeds, cell in ((2, "0.12±0.00"), (3, "0.12±0.00 (2/3)")):
        command = ["simulate", str(folder / "small.toml"), "--seeds", str(seeds), "--jobs", "1"]
        assert main([*command, "--policies", "fcfs"]) == 0
        header, row = (
            [c for c in line.split("  ") if c] for line in capsys.readouterr().out.splitlines()[1:]
        )
        assert row[[name.strip() for name in header].index("cost")].strip() == cell


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


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("workload.hours", "is not KEY=VALUE"),
        ("workload.hours=", "is not KEY=VALUE"),
        ("hours=1", "no such key: hours"),
        ("workload.hour=1", "workload.hour: unknown key"),
        ("schedule.policies=[]", "schedule.policies: is empty"),
        ("workload.hours=-1", "workload.hours: must be from"),
        ("schedule.checkpoint_s=inf", "schedule.checkpoint_s: must be a finite number"),
        ("cluster.m.nodes=1", "no such key"),
    ],
)
def test_a_bad_sweep_is_one_line(folder, capsys, sweep, message):
    assert main(["simulate", str(folder / "small.toml"), "--sweep", sweep]) in (2, 3)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("nodes = 2", "nodes = 0"), r"small.toml:3: cluster.n.nodes: must be from 1 to 1e\+07, not 0"),
        (
            ("[schedule]", 'sacct_units = "gpu"\n[schedule]'),
            "small.toml:9: workload.sacct_units: must be one of nodes, cpus, gpus, not 'gpu'",
        ),
        (
            ("[schedule]", 'format = "json"\n[schedule]'),
            "small.toml:9: workload.format: must be one of swf, csv, sacct, sacct-json, senergy",
        ),
        (
            ('"easy"', '"easy"\nshares = { u1 = 0.0 }'),
            "small.toml:12: schedule.shares: 'u1' must have a positive share",
        ),
        (
            ("unit_idle_watts = 20.0", "unit_idle_watts = 50.1"),
            "small.toml:6: cluster.n.unit_idle_watts: times 4 units must not be above idle_watts, 200",
        ),
        (("units = 4", "unit = 4"), "small.toml:4: cluster.n.unit: unknown key: did you mean 'units'"),
        (
            ('discipline = "easy"', 'discipline = "eager"'),
            "small.toml:11: schedule.discipline: one of strict",
        ),
        (('policies = ["fcfs", "zeus"]', "policies = []"), "small.toml:10: schedule.policies: is empty"),
        (('policies = ["fcfs", "zeus"]', "policies = [1]"), "schedule.policies: must be a list of strings"),
        (('file = "jobs.csv"', ""), "jobs come from a file or from"),
        (("[power]", "[powr]"), r"small.toml:12: \[powr\]: unknown section"),
        (("[cluster.n]", "[custer.n]"), "unknown section"),
        (('title = "A small day"', "title ="), "not TOML"),
        (("= 1000.0", "= " + "[" * 9000), "small.toml: not TOML"),
        (
            ("budget_watts = 1000.0", 'budget_watts = 1000.0\ndistribution = "fair"'),
            "small.toml:14: power.distribution: one of equal, proportional, least-edp, deadline-first, not",
        ),
        (("= 1000.0", "= nan"), "small.toml:13: power.budget_watts: must be a finite number, not nan"),
    ],
)
def test_a_bad_scenario_is_named_with_file_line_and_key(folder, change, message):
    path = folder / "small.toml"
    with pytest.raises(ConfigError, match=message):
        scenarios.parse(SCENARIO.replace(*change), path)


def test_a_bad_model_is_named_with_its_own_line(folder):
    for old, new, said in (
        ("gpus = [2]", "gpus = [0]", "gpus: and batches must be"),
        ('profile = "y"', "profile = 3", "profile: must be a string"),
    ):
        text = MODELS.replace(old, new)
        line = text.splitlines().index(next(one for one in text.splitlines() if new in one)) + 1
        with pytest.raises(ConfigError, match=rf"models.toml:{line}: model\[2\].{said}"):
            scenarios.parse(text, folder / "models.toml")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.toml"], 3, "nowhere.toml: No such file"),
        ([], 2, "no scenario given"),
        (["small.toml", "--policies", "zuse"], 6, "policy 'zuse' is not known: did you mean zeus?"),
        (["small.toml", "--policies", ","], 2, "--policies: names no policy"),
        (["small.toml", "--out", "jobs.csv"], 4, "jobs.csv/runs: Not a directory: name a writable folder"),
        (["small.toml", "--seeds", "0"], 2, "--seeds: 0 is not a positive number"),
        (["broken.toml"], 2, "gone.csv: No such file or directory: name a workload file"),
    ],
)
def test_errors_are_one_line(folder, monkeypatch, capsys, arguments, code, message):
    (folder / "broken.toml").write_text(SCENARIO.replace("jobs.csv", "gone.csv"))
    monkeypatch.chdir(folder)
    assert main(["simulate", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_skipped_lines_are_reported(folder, capsys):
    with (folder / "jobs.csv").open("a") as file:
        file.write("\n99,u1,5,1,-3,,\n")
    assert main(["simulate", str(folder / "small.toml"), "--policies", "fcfs"]) == 0
    assert f"{folder}/jobs.csv:42: the run time is negative" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ranked(queue, options, choice, np.full(queue.jobs.count, np.nan))", "is not a number (NaN)"),
        ("ranked(queue, options, choice, least_score[1:])", "score has not one value for each"),
        ("1 / 0", "ZeroDivisionError"),
        ("None", "it returned NoneType, not a Ranking"),
        ("exit()", "SystemExit: None"),
    ],
)
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_policy_without_an_order_ends_in_one_line(folder, body, message, jobs):
    text = (
        "import numpy as np\n"
        "from slurm_energy.scheduling import register\n"
        "from slurm_energy.scheduling.ranking import least, ranked\n"
        '@register("unordered")\n'
        "def rank(queue, options):\n"
        "    choice, least_score = least(queue.alternatives.edp, queue.alternatives)\n"
        f"    return {body}\n"
    )
    (folder / "policy.py").write_text(text)
    command = [sys.executable, "-m", "slurm_energy.cli.main", "simulate", "small.toml", "--jobs", jobs]
    command += ["--policy-file", "policy.py", "--policies", "unordered", "--seeds", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "policy 'unordered'" in done.stderr and message in done.stderr
    assert "Traceback" not in done.stderr


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
