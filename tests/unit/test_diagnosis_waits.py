"""Findings that depend on what a job waits for: CPUs, messages of loader workers, other ranks, storage."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from test_diagnosis_rules import K, cpu_training, job_of, kinds, series

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.cpu_waits import contended_s
from slurm_energy.diagnosis.diagnose import find_causes
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.observation import JobObservation, LostRun, ObservedAllocation
from slurm_energy.diagnosis.steps import Hint, PhaseStatistics, RankSteps, StepIntervals, StepOutlier


@pytest.mark.parametrize(
    ("waiting", "workers", "expected"),
    [(10.0, 11, [K.CPU_CONTENTION]), (10.0, 2, [K.CPU_CONTENTION]), (1.5, 11, [K.DATA_STALL])],
)
def test_contention_without_pressure_is_seen_by_the_waiting_tasks(
    waiting: float, workers: int, expected: list[FindingKind]
) -> None:
    """The diagnosis detects from a job's waiting tasks that other work takes the CPUs.

    The kernel's measure of waiting for CPUs (CPU pressure) is unknown in this test. The CPUs of the job
    do not look busy, because other work leaves the job only few CPUs of the node.
    """
    signals = (
        series("cpu_busy_cores", [1.5] * 60),
        series("cpu_allocated_cores", [4.0] * 60),
        series("cpu_waiting_tasks", [waiting] * 60),
    )
    assert kinds(job_of(*signals, ranks=(cpu_training(0.05, workers, 0.5),))) == expected


def test_loader_that_waits_for_a_cpu_has_work() -> None:
    signals = (
        series("cpu_busy_cores", [0.6] * 60),
        series("cpu_allocated_cores", [4.0] * 60),
        series("cpu_waiting_tasks", [0.8] * 60),
        series("io_pressure_percent", [0.0] * 60),
    )
    training = cpu_training(0.05, 1, 1.0)
    assert kinds(job_of(*signals, ranks=(training,))) == [K.DATA_STALL_CPU]
    assert kinds(job_of(*signals[:2], signals[3], ranks=(training,))) == [K.DATA_STALL]


@pytest.mark.parametrize(
    ("busy", "waiting", "share"),
    [
        (0.25, 0.75, 0.75),  # one task, which has a CPU for a quarter of the time
        (0.1, 0.3, 0.3),  # one task, ready for 40 % of the time
        (1.0, 1.0, 0.5),  # two tasks
        (2.0, 3.0, 0.0),  # five tasks on two CPUs: the job delays itself
        (1.0, 3.0, 0.5),  # four tasks on two CPUs, of which other work uses one
        (0.5, 0.0, 0.0),
    ],
)
def test_delay_by_other_work_is_the_share_of_ready_tasks_without_a_cpu(
    busy: float, waiting: float, share: float
) -> None:
    signals = (
        series("cpu_busy_cores", [busy] * 60),
        series("cpu_allocated_cores", [2.0] * 60),
        series("cpu_waiting_tasks", [waiting] * 60),
    )
    job = job_of(*signals)
    delay_s = contended_s(JobView(job, DiagnosisConfig()))
    assert delay_s == pytest.approx(share * job.context.elapsed_s)
    assert contended_s(JobView(job_of(*signals[:2]), DiagnosisConfig())) is None


@pytest.mark.parametrize(
    ("batch", "workers", "data_s", "expected"),
    [
        (2, 1, 0.003, [K.SMALL_BATCH]),
        (64, 1, 0.003, [K.DATA_STALL]),
        (2, 0, 0.003, [K.DATA_STALL]),
        (2, 1, 0.02, [K.DATA_STALL]),
        (2, 1, 0.0001, []),
    ],
)
def test_message_of_a_worker_per_tiny_batch_is_a_cost_of_the_batch(
    batch: int, workers: int, data_s: float, expected: list[FindingKind]
) -> None:
    times = {"forward": 0.004, "backward": 0.004, "optimizer": 0.001, "data": data_s}
    times["step"] = sum(times.values())
    phases = {name: PhaseStatistics.of([value] * 30000) for name, value in times.items()}
    rank = RankSteps("n1", 0, None, 5, phases, hints={"num_workers": workers, "batch_size": batch})
    assert kinds(job_of(ranks=(rank,))) == expected


def test_unmarked_time_of_a_step_is_not_taken_for_work_of_a_rank() -> None:
    """The time of a step in which no phase is marked does not count as work of the rank.

    In the test, the rank with less work spends such time. It waits for the other rank, for example in a
    broadcast. The diagnosis reports the load imbalance.
    """
    ranks = []
    for rank, own_s in enumerate((1.0, 0.3)):
        times = {"forward": own_s / 2, "backward": own_s / 2, "communication": 0.01, "step": 1.2}
        phases = {name: PhaseStatistics.of([value] * 300) for name, value in times.items()}
        ranks.append(RankSteps("n1", rank, None, rank, phases))
    assert kinds(job_of(ranks=tuple(ranks))) == [K.LOAD_IMBALANCE]


def slow_iteration(at_s: float) -> RankSteps:
    phases = {"step": PhaseStatistics.of([1.0] * 500 + [60.0])}
    outlier = StepOutlier(at_s, 60.0, 1.0, "forward")
    return RankSteps("n1", 0, None, 5, phases, None, 1, 59.0, (outlier,))


@pytest.mark.parametrize(
    ("signal", "value", "cores", "expected"),
    [
        ("cpu_waiting_tasks", 2.0, 1.0, []),
        ("cpu_waiting_tasks", 0.1, 1.0, [K.ITERATION_OUTLIERS]),
        ("cpu_waiting_tasks", 6.0, 2.0, [K.ITERATION_OUTLIERS]),  # its own tasks are too many
        ("cpu_pressure_percent", 80.0, 1.0, []),
        ("cpu_pressure_percent", 80.0, 3.9, [K.CPU_CONTENTION]),
    ],
)
def test_outliers_while_other_work_takes_the_cpus_are_no_finding(
    signal: str, value: float, cores: float, expected: list[FindingKind]
) -> None:
    busy = series("cpu_busy_cores", [cores] * 60)
    waits = series(signal, [0.0] * 30 + [value] * 30 if "tasks" in signal else [value] * 60)
    parts = busy, series("cpu_allocated_cores", [4.0] * 60), waits
    assert kinds(job_of(*parts, ranks=(slow_iteration(400.0),))) == expected


@pytest.mark.parametrize("sign", ["reads", "steps"])
def test_job_that_waits_for_storage_is_not_idle(sign: str) -> None:
    parts = [series("cpu_allocated_cores", [4.0] * 60), series("cpu_busy_cores", [2.0] * 5 + [0.01] * 55)]
    assert kinds(job_of(*parts)) == [K.IDLE_TAIL]
    if sign == "reads":
        reads = series("block_read_bytes_per_s", [2e6] * 60)
        assert kinds(job_of(*parts, reads)) == []
    else:
        counts = array("d", [1.0] * 60)
        intervals = StepIntervals(0.0, 10.0, counts, array("d", [9.0] * 60), array("d", [0.1] * 60))
        phases = {"step": PhaseStatistics.of([9.0] * 60)}
        rank = RankSteps("n1", 0, None, 5, phases, intervals=intervals)
        assert kinds(job_of(*parts, ranks=(rank,))) == []


@pytest.mark.parametrize(("threads", "expected"), [(1, [K.DATA_STALL_CPU]), (4, [K.DATA_STALL])])
def test_threads_of_the_computation_are_not_those_of_the_loader(
    threads: int, expected: list[FindingKind]
) -> None:
    """The diagnosis does not count CPU time of computing threads as CPU time of the loader.

    The program computes for a third of the time. With four threads, the computation takes 1.4 CPUs on
    average. The loader then uses no CPU time.
    """
    signals = series("cpu_busy_cores", [1.3] * 60), series("cpu_allocated_cores", [4.0] * 60)
    training = cpu_training(0.05, 1, 0.7)
    hints = {**training.hints, "compute_threads": threads}
    assert kinds(job_of(*signals, ranks=(replace(training, hints=hints),))) == expected
    assert kinds(job_of(*signals, ranks=(training,))) == [K.DATA_STALL]


def test_storage_and_messages_are_seen_while_other_work_takes_the_cpus() -> None:
    """The diagnosis finds slow storage and too small batches even while CPUs are scarce.

    In the test, other programs take the CPUs, so that the data loader also waits for CPUs. The diagnosis
    recognises slow storage by the fact that the node reads data all the time. It recognises too small
    batches by the batch size.
    """
    loaded = (
        series("cpu_busy_cores", [0.5] * 60),
        series("cpu_waiting_tasks", [1.5] * 60),
        series("cpu_allocated_cores", [4.0] * 60),
    )
    slow = cpu_training(0.05, 2, 0.5)
    slow = replace(slow, hints={"num_workers": 2, "batch_size": 64, "compute_threads": 1})
    assert kinds(job_of(*loaded, ranks=(slow,))) == [K.DATA_STALL_CPU]
    reads = series("block_read_bytes_per_s", [2e6] * 60)
    assert kinds(job_of(*loaded, reads, ranks=(slow,))) == [K.DATA_STALL_IO]
    times = {"forward": 0.004, "optimizer": 0.0005, "data": 0.003, "step": 0.0075}
    phases = {name: PhaseStatistics.of([value] * 30000) for name, value in times.items()}
    hints = {"num_workers": 1, "batch_size": 2, "compute_threads": 1}
    tiny = RankSteps("n1", 0, None, 5, phases, hints=hints)
    assert kinds(job_of(*loaded, ranks=(tiny,))) == [K.SMALL_BATCH]
    phases |= {
        name: PhaseStatistics.of([value] * 30000) for name, value in (("data", 0.01), ("step", 0.0145))
    }
    assert kinds(job_of(*loaded, ranks=(replace(tiny, phases=phases),))) == [K.SMALL_BATCH]
    assert kinds(job_of(ranks=(replace(tiny, phases=phases),))) == [K.DATA_STALL]


def lost(*states: str | None, joules: float | None = 5e4, elapsed_s: float = 300.0) -> JobObservation:
    context = ObservedAllocation(1, 1000.0, 600.0, state="COMPLETED", nodes=("n1",))
    runs = tuple(LostRun(state, 0.0, elapsed_s, joules) for state in states)
    return JobObservation(replace(context, restart_count=len(runs), lost_runs=runs))


def test_runs_before_a_requeue_are_lost() -> None:
    (finding,) = find_causes(lost("PREEMPTED", "NODE_FAIL"), DiagnosisConfig())
    assert (finding.kind, finding.joules_lost, finding.time_share) == (K.LOST_RUN, 1e5, 0.5)
    assert "2 earlier runs were lost after 600 s: PREEMPTED, NODE_FAIL" in finding.title
    assert find_causes(lost(None, joules=None), DiagnosisConfig())[0].joules_lost is None
    assert kinds(lost()) == kinds(lost("PREEMPTED", elapsed_s=20.0)) == []


@pytest.mark.parametrize(
    ("cpu_s", "waits", "expected"),
    [
        (300.0, 1.0, []),
        (200.0, 1.0, [K.DATA_STALL_CPU]),
        (300.0, 0.1, [K.DATA_STALL]),
        (None, 1.0, [K.DATA_STALL_CPU]),
    ],
)
def test_loader_that_would_keep_up_without_other_work_is_no_finding(
    cpu_s: float | None, waits: float, expected: list[FindingKind]
) -> None:
    """The diagnosis reports no slow loading if other work on the node causes the slowness.

    The process that loads data (worker) would be fast enough if it had a CPU to itself. In the test, the job
    uses 0.8 CPUs for 600 s. The diagnosis knows the CPU time of the training process. The worker's CPU time
    is the job's CPU time minus that of the training process.
    """
    signals = (
        series("cpu_busy_cores", [0.8] * 60),
        series("cpu_waiting_tasks", [waits] * 60),
        series("cpu_allocated_cores", [4.0] * 60),
    )
    times = {"forward": 0.25, "backward": 0.25, "data": 0.5, "step": 1.0}
    phases = {name: PhaseStatistics.of([value] * 500) for name, value in times.items()}
    hints: dict[str, Hint] = {"num_workers": 1, "batch_size": 64, "compute_threads": 1}
    hints |= {} if cpu_s is None else {"process_cpu_s": cpu_s}
    counts, seconds = array("d", [10.0] * 60), array("d", [10.0] * 60)
    intervals = StepIntervals(0.0, 10.0, counts, seconds, seconds)
    rank = RankSteps("n1", 0, None, 5, phases, hints=hints, intervals=intervals)
    assert kinds(job_of(*signals, ranks=(rank,))) == expected


def test_worker_that_waits_for_something_else_is_slow_beside_other_work_too() -> None:
    signals = (
        series("cpu_busy_cores", [0.3] * 60),
        series("cpu_waiting_tasks", [0.2] * 60),
        series("cpu_allocated_cores", [4.0] * 60),
    )
    times = {"forward": 0.05, "backward": 0.05, "data": 0.9, "step": 1.0}
    phases = {name: PhaseStatistics.of([value] * 500) for name, value in times.items()}
    hints: dict[str, Hint] = {
        "num_workers": 1,
        "batch_size": 64,
        "compute_threads": 1,
        "process_cpu_s": 120.0,
    }
    counts, seconds = array("d", [10.0] * 60), array("d", [10.0] * 60)
    intervals = StepIntervals(0.0, 10.0, counts, seconds, seconds)
    rank = RankSteps("n1", 0, None, 5, phases, hints=hints, intervals=intervals)
    assert kinds(job_of(*signals, ranks=(rank,))) == [K.DATA_STALL]


@pytest.mark.parametrize(("waiting", "expected"), [(0.2, [K.COMMUNICATION_BOUND]), (1.0, [])])
def test_ranks_that_wait_for_ranks_without_cpus_are_no_communication_finding(
    waiting: float, expected: list[FindingKind]
) -> None:
    times = {"forward": 0.5, "communication": 0.5, "step": 1.0}
    phases = {name: PhaseStatistics.of([value] * 500) for name, value in times.items()}
    ten = array("d", [10.0] * 60)
    intervals = StepIntervals(0.0, 10.0, ten, ten, array("d", [0.0] * 60))
    ranks = tuple(RankSteps("n1", rank, None, rank, phases, intervals=intervals) for rank in (0, 1))
    signals = (
        series("cpu_busy_cores", [1.0] * 60),
        series("cpu_waiting_tasks", [waiting] * 60),
        series("cpu_allocated_cores", [4.0] * 60),
    )
    assert kinds(job_of(*signals, ranks=ranks)) == expected
