"""Tests of the prediction from the history of runs.

The tests check the forecast distributions, the fallback to less similar runs, the effect of how runs ended,
and forecasts of whole queues.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.oracle.history import History, HistoryOracle, ObservedRun, RunEnding, distribution
from slurm_energy.oracle.history.run_history import RUNS_PER_KEY, RUNS_PER_USER
from slurm_energy.oracle.history.run_variability import RunVariability
from slurm_energy.oracle.history.similarity import ATTRIBUTES, LEVELS
from slurm_energy.oracle.prediction import Estimate, Prediction, PredictionRequest, PredictionSource
from slurm_energy.user_quota import fair_quota

NOW = 1_800_000_000.0
VALUES = st.floats(0, 1e9)
SEEN = st.lists(st.tuples(VALUES, st.floats(0.01, 100), st.booleans()), min_size=1, max_size=30)
JOB = {"user": "alice", "account": "physics", "partition": "cpu", "name": "solve", "nodes": 2, "cpus": 8}


def run(duration_s=100.0, watts=200.0, ago=0.0, **more):
    """Return a run that ended `ago` seconds before NOW."""
    joules = None if watts is None else watts * duration_s
    return ObservedRun(NOW - ago, duration_s, energy_joules=joules, **(JOB | more))


def request_for(history, power=None, **more):
    return HistoryOracle(history, power, lambda: NOW).predict(PredictionRequest(**(JOB | more)))


def history_of(*runs):
    history = History()
    for one in runs:
        history.learn(one)
    return history


class Everywhere:
    """Test substitute for the predictor (oracle) that predicts the same values for every job."""

    def predict(self, _question):
        one = Estimate(500.0, 100.0, 900.0)
        return Prediction(one, one, one, PredictionSource.NAMEPLATE, "everywhere")


class TestDistributions:
    @given(SEEN)
    def test_lie_between_the_extremes_in_order(self, observed):
        grid = distribution.mix(observed)
        assert len(grid) == distribution.ATOMS and list(grid) == sorted(grid)
        values = {value for value, _, _ in observed}
        assert set(grid) <= values
        assert min(values) <= distribution.low(grid) <= distribution.mean(grid) <= distribution.high(grid)
        assert distribution.low(grid) <= distribution.middle(grid) <= distribution.high(grid) <= max(values)

    @given(SEEN, st.floats(0.01, 100))
    def test_only_ratios_of_weights_count(self, observed, factor):
        again = [(value, weight * factor, cut) for value, weight, cut in observed]
        pairs = zip(distribution.mix(observed), distribution.mix(again), strict=True)
        assert (
            sum(not math.isclose(a, b) for a, b in pairs) <= 1
        )  # rounding may move a value across a boundary

    def test_weights_are_shares_of_the_values(self):
        grid = distribution.mix([(1.0, 3.0, False), (2.0, 1.0, False)])
        assert (grid.count(1.0), grid.count(2.0)) == (30, 10)
        grid = distribution.mix([(1.0, 3.0, False)], (5.0,) * 40, 1.0)
        assert (grid.count(1.0), grid.count(5.0)) == (30, 10)

    def test_a_lower_bound_gives_its_share_to_larger_values(self):
        # The mass of "at least 20" moves to 30: the Kaplan-Meier masses are 1/3, 0, 2/3.
        grid = distribution.mix([(10.0, 1.0, False), (20.0, 1.0, True), (30.0, 1.0, False)])
        assert (grid.count(10.0), grid.count(20.0), grid.count(30.0)) == (13, 0, 27)
        assert set(distribution.mix([(10.0, 1.0, True)])) == {10.0}

    @given(SEEN)
    def test_lower_bounds_never_make_it_smaller(self, observed):
        exact = distribution.mix([(value, weight, False) for value, weight, _ in observed])
        bounds = distribution.mix(observed)
        assert all(a <= b for a, b in zip(exact[:-1], bounds[:-1], strict=True))

    def test_of_nothing_is_an_error(self):
        with pytest.raises(ValueError, match="no observation"):
            distribution.mix([])

    @given(st.lists(st.tuples(st.floats(0, 1e300), st.floats(0, 1e300)), max_size=200))
    def test_ratios_are_positive_and_in_order(self, pairs):
        variability = RunVariability()
        for before, after in pairs:
            variability.add(before, after)
        assert list(variability.factors) == sorted(variability.factors)
        assert all(factor > 0 for factor in variability.factors)

    def test_one_user_does_not_determine_the_variability(self):
        variability = RunVariability()
        for _ in range(300):
            variability.add(1.0, 1.1, "alice")
        for number in range(2000):
            variability.add(1.0, 1e6, "mallory")
            variability.add(1.0, 1.1, f"u{number % 50}")
        assert max(variability.factors[2:-2]) < 1.2
        alone = RunVariability()
        for _ in range(2000):
            alone.add(1.0, 3.0, "alice")
        assert max(alone.factors) == pytest.approx(3.0)


SAME = {"fingerprint": "f", "policy": "edp"}


class TestFallback:
    def test_uses_the_most_specific_level_with_runs(self):
        """A job is predicted from the most specific level of similarity at which there are runs.

        In the test, each request differs from the stored run in one more attribute. The prediction therefore
        uses the next more general level.
        """
        history = history_of(run(time_limit_s=600.0, **SAME))
        levels, changes = [], {}
        for more in (
            {},
            {"policy": "cap"},
            {"fingerprint": "g"},
            {"nodes": 4},
            {"name": "other", "nodes": 2},
            {"cpus": 16},
            {"user": "bob"},
            {"account": "chemistry"},
        ):
            changes |= more
            forecast = history.forecast(PredictionRequest(**(JOB | {"time_limit_s": 600.0} | SAME | changes)))
            levels.append(forecast.level)
        assert levels == list(range(len(LEVELS)))
        assert history.forecast(PredictionRequest(user="carol")) is None

    def test_gpu_jobs_do_not_predict_other_jobs(self):
        assert history_of(run(gpus=2)).forecast(PredictionRequest(**JOB)) is None

    def test_a_new_program_is_less_certain_than_a_repeated_one(self):
        history = history_of(*(run(duration_s=100 + n % 5, time_limit_s=6000.0) for n in range(40)))
        known = request_for(history, time_limit_s=6000.0)
        new = request_for(history, time_limit_s=6000.0, name="new", cpus=99)
        assert known.observations == new.observations == 40
        assert new.duration_s.high - new.duration_s.low > 3 * (known.duration_s.high - known.duration_s.low)

    def test_the_share_of_the_time_limit_carries_over(self):
        """The run time of a program without earlier runs is predicted as a share of its time limit.

        The share is learned from other programs of the user. Their run time in seconds is not used.
        """
        history = history_of(*(run(duration_s=90.0 + n % 9, time_limit_s=1000.0) for n in range(60)))
        prediction = request_for(history, name="new", cpus=99, time_limit_s=100_000.0)
        assert 9000 * 0.7 < prediction.duration_s.mean < 9800 * 2

    def test_the_newest_runs_count_most(self):
        history = history_of(
            *(run(duration_s=100.0) for _ in range(30)), *(run(duration_s=200.0) for _ in range(12))
        )
        assert distribution.middle(history.forecast(run()).seconds) == 200.0

    def test_runs_per_key_are_bounded_and_old_keys_are_dropped(self):
        history = history_of(*(run(ago=1000.0 - n) for n in range(200)), run(user="old", ago=5000.0))
        assert request_for(history).observations == RUNS_PER_KEY
        history.forget(NOW - 2000)
        assert history.forecast(PredictionRequest(user="old")) is None
        assert request_for(history) is not None

    def test_memory_is_bounded_if_every_job_has_its_own_name(self):
        history = History(max_keys=100)
        for number in range(500):
            history.learn(run(name=f"job{number}", ago=1000.0 - number))
            assert len(history) <= 100
        assert history.forecast(PredictionRequest(**(JOB | {"name": "job499"}))).level == 2
        assert history.forecast(PredictionRequest(**(JOB | {"name": "job3"}))).level == 5


class TestPredictions:
    def test_repeated_runs(self):
        prediction = request_for(history_of(*(run(ago=3600.0 * n + 7200) for n in reversed(range(5)))))
        assert prediction.source is PredictionSource.HISTORY
        assert (prediction.observations, prediction.age_s) == (5, 7200.0)
        assert prediction.basis == "5 runs: same user, name and resources"
        for estimate, true in (
            (prediction.duration_s, 100),
            (prediction.power_watts, 200),
            (prediction.energy_joules, 2e4),
        ):
            assert estimate.low <= true <= estimate.high
            assert estimate.mean == pytest.approx(true, rel=0.1)

    def test_predictions_from_one_run_are_wide(self):
        duration = request_for(history_of(run())).duration_s
        assert duration.low < 60 and duration.high > 170

    def test_power_scales_with_nodes_and_gpus_but_time_does_not(self):
        wider = request_for(history_of(*(run() for _ in range(20))), nodes=4)
        assert wider.power_watts.mean == pytest.approx(400, rel=0.05)
        assert wider.energy_joules.mean == pytest.approx(4e4, rel=0.05)
        assert wider.duration_s.mean == pytest.approx(100, rel=0.05)
        fewer = request_for(history_of(*(run(gpus=4) for _ in range(20))), gpus=1)
        assert fewer.power_watts.mean == pytest.approx(50, rel=0.05)

    def test_no_longer_than_the_limit(self):
        prediction = request_for(history_of(*(run(duration_s=1000.0) for _ in range(9))), time_limit_s=300.0)
        assert prediction.duration_s == Estimate(300.0, 300.0, 300.0)
        assert prediction.energy_joules.high <= 300 * prediction.power_watts.high

    def test_endings_of_runs(self):
        """The prediction treats the length of a run according to how the run ended.

        If a run was ended from outside, for example by its time limit, its length is a lower bound. The
        length of a run that failed by itself is exact.
        """
        done = [run(duration_s=100.0 + n) for n in range(10)]
        cut = [run(duration_s=50.0, ending=ending) for ending in RunEnding if not ending.by_itself] * 3
        prediction = request_for(history_of(*done, *cut))
        assert prediction.duration_s.mean > 95
        assert prediction.notes == (
            "9 of 19 runs did not end by themselves (3 timeout, 3 cancelled, 3 interrupted): "
            "their lengths are lower bounds",
        )
        failed = request_for(
            history_of(*done, *(run(duration_s=5.0, ending=RunEnding.FAILED) for _ in range(3)))
        )
        assert failed.duration_s.low < 10
        assert failed.notes == ("3 of 13 runs failed",)

    @pytest.mark.parametrize(
        ("state", "ending"),
        [
            ("COMPLETED", RunEnding.COMPLETED),
            ("CANCELLED by 1001", RunEnding.CANCELLED),
            ("TIMEOUT", RunEnding.TIMEOUT),
            ("OUT_OF_MEMORY", RunEnding.FAILED),
            ("PREEMPTED", RunEnding.INTERRUPTED),
            ("REQUEUED", RunEnding.INTERRUPTED),
            ("NODE_FAIL", RunEnding.INTERRUPTED),
            ("something new", RunEnding.INTERRUPTED),
        ],
    )
    def test_states_of_slurm(self, state, ending):
        assert RunEnding.of_state(state) is ending

    def test_power_comes_from_another_oracle_without_energy(self):
        history = history_of(*(run(watts=None) for _ in range(9)))
        assert request_for(history) is None
        prediction = request_for(history, Everywhere())
        assert prediction.power_watts.mean == 500
        assert prediction.energy_joules.low == pytest.approx(prediction.duration_s.low * 100)
        assert prediction.notes[-1] == "the energy of no run is known: watts from nameplate (everywhere)"


jobs = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["a", "b"]),
        "account": st.sampled_from(["x", "y"]),
        "partition": st.sampled_from(["p", "q"]),
        "name": st.sampled_from(["m", "n"]),
        "fingerprint": st.sampled_from(["f", "g"]),
        "nodes": st.integers(1, 3),
        "gpus": st.integers(0, 2),
        "time_limit_s": st.sampled_from([60.0, 3600.0]),
    },
)
runs = st.builds(
    lambda job, seconds, watts, ending: ObservedRun(NOW, seconds, ending, watts and watts * seconds, **job),
    jobs,
    st.floats(0, 1e6),
    st.none() | st.floats(0, 1e4),
    st.sampled_from(RunEnding),
)


@given(st.lists(runs, max_size=40), st.lists(jobs, min_size=1, max_size=5))
def test_queue_forecasts_equal_single_predictions(observed, wanted):
    np = pytest.importorskip("numpy")
    from slurm_energy.oracle.history.queue_forecast import predict_many, predict_power_quantile

    history = history_of(*observed)
    columns = {name: [job.get(name) for job in wanted] for name in ATTRIBUTES}
    many = predict_many(history, columns)
    lowest, most = (predict_power_quantile(history, columns, quantile) for quantile in (0.0, 1.0))
    assert np.array_equal(most[1], many.level)
    for low, high in ((lowest[0], many.power_low_watts), (many.power_high_watts, most[0])):
        assert np.array_equal(np.isnan(low), np.isnan(high))
        assert not (low > high * (1 + 1e-12)).any()
    for index, job in enumerate(wanted):
        single = HistoryOracle(history, Everywhere(), lambda: NOW).predict(PredictionRequest(**job))
        assert (many.runs[index] > 0) == (single is not None)
        if single is None:
            continue
        assert single.duration_s.high <= job.get("time_limit_s", math.inf)
        result = [many.duration_low_s[index], many.duration_s[index], many.duration_high_s[index]]
        expected_estimate = single.duration_s
        assert result == pytest.approx(
            [expected_estimate.low, expected_estimate.mean, expected_estimate.high], rel=1e-9, abs=1e-9
        )
        if not np.isnan(many.power_watts[index]):
            assert many.power_watts[index] == pytest.approx(single.power_watts.mean, rel=1e-9, abs=1e-9)
            assert many.energy_joules[index] == pytest.approx(single.energy_joules.mean, rel=1e-9, abs=1e-6)
    assert dataclasses.asdict(many).keys()


def test_columns_of_different_lengths():
    pytest.importorskip("numpy")
    from slurm_energy.oracle.history.queue_forecast import predict_many

    for bad in ({}, {"user": ["a"], "name": []}, {"colour": ["red"]}):
        with pytest.raises(ValueError, match="columns of one length"):
            predict_many(History(), bad)


def test_one_user_cannot_displace_the_history_of_others():
    history = History(max_keys=200)
    for number in range(5):
        history.learn(run(user="bob", name=f"b{number}", ago=5000.0))
    for number in range(1000):
        history.learn(run(user="mallory", name=f"job{number}", ago=1000.0 - number))
        assert len(history) <= 200
    for number in range(5):
        assert history.forecast(PredictionRequest(**(JOB | {"user": "bob", "name": f"b{number}"}))).level == 2
    assert history.forecast(PredictionRequest(**(JOB | {"user": "mallory", "name": "job999"}))).level == 2


def test_one_user_cannot_fill_a_key_that_several_share():
    history = history_of(*(run(user=f"u{n}", duration_s=50.0) for n in range(20)))
    for _ in range(200):
        history.learn(run(user="mallory", duration_s=9000.0))
    entry = history.forecast(PredictionRequest(**(JOB | {"user": "carol"})))
    assert entry.level == 6 and entry.runs == 20 + RUNS_PER_USER
    assert distribution.middle(entry.seconds) == 9000.0  # the newest runs still have the largest weight


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 300))
def test_quotas_are_the_largest_that_fit(counts, most):
    quota = fair_quota(counts, most)
    assert sum(min(count, quota) for count in counts) <= most or quota == 0
    if any(count > quota for count in counts):
        assert sum(min(count, quota + 1) for count in counts) > most
