"""Tests of the workloads that `senergy simulate` generates or reads from files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulate_examples import MODELS, SCENARIO, predict, write_scenarios

from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns.campaign import workload_of
from slurm_energy.simulator.workloads.workload_generator import ShapePrediction, generate, rigid

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    return write_scenarios(tmp_path)


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
