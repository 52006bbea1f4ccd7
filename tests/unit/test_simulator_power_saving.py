"""Test the simulation of power saving that boots nodes ahead of a forecast demand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.registry import policy
from slurm_energy.simulator import scenario
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.kernels import column_engine, fast_path
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.schedule_settings import PowerSaving, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload

KIND = NodeKind("node", 4, 1, 100.0, 0.0, 10.0, 60.0, 120.0, 10.0, 100.0)
EASY = ScheduleSettings(discipline=Discipline.EASY)
SAVING = replace(EASY, power_saving=PowerSaving(PowerSavingRules(), 0, 0.0))


def jobs(submit_s: list[float], time_s: float = 600.0, units: int = 1) -> Workload:
    count = len(submit_s)
    columns = {
        "units": np.full(count, units),
        "time_s": np.full(count, time_s),
        "power_watts": np.full(count, 300.0),
    }
    return workload(np.arange(count + 1), {"submit_s": np.array(submit_s)}, columns)


def run(work: Workload, settings: ScheduleSettings, kind: NodeKind = KIND) -> SimulationResult:
    return simulate(work, [kind], policy("fcfs"), settings)


def test_forecast_saves_energy_and_delays_by_at_most_one_boot() -> None:
    work = jobs([0.0, 7200.0, 14400.0])
    on, saving = run(work, EASY), run(work, SAVING)
    assert saving.energy_joules < 0.6 * on.energy_joules
    delay_s = saving.accounts.end_s - on.accounts.end_s
    assert np.all(delay_s <= KIND.boot_s + 1e-9)


@pytest.mark.slow
def test_recurring_jobs_find_a_node_that_was_booted_ahead() -> None:
    days = np.arange(7) * 86400.0 + 9 * 3600
    burst = np.sort(np.concatenate([days + minute * 60.0 for minute in range(0, 120, 4)]))
    work = jobs(burst.tolist(), time_s=200.0)
    settings = replace(EASY, power_saving=PowerSaving(PowerSavingRules(cycle_s=120.0), 0, 0.0))
    saving, idle_off = run(work, settings), run(work, replace(EASY, idle_off_s=60.0))
    last_days = work.submit_s > 5 * 86400

    def delays_s(result: SimulationResult) -> np.ndarray:
        return (result.accounts.end_s - 200.0 - work.submit_s)[last_days]

    assert delays_s(saving).mean() < 0.5 * delays_s(idle_off).mean()
    assert saving.energy_joules < 0.5 * run(work, EASY).energy_joules


def test_reserve_stays_on() -> None:
    work = jobs([0.0, 50_000.0])
    one = run(work, replace(SAVING, power_saving=PowerSaving(PowerSavingRules(), 1, 0.0)))
    half = run(work, replace(SAVING, power_saving=PowerSaving(PowerSavingRules(), 0, 0.5)))
    none = run(work, SAVING)
    assert one.accounts.end_s[1] == 50_600.0
    assert none.energy_joules < one.energy_joules < half.energy_joules


@pytest.mark.slow
def test_boots_ahead_keep_the_power_budget() -> None:
    days = np.arange(2) * 86400.0 + 9 * 3600
    burst = np.sort(np.concatenate([days + second for second in range(0, 3600, 60)]))
    budget = replace(SAVING, budget_watts=StepFunction.constant(450.0), hard_budget=True)
    highest: list[float] = []
    work = jobs(burst.tolist(), time_s=120.0)
    simulate(work, [KIND], policy("fcfs"), replace(budget), lambda _, watts: highest.append(watts))
    assert max(highest) <= 450.0 + 1e-3


def test_fast_engines_leave_power_saving_to_the_general_engine() -> None:
    work, kinds, ranking = jobs([0.0]), [KIND], policy("fcfs")
    assert column_engine.supports(work, kinds, ranking, EASY)
    assert not column_engine.supports(work, kinds, ranking, SAVING)
    assert not fast_path.supports(work, kinds, ranking, SAVING)


SCENARIO = """
[cluster.a]
nodes = 2
[workload]
file = "jobs.csv"
[power]
power_saving = "{rule}"
[power_saving]
risk = {risk}
reserve_percent = 50
"""


def test_scenario_selects_the_forecast_and_its_parameters() -> None:
    settings = scenario.parse(SCENARIO.format(rule="forecast", risk=0.1), Path("s.toml")).settings(0)
    assert settings.power_saving is not None
    assert settings.power_saving.rules.risk == 0.1
    assert settings.power_saving.reserve_share == 0.5
    assert (
        scenario.parse(SCENARIO.format(rule="idle_off", risk=0.1), Path("s.toml")).settings(0).power_saving
        is None
    )


@pytest.mark.parametrize(("rule", "risk", "key"), [("never", 0.1, "power_saving"), ("forecast", 0.9, "risk")])
def test_wrong_scenario_names_the_key(rule: str, risk: float, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        scenario.parse(SCENARIO.format(rule=rule, risk=risk), Path("s.toml"))
