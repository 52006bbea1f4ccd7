"""Tests of the models behind the search for a job's best operating point.

The tests cover the expected responses of jobs to settings (priors and ensemble), the candidate points, the
guards that stop a bad setting, and the measurements.
"""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.agent.tuning.tunable_hardware import TunableHardware
from slurm_energy.config import BoundsConfig, Config
from slurm_energy.devices.hardware import CpufreqPolicy, GpuInfo, NodeHardware
from slurm_energy.policies import JobScope
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.policies.plan import point_settings
from slurm_energy.tuning.candidates import (
    CpuHardware,
    GpuHardware,
    Reference,
    cpu_frequencies,
    gpu_limits,
    joint_candidates,
    safe_point,
)
from slurm_energy.tuning.guard import ChangeDetector, DevicePowerGuard, RunBudget
from slurm_energy.tuning.measurements import MAX_BLOCKS, NoiseScale, ReferenceTrack, SpeedMeasurement
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

np = pytest.importorskip("numpy")

from slurm_energy.tuning.decision import PointDecision, Situation, decide  # noqa: E402
from slurm_energy.tuning.ensemble import Ensemble, Observation  # noqa: E402
from slurm_energy.tuning.priors import (  # noqa: E402
    PhysicalPrior,
    Prior,
    cpu_prior,
    curve_prior,
    gpu_prior,
    joint_prior,
)

GPU = GpuHardware(count=2, default_limit_watts=400.0, min_limit_watts=100.0, max_clock_mhz=1410.0)
CPU = CpuHardware(packages=2, max_mhz=3600.0, min_mhz=800.0)
LIMITS = gpu_limits(GPU)
PRIORS = {"gpu": gpu_prior(GPU), "cpu": cpu_prior(CPU), "joint": joint_prior(GPU, CPU)}
watts = st.floats(30.0, 400.0)


def window(rate, error=0.01, start_s=0.0, duration_s=5.0, power=100.0):
    return ProgressWindow(UNTUNED, start_s, duration_s, rate, error, power, ProgressSource.REPORTED)


def limit(value):
    return OperatingPoint(gpu_limit_watts=value)


@given(draw=watts, host=st.floats(0.0, 500.0))
@examples(20)
def test_a_lower_limit_is_never_faster(draw, host):
    reference = Reference(2 * draw + host, draw)
    ensemble = PRIORS["gpu"].ensemble((*LIMITS, UNTUNED), reference)
    assert np.all(np.diff(ensemble.log_time, axis=1) <= 1e-6)
    assert np.allclose(ensemble.log_time[:, -1], 0.0, atol=1e-6)
    assert np.allclose(ensemble.log_power[:, -1], 0.0, atol=1e-6)


@given(draw=st.floats(30.0, 370.0))
@examples(20)
def test_limits_far_above_the_draw_change_nothing_for_a_steady_job(draw):
    ensemble = PRIORS["gpu"].ensemble((limit(400.0), UNTUNED), Reference(2 * draw, draw))
    # Some samples are bursts up to the default limit; a tenth of a percent is their mean effect.
    weights = np.full(len(ensemble.log_time), 1 / len(ensemble.log_time))
    assert abs(weights @ ensemble.log_time[:, 0]) < 0.01


@pytest.mark.parametrize("name", PRIORS)
def test_priors_are_finite_at_all_candidates(name):
    points = joint_candidates(LIMITS, cpu_frequencies(CPU, 5))
    for draw in (20.0, 150.0, 400.0, None):
        reference = Reference(1000.0, draw)
        ensemble = PRIORS[name].ensemble((UNTUNED, *points), reference)
        assert np.isfinite(ensemble.log_time).all()
        assert np.isfinite(ensemble.log_power).all()


def test_starved_gpus_slow_down_with_the_processors():
    points = (UNTUNED, *cpu_frequencies(CPU, 5))
    ensemble = PRIORS["joint"].ensemble(points, Reference(900.0, 300.0))
    mean = ensemble.log_time.mean(axis=0)
    assert mean[1] > 0.05
    assert mean[0] == 0.0


def test_a_measured_point_is_as_certain_as_its_measurement():
    ensemble = PRIORS["gpu"].ensemble((UNTUNED, *LIMITS), Reference(700.0, 350.0))
    index = 5
    posterior = ensemble.condition([Observation(index, 0.123, -0.4, 0.002, 0.002)])
    assert posterior.mean_log_time()[index] == pytest.approx(0.123, abs=0.004)
    assert posterior.mean_log_power()[index] == pytest.approx(-0.4, abs=0.006)
    assert posterior.log_time_error(index) < 0.004
    exceedance = posterior.time_exceedance(math.exp(0.14))
    assert exceedance[index] < 0.01
    assert posterior.time_exceedance(math.exp(0.11))[index] > 0.99


