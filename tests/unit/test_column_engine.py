"""The compiled simulation engine and the general engine compute the same schedules.

This holds for all built-in policies. As a program, this file compares both engines on random workloads:
`python tests/unit/test_column_engine.py 3000 0` for 3,000 workloads, beginning with seed 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.scheduling.registry import names, policy
from slurm_energy.simulator import engine
from slurm_energy.simulator.campaigns import campaign
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.deferral.deferral_schema import DeferralSection
from slurm_energy.simulator.kernels import column_engine, pending_bits
from slurm_energy.simulator.kernels.compiled import compiled_entry
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.scenario_schema import PowerSection
from slurm_energy.simulator.schedule_settings import Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.job_columns import CODES
from slurm_energy.simulator.workloads.workload import Workload, workload

Case = tuple[Workload, list[NodeKind], ScheduleSettings]
ROUNDS = int(os.environ.get("SENERGY_ENGINE_ROUNDS", "10"))  # for each policy; 250 before a release


def draw(seed: int) -> Case:
    """Draw a random test case: a workload with jobs and kinds of nodes.

    Each job has one to four shapes (ways to run it) on one to three kinds of nodes. Many times and sizes are
    equal.
    """
    random = np.random.default_rng(seed)
    count, kinds = int(random.integers(1, 60)), int(random.integers(1, 4))
    whole = random.random() < 0.5

    def times(size: int, most: float) -> np.ndarray:
        if whole:
            return random.integers(1, int(most), size).astype(float)
        return random.uniform(0.5, most, size)

    shapes = random.integers(1, 5, count)
    first = np.concatenate([[0], np.cumsum(shapes)])
    submit_s = np.sort(times(count, 80.0))
    if random.random() < 0.3:
        submit_s[:] = submit_s[0]
    job: dict[str, Any] = {
        "submit_s": submit_s,
        "job_id": random.permutation(count) + 1,
        "user": random.integers(0, 4, count),
    }
    if random.random() < 0.5:
        job["time_limit_s"] = np.where(random.random(count) < 0.5, times(count, 60.0), np.nan)
    if random.random() < 0.5:
        job["deadline_s"] = np.where(random.random(count) < 0.4, submit_s + times(count, 150.0), np.nan)
    size = int(first[-1])
    shape: dict[str, Any] = {
        "units": random.integers(1, 12, size),
        "hardware": random.integers(0, kinds, size),
        "time_s": times(size, 40.0),
        "power_watts": times(size, 300.0),
    }
    if random.random() < 0.5:
        shape |= {"predicted_time_s": times(size, 40.0), "predicted_watts": times(size, 300.0)}
    nodes = [
        NodeKind(f"k{kind}", *map(int, random.integers(1, 6, 2)), *map(float, random.integers(0, 100, 2)))
        for kind in range(kinds)
    ]
    options = Options(
        age_weight=random.choice([0.01, 1.0]),
        wait_bound_s=random.choice([86_400.0, 30.0]),
        max_age_s=random.choice([7 * 86_400.0, 40.0]),
    )
    preemption = Preemption(*map(float, map(random.choice, ([np.inf, 0, 2.5], [0, 1, 3.7], [0, 10, 60]))))
    disciplines = [*Discipline, Discipline.EASY, Discipline.PACKING]
    if random.random() < 0.3:
        names = ("thrift", "impatience", "delay", "crowd", "excess", "patience")
        options = replace(
            options, weights=dict(zip(names, random.uniform(0.0, 4.0, 6).tolist(), strict=True))
        )
    settings = ScheduleSettings(
        disciplines[random.integers(len(disciplines))],
        interval_s=float(random.choice([0.0, 0.0, 7.0])),
        horizon_s=random.uniform(5.0, 200.0) if random.random() < 0.25 else None,
        preemption=preemption if random.random() < 0.7 else None,
        half_life_s=float(random.choice([np.inf, 50.0])),
        shares={"a": 2.0},
        options=options,
        kill_at_limit=bool(random.random() < 0.3),
    )
    return workload(first, job, shape, users=("a", "b", "c", "d")), nodes, settings


def compare(name: str, seed: int) -> int:
    """Check that the column engine and the general engine simulate a random workload equally.

    Return the number of interrupted jobs.
    """
    jobs, kinds, settings = draw(seed)
    assert column_engine.supports(jobs, kinds, policy(name), settings)
    quick = column_engine.simulate(jobs, kinds, policy(name), settings)
    full = engine.simulate(jobs, kinds, policy(name), settings)
    for column in ("start_s", "end_s", "shape", "outcome", "preemptions", "failures"):
        found, expected = getattr(quick.accounts, column), getattr(full.accounts, column)
        np.testing.assert_array_equal(found, expected, err_msg=f"{name}, seed {seed}: {column}")
    for column in ("energy_joules", "run_s", "unit_s", "lost_joules"):
        found, expected = getattr(quick.accounts, column), getattr(full.accounts, column)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9, err_msg=f"{name}, seed {seed}")
    assert (quick.passes, quick.end_s, quick.units) == (full.passes, full.end_s, full.units), (name, seed)
    assert quick.energy_joules == pytest.approx(full.energy_joules, rel=1e-9)
    assert quick.idle_joules == pytest.approx(full.idle_joules, rel=1e-6, abs=1e-6)
    np.testing.assert_array_equal(quick.power[0], full.power[0], err_msg=f"{name}, seed {seed}")
    np.testing.assert_allclose(quick.power[1], full.power[1], rtol=1e-9)
    assert quick.peak_watts == pytest.approx(full.peak_watts) and quick.notes == full.notes
    return int(np.sum(full.accounts.preemptions))


def compare_many(count: int, first_seed: int) -> None:
    """Compare the schedules of both simulation engines for `count` random workloads.

    The scheduling policies take turns. The seeds of the workloads are consecutive numbers from `first_seed`.
    """
    policies: Sequence[str] = sorted(CODES)
    interruptions = sum(compare(policies[i % len(policies)], first_seed + i) for i in range(count))
    print(f"{count} workloads from seed {first_seed} on: equal schedules, {interruptions} interruptions")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CODES))
def test_the_schedule_is_that_of_the_general_engine(name: str) -> None:
    for seed in range(ROUNDS):
        compare(name, 1000 * CODES[name] + seed)


@pytest.mark.slow
def test_one_compilation_serves_all_policies() -> None:
    for seed, name in enumerate(sorted(CODES)):
        compare(name, seed)
    assert len(column_engine._run.signatures) == 1  # each further one takes 20 s of processor time


@pytest.mark.slow
def test_the_deadline_of_a_job_larger_than_the_cluster_does_not_extend_a_simulation() -> None:
    compare("kairos", 20_068)  # two jobs stay pending, and the last deadline is that of such a job


@pytest.mark.slow
def test_the_code_without_compilation_gives_the_schedule_of_the_general_engine() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "ignore", __file__, "24", "39"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("24 workloads") and ", 0 interruptions" not in done.stdout


@pytest.mark.parametrize(
    ("count", "seeds", "cached", "compiled"),
    [
        (19_999, 1, False, False),
        (20_000, 1, False, True),
        (1000, 20, False, True),
        (1000, 1, True, True),
        (999, 1, True, False),
    ],
)
def test_compilation_is_for_campaigns_with_many_jobs(
    count: int, seeds: int, cached: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = workload(
        np.arange(count + 1), {"submit_s": np.zeros(count)}, {"units": [1] * count, "time_s": [1.0] * count}
    )
    settings, used = ScheduleSettings(Discipline.EASY), []
    scenario: Any = SimpleNamespace(
        nodes=lambda: [NodeKind("n", 1, 1)],
        settings=lambda seed, deferral: settings,
        deferral=DeferralSection(),
        power=PowerSection(),
        sites={},
        policy_names=["zeus"],
        schedule=SimpleNamespace(seeds=seeds, shares={}),
    )
    result = engine.simulate(draw(0)[0], draw(0)[1], policy("zeus"), settings)
    for module in (column_engine, engine):
        monkeypatch.setattr(module, "simulate", lambda *_, module=module: used.append(module) or result)
    monkeypatch.setattr(column_engine, "is_cached", lambda _: cached)
    monkeypatch.setattr(campaign, "workload_of", lambda *_: (jobs, None))
    campaign.run(scenario, CampaignTask("zeus", 0))
    assert used == [column_engine if compiled else engine]


def test_every_built_in_policy_is_compiled() -> None:
    built_in = [entry for entry in map(policy, names()) if entry.built_in]
    assert set(CODES) == {entry.name for entry in built_in}
    jobs = workload(np.arange(2), {"submit_s": np.zeros(1)}, {"units": [1], "time_s": [1.0]})
    settings, kinds = ScheduleSettings(Discipline.EASY), [NodeKind("n", 1, 1)]
    assert all(column_engine.supports(jobs, kinds, entry, settings) for entry in built_in)


@pytest.mark.slow
def test_an_empty_workload_has_an_empty_result() -> None:
    jobs = workload(np.zeros(1, np.int64), {"submit_s": np.zeros(0)}, {"units": [], "time_s": []})
    outcome = column_engine.simulate(jobs, [NodeKind("n", 1, 1)], policy("zeus"), ScheduleSettings())
    assert outcome.end_s == 0.0 and len(outcome.accounts.start_s) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("charon", {"budget_watts": StepFunction([0.0], [1000.0])}),
        ("zeus", {"idle_off_s": 60.0}),
        ("zeus", {"options": Options(aged_jobs_per_user=2)}),
        ("kairos", {"options": Options(weights={"patience": -1.0})}),
        ("metis", {"options": Options(weights={"crowd": -1.0})}),
    ],
)
def test_other_runs_are_left_to_the_general_engine(name: str, change: dict[str, Any]) -> None:
    job = {"submit_s": [0.0], "deadline_s": [100.0]}
    jobs = workload(np.array([0, 1]), job, {"units": [1], "time_s": [1.0]})
    settings = replace(ScheduleSettings(Discipline.EASY, preemption=None), **change)
    assert not column_engine.supports(jobs, [NodeKind("n", 8, 1)], policy(name), settings)
    assert column_engine.supports(
        jobs, [NodeKind("n", 8, 1)], policy(name), ScheduleSettings(Discipline.EASY, preemption=None)
    )


@compiled_entry()
def _members(bits: Any, added: Any, removed: Any, found: Any, places: Any) -> int:
    """Test helper: change a set of numbers and read it back in two ways.

    The function adds the numbers in `added` to the set `bits` and removes those in `removed`. It walks
    through the set in ascending order and writes the members to `found`. It then looks up the member at each
    position and writes it to `places`. A correct set makes the two lists equal. Return the number of
    members.
    """
    for number in added:
        pending_bits.add(bits, number)
    for number in removed:
        pending_bits.remove(bits, number)
    count, number = 0, pending_bits.following(bits, 0)
    while number >= 0:
        found[count] = number
        count, number = count + 1, pending_bits.following(bits, number + 1)
    for place in range(count):
        places[place] = pending_bits.member(bits, place)
    return count


@pytest.mark.slow
@given(st.sets(st.integers(0, 9000), max_size=60), st.sets(st.integers(0, 9000), max_size=20))
def test_sets_of_numbers(members: set[int], removed: set[int]) -> None:
    added, common = (np.array(sorted(numbers), int) for numbers in (members, members & removed))
    found, places = np.zeros((2, len(members)), int)
    count = _members(pending_bits.empty_set(9001), added, common, found, places)
    assert found[:count].tolist() == places[:count].tolist() == sorted(members - removed)


if __name__ == "__main__":
    compare_many(int(sys.argv[1]), int(sys.argv[2]))
