"""Tests of how the settings of recurring jobs are learned from run to run.

The tests cover the estimate of the job's response, the slowdown limit, the trial of new settings
(exploration), and changes of the program (drift).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.program_measurement import MIN_ERROR, ProgramMeasurement, after_drift, untuned_draw
from slurm_energy.tuning.recurrence import (
    RecurrenceOptions,
    RecurrencePosterior,
    RecurringJob,
    choose_point,
)

CAPS = (150.0, 200.0, 250.0)
POINTS = (*(OperatingPoint(gpu_limit_watts=cap) for cap in CAPS), UNTUNED)
EDP, ENERGY = Objective("edp"), Objective("energy", 0.05)


@dataclass
class Prior:
    """A prior for tests, with two hypotheses about a job.

    Under the first hypothesis, power limits slow the job down. Under the second hypothesis, they do not.
    """

    points = POINTS
    log_time = np.log([[1.6, 1.2, 1.03, 1.0], [1.01, 1.0, 1.0, 1.0]])
    log_power = np.log([[0.55, 0.72, 0.9, 1.0], [0.55, 0.72, 0.9, 1.0]])
    log_weights = np.zeros(2)


def random(seed=1):
    return np.random.default_rng(seed)


def replay(time_ratio, power_ratio, objective, runs=8, seed=1):
    untuned = ProgramMeasurement(UNTUNED, 400.0, 310.0, scale="runs")
    job = RecurringJob(Prior(), objective, random(seed), [untuned])
    chosen = []
    for _ in range(runs):
        point = job.next_point().point
        at = POINTS.index(point)
        chosen.append(point)
        job.record(ProgramMeasurement(point, 400.0 * time_ratio[at], 310.0 * power_ratio[at], scale="runs"))
    return chosen


def test_whole_runs_of_unknown_scale_identify_the_response():
    insensitive = replay((1.01, 1.0, 1.0, 1.0), (0.55, 0.72, 0.9, 1.0), EDP)
    assert insensitive[-1] == POINTS[0]
    sensitive = replay((1.6, 1.2, 1.03, 1.0), (0.55, 0.72, 0.9, 1.0), EDP)
    assert sensitive[-1] == POINTS[2]


@pytest.mark.parametrize("seed", range(5))
def test_no_point_is_chosen_that_may_exceed_the_slowdown_limit(seed):
    chosen = replay((1.6, 1.2, 1.03, 1.0), (0.55, 0.72, 0.9, 1.0), ENERGY, seed=seed)
    assert POINTS[0] not in chosen and POINTS[1] not in chosen
    assert chosen[-1] == POINTS[2]


class MostlyFlat(Prior):
    """Prior for tests: a lower power limit probably does not slow the job down.

    The prior contains two cases. With a probability of 85 %, the job is hardly slower at lower limits,
    and would run best at the lowest limit. With a probability of 15 %, lower limits slow the job down
    much.
    """

    log_time = np.log([[2.0, 1.4, 1.05, 1.0], [1.02, 1.01, 1.0, 1.0]])
    log_weights = np.log([0.15, 0.85])


def test_a_point_is_tried_if_later_runs_save_more_than_the_trial_costs():
    first = ProgramMeasurement(POINTS[0], 800.0, 170.0, scale="runs")
    job = RecurringJob(MostlyFlat(), EDP, random(), [first])
    assert job.next_point(explore=False).point == POINTS[0]
    trial = job.next_point()
    assert trial.exploration and trial.point == POINTS[2]  # POINTS[1] might cost much more
    job.record(ProgramMeasurement(trial.point, 420.0, 279.0, scale="runs"))
    assert job.next_point(explore=False).point == POINTS[2]


def test_the_second_run_goes_down_by_a_step_if_the_first_one_was_tuned():
    flat = MostlyFlat()
    flat.log_weights = np.log([0.01, 0.99])
    draw = untuned_draw(310.0, "runs")
    first = ProgramMeasurement(POINTS[2], 404.0, 279.0, scale="runs")
    for explore in (False, True):
        job = RecurringJob(flat, EDP, random(), [draw, first])
        assert job.next_point(explore=explore).point in POINTS[2:]
    job.record(first)
    assert job.next_point(explore=False).point == POINTS[0]
    untuned = ProgramMeasurement(UNTUNED, 400.0, 310.0, scale="runs")
    assert RecurringJob(flat, EDP, random(), [untuned]).next_point(explore=False).point == POINTS[0]


def test_a_known_response_is_not_tried_again():
    ratios = [ProgramMeasurement(UNTUNED, 400.0, 310.0, scale="runs")]
    ratios += [ProgramMeasurement(POINTS[0], 404.0, 170.0, scale="runs")] * 3
    choices = [RecurringJob(MostlyFlat(), EDP, random(seed), ratios).next_point() for seed in range(5)]
    assert {choice.point for choice in choices} == {POINTS[0]}


def test_equal_measurements_do_not_give_infinite_precision():
    same = [ProgramMeasurement(POINTS[1], 1.0, 0.7, 0.0, 0.0)] * 3
    posterior = RecurrencePosterior(Prior(), same)
    assert posterior.time_sd[1] >= MIN_ERROR / math.sqrt(3) * 0.7
    assert np.isfinite(posterior.weights).all()


def test_without_exploration_the_expected_best_is_chosen_and_repeated():
    ratios = [ProgramMeasurement(point, 1.0, 0.7) for point in POINTS[:2]]
    posterior = RecurrencePosterior(Prior(), ratios)
    choices = {choose_point(posterior, EDP, random(seed), explore=False) for seed in range(9)}
    assert len(choices) == 1 and not choices.pop().exploration


def test_untuned_is_kept_where_nothing_is_saved():
    class NoSaving(Prior):
        log_power = np.zeros((2, 4))

    assert RecurringJob(NoSaving(), EDP, random()).next_point(explore=False).point == UNTUNED


def test_the_untuned_draw_shows_that_a_limit_hit_a_job_that_waits_for_its_host():
    class HostBound(Prior):
        """A prior for the test, with two hypotheses about a job.

        The first hypothesis is a job that always computes. The second is a job that waits for its host. The
        second job computes for half of the time, and then draws more than its mean power.
        """

        log_time = np.log([[1.12, 1.06, 1.02, 1.0], [1.9, 1.6, 1.3, 1.0]])
        log_power = np.log([[0.72, 0.84, 0.95, 1.0], [0.45, 0.55, 0.75, 1.0]])
        log_weights = np.log([0.99, 0.01])

    run = ProgramMeasurement(POINTS[1], 640.0, 170.5, scale="runs")
    assert RecurringJob(HostBound(), EDP, random(), [run]).next_point(explore=False).point != UNTUNED
    known = [untuned_draw(310.0, "runs"), run]
    assert RecurringJob(HostBound(), EDP, random(), known).next_point(explore=False).point == UNTUNED


def test_drift_drops_the_measurements_before_it():
    before = [ProgramMeasurement(POINTS[1], 100.0, 200.0, scale="runs") for _ in range(3)]
    after = [ProgramMeasurement(POINTS[1], 150.0, 200.0, scale="runs")]
    assert after_drift(before) == tuple(before)
    assert after_drift([*before, *after]) == tuple(after)
    other_scale = [ProgramMeasurement(POINTS[1], 150.0, 200.0, scale="2 nodes")]
    assert after_drift([*before, *other_scale]) == (*before, *other_scale)


@given(st.lists(st.tuples(st.sampled_from(POINTS), st.floats(0.2, 5.0), st.floats(0.2, 5.0)), max_size=12))
def test_the_posterior_is_a_distribution_for_any_measurements(values):
    measurements = [ProgramMeasurement(point, time, power, scale="runs") for point, time, power in values]
    posterior = RecurrencePosterior(Prior(), measurements)
    assert math.isclose(posterior.weights.sum(), 1.0)
    exceeded = posterior.exceedance(math.log1p(0.05))
    assert ((exceeded >= 0) & (exceeded <= 1)).all() and posterior.allowed(ENERGY)[3]
    choice = choose_point(posterior, ENERGY, random(), options=RecurrenceOptions())
    assert choice.violation <= RecurrenceOptions().max_risk or choice.point == UNTUNED


def test_runs_that_violated_the_limit_leave_no_risk_to_later_runs():
    slow = [ProgramMeasurement(UNTUNED, 100.0, 300.0, scale="runs", count=20)]
    assert RecurrencePosterior(Prior(), slow).allowed(ENERGY)[2]
    slow.append(ProgramMeasurement(POINTS[2], 115.0, 270.0, scale="runs", count=3))
    assert not RecurrencePosterior(Prior(), slow).allowed(ENERGY)[:3].any()


@pytest.mark.parametrize(
    ("runs", "risk", "allowed"), [(0, 0.001, True), (0, 0.002, False), (20, 0.008, True), (20, 0.015, False)]
)
def test_a_run_may_risk_a_violation_of_0_15_percent_and_later_runs_the_rest_up_to_1_percent(
    runs: int, risk: float, allowed: bool
) -> None:
    class Risky(Prior):
        """Assumed responses of a job that is risky at one operating point.

        At POINTS[2] the job is 20 % slower with probability `risk`, and otherwise not slower.
        """

        log_time = np.log([[2.0, 1.5, 1.2, 1.0], [1.01, 1.0, 1.0, 1.0]])
        log_weights = np.log([risk, 1.0 - risk])

    options = RecurrenceOptions(min_discrepancy=0.001)
    untuned = [ProgramMeasurement(UNTUNED, 100.0, 300.0, scale="runs", count=runs)] if runs else []
    assert RecurrencePosterior(Risky(), untuned, options).allowed(ENERGY)[2] == allowed