@given(time=st.floats(0.0, 0.5), error=st.floats(0.001, 0.1))
@examples(20)
def test_measurements_narrow_the_ensemble(time, error):
    ensemble = PRIORS["gpu"].ensemble((UNTUNED, *LIMITS), Reference(700.0, 350.0))
    before = ensemble.condition()
    after = ensemble.condition([Observation(6, time, 0.0, error, 10.0)], 0.01)
    assert after.weights.sum() == pytest.approx(1.0, abs=1e-4)
    assert after.log_time_error(6) <= before.log_time_error(6)
    assert after.log_time_error(6) <= 1.5 * math.hypot(error, 0.01)


def test_a_common_error_of_the_reference_does_not_separate_points():
    ensemble = Ensemble((UNTUNED, limit(100.0), limit(200.0)), np.zeros((1, 3)), np.zeros((1, 3)))
    seen = [Observation(1, 0.05, 0.0, 0.001, 0.001), Observation(2, 0.05, 0.0, 0.001, 0.001)]
    shared = ensemble.condition(seen, reference_time_error=0.05)
    assert abs(shared.mean_log_time()[1]) < 0.02, "the reference is wrong rather than both points"
    alone = ensemble.condition(seen)
    assert alone.mean_log_time()[1] == pytest.approx(0.05, abs=0.005)


def test_samples_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="samples of shape"):
        Ensemble((UNTUNED,), np.zeros((3, 2)), np.zeros((3, 2)))


def test_a_curve_moves_the_prior_to_its_points():
    point = LIMITS[4]
    measured = ResponsePoint(point, 1.3, 0.6, CurveSource.EARLIER_RUNS, 0.01, 3)
    unknown = ResponsePoint(limit(333.0), 1.01, 0.9, CurveSource.EARLIER_RUNS, 0.01, 3)
    prior = curve_prior(PRIORS["gpu"], ResponseCurve("A", "b", (measured, unknown)))
    ensemble = prior.ensemble((UNTUNED, *LIMITS), Reference(700.0, 350.0))
    assert ensemble.points == (UNTUNED, *LIMITS)
    posterior = ensemble.condition()
    assert math.exp(posterior.mean_log_time()[5]) == pytest.approx(1.3, abs=0.03)
    chosen, source = prior.static_point(LIMITS, Reference(700.0, 350.0), Objective("energy", 0.4))
    assert (chosen, source) == (point, CurveSource.EARLIER_RUNS)
    chosen, source = prior.static_point(LIMITS, Reference(700.0, 350.0), Objective("energy", 0.05))
    assert source is CurveSource.GENERIC_PRIOR, "1.3 breaks the limit"


@pytest.mark.parametrize(
    ("draw", "objective", "expected"),
    [
        (300.0, Objective("edp"), 260.0),
        (90.0, Objective("edp"), None),
        (None, Objective("edp"), None),
        (300.0, Objective("energy", 0.05), None),
    ],
)
def test_safe_point_follows_the_own_draw(draw, objective, expected):
    point = safe_point(LIMITS, Reference(600.0, draw), GPU, objective)
    assert point.gpu_limit_watts == expected


@given(draw=st.floats(150.0, 400.0), limit_share=st.sampled_from([0.03, 0.05, 0.1]))
@examples(20)
def test_without_progress_a_slowdown_limit_is_almost_certainly_kept(draw, limit_share):
    objective, reference = Objective("energy", limit_share), Reference(2 * draw, draw)
    point, source = PRIORS["joint"].static_point((*LIMITS, *cpu_frequencies(CPU, 5)), reference, objective)
    assert source is CurveSource.GENERIC_PRIOR
    if point != UNTUNED:
        assert point == limit(point.gpu_limit_watts), "processors are not touched"
        slowdown = PRIORS["joint"].ensemble((point,), reference).log_time[:, 0]
        assert np.mean(slowdown > math.log(1.01 + limit_share)) <= 0.015, "0.01 with deviations from samples"


