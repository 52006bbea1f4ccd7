"""`senergy simulate`: scenarios, campaigns that go on, files and plots, errors with file, line and key."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import ConfigError
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaign import Task, campaign
from slurm_energy.simulator.generator import Predicted, generate, rigid

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
    (tmp_path / "price.csv").write_text("time_s,price\n0,100\n300,50\n")
    (tmp_path / "small.toml").write_text(SCENARIO)
    (tmp_path / "models.toml").write_text(MODELS)
    return tmp_path


def predict(model, hardware, gpus, batch):
    """Twice the GPUs, 1.8 times as fast; b is twice as fast and needs twice the power."""
    fast = 2.0 if hardware == "b" else 1.0
    time_s = 600.0 / (fast * gpus**0.85) * (32 / batch) ** 0.1
    return Predicted(time_s, 300.0 * fast * gpus, 400.0 * fast * gpus)


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
    assert json.loads((out / "jobs-fcfs.json").read_text())["fate"] == ["completed"] * 40


def test_page_and_plots(folder, capsys):
    pytest.importorskip("matplotlib")
    page = folder / "page.html"
    plots = folder / "plots"
    assert main(["simulate", str(folder / "small.toml"), "--html", str(page), "--plots", str(plots)]) == 0
    names = {path.name for path in plots.iterdir()}
    assert names >= {"power.png", "gantt-fcfs.png", "completion-times.png", "deadline-misses.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())
    text = page.read_text()
    assert text.count("<img") == len(names) and "A small day" in text


def test_an_interrupted_campaign_goes_on_and_another_scenario_does_not(folder):
    scenario = scenarios.read(str(folder / "models.toml"))
    tasks = [Task(name, seed) for name in ("pollux", "zeus") for seed in range(3)]
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


def test_the_same_seed_gives_the_same_jobs_whatever_the_policy(folder):
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
    assert np.all(work.power_watts[:50] <= [found.most_watts for found in exact])
    job = int(np.flatnonzero(~np.isnan(work.deadline_s))[0])
    least = (
        predict(None, "b", 4, 64).time_s if len(work.shapes(job)) == 12 else predict(None, "b", 2, 64).time_s
    )
    assert work.deadline_s[job] - work.submit_s[job] == pytest.approx(3.5 * least)


def test_rigid_jobs_have_one_shape(folder):
    text = MODELS.replace("hours = 2.0", "hours = 20.0")
    work = generate(rigid(scenarios.parse(text, folder / "m.toml")), 0, predict)
    assert {len(work.shapes(job)) for job in range(work.count)} == {1}
    assert set(work.units) == {1, 2} and set(work.hardware) == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("nodes = 2", "nodes = 0"), r"small.toml:3: cluster.n.nodes: must be from 1 to 1e\+07, not 0"),
        (("units = 4", "unit = 4"), "small.toml:4: cluster.n.unit: unknown key: did you mean 'units'"),
        (
            ('discipline = "easy"', 'discipline = "eager"'),
            "small.toml:11: schedule.discipline: one of strict",
        ),
        (('policies = ["fcfs", "zeus"]', "policies = [1]"), "schedule.policies: must be a list of strings"),
        (('file = "jobs.csv"', ""), "jobs come either from a file or from"),
        (("[power]", "[powr]"), r"small.toml:12: \[powr\]: unknown section"),
        (("[cluster.n]", "[custer.n]"), "unknown section"),
        (('title = "A small day"', "title ="), "not TOML"),
    ],
)
def test_a_bad_scenario_is_named_with_file_line_and_key(folder, change, message):
    path = folder / "small.toml"
    with pytest.raises(ConfigError, match=message):
        scenarios.parse(SCENARIO.replace(*change), path)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.toml"], 3, "nowhere.toml: No such file"),
        ([], 2, "no scenario given"),
        (["small.toml", "--policies", "zuse"], 6, "policy 'zuse' is not known: one of zeus"),
        (["small.toml", "--seeds", "0"], 2, "--seeds: 0 is not a positive number"),
        (["broken.toml"], 2, "gone.csv: No such file"),
    ],
)
def test_errors_are_one_line(folder, monkeypatch, capsys, arguments, code, message):
    (folder / "broken.toml").write_text(SCENARIO.replace("jobs.csv", "gone.csv"))
    monkeypatch.chdir(folder)
    assert main(["simulate", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_lines_left_out_are_told(folder, capsys):
    with (folder / "jobs.csv").open("a") as file:
        file.write("\n99,u1,5,1,-3,,\n")
    assert main(["simulate", str(folder / "small.toml"), "--policies", "fcfs"]) == 0
    assert f"{folder}/jobs.csv:42: the run time is negative" in capsys.readouterr().err


def test_a_policy_of_ones_own_in_parallel(folder):
    """As a user does it: from a file of under 40 lines, in processes of their own."""
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
    assert "  zeus " in out and all(name in out for name in scenarios.shipped())
