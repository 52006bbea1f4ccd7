import math
import random

import pytest

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import GpuHardware
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow

pytest.importorskip("numpy")

import numpy as np

from slurm_energy.tuning.decision import Situation, decide
from slurm_energy.tuning.ensemble import EnsemblePosterior
from slurm_energy.tuning.guard import RegularityGuard, RunBudget
from slurm_energy.tuning.priors import gpu_prior
from slurm_energy.tuning.search import SearchOptions, SearchPhase, TuningSearch

GPU = GpuHardware(count=1, default_limit_watts=300.0, min_limit_watts=100.0)
LIMITS = tuple(OperatingPoint(gpu_limit_watts=float(watts)) for watts in range(100, 300, 25))
PRIOR = gpu_prior(GPU)


def respond(limit: float | None, draw: float, static: float) -> tuple[float, float]:
    """Return the speed and the power of a simulated GPU under a power limit.

    The dynamic power of the GPU follows the cube of the clock.
    """
    power = draw if limit is None else min(limit, draw)
    clock = max((power - static) / (draw - static), 0.01) ** (1 / 3)
    return clock, power


class Job:
    """A simulated job that is measured in windows of 5 s without noise."""

    def __init__(self, objective, draw=280.0, static=80.0, options=None):
        self.search = TuningSearch(LIMITS, objective, PRIOR, options)
        self.draw, self.static, self.time_s = draw, static, 0.0
        self.points = []

    def window(self, source=ProgressSource.REPORTED, pause=0.0):
        point = self.search.requested
        speed, power = respond(point.gpu_limit_watts, self.draw, self.static)
        rate = 100 * speed * (1 - pause)
        window = ProgressWindow(point, self.time_s, 5.0, rate, 0.004, power, source, gpu_watts=power)
        self.time_s += 5.0
        self.points.append(point)
        self.search.observe(window)

    def run(self, windows):
        for _ in range(windows):
            self.window()
        return self.search


def test_search_finds_the_least_edp_and_holds_it():
    search = Job(Objective("edp")).run(60)
    assert search.phase is SearchPhase.HOLD

    def edp(point):
        speed, power = respond(point.gpu_limit_watts, 280.0, 80.0)
        return power / speed**2

    assert edp(search.requested) <= 1.01 * min(map(edp, LIMITS))
    assert 1 <= search.summary()["probes"] <= 9


@pytest.mark.parametrize("limit", [0.03, 0.05, 0.1])
def test_held_point_keeps_the_slowdown_limit(limit):
    search = Job(Objective("energy", limit)).run(60)
    speed, power = respond(search.requested.gpu_limit_watts, 280.0, 80.0)
    assert 1 / speed <= 1 + limit
    assert power < 280.0


def test_slow_points_are_left_while_the_job_has_lost_more_time_than_its_limit_permits():
    job = Job(Objective("energy", 0.05))
    untuned_s, holds, slow_holds = 0.0, 0, []
    for _ in range(400):
        point, watts = job.search.requested, job.search.requested.gpu_limit_watts
        is_over = job.time_s > 1.055 * untuned_s
        # Steep below 225 W: the first measurement there costs more time than the whole job may lose.
        ratio = 1.0 if watts is None else 1.035 if watts >= 225.0 else 3.0
        if job.search.phase is SearchPhase.HOLD and point != UNTUNED:
            holds += 1
            if is_over and ratio > 1.03:  # at half of the limit, the job is soon within its limit again
                slow_holds.append(point)
        duration_s = 15.0 if ratio == 3.0 else 5.0
        power = min(watts or 280.0, 280.0)
        job.search.observe(
            ProgressWindow(
                point, job.time_s, duration_s, 100 / ratio, 0.004, power, ProgressSource.REPORTED, power
            )
        )
        job.time_s += duration_s
        untuned_s += duration_s / ratio
    assert holds and len(slow_holds) < 10  # the first windows do not show the slowdown exactly
    assert job.time_s <= 1.05 * untuned_s


def test_job_far_below_every_limit_stays_untuned_without_probes():
    job = Job(Objective("edp"), draw=60.0, static=30.0)
    search = job.run(20)
    assert (search.phase, set(job.points)) == (SearchPhase.HOLD, {UNTUNED})


def test_job_without_progress_gets_the_safe_point():
    job = Job(Objective("edp"))
    job.window(ProgressSource.NONE)
    assert (job.search.phase, job.search.requested.gpu_limit_watts) == (SearchPhase.STATIC, 250.0)