def test_a_wide_slowdown_limit_is_used_and_a_narrow_one_leaves_the_job_untuned():
    fine, reference = [limit(value) for value in range(200, 400, 5)], Reference(800.0, 400.0)
    points = {
        share: PRIORS["gpu"].static_point(fine, reference, Objective("energy", share))[0]
        for share in (0.0, 0.03, 0.1, 0.2)
    }
    assert points[0.0] == points[0.03] == UNTUNED
    assert 350.0 > points[0.2].gpu_limit_watts >= 280.0
    assert 400.0 > points[0.1].gpu_limit_watts > points[0.2].gpu_limit_watts


def test_measurements_of_a_curve_exclude_the_limits_that_they_refute():
    fine, reference = [limit(value) for value in range(200, 400, 5)], Reference(800.0, 400.0)
    objective = Objective("energy", 0.2)
    chosen = PRIORS["gpu"].static_point(fine, reference, objective)[0]
    slow = ResponsePoint(limit(350.0), 1.4, 0.8, CurveSource.CHARACTERISATION, 0.01, 3)
    curve = ResponseCurve("A", "b", (slow,))
    assert chosen.gpu_limit_watts < 350.0
    point, _ = curve_prior(PRIORS["gpu"], curve).static_point(fine, reference, objective)
    assert point == UNTUNED or point.gpu_limit_watts > 350.0


@given(low=st.floats(10.0, 500.0), span=st.floats(1.0, 2000.0), count=st.integers(2, 30))
@examples(50)
def test_limits_lie_within_the_range_in_even_steps(low, span, count):
    points = gpu_limits(GpuHardware(1, low + span, low), count)
    values = [point.gpu_limit_watts for point in points]
    assert values[0] == low
    assert all(one < other for one, other in pairwise(values))
    assert values[-1] < low + span
    assert len(values) <= count
    assert len({round(other - one, 6) for one, other in pairwise(values[1:])}) <= 1


def test_frequencies_of_a_table_are_its_own():
    cpu = CpuHardware(1, 2000.0, 1500.0, table_mhz=(1500.0, 1700.0, 2000.0))
    assert [point.cpu_max_mhz for point in cpu_frequencies(cpu)] == [1500.0, 1700.0]
    samples = PhysicalPrior(cpu=cpu).ensemble((UNTUNED, *cpu_frequencies(cpu)), Reference(300.0))
    assert samples.log_time[:, 2].mean() > 0.1, "a bound below the table's maximum forbids boost"


def test_a_coarse_table_gets_a_bound_that_only_disables_boost():
    amd = CpuHardware(1, 3000.0, 1300.0, table_mhz=(1300.0, 2100.0, 3000.0), boosts=True)
    assert [point.cpu_max_mhz for point in cpu_frequencies(amd)] == [1300.0, 2100.0, 3000.0]
    samples = PhysicalPrior(cpu=amd).ensemble((UNTUNED, *cpu_frequencies(amd)), Reference(300.0))
    assert 0.0 < samples.log_time[:, 3].mean() < samples.log_time[:, 2].mean()
    intel = CpuHardware(1, 2001.0, 1900.0, table_mhz=(1900.0, 2000.0, 2001.0), boosts=True)
    assert [point.cpu_max_mhz for point in cpu_frequencies(intel)] == [1900.0, 2000.0]
    assert [point.cpu_max_mhz for point in cpu_frequencies(replace(amd, boosts=False))] == [1300.0, 2100.0]


@pytest.mark.parametrize(
    ("driver", "boost", "whole_node", "offered"),
    [
        ("acpi-cpufreq", True, True, True),
        ("acpi-cpufreq", False, True, False),
        ("acpi-cpufreq", True, False, False),
        ("intel_cpufreq", True, True, False),
    ],
)
def test_boost_is_tuned_if_a_job_has_the_whole_node_and_a_table_of_frequencies(
    driver, boost, whole_node, offered
):
    table = (3_000_000, 2_100_000, 1_300_000)
    bounds = (1_300_000, 3_000_000)
    policy = CpufreqPolicy("policy0", (0, 1), driver, (), (), bounds, bounds, table)
    hardware = NodeHardware("x", 2, policies=(policy,), boost=boost)
    scope = JobScope(whole_node, (), cpus=frozenset({0, 1}))
    points = TunableHardware(hardware, scope).candidates(None)
    assert (OperatingPoint(cpu_max_mhz=3000.0) in points) is offered
    assert OperatingPoint(cpu_max_mhz=2100.0) in points


