"""Tests of the diagnosis of jobs that failed or did not finish.

The tests check the findings about the states of jobs, exit codes, and work that was not saved.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import Diagnosis, diagnose
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.observation import JobObservation, NodeObservation, ObservedAllocation
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.steps import Hint, PhaseStatistics, RankSteps
from slurm_energy.slurm.exit_status import OUT_OF_MEMORY_SIGNAL, ExitStatus

K = FindingKind
HOUR = 3600.0
OUT_OF_MEMORY = ExitStatus(0, OUT_OF_MEMORY_SIGNAL)


def series(name: str, values: list[float], part: str = "") -> ObservedSeries:
    return ObservedSeries(name, part, "n1", "test", 0.0, 10.0, array("d", values))


def training(
    *,
    state: str = "TIMEOUT",
    checkpoints: int = 0,
    written: float | None = 1e3,
    busy: float = 95.0,
    idle_s: float = 0.0,
    has_steps: bool = True,
    elapsed_s: float = HOUR,
    hints: dict[str, Hint] | None = None,
    more: tuple[ObservedSeries, ...] = (),
    **context: object,
) -> Diagnosis:
    """Return the diagnosis of a training job with one GPU, whose end state is given."""
    count = int(elapsed_s / 10)
    idle = int(idle_s / 10)
    parts = [series("gpu_busy_percent", [busy] * (count - idle) + [0.0] * idle, "gpu[0]"), *more]
    if written is not None:
        values = [0.0] * (count - 1) + [written / 10]
        parts.append(series("block_write_bytes_per_s", values))
    phases = {"step": PhaseStatistics.of([1.0] * (count * 9))}
    if checkpoints:
        phases["checkpoint"] = PhaseStatistics.of([2.0] * checkpoints)
    ranks = (RankSteps("n1", 0, 0, 5, phases, hints=hints or {}),) if has_steps else ()
    known = {"nodes": ("n1",), "energy_joules": {"n1": {"node": 1e6}}, "is_interactive": False, **context}
    allocation = ObservedAllocation(1, 0.0, elapsed_s, state=state, **known)  # type: ignore[arg-type]
    job = JobObservation(allocation, (NodeObservation("n1", tuple(parts), ranks),))
    return diagnose(job, DiagnosisConfig())


def kinds(diagnosis: Diagnosis) -> list[FindingKind]:
    return [finding.kind for finding in diagnosis.findings]


def test_work_of_a_job_that_reached_its_limit_without_a_checkpoint_is_lost() -> None:
    diagnosis = training()
    (finding,) = diagnosis.findings
    assert (finding.kind, finding.seconds_lost, finding.joules_lost) == (K.UNFINISHED_WORK, HOUR, 1e6)
    assert "01:00:00 of work were not saved" in finding.title
    (advice,) = diagnosis.advice
    assert advice.line.split("; ") == [
        'slurm_energy.adjusted("checkpoint-interval", default=360)',
        "#SBATCH --signal=B:USR1@120",
    ]
    assert (advice.seconds_gain, advice.joules_gain) == (HOUR - 180, pytest.approx(0.95e6))


def test_half_of_the_time_between_checkpoints_is_lost() -> None:
    (finding,) = training(checkpoints=2).findings
    assert (finding.kind, finding.seconds_lost, finding.joules_lost) == (K.UNFINISHED_WORK, HOUR / 4, 2.5e5)
    assert kinds(training(checkpoints=8)) == []


@pytest.mark.parametrize(
    "values",
    [
        {"written": 5e7},  # perhaps a checkpoint that the program does not report
        {"written": None},  # unknown, not 0
        {"is_interactive": True},
        {"state": "COMPLETED"},
        {"state": "CANCELLED"},
        {"has_steps": False, "busy": 50.0},  # a service waits for requests
    ],
)
def test_no_finding_unless_work_was_certainly_lost(values: dict[str, object]) -> None:
    assert K.UNFINISHED_WORK not in kinds(training(**values))  # type: ignore[arg-type]


def test_a_job_of_0_s_has_lost_no_work() -> None:
    allocation = ObservedAllocation(1, 0.0, 0.0, state="TIMEOUT", nodes=("n1",))
    job = JobObservation(allocation, (NodeObservation("n1"),))
    assert kinds(diagnose(job, DiagnosisConfig({"minimum_time": 0}))) == []


def test_framework_that_reports_checkpoints_wrote_none() -> None:
    (finding,) = training(written=5e9, hints={"marks_checkpoints": True}).findings
    assert (finding.kind, finding.seconds_lost) == (K.UNFINISHED_WORK, HOUR)
    assert kinds(training(written=5e9, hints={"marks_checkpoints": True}, checkpoints=9)) == []


def test_a_busy_program_without_steps_and_output_loses_its_work() -> None:
    (finding,) = training(has_steps=False).findings
    assert (finding.kind, finding.confidence) == (K.UNFINISHED_WORK, 0.6)


def test_a_program_that_was_idle_at_its_limit_had_finished_or_hung() -> None:
    assert kinds(training(has_steps=False, idle_s=1600.0)) == [K.IDLE_TAIL]


def test_late_failure_names_how_the_job_and_its_step_ended() -> None:
    status = {"exit_status": ExitStatus(1), "step_exit_status": ExitStatus(0, 11)}
    (finding,) = training(state="FAILED", **status).findings
    assert finding.kind == K.UNFINISHED_WORK
    texts = [fact.text for fact in finding.evidence]
    assert texts[:2] == [
        "The job ended as FAILED with exit code 1 after 3600 s.",
        "A step of srun ended with signal 11 (SIGSEGV).",
    ]


def test_early_failure_names_the_exit_code() -> None:
    (finding,) = training(state="FAILED", elapsed_s=60.0, exit_status=ExitStatus(11)).findings
    assert finding.kind == K.EARLY_FAILURE
    assert "exit code 11 (from a shell perhaps SIGSEGV)" in finding.evidence[0].text


def memory(last: float, name: str = "memory_used_bytes", part: str = "") -> tuple[ObservedSeries, ...]:
    """Return two example series of a job's memory.

    One is the used memory, which grows to the fraction `last` of 1 GB. The other is the limit of 1 GB.
    """
    limit = name.replace("used", "total" if part else "limit")
    values = [last * 1e9 * (0.5 + index / 718) for index in range(360)]
    return series(name, values, part), series(limit, [1e9] * 360, part)


def test_step_without_memory_is_found_in_a_job_that_went_on() -> None:
    (finding,) = training(state="COMPLETED", step_exit_status=OUT_OF_MEMORY).findings
    assert (finding.kind, finding.confidence, finding.seconds_lost) == (K.OUT_OF_MEMORY, 1.0, None)
    (failed,) = training(state="FAILED", step_exit_status=OUT_OF_MEMORY).findings
    assert (failed.kind, failed.seconds_lost) == (K.OUT_OF_MEMORY, HOUR)
    assert failed.consequences == (K.UNFINISHED_WORK,)


@pytest.mark.parametrize("status", [ExitStatus(9), ExitStatus(137), ExitStatus(0, 9)])
def test_killed_job_with_full_memory_probably_ran_out_of_it(status: ExitStatus) -> None:
    (finding,) = training(state="FAILED", more=memory(0.95), exit_status=status).findings
    assert (finding.kind, finding.confidence) == (K.OUT_OF_MEMORY, 0.8)
    assert K.MEMORY_PRESSURE in finding.consequences
    assert kinds(training(state="FAILED", more=memory(0.5), exit_status=status)) == [K.UNFINISHED_WORK]
    assert K.OUT_OF_MEMORY not in kinds(training(state="CANCELLED", more=memory(0.95), exit_status=status))


def test_failure_after_a_leak_of_gpu_memory_is_one_of_memory() -> None:
    leak = memory(0.99, "gpu_memory_used_bytes", "gpu[0]")
    (finding,) = training(state="FAILED", more=leak, exit_status=ExitStatus(1)).findings
    assert (finding.kind, finding.where) == (K.OUT_OF_MEMORY, ("n1 gpu[0]",))


def test_exit_status_of_sacct() -> None:
    assert ExitStatus.from_text("1:0") == ExitStatus(1)
    assert ExitStatus.from_text("0:125") == OUT_OF_MEMORY
    assert [ExitStatus.from_text(text) for text in (None, "", "1", "a:b", "1:0\n")] == [None] * 5
    texts = [str(status) for status in (ExitStatus(0, 9), ExitStatus(2), OUT_OF_MEMORY, ExitStatus(0, 64))]
    assert texts == ["signal 9 (SIGKILL)", "exit code 2", "out of memory", "signal 64 (SIGRTMAX)"]


def loading(starts: int, start_s: float, wait_s: float, **hints: bool | float) -> Diagnosis:
    """Return the diagnosis of a synthetic CPU training that starts its data loader several times.

    Args:
        starts: number of times that the loader starts.
        start_s: seconds that the training waits for each start of the loader.
        wait_s: seconds that the training waits for data in every other step.
        hints: further values that the program reports.
    """
    count = 1000
    waits = [start_s] * starts + [wait_s] * (count - starts)
    phases = {
        "data": PhaseStatistics.of(waits),
        "step": PhaseStatistics.of([wait + 0.1 for wait in waits]),
    }
    known = {"num_workers": 2, "loader_starts": starts, "loader_start_s": starts * start_s, **hints}
    parts = [
        series(name, [value] * 60)
        for name, value in (
            ("cpu_busy_cores", 2.0),
            ("cpu_allocated_cores", 4.0),
            ("io_pressure_percent", 1.0),
        )
    ]
    rank = RankSteps("n1", 0, None, 5, phases, hints=known)
    allocation = ObservedAllocation(1, 0.0, 600.0, state="COMPLETED", nodes=("n1",))
    return diagnose(JobObservation(allocation, (NodeObservation("n1", tuple(parts), (rank,)),)))


def test_single_start_of_the_loader_is_no_stall() -> None:
    assert kinds(loading(1, 60.0, 0.001)) == []


def test_starts_of_many_epochs_are_avoidable() -> None:
    diagnosis = loading(20, 3.0, 0.001, persistent_workers=False)
    (finding,) = diagnosis.findings
    assert (finding.kind, finding.seconds_lost) == (K.DATA_STALL, pytest.approx(57.0))
    assert finding.title == "The loader starts 20 times, which takes 35 % of the time of the steps"
    (advice,) = diagnosis.advice
    assert advice.line == "DataLoader(persistent_workers=True)"
    assert loading(20, 3.0, 0.001, persistent_workers=True).advice == ()


def test_a_loader_that_is_always_slow_is_judged_without_its_start() -> None:
    (finding,) = loading(1, 60.0, 0.1).findings
    assert finding.title.startswith("Steps wait for data 50 % of the time")
    assert finding.seconds_lost == pytest.approx(99.9)


def test_time_to_receive_ready_batches_is_no_stall() -> None:
    assert kinds(loading(1, 0.001, 0.03)) == [K.DATA_STALL_CPU]
    assert kinds(loading(1, 0.001, 0.03, ready_batch_s=0.028)) == []
    (finding,) = loading(1, 0.001, 0.03, ready_batch_s=0.01).findings
    assert finding.seconds_lost == pytest.approx(0.02 * 1000, rel=0.01)


def test_replaced_context_keeps_unknown_exit_codes_unknown() -> None:
    allocation = ObservedAllocation(1, 0.0, 30.0, state="FAILED", nodes=("n1",))
    (finding,) = diagnose(JobObservation(replace(allocation, exit_status=None))).findings
    assert finding.evidence[0].text == "The job ended as FAILED after 30 s."