def test_phase_change_returns_to_the_reference_within_one_window():
    job = Job(Objective("edp"), draw=280.0, static=80.0)
    job.run(30)
    assert job.search.requested != UNTUNED
    job.draw, job.static = 290.0, 160.0
    job.window()
    assert job.search.phase is SearchPhase.REFERENCE
    assert job.search.requested == UNTUNED


def test_a_job_that_outlasts_its_expected_duration_is_searched():
    job = Job(Objective("edp"), options=SearchOptions(expected_duration_s=20))
    unknown = Job(Objective("edp"))
    assert len(job.run(60).summary()["points"]) == len(unknown.run(60).summary()["points"])


def test_state_survives_json():
    job = Job(Objective("edp"), options=SearchOptions(expected_duration_s=300))
    search = job.run(30)
    restored = TuningSearch.from_json(search.to_json(), LIMITS, Objective("edp"), PRIOR)
    assert restored.requested == search.requested
    assert restored.phase is search.phase
    assert restored.summary()["points"] == search.summary()["points"]


def test_a_job_with_thousands_of_references_is_tuned_on():
    job = Job(Objective("edp"))
    state = job.run(30).to_json()
    state["knowledge"]["blocks"] = 1800 * state["knowledge"]["blocks"][:1]
    job.search = TuningSearch.from_json(state, LIMITS, Objective("edp"), PRIOR)
    job.run(500)
    assert job.search.phase is SearchPhase.HOLD
    assert len(job.search.to_json()["knowledge"]["blocks"]) < 100


def test_summary_reports_what_was_measured():
    search = Job(Objective("energy", 0.05)).run(40)
    summary = search.summary()
    assert summary["chosen_source"] == "this run"
    assert 0 < summary["estimated_saving"] < 0.5
    chosen = next(item for item in summary["points"] if item["point"] == summary["chosen"])
    speed, power = respond(search.requested.gpu_limit_watts, 280.0, 80.0)
    assert math.isclose(chosen["time_ratio"], 1 / speed, rel_tol=1e-6)
    assert math.isclose(chosen["power_ratio"], power / 280.0, rel_tol=1e-6)


def test_phases_that_look_alike_under_a_limit_are_found_by_a_new_reference():
    job = Job(Objective("energy", 0.05))
    job.run(30)
    held = job.search.requested
    assert held != UNTUNED
    speed, power = respond(held.gpu_limit_watts, job.draw, job.static)

    def stays():
        point = job.search.requested
        # Untuned, the new phase is twice as fast; under the limit it has the speed and power of the old one.
        rate, watts = (200.0, 250.0) if point == UNTUNED else (100 * speed, power)
        job.search.observe(
            ProgressWindow(
                point, job.time_s, 5.0, rate, 0.004, watts, ProgressSource.REPORTED, gpu_watts=watts
            )
        )
        job.time_s += 5.0

    seen = []
    for _ in range(80):
        stays()
        seen.append(job.search.requested)
    assert UNTUNED in seen
    assert seen[-1] == UNTUNED, "twice as slow breaks the limit"


def test_checkpoints_are_scatter_and_not_phases():
    job = Job(Objective("edp"), draw=100.0, static=50.0)
    for number in range(60):
        job.search.observe(
            ProgressWindow(
                job.search.requested,
                job.time_s,
                5.0,
                100.0 if number % 2 else 75.0,
                0.004,
                100.0,
                ProgressSource.REPORTED,
                gpu_watts=100.0,
            )
        )
        job.time_s += 5.0
        job.points.append((job.search.phase, job.search.requested))
    assert [phase for phase, _ in job.points[-20:]].count(SearchPhase.REFERENCE) <= 2


def test_a_point_that_the_hardware_refuses_is_dropped():
    job = Job(Objective("edp"))
    job.window()
    refused = job.search.requested
    assert refused != UNTUNED
    for _ in range(3):
        job.search.observe(
            ProgressWindow(UNTUNED, job.time_s, 5.0, 100.0, 0.004, 280.0, ProgressSource.REPORTED)
        )
        job.time_s += 5.0
    assert job.search.requested != refused
    assert refused not in job.run(40).requested.to_json().values()
    assert refused not in job.points[1:]


def test_stalled_job_returns_to_the_reference_and_other_units_start_again():
    job = Job(Objective("edp"))
    job.run(30)
    point = job.search.requested
    job.search.observe(ProgressWindow(point, job.time_s, 5.0, 0.0, 0.0, 150.0, ProgressSource.REPORTED))
    assert job.search.phase is SearchPhase.REFERENCE
    job.run(10)
    assert (job.search.phase, job.search.requested != UNTUNED) == (SearchPhase.HOLD, True)
    job.window(ProgressSource.PERIOD)
    assert (job.search.phase, job.search.requested) == (SearchPhase.REFERENCE, UNTUNED)