@pytest.mark.parametrize(("bound_mhz", "lowest_mhz"), [(100.0, 564.0), (1200.0, 1200.0), (2000.0, None)])
def test_every_candidate_clock_is_permitted_by_the_site(bound_mhz, lowest_mhz):
    gpu = GpuInfo(0, 0, "X", 300.0, 300.0, 300.0, (210, 1410))
    hardware, scope = NodeHardware("cpu", 8, gpus=(gpu,)), JobScope(True, (0,), gpu_job=True)
    config = Config(bounds=BoundsConfig(gpu_clock_mhz=(bound_mhz, 10_000.0)))
    points = TunableHardware(hardware, scope, bounds=config.bounds).candidates(250.0)
    assert min((point.gpu_clock_mhz for point in points), default=None) == lowest_mhz
    for point in points:
        (setting,) = point_settings(point, hardware, scope, config)
        assert setting.value == f"210-{point.gpu_clock_mhz:.0f}"


def test_an_advised_clock_below_the_site_s_minimum_becomes_the_minimum():
    gpu = GpuInfo(0, 0, "X", 300.0, 300.0, 300.0, (210, 1410))
    hardware, scope = NodeHardware("cpu", 8, gpus=(gpu,)), JobScope(True, (0,), gpu_job=True)
    bounds = BoundsConfig(gpu_clock_mhz=(1200.0, 10_000.0))
    advised = OperatingPoint(gpu_clock_mhz=600.0, cpu_max_mhz=2000.0)
    tunable = TunableHardware(hardware, scope, frozenset({"cpu_max_mhz"}), bounds)
    assert tunable.allowed(advised) == OperatingPoint(gpu_clock_mhz=1200.0)
    assert tunable.allowed(OperatingPoint(gpu_clock_mhz=1300.0)) == OperatingPoint(gpu_clock_mhz=1300.0)
    assert not tunable.can_change(advised)
    assert tunable.can_change(OperatingPoint(gpu_clock_mhz=600.0))
    blocked = TunableHardware(hardware, scope, frozenset({"gpu_clock_mhz"}), bounds)
    assert blocked.allowed(advised) == OperatingPoint(cpu_max_mhz=2000.0)


@given(change=st.floats(0.05, 0.5), sign=st.sampled_from([-1, 1]))
@examples(30)
def test_detector_finds_a_lasting_change_within_six_windows(change, sign):
    detector = ChangeDetector()
    assert any(detector.add(sign * change, 0.01) for _ in range(6))


def test_detector_is_quiet_under_noise():
    detector, noise = ChangeDetector(), np.random.default_rng(1).normal(0.0, 0.01, 2000)
    assert not any(detector.add(float(value), 0.01) for value in noise)


@given(
    st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.8, 2.0)), min_size=1, max_size=20),
    st.floats(0.0, 0.2),
    st.floats(1.0, 50.0),
)
@examples(50)
def test_a_window_at_the_maximum_ratio_keeps_the_job_within_its_limit(intervals, slowdown_limit, window_s):
    budget = RunBudget(Objective("energy", slowdown_limit))
    for untuned_s, ratio in intervals:
        budget.add(untuned_s * ratio, math.log(ratio), 0.0)
    untuned = sum(untuned_s for untuned_s, _ in intervals)
    elapsed = sum(untuned_s * ratio for untuned_s, ratio in intervals)
    assert budget.slowdown == pytest.approx(elapsed / untuned - 1)
    ratio = budget.max_time_ratio(window_s)
    if ratio > 1.0:
        assert (elapsed + window_s * ratio) / (untuned + window_s) <= 1 + slowdown_limit + 1e-9


def test_losses_use_up_the_budget_and_gains_fill_it():
    budget = RunBudget(Objective("edp"), expected_duration_s=1000.0)
    budget.add(10.0, 0.0, 0.0)
    start = budget.max_loss(10.0)
    budget.add(10.0, math.log(1.2), 0.0)
    assert budget.max_loss(10.0) < start
    budget.add(100.0, 0.0, math.log(0.7))
    assert budget.max_loss(10.0) > start


def test_a_reference_track_stays_small_in_a_long_job():
    track = ReferenceTrack()
    for number in range(3000):
        block = SpeedMeasurement()
        block.add(window(1.0 + 0.001 * (number % 2), 0.01, 100.0 * number))
        track.append(block)
        assert not track.is_old(0, 100.0)
    assert track.is_old(200, 100.0)
    assert len(track.blocks) == MAX_BLOCKS
    assert sum(block.windows for block in track.blocks) == 3000
    rate, error, _ = track.at(100.0)
    assert math.exp(rate) == pytest.approx(1.0005, abs=1e-4)
    assert error == 0.001


