"""Tests of the benchmark that compares scheduling policies (benchmarks/policies).

The tests check that tuning and evaluation use different data, and that the arrivals of jobs give the wanted
load.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "policies"))

import compare
import families
import runs


def trace(jobs: int = 1000) -> families.TraceRows:
    at = np.arange(jobs, dtype=float)
    return families.TraceRows(at, at + 1, np.ones(jobs, np.int64))


@pytest.mark.parametrize("part", range(8))
def test_tuning_and_evaluation_share_no_job_of_a_trace(part):
    """The benchmark tunes scheduling policies on other jobs of a trace than it evaluates them on.

    In this test, the run time of each job in the trace is the number of the job.
    """
    tuning, held_out = (families._cut(trace(), part, flag, 50).time_s for flag in (True, False))
    assert tuning.max() <= 500 < held_out.min()
    assert len(tuning) == len(held_out) == 50


def test_a_trace_without_enough_parts_is_left_out():
    with pytest.raises(IndexError):
        families._cut(trace(100), 1, True, 50)


def test_synthetic_parts_differ_between_tuning_and_evaluation():
    for name in ("diurnal", "bursty", "heavy"):
        make = families.FAMILIES[name].rows
        tuning, held_out = (make(Path(), 0, flag, 20) for flag in (True, False))
        assert not np.array_equal(tuning.submit_s, held_out.submit_s)
        assert np.all(np.diff(held_out.submit_s) >= 0)


def test_arrivals_are_stretched_to_the_load():
    base = runs._scenario(runs.Run("heavy", 0.5, 0, False, "zeus"), ())
    total = np.array([kind.nodes * kind.units for kind in base.nodes()], float)
    for load in (0.5, 0.9):
        work = runs.jobs_of(base, runs.Run("heavy", load, 0, False, "zeus"), Path(), 40)
        assert runs._need_s(work, total) / (work.submit_s[-1] - work.submit_s[0]) == pytest.approx(load)


def test_energy_counts_idle_power_until_the_later_end():
    own = {"end_s": 100.0, "energy_joules": 900.0, "idle_watts": 1.0}
    other = {"end_s": 200.0, "energy_joules": 1100.0, "idle_watts": 1.0}
    assert compare._cluster_energy_percent(own, other) == pytest.approx(100 * (1000 / 1100 - 1))
