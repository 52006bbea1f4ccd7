"""Test the reproduction of the thesis in benchmarks/thesis.

The tests check the scenarios, the rankings as printed in the thesis, and how the thesis's claims are judged
from results.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_scheduling import example, order

from slurm_energy.scheduling import Options, load_file, policy, registry
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns import sweeps
from slurm_energy.simulator.campaigns.campaign import run as run_task
from slurm_energy.simulator.campaigns.campaign import workload_of
from slurm_energy.simulator.campaigns.run_result import CampaignTask, RunResult
from slurm_energy.simulator.model_predictions import predict

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "thesis"))

import reproduce
import sweep_points
import thesis_claims


@pytest.fixture(autouse=True)
def printed_rankings(monkeypatch):
    """Register the rankings of the thesis as scheduling policies, for one test only.

    The rankings are exactly those that the thesis prints.
    """
    registry.names()  # the built-in policies register once per process: before the registry is copied
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))
    load_file(reproduce.RANKINGS)


@pytest.mark.parametrize("name", thesis_claims.SCENARIOS)
def test_every_experiment_follows_the_protocol_and_runs(name):
    """Every experiment of the thesis has the settings of the thesis and can be simulated.

    The settings are a cluster of 8 units (GPUs, cores or nodes), 10 random seeds, and 10 hours. The test
    simulates one seed with one hour of arrivals.
    """
    scenario = reproduce.read(name)
    assert {kind.nodes * kind.units for kind in scenario.kinds.values()} == {8}
    assert scenario.schedule.seeds == 10 and scenario.schedule.horizon_hours == 10
    short = replace(scenario, workload=replace(scenario.workload, hours=1.0))
    for ranking in scenario.schedule.policies:
        assert len(run_task(short, CampaignTask(ranking, 0), predict).done) > 0


def test_the_lengths_of_the_models():
    """The models of the thesis scenario have the run times that the thesis states.

    The run times follow from numbers of epochs, which were chosen with the predictor (oracle). If its
    predictions change, this test fails, and the numbers of epochs must be chosen again.
    """
    models = reproduce.read("thesis-pareto").models
    minutes = {model.name: predict(model, "a100-sxm4-40gb", 8, 32).time_s / 60 for model in models}
    assert minutes == pytest.approx({"ViT-B": 7.5, "ALBERT": 15.0, "ResNet-50": 15.0}, rel=0.005)


def test_the_printed_scores():
    """The policies `themis-printed` and `hades-printed` have the scores that the thesis prints.

    The thesis gives the formulas in Algorithms 4 and 9. The test computes them for three jobs. The second
    user has consumed 300 GPU seconds.
    """
    scores = {
        name: policy(name).rank(example(), Options(age_weight=0.01)).score
        for name in ("themis-printed", "hades-printed")
    }
    assert scores["themis-printed"] == pytest.approx([50 / 1, 80 / 301, 200 / 301], rel=1e-12)
    assert scores["hades-printed"] == pytest.approx([2.5e6 / 1, 3.2e6 / 301, 4e6 / 301], rel=1e-12)


def test_the_printed_ranking_puts_the_heavier_user_first():
    assert order("themis", example()) == [1, 2, 3]
    assert order("themis-printed", example()) == [2, 3, 1]


def test_claims_are_judged_from_the_results():
    """The script that checks the claims of the thesis judges them from the results of our runs.

    For each claim of the thesis, the script states whether our results agree. In the test, a power above
    the budget or a missed deadline changes the verdict.
    """
    rows = {claim.quantity: claim for claim in thesis_claims.claims(results())}
    assert rows["zeus against pollux, energy %"].ours == pytest.approx((-10.0, 0.0))
    assert rows["zeus against pollux, energy %"].agrees == "yes"
    assert rows["charon, highest W of all runs"].agrees == "yes"
    assert rows["aurachronos, missed deadlines %"].agrees == "yes"
    worse = {c.quantity: c for c in thesis_claims.claims(results(peak=4501.0, missed=0.02))}
    assert worse["charon, highest W of all runs"].agrees == "no"
    assert worse["aurachronos, missed deadlines %"].agrees == "direction"
    assert len({len(row) for row in thesis_claims.rows(list(rows.values()))}) == 1


def results(peak=4400.0, missed=0.0):
    """Return synthetic results of every run of the thesis with two seeds.

    The figures agree with all claims of the thesis.
    """
    runs = {}
    for name in thesis_claims.SCENARIOS:
        for variant in sweeps.variants(reproduce.read(name)):
            runs[name, variant.label] = [
                RunResult(policy, seed, figures_of(policy, seed, peak, missed), [])
                for policy in variant.schedule.policies
                for seed in (1, 0)
            ]
    return runs


def figures_of(policy, seed, peak, missed):
    eco = policy in ("zeus", "hades", "hades-printed", "aurachronos", "kairos", "charon")
    return {
        "jobs_per_hour": 10.0 + seed,
        "energy_kwh": (45.0 if eco else 50.0) * (1 + seed),
        "deadline_miss_rate": {"pollux": 0.15, "zeus": 0.09}.get(policy, missed),
        "peak_watts": peak if policy == "charon" else 7000.0,
        "over_budget_s": 0.0,
        "jain_jct": 0.99 if policy in ("pollux", "zeus") else 0.85,
        "mean_jct_s": 600.0,
    }


def test_the_program_prints_tables_and_json(tmp_path, monkeypatch, capsys):
    """The program prints tables and JSON of all experiments from stored results.

    There is one stored result per variant, policy and seed.
    """
    ran = []

    def stored(variant, tasks, predict, **options):
        ran.append((variant.name, options["folder"], options["jobs"]))
        return [RunResult(t.policy, t.seed, figures_of(t.policy, t.seed, 4400.0, 0.0), []) for t in tasks]

    monkeypatch.setattr(reproduce.campaign, "campaign", stored)
    assert reproduce.main(["--seeds", "2", "--json", "--out", str(tmp_path), "--jobs", "3"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert set(claims[0]) == {"figure", "quantity", "thesis", "mean", "deviation", "agrees"}
    assert {name for name, _, _ in ran} == set(thesis_claims.SCENARIOS)
    assert ("thesis-sla", tmp_path / "thesis-sla", 3) in ran
    assert ("thesis-malleability", tmp_path / "thesis-malleability" / "workload.rigid-true", 3) in ran
    assert reproduce.main(["--seeds", "2"]) == 0
    text = capsys.readouterr().out
    assert "Missed deadlines (thesis 5.5.2.3, Figure 5.5)" in text and "slowest / fastest policy" in text


def test_a_number_of_seeds_must_be_positive(capsys):
    with pytest.raises(SystemExit) as caught:
        reproduce.main(["--seeds", "0"])
    assert caught.value.code == 2
    assert "0 is not a positive number" in capsys.readouterr().err


def test_a_stated_speedup_costs_communication_power():
    """A scenario can state how much power GPUs draw during communication.

    In the test, the speedup of a job is 1.6 per doubling of the number of GPUs. 8 GPUs therefore compute
    only for 0.8^3 of the time. In the rest of the time they communicate, and draw 45 % of their power.
    """
    base = reproduce.read("thesis-pareto")
    exact = replace(base.workload, prediction_error=0.0, hours=0.2)
    slow = replace(exact, speedup_per_doubling=1.6, communication_power=0.45)
    ideal, poor = (workload_of(replace(base, workload=workload), 0, predict)[0] for workload in (exact, slow))
    eight, one = poor.units == 8, poor.units == 1
    working = 0.8**3
    ratio = poor.power_watts / ideal.power_watts
    assert ratio[eight] == pytest.approx(working + (1 - working) * 0.45)
    assert ratio[one] == pytest.approx(1.0)
    assert poor.time_s[eight] == pytest.approx(ideal.time_s[eight])
    assert poor.time_s[one][0] / poor.time_s[eight][0] == pytest.approx(1.6**3, rel=1e-6)


def test_the_sweep_judges_by_the_noise_of_both_means():
    quantity = sweep_points.PrintedQuantity("kWh", 51.0, 0.5)
    judge = sweep_points.verdict
    assert judge(quantity, [51.2, 51.4, 51.3, 51.1]).agrees == "yes"
    assert judge(quantity, [54.2, 54.4, 54.3, 54.1]).agrees == "no"
    assert judge(quantity, [5.0, 100.0, 10.0, 90.0]).agrees == "undecided"
    assert judge(quantity, [51.0, 53.0]).band == pytest.approx(0.5 + 1.96 * 2**0.5 * 0.6**0.5)


def test_a_point_of_the_sweep_changes_only_its_assumptions():
    base = reproduce.read("thesis-pareto")
    scenario = sweep_points.ThesisPoint("x", "", 1.0, precision="tf32", length=2.0, speedup=1.6).scenario(
        base, 3
    )
    epochs = {model.name: (model.precision, model.epochs) for model in scenario.models}
    assert epochs["ViT-B"] == ("tf32", 100.0)
    assert epochs["ALBERT"] == ("bf16", 2 * 78.03)
    assert scenario.workload.speedup_per_doubling == 1.6 and scenario.schedule.seeds == 3
    assert scenario.kinds == base.kinds


@pytest.mark.slow
def test_the_first_scenario_of_the_documentation_misses_few_deadlines():
    shipped = scenarios.read("training")
    for ranking in ("fcfs", "zeus", "metis"):
        runs = [run_task(shipped, CampaignTask(ranking, seed), predict).summary() for seed in range(3)]
        assert sum(run["deadline_miss_rate"] for run in runs) / 3 < 0.15