def test_agreeing_references_are_averaged_and_drifting_ones_interpolated():
    def block(rate, start_s):
        made = SpeedMeasurement()
        made.add(window(rate, 0.01, start_s))
        return made

    rate, error, _ = ReferenceTrack([block(1.0, 0.0), block(1.01, 100.0)]).at(50.0)
    assert (math.exp(rate), error) == (pytest.approx(1.005, abs=1e-4), pytest.approx(0.00707, abs=1e-4))
    drifting = ReferenceTrack([block(1.0, 0.0), block(0.9, 100.0)])
    assert math.exp(drifting.at(52.5)[0]) == pytest.approx(math.sqrt(0.9), abs=1e-4)
    assert math.exp(drifting.at(500.0)[0]) == pytest.approx(0.9)


def test_scatter_beyond_the_stated_errors_widens_them():
    noise, before = NoiseScale(), SpeedMeasurement()
    before.add(window(1.0))
    for rate in (1.1, 0.9, 1.1, 0.9):
        noise.add(before, window(rate))
        before.add(window(rate))
    assert noise.factor > 2.0
    steady = NoiseScale()
    for _ in range(20):
        steady.add(before, window(before.units_per_s))
    assert steady.factor == 1.0


@pytest.mark.parametrize(
    ("prior", "point"),
    [
        (joint_prior(GpuHardware(1, 300, 100, 1500.0), CpuHardware(1, 3000, 1000)), {"gpu_clock_mhz": 700.0}),
        (gpu_prior(GpuHardware(1, 300, 100, 1500.0)), {"gpu_clock_mhz": 700.0}),
        (cpu_prior(CpuHardware(1, 3000, 1000)), {"package_limit_watts": 80.0}),
    ],
)
def test_each_knob_has_an_effect_in_the_prior(prior: Prior, point: dict[str, float]) -> None:
    points = (UNTUNED, OperatingPoint(**point))  # type: ignore[arg-type]
    ensemble = prior.ensemble(points, Reference(500.0, 250.0, 150.0))
    assert ensemble.log_time[:, 1].mean() > 0.05
    assert ensemble.log_power[:, 1].mean() < -0.05


def test_the_guard_sees_a_device_whose_power_changes() -> None:
    def window(package_watts: float, gpu_watts: float | None) -> ProgressWindow:
        source = ProgressSource.REPORTED
        return ProgressWindow(UNTUNED, 0, 10, 1, 0.01, 300, source, gpu_watts, package_watts)

    guard = DevicePowerGuard()
    assert guard.add(window(100, None)) == 0
    assert guard.add(window(80, None)) == pytest.approx(math.log(0.8))
    guard.reset()
    assert guard.add(window(100, 200)) == 0
    assert guard.add(window(95, 260)) == pytest.approx(math.log(1.3))


def test_a_used_up_budget_leaves_probes_that_hardly_lose():
    points = (UNTUNED, limit(250.0), limit(150.0))
    log_time = np.array([[0.0, 0.01, 0.2], [0.0, 0.02, 0.5]])
    log_power = np.array([[0.0, -0.15, -0.5], [0.0, -0.15, -0.5]])
    posterior = Ensemble(points, log_time, log_power).condition()
    objective, nothing = Objective("edp"), frozenset()
    assert decide(posterior, objective, Situation(0, nothing, max_loss=-1.0)) == PointDecision(1, probe=True)
    deep = Situation(0, nothing, excluded=frozenset({1}), max_loss=-1.0)
    assert decide(posterior, objective, deep) == PointDecision(0, probe=False)


def test_a_point_is_held_only_if_it_was_measured_and_keeps_the_limit():
    points = (UNTUNED, limit(250.0), limit(150.0))
    samples = np.tile([0.0, 0.03, 0.10], (4, 1)), np.tile([0.0, -0.1, -0.4], (4, 1))
    seen = [Observation(1, 0.03, -0.1, 0.002, 0.002), Observation(2, 0.1, -0.4, 0.002, 0.002)]
    posterior = Ensemble(points, *samples).condition(seen)
    both = Situation(2, frozenset({1, 2}))
    assert decide(posterior, Objective("energy", 0.05), both) == PointDecision(1, probe=False)
    assert decide(posterior, Objective("energy", 0.2), both) == PointDecision(2, probe=False)
    assert decide(posterior, Objective("energy", 0.01), both) == PointDecision(0, probe=False)
    none = Situation(0, frozenset(), may_probe=False)
    assert decide(posterior, Objective("energy", 0.2), none) == PointDecision(0, probe=False)
