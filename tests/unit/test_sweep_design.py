"""Tests of the design and the evaluation of parameter sweeps (`senergy sweep`).

The tests cover the values of the varied factors and the points of a sweep. They also cover the metrics of
the points, and the rule by which one point dominates another.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.tuning.sweep.design import build_points
from slurm_energy.tuning.sweep.dominance import dominated_points
from slurm_energy.tuning.sweep.factors import make_factor, parse_factor, parse_variable, read_factors
from slurm_energy.tuning.sweep.intervals import difference_half_width, half_width, student_t
from slurm_energy.tuning.sweep.metrics import (
    METRICS,
    PointGains,
    RunMeasurement,
    best_points,
    energy_delay_sum,
    gain_half_width,
    gains,
    summarise,
)
from slurm_energy.tuning.sweep.pareto_front import pareto_front
from slurm_energy.tuning.sweep.requested_settings import requested_settings


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("gpu-cap", "100..400:100", ("100", "200", "300", "400")),
        ("gpu-cap", "100..390:100,none", ("100", "200", "300", None)),
        ("gpu-cap", "400..100:150", ("400", "250", "100")),
        ("gpu-cap", "200W,0.3kW,200", ("200", "300")),
        ("cpu-freq", "1.2GHz..2GHz:0.4GHz", ("1200", "1600", "2000")),
        ("threads", "1..4:1", ("1", "2", "3", "4")),
        ("precision", "fp32,bf16", ("fp32", "bf16")),
        ("env.LR", "0.1..0.3:0.1,auto", ("0.1", "0.2", "0.3", "auto")),
        ("env.RANGE", "a..b:c", ("a..b:c",)),
    ],
)
def test_values_of_a_factor(name: str, text: str, values: tuple[str | None, ...]) -> None:
    assert parse_factor(name, text).values == values


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpu-cap", ""),
        ("gpu-cap", "100..400"),
        ("gpu-cap", "100..400:0"),
        ("gpu-cap", "1..900000:1"),
        ("gpu-cap", "-5"),
        ("cpu-freq", "fast"),
        ("threads", "2.5"),
        ("threads", "none"),
        ("colour", "red"),
        ("env.1X", "a"),
        ("env.X", "a\nb"),
        ("sbatch.--nodes", "1"),
    ],
)
def test_invalid_values_are_one_line(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_factor(name, text)
    assert "\n" not in str(caught.value)


@given(
    first=st.integers(1, 2000), count=st.integers(0, 200), step=st.integers(1, 50), rest=st.floats(0, 0.99)
)
def test_a_range_has_its_first_value_and_equal_steps(first: int, count: int, step: int, rest: float) -> None:
    last = first + count * step + rest * step
    values = [float(v or 0) for v in parse_factor("gpu-cap", f"{first}..{last:.6f}:{step}").values]
    assert values == [first + index * step for index in range(len(values))]
    assert len(values) - 1 in (count, count + 1)  # + 1 if `rest` rounds up to a whole step
    assert values[-1] <= last + 1e-5


def test_file_of_factors() -> None:
    text = b'gpu-cap = "100..200:50"\nthreads = [1, 2]\n[env]\nOPTIONS = ["a,b", "c"]\n[sbatch]\nnodes = 2\n'
    assert [(f.name, f.values) for f in read_factors(text, "f.toml")] == [
        ("gpu-cap", ("100", "150", "200")),
        ("threads", ("1", "2")),
        ("env.OPTIONS", ("a,b", "c")),
        ("sbatch.nodes", ("2",)),
    ]
    for bad in (b"x = ", b"colour = 1", b"[other]\nx = 1", b"threads = [true]", b"threads = [[1]]", b"\xff"):
        with pytest.raises(UsageError, match=r"^f\.toml"):
            read_factors(bad, "f.toml")


def test_points_start_with_the_reference() -> None:
    factors = [parse_factor("gpu-cap", "100,200"), parse_variable("LR=a,b")]
    points = build_points(factors)
    assert [str(point) for point in points] == [
        "gpu-cap=none env.LR=a",
        "gpu-cap=100 env.LR=a",
        "gpu-cap=100 env.LR=b",
        "gpu-cap=200 env.LR=a",
        "gpu-cap=200 env.LR=b",
    ]
    assert [point.policy for point in points[:2]] == ["monitor", "cap"]
    assert len(build_points(factors, with_reference=False)) == 4
    with_policy = build_points([parse_factor("policy", "edp,monitor"), parse_factor("gpu-cap", "none")])
    assert [point.policy for point in with_policy] == ["monitor", "edp"]


def test_energy_options_of_a_file_set_the_policy() -> None:
    """A factor has the same effect by its own name as by the name of the sbatch option that it sets."""
    caps = build_points(read_factors(b"[sbatch]\nenergy-gpu-cap = [150, 200]\n", "f.toml"))
    assert [point.policy for point in caps] == ["monitor", "cap", "cap"]
    policies = build_points(read_factors(b'[sbatch]\nenergy-policy = ["edp", "monitor"]\n', "f.toml"))
    assert [point.policy for point in policies] == ["monitor", "edp"]
    assert requested_settings(policies[1]).options == {"energy-policy": "edp"}


def test_bad_designs() -> None:
    cap = parse_factor("gpu-cap", "100..400:1")
    for factors in ([], [cap, cap], [cap, make_factor("threads", range(1, 30))]):
        with pytest.raises(UsageError):
            build_points(factors)


@pytest.mark.parametrize(
    ("text", "second", "first"),
    [
        (b"batch-size = 8\n[env]\nBATCH_SIZE = [32, 64]\n", "env.BATCH_SIZE", "batch-size"),
        (b"gpu-cap = 100\n[sbatch]\nenergy-gpu-cap = [150, 200]\n", "sbatch.energy-gpu-cap", "gpu-cap"),
    ],
)
def test_factors_that_set_the_same_are_refused(text: bytes, second: str, first: str) -> None:
    why = f"sets the same option or variable as factor {first}"
    with pytest.raises(UsageError, match=f"^factor {second}: {why}"):
        build_points(read_factors(text, "f.toml"))
    assert len(build_points(read_factors(b"[env]\nnodes = 1\n[sbatch]\nnodes = 1\n", "f.toml"))) == 1


def point(time_s: float, joules: float, runs: int = 1):
    return summarise([RunMeasurement(time_s, joules)] * runs)


def test_metrics_reproduce_the_published_gains() -> None:
    """The metrics of a sweep reproduce the gains at 170 W in Table 1 of the paper power-capping.

    All three published gains follow from one pair of time ratio and energy ratio.
    """
    time_ratio, energy_ratio = 1.0938, 0.7559
    measured = gains(point(85.6 * time_ratio, 200e3 * energy_ratio), point(85.6, 200e3))
    assert measured.gain_minus_loss_percent == pytest.approx(15.03, abs=0.01)
    assert measured.edp_percent == pytest.approx(17.32, abs=0.01)
    assert measured.eds_percent(2.0) == pytest.approx(7.52, abs=0.01)


def test_student_t_is_that_of_published_tables() -> None:
    """The values of Student's t distribution equal those of published tables.

    Source: Abramowitz and Stegun, Table 26.10.
    """
    table = {1: 12.706, 4: 2.776, 10: 2.228, 11: 2.201, 15: 2.131, 30: 2.042, 120: 1.980}
    for freedom, value in table.items():
        assert student_t(freedom) == pytest.approx(value, abs=1e-3)
    assert student_t(4.9) == student_t(4)


def test_confidence_intervals_of_means_and_gains() -> None:
    assert half_width([1.0]) is None
    assert half_width([9.0, 10.0, 11.0]) == pytest.approx(4.3027 / math.sqrt(3))
    assert difference_half_width([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert difference_half_width([1.0], [2.0, 2.0]) is None
    # Equal groups: the pooled interval with 2 (n - 1) degrees of freedom.
    assert difference_half_width([9.0, 10.0, 11.0], [0.0, 1.0, 2.0]) == pytest.approx(
        2.7764 * math.sqrt(2 / 3)
    )


def test_gain_interval_counts_common_deviations_of_time_and_energy_once() -> None:
    reference = summarise([RunMeasurement(10.0, 100.0)] * 3)
    assert reference is not None
    together = summarise([RunMeasurement(10.0 + d, 100.0 + 10 * d) for d in (-0.1, 0.0, 0.1)])
    opposed = summarise([RunMeasurement(10.0 + d, 100.0 - 10 * d) for d in (-0.1, 0.0, 0.1)])
    assert together is not None
    assert opposed is not None
    assert gain_half_width(opposed, reference, "edp") == pytest.approx(0.0, abs=1e-9)
    # EDP varies by 2 % with time and energy together: standard error 2 / sqrt(3), 2 degrees of freedom.
    assert gain_half_width(together, reference, "edp") == pytest.approx(4.3027 * 2 / math.sqrt(3), rel=1e-3)
    assert gain_half_width(together, reference, "energy") == pytest.approx(4.3027 / math.sqrt(3), rel=1e-3)
    assert gain_half_width(together, together, "edp") == 0.0, "the gain of the reference is 0 by definition"
    assert gain_half_width(point(1, 1), reference, "edp") is None


@given(time_ratio=st.floats(0.2, 5), energy_ratio=st.floats(0.2, 5), name=st.sampled_from(METRICS))
def test_gain_intervals_follow_the_slope_of_the_metric(time_ratio, energy_ratio, name) -> None:
    step = 1e-4
    reference = point(1.0, 1.0, 2)
    runs = [RunMeasurement(time_ratio * (1 + d), energy_ratio * (1 + d)) for d in (-step, step)]
    varied = summarise(runs)
    ends = [gains(point(run.time_s, run.energy_joules), reference).metric(name) for run in runs]
    expected = 12.7062 * abs(ends[1] - ends[0]) / 2  # standard error of two values: half their difference
    assert gain_half_width(varied, reference, name) == pytest.approx(expected, rel=1e-3, abs=1e-9)


positive = st.floats(0.1, 1e6)


@given(time_ratio=st.floats(0.1, 10), energy_ratio=st.floats(0.01, 10), k=st.floats(1.01, 10))
def test_energy_delay_sum(time_ratio: float, energy_ratio: float, k: float) -> None:
    assert energy_delay_sum(1.0, 1.0, k) == pytest.approx(1.0)
    assert energy_delay_sum(k, 0.0, k) == pytest.approx(1.0)
    value = energy_delay_sum(time_ratio, energy_ratio, k)
    assert min(time_ratio, energy_ratio) - 1e-9 <= value <= max(time_ratio, energy_ratio) + 1e-9


@given(runs=st.lists(st.tuples(positive, positive), min_size=1, max_size=20))
def test_the_best_points_are_on_the_front(runs: list[tuple[float, float]]) -> None:
    points = [point(*run) for run in runs]
    relative = [gains(p, points[0]) for p in points]
    front = pareto_front(points)
    best = best_points(relative)
    assert set(best) == set(METRICS)
    times = [points[index].time_s.mean for index in front]
    assert times == sorted(times)
    for name, index in best.items():
        top = relative[index].metric(name)
        assert any(math.isclose(relative[i].metric(name), top, rel_tol=1e-9, abs_tol=1e-7) for i in front)


@given(runs=st.lists(st.tuples(positive, positive), min_size=1, max_size=20), count=st.integers(1, 3))
def test_dominated_points_are_never_best(runs: list[tuple[float, float]], count: int) -> None:
    points = [point(*run, count) for run in runs]
    dropped = dominated_points([*points, None])
    relative: list[PointGains | None] = [gains(p, points[0]) for p in points]
    assert not dropped & set(best_points(relative).values())
    assert not dropped & set(pareto_front(points))


@given(runs=st.lists(st.tuples(positive, positive, st.integers(1, 3)), min_size=1, max_size=12))
def test_dominated_points_are_those_of_the_definition(runs: list[tuple[float, float, int]]) -> None:
    points = [point(*run) for run in runs]
    noise = 0.005 if any(run[2] > 1 for run in runs) else 0.03  # equal repetitions prove no smaller noise

    def dominates(better, worse) -> bool:
        factor = 1 + 2 * noise * math.sqrt(1 / better.runs + 1 / worse.runs)
        return (
            better.time_s.mean < worse.time_s.mean / factor
            and better.energy_joules.mean * factor < worse.energy_joules.mean
        )

    expected = {i for i, p in enumerate(points) if any(dominates(other, p) for other in points)}
    assert dominated_points(points) == expected


def test_dominance_respects_noise() -> None:
    assert dominated_points([point(10, 100), point(10.5, 105), point(12, 120), None]) == {2}
    assert dominated_points([point(10, 100, 3), point(10.3, 103, 3), point(10, 99, 3)]) == {1}
    assert dominated_points([point(10, 100), point(20, 50)]) == frozenset()


def test_nothing_measured() -> None:
    assert summarise([]) is None
    assert best_points([None]) == {}
    assert pareto_front([None]) == ()
    assert dominated_points([None]) == frozenset()
