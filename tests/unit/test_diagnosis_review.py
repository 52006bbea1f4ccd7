"""Diagnosis of unusual jobs.

Examples are jobs that hang, jobs whose GPUs are active only now and then, services, and jobs that run
several programs.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import pytest

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import Diagnosis, diagnose
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.observation import JobObservation, NodeObservation, ObservedAllocation
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps, StepIntervals
from slurm_energy.diagnosis.trials.observed_figures import observed_figures

K = FindingKind
COUNT = 360


def series(name: str, values: list[float], part: str = "gpu[0]") -> ObservedSeries:
    return ObservedSeries(name, part, "n1", "test", 0.0, 10.0, array("d", values))


def diagnosed(
    *parts: ObservedSeries, ranks: tuple[RankSteps, ...] = (), **context: object
) -> tuple[list[FindingKind], Diagnosis]:
    known = {
        "state": "COMPLETED",
        "nodes": ("n1",),
        "idle_watts": {"n1": {"gpu[0]": 60.0}},
        "is_interactive": False,
        **context,
    }
    allocation = ObservedAllocation(1, 0.0, 10.0 * COUNT, **known)  # type: ignore[arg-type]
    diagnosis = diagnose(JobObservation(allocation, (NodeObservation("n1", parts, ranks),)))
    return [finding.kind for finding in diagnosis.findings], diagnosis


def hanging(
    name: str, before: float, after: float, length: int = 180, busy: float = 100.0
) -> tuple[ObservedSeries, ...]:
    """Return the signals of a GPU that is busy all the time, but inactive in its last intervals."""
    values = [before] * (COUNT - length) + [after] * length
    uses = [100.0] * (COUNT - length) + [busy] * length
    return series("gpu_busy_percent", uses), series(name, values)


@pytest.mark.parametrize(
    ("name", "before", "after"), [("sm_active_percent", 70.0, 3.0), ("power_watts", 360.0, 110.0)]
)
def test_busy_gpus_without_activity_up_to_the_end_hang(name: str, before: float, after: float) -> None:
    found, diagnosis = diagnosed(*hanging(name, before, after), state="TIMEOUT")
    assert found == [K.HANG]
    assert diagnosis.findings[0].seconds_lost == 1800
    (advice,) = diagnosis.advice
    assert advice.line.startswith("export TORCH_NCCL_ASYNC_ERROR_HANDLING=1; torch.distributed")
    assert advice.seconds_gain == 1200


@pytest.mark.parametrize(
    ("parts", "context"),
    [
        (hanging("sm_active_percent", 70.0, 30.0), {}),  # a lighter phase at the end
        (hanging("sm_active_percent", 70.0, 3.0, busy=40.0), {}),  # small kernels with pauses
        (hanging("sm_active_percent", 70.0, 3.0, 20), {}),  # for less than five minutes
        (hanging("sm_active_percent", 70.0, 3.0, 120), {"state": None}),  # running: for less than 30 minutes
        (hanging("sm_active_percent", 70.0, 3.0), {"is_interactive": True}),
        (hanging("power_watts", 360.0, 110.0), {"idle_watts": {}}),  # unknown, not 0
        ((series("gpu_busy_percent", [100.0] * COUNT),), {}),
    ],
)
def test_no_hang(parts: tuple[ObservedSeries, ...], context: dict[str, object]) -> None:
    assert K.HANG not in diagnosed(*parts, **context)[0]


UNKNOWN = [math.nan] * 180


@pytest.mark.parametrize(
    ("uses", "activity"),
    [
        ([100.0] * COUNT, [70.0] * 179 + [3.0, *UNKNOWN]),
        ([100.0] * 180 + UNKNOWN, [70.0] * 179 + [3.0, *UNKNOWN]),
        ([100.0] * 180, [70.0] * 179 + [3.0]),  # the recording ended
        ([100.0] * COUNT, [70.0] * 179 + [3.0]),
        ([100.0] * COUNT, [70.0] * 100 + [3.0] * 60 + UNKNOWN + [3.0] * 20),  # 200 s at the end are known
    ],
)
def test_time_without_known_activity_is_no_hang(uses: list[float], activity: list[float]) -> None:
    parts = series("gpu_busy_percent", uses), series("sm_active_percent", activity)
    assert K.HANG not in diagnosed(*parts)[0]


def test_missed_samples_do_not_hide_a_hang() -> None:
    uses, activity = hanging("sm_active_percent", 70.0, 3.0)
    for index in (COUNT - 90, COUNT - 89, COUNT - 1):
        activity.values[index] = math.nan
    found, diagnosis = diagnosed(uses, activity)
    assert found == [K.HANG]
    assert diagnosis.findings[0].seconds_lost == 1800


@pytest.mark.parametrize("values", [[90.0] * 100 + [0.0] * 10, [90.0] * 100 + [0.0] * 10 + [math.nan] * 250])
def test_time_without_known_activity_is_no_idle_tail(values: list[float]) -> None:
    assert K.IDLE_TAIL not in diagnosed(series("gpu_busy_percent", values))[0]


def test_long_idle_time_before_an_unknown_end_is_found_with_its_known_length() -> None:
    found, diagnosis = diagnosed(series("gpu_busy_percent", [90.0] * 20 + [0.0] * 200))
    assert found == [K.IDLE_ALLOCATION]
    assert diagnosis.findings[0].seconds_lost == 2000


@pytest.mark.parametrize(("other", "is_idle"), [([0.0] * 180, True), ([math.nan] * 180, False)])
def test_job_is_idle_only_if_all_its_gpus_are_known_to_be_idle(other: list[float], is_idle: bool) -> None:
    gpus = [
        series("gpu_busy_percent", [90.0] * 180 + tail, f"gpu[{index}]")
        for index, tail in enumerate(([0.0] * 180, other))
    ]
    assert (K.IDLE_TAIL in diagnosed(*gpus)[0]) is is_idle


@pytest.mark.parametrize(
    ("values", "tail_s"),
    [
        ([90.0] * 300 + [0.0] * 60, 600.0),
        ([90.0] * COUNT, 0.0),
        ([90.0] * 300, None),
        ([90.0] * 290 + [0.0] * 10 + [math.nan] * 60, None),
        ([], None),
    ],
)
def test_time_without_activity_at_the_end_of_a_run(values: list[float], tail_s: float | None) -> None:
    allocation = ObservedAllocation(1, 0.0, 10.0 * COUNT, state="COMPLETED", nodes=("n1",))
    nodes = (NodeObservation("n1", (series("gpu_busy_percent", values),)),)
    run = observed_figures(JobObservation(allocation, nodes), "1", None, DiagnosisConfig())
    assert run.tail_s == tail_s


def test_running_job_hangs_after_half_an_hour() -> None:
    assert K.HANG in diagnosed(*hanging("sm_active_percent", 70.0, 3.0, 200), state=None)[0]


def test_gpu_that_only_holds_a_context_is_unused() -> None:
    blink = [0.0] * COUNT
    blink[2] = 8.0
    used = series("gpu_busy_percent", [95.0] * COUNT)
    found, diagnosis = diagnosed(used, series("gpu_busy_percent", blink, "gpu[1]"))
    assert found == [K.UNUSED_GPU] and diagnosis.findings[0].where == ("n1 gpu[1]",)
    work = [90.0 if index < 36 else 0.0 for index in range(COUNT)]
    assert K.UNUSED_GPU not in diagnosed(used, series("gpu_busy_percent", work, "gpu[1]"))[0]


@pytest.mark.parametrize(
    ("values", "memory", "expected"),
    [
        ([45.0, 5.0, 5.0, 5.0, 5.0], 80.0, []),  # a service with a low load
        ([45.0, 5.0, 5.0, 5.0, 5.0], 20.0, [K.GPU_UNDERUSED]),
        ([20.0] * 5, 80.0, [K.GPU_UNDERUSED]),
    ],
)
def test_service_that_holds_a_model_may_wait(
    values: list[float], memory: float, expected: list[FindingKind]
) -> None:
    parts = [
        series("gpu_busy_percent", values * 72),
        series("gpu_memory_used_bytes", [memory] * COUNT),
        series("gpu_memory_total_bytes", [100.0] * COUNT),
    ]
    assert diagnosed(*parts)[0] == expected


@pytest.mark.parametrize(
    ("name", "value", "is_idle"),
    [
        ("cpu_waiting_tasks", 0.9, False),
        ("cpu_waiting_tasks", 0.1, True),
        ("cpu_pressure_percent", 80.0, False),
        ("cpu_pressure_percent", 5.0, True),
    ],
)
def test_job_that_waits_for_cpus_is_not_idle(name: str, value: float, is_idle: bool) -> None:
    cores = [3.0] * 180 + [0.05] * 180
    parts = [series("cpu_busy_cores", cores, ""), series("cpu_allocated_cores", [4.0] * COUNT, "")]
    found, _ = diagnosed(*parts, series(name, [0.0] * 180 + [value] * 180, ""))
    assert (K.IDLE_TAIL in found) == is_idle


def test_tests_in_an_interactive_job_may_be_small() -> None:
    parts = [
        series("gpu_busy_percent", [90.0] * COUNT),
        series("sm_active_percent", [10.0] * COUNT),
        series("gpu_memory_used_bytes", [10.0] * COUNT),
        series("gpu_memory_total_bytes", [100.0] * COUNT),
    ]
    assert diagnosed(*parts)[0] == [K.SMALL_BATCH]
    assert diagnosed(*parts, is_interactive=True)[0] == []


def program(number: int | None, step_s: float, steps: int, start_s: float = 0.0, pid: int = 5) -> RankSteps:
    """Return a process whose steps take equally long."""
    phases = {
        "step": PhaseStatistics.of([step_s] * steps),
        "forward": PhaseStatistics.of([step_s] * steps),
        "communication": PhaseStatistics.of([0.0] * steps),
    }
    empty = array("d", [1.0] * 10)
    times = StepIntervals(start_s, step_s * steps / 10, empty, empty, empty)
    return RankSteps("n1", number, None, pid, phases, intervals=times, hints={"num_workers": 1})


def test_independent_programs_are_not_ranks_that_wait_for_each_other() -> None:
    together = (program(0, 1.0, 1000, pid=1), program(1, 2.0, 1000, pid=2))
    assert diagnosed(ranks=together)[0] == [K.LOAD_IMBALANCE]
    beside = (program(None, 1.0, 2000, pid=1), program(None, 2.0, 1000, pid=2))
    assert diagnosed(ranks=beside)[0] == []
    after = (program(0, 1.0, 1000, pid=1), program(0, 2.0, 1000, 1000.0, pid=2))
    assert diagnosed(ranks=after)[0] == []
    restarted = (*after, *(replace(one, rank=1, pid=one.pid + 2) for one in after))
    assert diagnosed(ranks=restarted)[0] == []
    uneven = (after[0], program(0, 1.0, 1000, 1000.0, pid=2), program(1, 2.0, 1000, 1000.0, pid=3))
    assert diagnosed(ranks=uneven)[0] == [K.LOAD_IMBALANCE]


def test_gpus_of_independent_programs_may_have_unlike_activity() -> None:
    parts = []
    for number, activity in enumerate((90.0, 45.0)):
        busy = series("gpu_busy_percent", [95.0] * COUNT, f"gpu[{number}]")
        parts += [busy, replace(busy, name="sm_active_percent", values=array("d", [activity] * COUNT))]
    steps = PhaseStatistics.of([1.0] * 2000), PhaseStatistics.of([2.0] * 1000)
    ranks = tuple(RankSteps("n1", None, i, i + 1, {"step": phase}) for i, phase in enumerate(steps))
    assert diagnosed(*parts, ranks=ranks)[0] == []
    assert diagnosed(*parts, ranks=ranks[:1])[0] == [K.LOAD_IMBALANCE]


def test_programs_that_follow_each_other_share_the_cpus_in_turn() -> None:
    parts = [
        series(name, [value] * COUNT, "")
        for name, value in (
            ("cpu_busy_cores", 3.9),
            ("cpu_allocated_cores", 8.0),
            ("io_pressure_percent", 1.0),
        )
    ]
    slow = {"step": PhaseStatistics.of([1.0] * 500), "data": PhaseStatistics.of([0.8] * 500)}
    ranks = tuple(
        replace(program(0, 1.0, 500, 500.0 * n, pid=n + 1), phases=slow, hints={"num_workers": 1})
        for n in range(4)
    )
    (advice,) = diagnosed(*parts, ranks=ranks)[1].advice
    assert advice.line == "DataLoader(num_workers=6)"  # of 8 CPUs, not of 2


@pytest.mark.parametrize(
    ("cores", "kind"),
    [(1.2, K.DATA_STALL_CPU), (0.5, K.DATA_STALL)],
    ids=["busy worker", "worker that waits"],
)
def test_loader_of_programs_that_follow_each_other(cores: float, kind: FindingKind) -> None:
    """The diagnosis finds the cause of data waits in a job that runs several programs in sequence.

    The waits of all programs add up. At any time only one loader process exists. The diagnosis must
    recognise whether the loader process is busy with the CPU or waits for storage.
    """
    parts = [
        series(name, [value] * COUNT, "")
        for name, value in (
            ("cpu_busy_cores", cores),
            ("cpu_allocated_cores", 8.0),
            ("io_pressure_percent", 1.0),
        )
    ]
    slow = {"step": PhaseStatistics.of([1.0] * 500), "data": PhaseStatistics.of([0.8] * 500)}
    hints = {"num_workers": 1, "compute_threads": 1}
    ranks = tuple(
        replace(program(0, 1.0, 500, 500.0 * n, pid=n + 1), phases=slow, hints=hints) for n in range(4)
    )
    finding, *_ = diagnosed(*parts, ranks=ranks)[1].findings
    assert finding.kind is kind
    assert finding.seconds_lost == pytest.approx(4 * 400.0)