def test_a_poor_probe_does_not_end_the_search():
    prior_best = Job(Objective("edp"), draw=280.0, static=200.0, options=SearchOptions(start=LIMITS[1]))
    search = prior_best.run(60)
    costs = {
        point: respond(point.gpu_limit_watts, 280.0, 200.0)[1]
        / respond(point.gpu_limit_watts, 280.0, 200.0)[0] ** 2
        for point in (*LIMITS, UNTUNED)
    }
    assert prior_best.points.count(LIMITS[1]) <= 2
    assert costs[search.requested] <= 1.03 * min(costs.values())


def test_a_job_with_irregular_progress_stays_untuned():
    job, numbers = Job(Objective("edp")), random.Random(2)
    for _ in range(200):
        pause = numbers.uniform(0.1, 0.6) if numbers.random() < 1 / 9 else 0.0
        job.window(pause=pause)
    assert set(job.points[100:]) == {UNTUNED}


def test_a_job_counts_as_irregular_while_contradictions_are_frequent():
    guard = RegularityGuard()
    for _ in range(4):
        guard.add_window()
        guard.add_contradiction()
    assert not guard.is_irregular
    guard.add_contradiction()
    assert guard.is_irregular
    for _ in range(71):
        guard.add_window()
    assert guard.is_irregular
    guard.add_window()
    assert not guard.is_irregular


def test_the_rest_of_a_job_with_long_windows_is_estimated_in_seconds():
    budget = RunBudget(Objective("edp"))
    budget.add(300.0, 0.0, 0.0)
    assert budget.remaining_windows(5.0) == 60.0
    assert budget.remaining_windows(20.0) == 20.0
    assert budget.remaining_windows(200.0) == 3.0
    budget.add(900.0, 0.0, 0.0)
    assert budget.remaining_windows(200.0) == 6.0


def posterior_of(time_ratios, power_ratios, weights):
    """Return a distribution of a job's response at two points: untuned and one power limit.

    The arguments contain the time ratio, the power ratio and the weight of each sample.
    """
    ones = np.zeros(len(weights))
    return EnsemblePosterior(
        (UNTUNED, LIMITS[-1]),
        np.array(weights),
        np.stack([ones, np.log(time_ratios)], axis=1).astype(np.float32),
        np.stack([ones, np.log(power_ratios)], axis=1).astype(np.float32),
        np.array([0.0, 0.003]),
    )


@pytest.mark.parametrize(("power", "held"), [(0.983, 1), (0.988, 0)])
def test_a_measured_limit_that_saves_little_is_held_down_to_half_a_percent(power, held):
    posterior = posterior_of([1.01], [power], [1.0])
    situation = Situation(current=0, visited=frozenset({1}))
    decision = decide(posterior, Objective("energy", 0.05), situation)
    assert (decision.index, decision.probe) == (held, False)


def test_a_probe_is_worth_a_small_expected_gain_in_a_long_job_only():
    posterior = posterior_of([1.01, 1.02], [0.98, 0.985], [0.25, 0.75])
    objective = Objective("energy", 0.05)
    for windows, probe in ((100.0, True), (3.0, False)):
        situation = Situation(current=0, visited=frozenset(), remaining_windows=windows)
        assert decide(posterior, objective, situation).probe is probe


def test_the_nearest_point_may_cost_the_losses_that_the_job_can_still_bear():
    """The search tries no operating point if even the nearest one may cost too much.

    A tuned job can bear only a limited loss from measurements at bad operating points. The two operating
    points of the test are far from the untuned point. If the loss at the nearer point may be too high, no
    point is tried. The farther point is not tried before the nearer point.
    """
    times = np.array([[1.3, 2.0], [1.01, 1.02]])
    log_time = np.log(np.hstack([np.ones((2, 1)), times])).astype(np.float32)
    log_power = np.log(np.hstack([np.ones((2, 1)), [[0.9, 0.8], [0.9, 0.5]]])).astype(np.float32)
    weights = np.array([0.4, 0.6])
    points = (UNTUNED, LIMITS[-1], LIMITS[0])
    posterior = EnsemblePosterior(points, weights, log_time, log_power, np.zeros(3))
    for max_loss, chosen in ((0.1, 0), (0.8, 1)):
        situation = Situation(0, frozenset(), remaining_windows=100.0, max_loss=max_loss)
        assert decide(posterior, Objective("edp"), situation).index == chosen
