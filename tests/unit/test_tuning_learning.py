"""Tests of what tuning learns from finished runs of a program.

The measurements are read from the records, compared with each other, and stored exactly once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_examples import NOW, Accounting, item, job

from slurm_energy.accounting import engine
from slurm_energy.accounting.history import run_history, tuning_runs, tuning_starts
from slurm_energy.accounting.history.tuning_starts import IssuedStart, JobRun, Pin, Program
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.records import AppliedSetting, ComponentEnergy, EnergyRecord, JobDevice
from slurm_energy.tuning.learned_run import (
    LearnedLimitRange,
    LearnedRun,
    learned_run,
    point_of_settings,
    workload_class,
)
from slurm_energy.tuning.program_curve import measurements_of, program_curve
from slurm_energy.tuning.response_curve import CurveSource

GPU = JobDevice("gpu[0]", "NVIDIA A40", 100.0, 300.0)
CPU = JobDevice("cpu", "AMD EPYC 7513")
DIGEST = "0123456789abcdef"


def measured(watts=250.0, time=1.03, power=0.85, source="this run", **more):
    point = {"gpu_limit_watts": watts}
    return {"point": point, "time_ratio": time, "power_ratio": power, "source": source, "count": 3, **more}


def tuned(*points, **more):
    reference = {"units_per_s": 3.0, "watts": 320.0}
    return {
        "mode": "on",
        "objective": "edp",
        "points": list(points),
        "reference": reference,
        "probes": 3,
    } | more


def record(tuning=None, applied=(), joules=60_000.0, seconds=200.0, **more):
    values = {"cluster": "c1", "node": "n1", "job_id": 1, "uid": 1000, "policy": "edp", "gpus": (0,)} | more
    components = (
        ComponentEnergy("cpu", joules / 3, "rapl"),
        ComponentEnergy("gpu[0]", joules * 2 / 3, "nvml"),
    )
    return EnergyRecord(
        start=1000.0,
        end=1000.0 + seconds,
        components=components,
        devices=(CPU, GPU),
        tuning=tuning,
        applied=applied,
        cpus=8,
        **values,
    )


def learn(*records, joules=60_000.0, seconds=200.0, fingerprint=DIGEST):
    return learned_run(
        records, job="1", nodes=len(records), energy_joules=joules, seconds=seconds, fingerprint=fingerprint
    )


def whole(point, seconds, watts, end=1000.0, **more):
    values = {"gpu_limits": LearnedLimitRange(100.0, 300.0), "fingerprint": DIGEST} | more
    return LearnedRun(
        "A40", "1 nodes, 1 GPUs, 8 CPUs", end, "1", point=point, seconds=seconds, watts=watts, **values
    )


def cap(watts):
    return OperatingPoint(gpu_limit_watts=watts)


class TestRecords:
    def test_a_tuned_run_gives_its_points(self):
        run = learn(record(tuned(measured())))
        (point,) = run.points
        assert (point.point, point.time_ratio, point.source) == (cap(250.0), 1.03, CurveSource.EARLIER_RUNS)
        assert (run.hardware, run.workload, run.untuned_watts) == ("NVIDIA A40", DIGEST, 320.0)
        assert run.point is None and run.gpu_limits == LearnedLimitRange(100.0, 300.0)
        assert LearnedRun.from_json(run.to_json()) == run

    @pytest.mark.parametrize(
        "point",
        [
            measured(source="earlier runs"),
            measured(source="oracle"),
            measured(time=0.1),
            measured(time=1e9),
            measured(power=0.0001),
            measured(power=40.0),
            measured(watts=20.0),
            measured(watts=900.0),
            measured(time_error=2.0),
        ],
    )
    def test_repeated_advice_and_implausible_points_are_dropped(self, point):
        assert learn(record(tuned(point))) is None

    def test_an_untuned_run_and_a_capped_run_are_whole_runs(self):
        untuned = learn(record(policy="monitor"))
        assert (untuned.point, untuned.seconds, untuned.watts) == (UNTUNED, 200.0, 300.0)
        assert untuned.untuned_gpu_watts == pytest.approx(200.0)
        limit = AppliedSetting("nvml.power_limit[gpu0]", "300 W", "200 W", "200 W", True)
        companion = AppliedSetting("nvml.persistence[gpu0]", "0", "1", "1", True)
        assert learn(record(applied=(limit, companion))).point == cap(200.0)
        assert learn(record(applied=(dataclasses.replace(limit, applied="300 W"),))).point == UNTUNED

    def test_a_run_without_search_is_a_whole_run_at_its_point(self):
        tuning = {
            "mode": "on",
            "objective": "edp",
            "chosen": {"gpu_limit_watts": 250},
            "probes": 0,
            "points": [],
        }
        run = learn(record({**tuning, "exploration": True}))
        assert run.point == cap(250.0) and run.exploration

    @pytest.mark.parametrize(("capped_s", "point"), [(None, UNTUNED), (5.0, UNTUNED), (150.0, None)])
    def test_a_run_that_a_power_budget_limited_has_no_known_point(self, capped_s, point):
        capped = record(policy="monitor", budget_capped_seconds=capped_s)
        other = record(policy="monitor", node="n2")
        assert getattr(learn(other, capped), "point", None) == point
        run = learn(record(tuned(measured()), budget_capped_seconds=capped_s))
        assert len(run.points) == 1  # nothing is measured while the budget limits the job

    def test_nothing_is_learned_from_short_runs_unknown_energy_and_differing_nodes(self):
        assert learn(record(), seconds=5.0) is None
        assert learn(record(), joules=None) is None
        limit = AppliedSetting("nvml.power_limit[gpu0]", "300 W", "200 W", "200 W", True)
        assert learn(record(), record(applied=(limit,), node="n2")) is None

    def test_settings_that_are_no_point(self):
        governor = AppliedSetting(
            "cpufreq.governor[policy0-7]", "schedutil", "performance", "performance", True
        )
        failed = AppliedSetting("nvml.power_limit[gpu0]", "300 W", "200 W", None, True)
        two = [
            AppliedSetting(f"nvml.power_limit[gpu{i}]", "300 W", "1 W", f"{200 + i} W", True) for i in (0, 1)
        ]
        for applied in ([governor], [failed], two):
            assert point_of_settings(applied) is None
        clocks = AppliedSetting("nvml.locked_clocks[gpu0]", "default", "", "210-1200 MHz", True)
        frequency = AppliedSetting("cpufreq.frequency[policy0-7]", "", "", "800-2400 MHz", True)
        profile = AppliedSetting("nvml.power_profile[gpu0-3]", "", "MAX_Q", "MAX_Q", True)
        assert point_of_settings([clocks, frequency, profile]) == OperatingPoint(
            gpu_clock_mhz=1200.0, cpu_max_mhz=2400.0, gpu_power_profile="MAX_Q"
        )
        assert point_of_settings([dataclasses.replace(profile, applied="M" * 100)]) is None

    def test_a_variant_of_a_sweep_is_another_program(self):
        assert learn(record(tag="sweep/s1")).workload == DIGEST
        assert learn(record(tag="sweep/s1+0a1b2c3d")).workload == f"{DIGEST}+0a1b2c3d"

    def test_the_class_of_a_reference_kernel(self):
        assert workload_class("senergy-characterise/memory") == "memory"
        assert [workload_class(tag) for tag in (None, "", "memory", "senergy-characterise/x")] == [None] * 4


class TestCurves:
    def test_whole_runs_are_compared_with_untuned_runs_of_their_shape(self):
        other = dataclasses.replace(whole(UNTUNED, 50.0, 900.0), shape="2 nodes, 2 GPUs, 16 CPUs")
        runs = [whole(UNTUNED, 100.0, 300.0), whole(cap(200.0), 110.0, 210.0, 2000.0), other]
        curve = program_curve(runs, "A40", DIGEST)
        point = next(one for one in curve.points if one.point == cap(200.0))
        assert (point.time_ratio, point.power_ratio, point.count) == (
            pytest.approx(1.1),
            pytest.approx(0.7),
            1,
        )
        assert point.measured_unix_s == 2000.0 and point.source is CurveSource.EARLIER_RUNS

    def test_without_an_untuned_run_the_highest_limit_is_the_reference_if_it_is_close(self):
        runs = [whole(cap(290.0), 100.0, 290.0), whole(cap(200.0), 110.0, 200.0)]
        points = program_curve(runs, "A40", DIGEST).points
        assert max(point.time_ratio for point in points) == pytest.approx(1.1)
        assert (
            program_curve([whole(cap(150.0), 1.0, 1.0), whole(cap(200.0), 1.0, 1.0)], "A40", DIGEST) is None
        )
        assert program_curve([whole(cap(290.0), 100.0, 290.0)], "A40", DIGEST) is None

    def test_repetitions_set_the_error(self):
        runs = [whole(UNTUNED, 100.0 * (1.0 + 0.04 * (i % 2)), 300.0, 1000.0 + i) for i in range(20)]
        (error,) = {one.time_error for one in measurements_of(runs)}
        assert error == pytest.approx(0.02, abs=0.002)
        equal = measurements_of([whole(UNTUNED, 100.0, 300.0, 1000.0 + i) for i in range(64)])
        assert min(one.time_error for one in equal) >= 0.005

    @given(st.lists(st.tuples(st.floats(20, 500), st.floats(20, 500), st.sampled_from((150.0, 200.0, None)))))
    def test_ratios_are_positive_and_finite(self, values):
        runs = [whole(OperatingPoint(limit), seconds, watts) for seconds, watts, limit in values]
        curve = program_curve(runs, "A40", DIGEST)
        for point in curve.points if curve else ():
            assert point.time_ratio > 0 and math.isfinite(point.power_ratio) and point.time_error >= 0.005


def deliver(store, job_id, **more):
    body = record(record_id=f"r{job_id}", job_id=job_id, **more).to_json()
    store.deliver(item(body))
    store.learn(job(job_id, end=1200.0))
    with engine.connect(store.path) as connection:
        run_history.store_finished_runs(connection, NOW)


def run_row(**more):
    values = {"owner": "alice", "hardware": "A40", "workload": DIGEST, "fingerprint": DIGEST, "model": None}
    return tuning_runs.StoredRun(**{**values, "end": 1.0, "body": "{}", **more})


class TestStore:
    @pytest.fixture
    def store(self, tmp_path):
        return Accounting(tmp_path)

    def test_a_job_is_learned_once(self, store):
        deliver(store, 7)
        with engine.connect(store.path) as connection:
            (found,) = tuning_runs.unlearned_jobs(connection)
            assert (found.user, found.records, found.energy_joules) == ("alice", 1, pytest.approx(60_000.0))
            assert json.loads(found.bodies[0])["job_id"] == 7
            tuning_runs.store_learned(connection, [(found.key, run_row())])
            tuning_runs.store_learned(connection, [(found.key, run_row())])
            assert tuning_runs.unlearned_jobs(connection) == []
            assert len(tuning_runs.find_runs(connection, None)) == 1

    @pytest.mark.parametrize("name", ["hardware", "model", "fingerprint", "workload"])
    def test_a_run_with_a_name_too_long_for_the_table_does_not_stop_the_others(self, store_location, name):
        store = Accounting(store_location)
        deliver(store, 7)
        deliver(store, 8)
        with engine.connect(store.path) as connection:
            first, second = (found.key for found in tuning_runs.unlearned_jobs(connection))
            too_long = run_row(**{name: 7 * "Intel(R) Xeon(R) Platinum 8358 CPU + "})
            tuning_runs.store_learned(connection, [(first, too_long), (second, run_row())])
            assert tuning_runs.unlearned_jobs(connection) == []
            assert len(tuning_runs.find_runs(connection, None)) == 1

    def test_huge_records_are_not_read(self, store, monkeypatch):
        monkeypatch.setattr(tuning_runs, "MAX_RECORD_BYTES", 10)
        deliver(store, 7)
        with engine.connect(store.path) as connection:
            assert tuning_runs.unlearned_jobs(connection)[0].bodies == (None,)

    def test_a_crash_before_the_commit_neither_loses_nor_repeats_a_run(self, store):
        deliver(store, 7)
        with engine.connect(store.path) as connection:
            (found,) = tuning_runs.unlearned_jobs(connection)
            broken = run_row(body=None)
            with pytest.raises(AttributeError):
                tuning_runs.store_learned(connection, [(found.key, run_row()), (found.key, broken)])
            assert tuning_runs.find_runs(connection, None) == []
            assert tuning_runs.unlearned_jobs(connection) == [found]

    def test_runs_are_bounded_per_program_and_in_total(self, store, monkeypatch):
        monkeypatch.setattr(tuning_runs, "RUNS_PER_PROGRAM", 2)
        for job_id in range(1, 5):
            deliver(store, job_id)
        with engine.connect(store.path) as connection:
            keys = [found.key for found in tuning_runs.unlearned_jobs(connection)]
            tuning_runs.store_learned(connection, [(key, run_row(end=float(key))) for key in keys])
            kept = tuning_runs.find_runs(connection, None)
            assert [run.end for run in kept] == [3.0, 4.0]
            monkeypatch.setattr(tuning_runs, "MAX_RUNS", 1)
            assert tuning_runs.drop_old(connection, 0.0) == 1
            assert tuning_runs.drop_old(connection, 9.0) == 1

    def test_runs_of_other_users_are_never_returned(self, store):
        deliver(store, 7)
        with engine.connect(store.path) as connection:
            (found,) = tuning_runs.unlearned_jobs(connection)
            tuning_runs.store_learned(connection, [(found.key, run_row(model="bert"))])
            args = {"fingerprint": DIGEST, "model": "bert"}
            assert tuning_runs.runs_of(connection, "mallory", "A40", **args) == []
            assert len(tuning_runs.runs_of(connection, "alice", "A40", **args)) == 1
            assert len(tuning_runs.runs_of(connection, "alice", "A40", fingerprint=None, model="bert")) == 1
            connection.exec_driver_sql("UPDATE tuning_runs SET workload = workload || '+0a1b2c3d'")
            assert tuning_runs.runs_of(connection, "alice", "A40", **args) == []
            assert tuning_runs.forget(connection, "mallory") == 0
            assert tuning_runs.forget(connection, "alice", "bert") == 1

    def test_one_job_explores_at_a_time(self, store):
        program = Program("alice", DIGEST, "A40")
        explore, stay = IssuedStart(program, True, '"e"'), IssuedStart(program, False, '"s"')
        with engine.connect(store.path) as connection:
            first = tuning_starts.store_start(connection, JobRun("c1", 1, 0), explore, stay, {1, 2}, 1.0)
            second = tuning_starts.store_start(connection, JobRun("c1", 2, 0), explore, stay, {1, 2}, 1.0)
            again = tuning_starts.store_start(connection, JobRun("c1", 1, 0), stay, stay, {1, 2}, 1.0)
            assert (first, second, again) == (explore, stay, explore)
            third = tuning_starts.store_start(connection, JobRun("c1", 3, 0), explore, stay, {3}, 1.0)
            assert third == explore  # job 1 has ended
            assert tuning_starts.drop_starts(connection, 2.0) == 3

    def test_pins(self, store, monkeypatch):
        pin = Pin(Program("alice", DIGEST, "A40"), "{}", "root", 1.0)
        with engine.connect(store.path) as connection:
            assert tuning_starts.set_pin(connection, pin)
            assert tuning_starts.pin_of(connection, "alice", "A40", ["x", DIGEST]) == pin
            assert tuning_starts.pin_of(connection, "mallory", "A40", [DIGEST]) is None
            monkeypatch.setattr(tuning_starts, "MAX_PINS_PER_OWNER", 1)
            assert tuning_starts.set_pin(connection, pin._replace(point='{"boost": false}'))
            assert not tuning_starts.set_pin(
                connection, pin._replace(program=Program("alice", "other", "A40"))
            )
            assert tuning_starts.remove_pin(connection, pin.program)
            assert not tuning_starts.remove_pin(connection, pin.program)


CHILD = """
import sys, time
from pathlib import Path
from slurm_energy.accounting import engine
from slurm_energy.accounting.history import tuning_runs
with engine.connect(Path(sys.argv[1])) as connection:
    print("ready", flush=True)
    while True:
        jobs = tuning_runs.unlearned_jobs(connection, 1)
        run = tuning_runs.StoredRun("alice", "A40", "w", None, None, 1.0, "{}")
        learned = [(job.key, run._replace(workload=job.display_id)) for job in jobs]
        tuning_runs.store_learned(connection, learned)
"""


@pytest.mark.slow
def test_kill_9_while_learning_neither_loses_nor_repeats_a_run(tmp_path):
    store, total = Accounting(tmp_path), 20
    for number in range(1, total + 1):
        deliver(store, number)
    for number in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(store.path)], stdout=subprocess.PIPE
        ) as learner:
            learner.stdout.readline()
            time.sleep(0.002 * number)
            learner.kill()
            assert learner.wait(60) == -signal.SIGKILL
    with engine.connect(store.path) as connection:
        for found in tuning_runs.unlearned_jobs(connection):
            run = run_row(workload=found.display_id)
            tuning_runs.store_learned(connection, [(found.key, run)])
        kept = sorted(int(run.workload) for run in tuning_runs.find_runs(connection, None))
    assert kept == list(range(1, total + 1))
