"""Tests of the simulation of several clusters.

The tests check the policies that place jobs, the costs, the merged results and the errors for faulty
scenarios.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns.campaign import run, summary, tasks
from slurm_energy.simulator.campaigns.run_result import CampaignTask

SCENARIO = """\
title = "Two sites"
[cluster.east]
nodes = 2
units = 4
idle_watts = 100.0
[cluster.west]
nodes = 2
units = 4
idle_watts = 100.0
[site.de]
nodes = ["east"]
price_per_mwh = 200.0
carbon_g_per_kwh = 400.0
share = 1.0
[site.ca]
nodes = ["west"]
price_file = "price.csv"
carbon_g_per_kwh = 200.0
share = 0.0
bandwidth_mbit_per_s = 800.0
transfer_kwh_per_gb = 0.01
speed = 2.0
power = 3.0
[workload]
file = "jobs.csv"
watts_per_unit = 250.0
[schedule]
policies = ["zeus"]
[placement]
policies = ["home", "cheapest", "cleanest", "least-energy", "fastest", "follow-the-sun"]
max_delay_hours = 12.0
"""


@pytest.fixture
def folder(tmp_path):
    lines = ["job_id,submit_s,time_s,units", *(f"{i},{i * 100},3600,{1 + i % 4}" for i in range(40))]
    (tmp_path / "jobs.csv").write_text("\n".join(lines))
    prices = ["time_s,price", *(f"{hour * 3600},{50 if hour % 2 else 90}" for hour in range(60))]
    (tmp_path / "price.csv").write_text("\n".join(prices))
    return tmp_path


ONE_POLICY = SCENARIO.replace(
    '"home", "cheapest", "cleanest", "least-energy", "fastest", "follow-the-sun"', '"cheapest"'
)


def totals(folder: Path, text: str = SCENARIO) -> dict[str, dict]:
    path = folder / "scenario.toml"
    path.write_text(text)
    scenario = scenarios.parse(text, path)
    return {task.policy: summary(scenario, run(scenario, task)) for task in tasks(scenario)}


def test_each_policy_moves_jobs_for_its_own_quantity(folder):
    by_policy = totals(folder)
    assert list(by_policy) == [
        *("zeus@home", "zeus@cheapest", "zeus@cleanest", "zeus@least-energy", "zeus@fastest"),
        "zeus@follow-the-sun",
    ]
    assert all(row["completed"] == 40 for row in by_policy.values())
    moved = {name.partition("@")[2]: row["moved_share"] for name, row in by_policy.items()}
    assert moved["home"] == moved["least-energy"] == moved["follow-the-sun"] == 0.0
    assert moved["cheapest"] > 0.5
    assert moved["fastest"] > 0.3
    home, cheap = by_policy["zeus@home"], by_policy["zeus@cheapest"]
    assert cheap["job_cost"] < home["job_cost"]
    assert cheap["job_kwh"] > home["job_kwh"]  # 1.5 times the energy on the hardware of the cheap site
    assert home["de.jobs"] == 40
    assert home["ca.jobs"] == 0


def test_totals_are_the_sums_over_sites_and_all_energy_is_counted(folder):
    for row in totals(folder, ONE_POLICY).values():
        for name in ("cost", "carbon_kg", "energy_kwh", "job_cost"):
            assert row[name] == pytest.approx(row[f"de.{name}"] + row[f"ca.{name}"])
        assert row["job_kwh"] + row["idle_kwh"] == pytest.approx(row["energy_kwh"])
        assert row["job_cost"] <= row["cost"]
        assert row["de.cost"] == pytest.approx(row["de.energy_kwh"] * 0.2, rel=1e-9)


@pytest.mark.parametrize("schedule", ["kill_at_limit = true", "horizon_hours = 1.0"])
def test_the_cost_of_jobs_includes_jobs_that_did_not_complete(folder, schedule):
    lines = ["submit_s,time_s,units,time_limit_s", "0,3600,1,1800", "0,7200,1,9000"]
    (folder / "jobs.csv").write_text("\n".join(lines))
    text = SCENARIO.replace('policies = ["zeus"]', f'policies = ["fcfs"]\n{schedule}')
    row = totals(folder, text)["fcfs@home"]
    assert row["completed"] == 1
    assert row["job_cost"] == pytest.approx(row["job_kwh"] * 0.2) and row["job_kwh"] >= 0.5


def test_idle_nodes_of_a_site_that_ends_early_or_has_no_jobs_are_powered_down(folder):
    text = ONE_POLICY.replace('"cheapest"', '"home"').replace(
        "[placement]", "[power]\nidle_off_s = 60.0\n[placement]"
    )
    text = text.replace("[cluster.west]\nnodes = 2", "[cluster.west]\nnodes = 4")
    head, idle_kw = "submit_s,time_s,units\n0,7200,1\n", 0.4
    (folder / "jobs.csv").write_text(head)
    row = totals(folder, text)["zeus@home"]
    assert row["ca.energy_kwh"] == pytest.approx(idle_kw * 60 / 3600)
    (folder / "jobs.csv").write_text(head + "0,1200,16\n")  # 16 units fit on ca only, which is twice as fast
    row = totals(folder, text)["zeus@home"]
    assert row["ca.energy_kwh"] == pytest.approx((16 * 0.25 * 3.0 * 600 + idle_kw * 660) / 3600)
    assert row["job_kwh"] + row["idle_kwh"] == pytest.approx(row["energy_kwh"])
    assert row["energy_kwh"] == pytest.approx(row["de.energy_kwh"] + row["ca.energy_kwh"])


def test_data_take_time_and_energy(folder):
    plain = totals(folder, ONE_POLICY)["zeus@cheapest"]
    heavy = totals(folder, ONE_POLICY + "data_gb = 10.0\n")["zeus@cheapest"]
    assert plain["transfer_kwh"] == 0
    assert heavy["transfer_kwh"] > 0
    huge = totals(folder, ONE_POLICY + "data_gb = 100000.0\n")["zeus@cheapest"]
    assert huge["moved_share"] < 0.2  # the transfer would take longer than max_delay_hours


def test_jobs_keep_their_order_and_no_job_starts_before_its_data_arrived(folder):
    path = folder / "scenario.toml"
    text = SCENARIO + "data_gb = 10.0\n"
    path.write_text(text)
    result = run(scenarios.parse(text, path), CampaignTask("zeus@cheapest", 0))
    work, accounts = result.workload, result.accounts
    assert work.job_id.tolist() == list(range(1, 41))
    assert np.all(accounts.start_s >= work.submit_s - 1e-9)
    assert np.allclose(accounts.end_s - accounts.start_s, work.time_s[accounts.shape])
    assert result.energy_joules == pytest.approx(
        float(np.sum(np.diff(result.power[0]) * result.power[1][:-1])), rel=1e-6
    )


@pytest.mark.slow
def test_the_command_compares_placements(folder, capsys):
    from slurm_energy.cli.main import main

    path = folder / "scenario.toml"
    path.write_text(SCENARIO)
    assert main(["simulate", str(path), "--json", "--jobs", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["policy"].partition("@")[2] for row in rows} >= {"home", "cheapest"}
    assert rows[0]["summary"]["de.jobs"] == 40


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('nodes = ["west"]', 'nodes = ["east"]'), r"scenario.toml:\d+: site.ca.*nodes.*already belongs"),
        (('nodes = ["west"]', 'nodes = ["north"]'), r"no \[cluster.north\]"),
        (('nodes = ["west"]', ""), r"site.ca.*nodes.*needed"),
        (('"fastest"', '"quickest"'), r"placement.*policies.*quickest"),
        (("[placement]", "[placement]\nweights = { money = 1 }"), r"placement.*weights.*money"),
        (("[placement]", "[power]\nbudget_watts = 5\n[placement]"), r"power.*budget_watts.*several sites"),
        (
            ("[placement]", '[signals]\nprice_file = "price.csv"\n[placement]'),
            r":\d+: signals.price_file.*several sites",
        ),
        (('price_file = "price.csv"', 'price_file = "price.csv"\nprice_per_mwh = 3'), "excludes price_file"),
        (("[site.de]", "[cluster.north]\nnodes = 1\n[site.de]"), r"cluster.north.*belongs to no site"),
        (("share = 1.0", "share = 0.0"), "all shares are 0"),
    ],
)
def test_faults_name_file_line_and_key(folder, change, fault):
    with pytest.raises(ConfigError, match=fault):
        scenarios.parse(SCENARIO.replace(*change), folder / "scenario.toml")


def test_placement_without_sites_is_a_fault(folder):
    text = '[cluster.a]\n[workload]\nfile = "jobs.csv"\n[placement]\npolicies = ["cheapest"]\n'
    with pytest.raises(ConfigError, match="there is no site"):
        scenarios.parse(text, folder / "scenario.toml")
