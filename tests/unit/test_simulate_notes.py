"""Tests of the notes and errors of `senergy simulate`.

An error must be reported with its file, line and key.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from simulate_examples import MODELS, SCENARIO, write_scenarios

from slurm_energy.cli.main import main
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns import campaign as campaign_module
from slurm_energy.simulator.campaigns.campaign import campaign
from slurm_energy.simulator.campaigns.campaign import run as run_task
from slurm_energy.simulator.campaigns.run_result import CampaignTask

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    return write_scenarios(tmp_path)


def test_jobs_without_power_and_shares_of_absent_users_are_noted(folder):
    (folder / "jobs.csv").write_text("user,submit_s,time_s,units,power_watts\nu0,0,60,1,\nu1,5,60,1,90\n")
    text = SCENARIO.replace('"easy"', '"easy"\nshares = { u1 = 2.0, u7 = 1.0 }')

    def notes(text):
        return run_task(scenarios.parse(text, folder / "small.toml"), CampaignTask("fcfs", 0)).notes

    absent = "schedule.shares without effect: there is no job of u7"
    without = "rows of the workload files without power, which draw 0 W: 1; set workload.watts_per_unit"
    assert notes(text) == [without, absent]
    assert notes(text.replace("[schedule]", "watts_per_unit = 50.0\n[schedule]")) == [absent]


@pytest.mark.parametrize("option", ["--html", "--plots", "--format"])
def test_unwritable_outputs_are_reported_before_the_simulation(folder, option, monkeypatch, capsys):
    monkeypatch.setattr(campaign_module, "campaign", lambda *_, **__: pytest.fail("it was simulated"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = {"--html": [str(folder)], "--plots": ["plots"], "--format": ["parquet", "--out", "out"]}
    assert main(["simulate", str(folder / "small.toml"), option, *values[option]]) in (1, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("senergy: error: ")


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
