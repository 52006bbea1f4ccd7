"""Tests of when the counting of the energy of a job and of its steps begins and ends.

A job and its step may start or end almost at the same time. Both then use the same sample of the
counters at this time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_node import SharedNode
from shared_node import joules as joules_of

from slurm_energy.records import EnergyRecord

JOB, OTHER_JOB = 1, 2


@pytest.fixture
def node(tmp_path: Path) -> SharedNode:
    return SharedNode(tmp_path, ("cpu",))


def start_step(node: SharedNode, name: str = "batch") -> None:
    assert node.manager.step("start", JOB, name)["known"]


def end_step(node: SharedNode, name: str = "batch") -> None:
    assert node.manager.step("end", JOB, name)["known"]


def run(node: SharedNode, seconds: float = 2.0) -> None:
    node.use(seconds, {"cpu": 100.0}, {JOB: 2})


def record_of(node: SharedNode, step: str | None) -> EnergyRecord:
    (record,) = (one for one in node.all_records() if (one.job_id, one.step) == (JOB, step))
    return record


def count_samples(node: SharedNode) -> list[float]:
    """Return a list that receives the time of each sample."""
    times: list[float] = []
    node.counters["cpu"].held_up = lambda: times.append(node.clock.now)
    return times


@pytest.mark.parametrize(("gap_s", "samples", "job_s"), [(0.09, 2, 2.09), (0.11, 3, 2.22)])
def test_a_batch_step_starts_with_its_job_and_the_job_ends_with_a_close_step(
    node: SharedNode, gap_s: float, samples: int, job_s: float
) -> None:
    taken = count_samples(node)
    node.begin(JOB, 2)
    node.clock.now += gap_s
    start_step(node)
    node.use(2.0, {"cpu": 100.0}, {JOB: 2}, ticks=False)
    end_step(node)
    node.clock.now += gap_s
    node.end(JOB)
    job, step = record_of(node, None), record_of(node, "batch")
    assert len(taken) == samples
    assert step.start == job.start
    assert (job.elapsed_s, step.elapsed_s) == pytest.approx((job_s, 2 + gap_s))
    assert joules_of(job) == joules_of(step) == {"cpu": pytest.approx(200.0)}


@pytest.mark.parametrize("contain", [False, True])
def test_a_batch_step_has_the_energy_since_the_start_of_its_job(node: SharedNode, contain: bool) -> None:
    node.begin(JOB, 2)
    if contain:
        start_step(node, "extern")
    run(node)
    start_step(node)
    run(node)
    end_step(node)
    node.end(JOB)
    assert joules_of(record_of(node, "batch")) == {"cpu": pytest.approx(400.0)}
    assert record_of(node, "batch").elapsed_s == pytest.approx(4.0)


def test_a_step_of_srun_starts_at_its_own_start(node: SharedNode) -> None:
    node.begin(JOB, 2)
    run(node)
    start_step(node, "0")
    run(node)
    end_step(node, "0")
    start_step(node, "interactive")
    run(node)
    end_step(node, "interactive")
    for name in ("0", "interactive"):
        assert joules_of(record_of(node, name)) == {"cpu": pytest.approx(200.0)}
        assert record_of(node, name).elapsed_s == pytest.approx(2.0)


def test_energy_after_a_shared_end_belongs_to_no_job(node: SharedNode) -> None:
    node.begin(JOB, 2)
    start_step(node)
    run(node)
    end_step(node)
    node.use(0.05, {"cpu": 100.0}, ticks=False)
    node.end(JOB)
    run(node, 1.0)
    account = node.accounts()["cpu"]
    assert account["measured"] == 305_000_000
    assert account["jobs"] == round(1e6 * joules_of(record_of(node, None))["cpu"])  # type: ignore[operator]


def test_a_job_ends_at_its_own_end_while_another_step_runs(node: SharedNode) -> None:
    node.begin(JOB, 2)
    start_step(node)
    start_step(node, "0")
    run(node)
    end_step(node)
    node.clock.now += 0.05
    node.end(JOB)
    assert record_of(node, None).elapsed_s == pytest.approx(2.05)


@pytest.mark.parametrize(("other_step", "charged_uj"), [(False, 200_000_000), (True, 0)])
def test_slow_readings_wait_for_the_last_step_of_the_job(
    node: SharedNode, other_step: bool, charged_uj: int
) -> None:
    node.begin(JOB, 2)
    start_step(node)
    if other_step:
        start_step(node, "0")
    node.use(2.0, {"cpu": 100.0}, ticks=False)  # no process of the job is known: its CPU time is searched
    end_step(node)
    assert node.accounts()["cpu"]["measured"] == charged_uj


def test_a_job_without_a_batch_step_ends_at_its_own_end(node: SharedNode) -> None:
    node.begin(JOB, 2)
    start_step(node, "0")
    run(node)
    end_step(node, "0")
    node.clock.now += 0.05
    node.end(JOB)
    assert record_of(node, None).elapsed_s == pytest.approx(2.05)


def test_a_job_ends_at_its_own_end_if_another_job_began_since_its_last_step(node: SharedNode) -> None:
    node.begin(JOB, 2)
    start_step(node)
    run(node)
    end_step(node)
    node.use(0.03, {"cpu": 100.0}, ticks=False)
    node.begin(OTHER_JOB, 2)
    node.use(0.03, {"cpu": 100.0}, ticks=False)
    node.end(JOB)
    assert record_of(node, None).elapsed_s == pytest.approx(2.06)


def test_a_job_with_uncharged_energy_ends_with_a_sample_of_its_own(tmp_path: Path) -> None:
    node = SharedNode(tmp_path, ("cpu", "dram"))
    node.begin(JOB, 2)
    start_step(node)
    run(node)
    node.counters["cpu"].silent = True  # the energy since then is charged when the counter can be read again
    end_step(node)
    node.counters["cpu"].silent = False
    node.use(0.05, {"cpu": 100.0}, {JOB: 2}, ticks=False)
    node.end(JOB)
    job = record_of(node, None)
    assert job.elapsed_s == pytest.approx(2.05)
    assert joules_of(job)["cpu"] == pytest.approx(205.0)
