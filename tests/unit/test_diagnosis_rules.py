"""Tests of the rules by which the diagnosis finds causes of wasted time and energy.

The tests build jobs with one known cause of waste. This cause must be the first finding. Findings that are
only its symptoms must be attached to it. Unknown data must yield no finding.
"""

import dataclasses
import math
import re
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from test_diagnosis_model import observations

from slurm_energy.config.diagnosis_section import THRESHOLDS, DiagnosisConfig
from slurm_energy.config.loader import load
from slurm_energy.diagnosis.causes import CONSEQUENCES, ordered
from slurm_energy.diagnosis.diagnose import diagnose, find_causes
from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.observation import JobObservation, NodeObservation, ObservedAllocation
from slurm_energy.diagnosis.phase_times import phase_times
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps
from slurm_energy.diagnosis.stragglers import stragglers
from slurm_energy.errors import ConfigError
from slurm_energy.slurm.exit_status import ExitStatus
from slurm_energy_lab.diagnosis_corpus.healthy import HEALTHY
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED
from slurm_energy_lab.diagnosis_corpus.scores import Result, build

K = FindingKind
JOBS = {job.name: job for job in (*PLANTED, *HEALTHY)}
QUICK = (
    *("slow-storage", "no-workers", "tiny-batch-no-steps", "slow-copies", "cpu-quota", "unused-cpus"),
    *("early-failure", "cpu-program-on-gpus", "one-node-works", "gpu-memory-leak", "low-clock"),
    *("short-job", "debugging-session", "large-memory-job", "cpu-program", "training"),
)


@pytest.mark.parametrize("name", QUICK)
def test_planted_cause_comes_first(name: str) -> None:
    job = JOBS[name]
    findings = find_causes(build(job, 3), DiagnosisConfig())
    assert Result(job, 3, tuple(finding.kind for finding in findings)).is_right
    for finding in findings:
        assert finding.evidence and 0 < finding.confidence <= 1
        assert finding.joules_lost is None or finding.joules_lost >= 0


def series(name: str, values: list[float], part: str = "", node: str = "n1") -> ObservedSeries:
    return ObservedSeries(name, part, node, "test", 0.0, 10.0, array("d", values))


def job_of(
    *parts: ObservedSeries, ranks: tuple[RankSteps, ...] = (), elapsed_s: float = 600.0
) -> JobObservation:
    context = ObservedAllocation(1, 0.0, elapsed_s, state="COMPLETED", nodes=("n1",))
    return JobObservation(context, (NodeObservation("n1", parts, ranks),))


@pytest.mark.parametrize(("percent", "is_idle"), [(1.0, True), (40.0, False)])
def test_node_without_any_step_of_the_job_is_unused_unless_its_cpus_are_busy(
    percent: float, is_idle: bool
) -> None:
    allocated = [series("cpu_allocated_cores", [4.0] * 60, node=node) for node in ("n1", "n2")]
    working = series("cpu_busy_cores", [3.0] * 60)
    cpus = [series("cpu_busy_percent", [percent] * 60, f"cpu[{index}]", "n2") for index in range(4)]
    nodes = (
        NodeObservation("n1", (allocated[0], working)),
        NodeObservation("n2", (allocated[1], *cpus)),  # no control group of the job
    )
    context = ObservedAllocation(1, 0.0, 600.0, state="COMPLETED", nodes=("n1", "n2"))
    findings = find_causes(JobObservation(context, nodes), DiagnosisConfig())
    assert [finding.where for finding in findings if finding.kind is K.IDLE_ALLOCATION] == (
        [("n2",)] if is_idle else []
    )


def test_checkpoints_of_the_first_rank_alone_are_found() -> None:
    step = PhaseStatistics.of([1.0] * 400)
    first = RankSteps("n1", 0, None, 1, {"step": step, "checkpoint": PhaseStatistics.of([50.0] * 3)})
    findings = find_causes(
        job_of(ranks=(first, RankSteps("n1", 1, None, 2, {"step": step}))), DiagnosisConfig()
    )
    stall = next(finding for finding in findings if finding.kind is K.CHECKPOINT_STALL)
    assert "3 checkpoints took 25 %" in stall.evidence[0].text


def kinds(observation: JobObservation, **thresholds: float) -> list[FindingKind]:
    return [finding.kind for finding in find_causes(observation, DiagnosisConfig(thresholds))]


def test_symptoms_are_attached_to_their_cause() -> None:
    busy, io = series("gpu_busy_percent", [30.0] * 60, "gpu[0]"), series("io_pressure_percent", [60.0] * 60)
    assert kinds(job_of(busy)) == [K.GPU_UNDERUSED]
    findings = find_causes(job_of(busy, io), DiagnosisConfig())
    assert [finding.kind for finding in findings] == [K.DATA_STALL_IO]
    assert findings[0].consequences == (K.GPU_UNDERUSED,)


def test_unknown_data_gives_no_finding() -> None:
    nothing = JobObservation(ObservedAllocation(1, 0.0, 1e5, state="COMPLETED"))
    assert diagnose(nothing).findings == ()
    unknown = [
        series(name, [math.nan] * 60, part)
        for name, part in (
            ("gpu_busy_percent", "gpu[0]"),
            ("cpu_busy_cores", ""),
            ("cpu_allocated_cores", ""),
            ("gpu_memory_used_bytes", "gpu[0]"),
            ("power_watts", "gpu[0]"),
            ("io_pressure_percent", ""),
        )
    ]
    assert kinds(job_of(*unknown)) == []


def test_missing_pressure_is_not_taken_as_no_pressure() -> None:
    steps = PhaseStatistics.of([1.0] * 500)
    rank = RankSteps("n1", 0, None, 5, {"step": steps, "data": PhaseStatistics.of([0.5] * 500)})
    assert kinds(job_of(ranks=(rank,))) == [K.DATA_STALL]
    assert kinds(job_of(series("io_pressure_percent", [50.0] * 60), ranks=(rank,))) == [K.DATA_STALL_IO]
    assert kinds(job_of(ranks=(rank,)), data_share=60) == []


@pytest.mark.parametrize("source", ["nvml:utilization (shared GPU)", "nvml:utilization (whole GPU with MIG)"])
def test_use_of_a_shared_gpu_is_unknown_to_the_rules(source: str) -> None:
    busy = series("gpu_busy_percent", [30.0] * 60, "gpu[0]")
    assert kinds(job_of(dataclasses.replace(busy, source=source))) == []


@pytest.mark.parametrize("waiting", ["communication", "backward"])
def test_straggler_is_seen_although_others_wait_in_the_backward_pass(waiting: str) -> None:
    ranks = []
    for rank in range(8):
        own = 1.5 if rank == 5 else 0.9
        times = {"forward": own, waiting: 2.0 - own, "step": 2.0}
        phases = {name: PhaseStatistics.of([value] * 300) for name, value in times.items()}
        ranks.append(RankSteps("n1", rank, None, rank, phases))
    (finding,) = find_causes(job_of(ranks=tuple(ranks)), DiagnosisConfig())
    assert (finding.kind, finding.where) == (K.STRAGGLER, ("rank 5",))


BURSTS = [0.0] * 40 + [1e8] * 20


@pytest.mark.parametrize(
    ("rates", "kind", "signals"),
    [
        ([1e7] * 60, K.DATA_STALL_IO, ["data", "cpu_busy_cores", "network_receive_bytes_per_s"]),
        ([1e3] * 60, K.DATA_STALL, ["data", "cpu_busy_cores"]),
        (BURSTS, K.DATA_STALL, ["data", "cpu_busy_cores"]),
    ],
    ids=["always", "hardly", "bursts"],
)
def test_wait_without_cpu_use_is_for_storage_only_if_data_is_read_all_the_time(
    rates: list[float], kind: FindingKind, signals: list[str]
) -> None:
    phases = {"step": PhaseStatistics.of([1.0] * 500), "data": PhaseStatistics.of([0.6] * 500)}
    cpus = [("cpu_busy_cores", 0.4), ("cpu_allocated_cores", 2.0), ("block_read_bytes_per_s", 900.0)]
    parts = [series(name, [value] * 60) for name, value in cpus]
    parts.append(series("network_receive_bytes_per_s", rates))
    job = job_of(*parts, ranks=(RankSteps("n1", 0, None, 5, phases),))
    (finding,) = find_causes(job, DiagnosisConfig())
    assert finding.kind == kind
    assert [evidence.signal for evidence in finding.evidence] == signals


@pytest.mark.parametrize(
    ("cores", "kind", "confidence"),
    [(0.4, K.DATA_STALL, 0.7), (1.0, K.DATA_STALL_CPU, 0.6), (4.0, K.DATA_STALL_CPU, 0.9)],
)
def test_cpu_time_of_the_computation_is_not_that_of_the_loader(
    cores: float, kind: FindingKind, confidence: float
) -> None:
    """CPU time of the computation does not count as CPU time of the data loader.

    The job has no GPU, and its steps wait for data. The test has three cases. In the first case, less
    than one CPU is busy: the loader sleeps, and no CPU time is blamed. In the second case, one CPU is
    busy. This may be the computation, so the diagnosis blames the CPU time of the loader with low
    confidence. In the third case, four CPUs are busy and the loader has 4 processes, so the confidence is
    high.
    """
    phases = {"step": PhaseStatistics.of([1.0] * 500), "data": PhaseStatistics.of([0.6] * 500)}
    signals = [("cpu_busy_cores", cores), ("cpu_allocated_cores", 4.0), ("io_pressure_percent", 1.0)]
    parts = [series(name, [value] * 60) for name, value in signals]
    rank = RankSteps("n1", 0, None, 5, phases, hints={"num_workers": 4 if cores == 4 else 0})
    (found,) = find_causes(job_of(*parts, ranks=(rank,)), DiagnosisConfig())
    assert (found.kind, found.confidence) == (kind, confidence)


def test_short_job_gets_findings_about_failure_only() -> None:
    job = job_of(series("gpu_busy_percent", [0.0] * 6, "gpu[0]"), elapsed_s=60.0)
    assert kinds(job) == []
    context = dataclasses.replace(job.context, state="FAILED", exit_status=ExitStatus(1))
    failed = dataclasses.replace(job, context=context)
    assert kinds(failed) == [K.EARLY_FAILURE]


def test_running_job_has_no_idle_tail() -> None:
    job = job_of(series("gpu_busy_percent", [90.0] * 60 + [0.0] * 60, "gpu[0]"), elapsed_s=1200.0)
    assert kinds(job) == [K.IDLE_TAIL]
    assert kinds(dataclasses.replace(job, context=dataclasses.replace(job.context, state=None))) == []


def test_share_of_a_signal_beyond_its_range_is_limited() -> None:
    (found,) = find_causes(job_of(series("cpu_pressure_percent", [150.0] * 60)), DiagnosisConfig())
    assert (found.kind, found.time_share) == (K.CPU_CONTENTION, 1.0)


def test_missed_sample_does_not_divide_an_idle_tail() -> None:
    values = [90.0] * 60 + [0.0] * 30 + [math.nan] + [0.0] * 29
    assert kinds(job_of(series("gpu_busy_percent", values, "gpu[0]"), elapsed_s=1200.0)) == [K.IDLE_TAIL]
    values = [90.0] * 60 + [0.0] * 20 + [math.nan] * 20 + [0.0] * 20
    assert kinds(job_of(series("gpu_busy_percent", values, "gpu[0]"), elapsed_s=1200.0)) == []


@pytest.mark.parametrize(("gpus", "expected"), [((0,), [K.IDLE_TAIL]), ((0, 1), [])])
def test_gpu_without_signals_may_be_active_while_the_others_are_idle(
    gpus: tuple[int, ...], expected: list[FindingKind]
) -> None:
    job = job_of(series("gpu_busy_percent", [90.0] * 60 + [0.0] * 60, "gpu[0]"), elapsed_s=1200.0)
    context = dataclasses.replace(job.context, gpus={"n1": gpus})
    assert kinds(dataclasses.replace(job, context=context)) == expected


def finding(kind: FindingKind, joules: float | None, seconds: float | None = None) -> JobFinding:
    fact = FindingEvidence("step", "", None, None, 1.0, None, "A fact.")
    return JobFinding(kind, kind.value, (fact,), None, seconds, joules, 0.9)


def test_findings_are_ordered_by_lost_energy_and_unknown_energy_comes_last() -> None:
    found = ordered(
        [finding(K.UNUSED_CPU, None), finding(K.CHECKPOINT_STALL, 1.0), finding(K.SMALL_BATCH, 5.0)]
    )
    assert [item.kind for item in found] == [K.SMALL_BATCH, K.CHECKPOINT_STALL, K.UNUSED_CPU]


def test_chain_of_symptoms_ends_at_the_cause() -> None:
    chain = [
        finding(K.COMMUNICATION_BOUND, 9.0),
        finding(K.STRAGGLER, 5.0),
        finding(K.THERMAL_THROTTLING, 3.0),
    ]
    (cause,) = ordered(chain)
    assert cause.kind == K.THERMAL_THROTTLING
    assert set(cause.consequences) == {K.COMMUNICATION_BOUND, K.STRAGGLER}


def test_small_finding_does_not_explain_a_large_one() -> None:
    found = ordered([finding(K.STRAGGLER, 100.0, 100.0), finding(K.THERMAL_THROTTLING, 1.0, 1.0)])
    assert [item.kind for item in found] == [K.STRAGGLER, K.THERMAL_THROTTLING]


def test_explanations_have_no_cycle() -> None:
    def reachable(kind: FindingKind, seen: frozenset[FindingKind]) -> None:
        assert kind not in seen
        for consequence in CONSEQUENCES.get(kind, ()):
            reachable(consequence, seen | {kind})

    for kind in FindingKind:
        reachable(kind, frozenset())


contexts = st.builds(
    ObservedAllocation,
    job_id=st.just(1),
    start_s=st.floats(0, 1e10),
    elapsed_s=st.floats(0, 1e6),
    state=st.sampled_from([None, "COMPLETED", "FAILED", "OUT_OF_MEMORY"]),
    is_interactive=st.none() | st.booleans(),
    nodes=st.just(("n1",)),
    cpus=st.none() | st.integers(0, 64),
    energy_joules=st.just({"n1": {"cpu": 5.0, "gpu[0]": 9.0}}) | st.just({}),
    idle_watts=st.just({"n1": {"gpu[0]": 50.0}}) | st.just({}),
    limit_watts=st.just({"n1": {"gpu[0]": 50.0}}) | st.just({"n1": {"gpu[0]": 400.0}}),
)


@examples(30)
@given(contexts, observations)
def test_any_valid_observation_gets_a_diagnosis(context: ObservedAllocation, node: NodeObservation) -> None:
    diagnosis = diagnose(JobObservation(context, (node,)))
    assert diagnosis.to_json()["is_short"] == (context.elapsed_s < 120)
    for item in diagnosis.findings:
        assert item.seconds_lost is None or 0 <= item.seconds_lost <= context.elapsed_s
        assert item.time_share is None or 0 <= item.time_share <= 1


def test_every_threshold_is_used() -> None:
    folder = Path(__file__).parents[2] / "slurm_energy/diagnosis"
    code = "".join(file.read_text("utf-8") for file in folder.glob("**/*.py"))
    unused = [name for name in THRESHOLDS if not re.search(rf'"{name}"', code)]
    assert unused == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [("data_shar = 5", "data_shar"), ("data_share = 101", "0 to 100"), ("straggler_ratio = 0.5", "1 to 100")],
)
def test_wrong_threshold_is_refused_with_its_name(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "energy.toml"
    file.write_text(f"[diagnosis]\nthresholds = {{ {text} }}\n")
    with pytest.raises(ConfigError, match=fault):
        load(file)


def test_phases_inside_and_between_steps() -> None:
    phases = {"step": 80.0, "data": 20.0, "checkpoint": 10.0}
    rank = RankSteps("n1", 0, 0, 5, {name: PhaseStatistics.of([value]) for name, value in phases.items()})
    between = phase_times(rank, 100.0)
    assert between.seconds == {"data": 20.0, "compute": 60.0, "other": 0.0, "checkpoint": 10.0, "idle": 10.0}
    inside = phase_times(rank, 80.0)
    assert inside.step_s == 70.0 and inside.seconds["compute"] == 50.0 and inside.seconds["idle"] == 0.0


def test_energy_is_divided_by_steps_and_samples() -> None:
    rank = RankSteps("n1", 0, 0, 5, {"step": PhaseStatistics.of([1.0] * 500)}, samples=2000.0)
    job = job_of(ranks=(rank,))
    job = dataclasses.replace(
        job, context=dataclasses.replace(job.context, energy_joules={"n1": {"gpu[0]": 6000.0, "cpu": 4000.0}})
    )
    summary = diagnose(job).summary
    assert (summary.joules_per_step, summary.joules_per_sample) == (20.0, 5.0)
    assert sum(summary.time_shares.values()) == pytest.approx(1.0)
    by_scope = {(phase.scope, phase.where): phase.joules for phase in summary.phases}
    assert by_scope[("gpu", "n1 gpu[0]")] == pytest.approx(5000.0)
    assert by_scope[("rank", "0")] is None


def test_straggler_is_longer_than_a_multiple_of_the_median() -> None:
    assert stragglers([10, 10, 10, 13.1, 12.9], 1.3) == [3]
    assert stragglers([], 1.3) == stragglers([0.0, 0.0], 1.3) == []


def cpu_training(optimizer_s: float, workers: int = 0, data_s: float = 0.0) -> RankSteps:
    times = {"forward": 0.1, "backward": 0.2, "optimizer": optimizer_s, "data": data_s}
    times["step"] = sum(times.values())
    phases = {name: PhaseStatistics.of([value] * 300) for name, value in times.items()}
    return RankSteps("n1", 0, None, 5, phases, hints={"num_workers": workers, "batch_size": 2})


def test_small_batch_on_cpus_is_seen_by_the_share_of_the_optimizer() -> None:
    assert kinds(job_of(ranks=(cpu_training(0.3),))) == [K.SMALL_BATCH]
    assert kinds(job_of(ranks=(cpu_training(0.05),))) == []
    on_gpu = series("gpu_busy_percent", [95.0] * 60, "gpu[0]")
    assert kinds(job_of(on_gpu, ranks=(cpu_training(0.3),))) == []
    large = dataclasses.replace(cpu_training(0.3), hints={"num_workers": 0, "batch_size": 256})
    assert kinds(job_of(ranks=(large,))) == []


def test_small_batch_whose_loader_waits_as_well_comes_first() -> None:
    assert kinds(job_of(ranks=(cpu_training(0.3, data_s=0.15),))) == [K.SMALL_BATCH, K.DATA_STALL]


@pytest.mark.parametrize(
    ("cores", "workers", "first"),
    [(3.9, 11, K.CPU_CONTENTION), (3.9, 2, K.DATA_STALL_CPU), (2.0, 11, K.DATA_STALL)],
)
def test_contention_without_pressure_needs_busy_cpus_and_too_many_processes(
    cores: float, workers: int, first: FindingKind
) -> None:
    signals = series("cpu_busy_cores", [cores] * 60), series("cpu_allocated_cores", [4.0] * 60)
    found = find_causes(job_of(*signals, ranks=(cpu_training(0.05, workers, 0.5),)), DiagnosisConfig())
    assert [finding.kind for finding in found] == [first]


def test_session_without_processes_is_idle_by_the_use_of_its_cpus() -> None:
    """A session in which no process ran is found idle from the load of its allocated CPUs.

    No process ran in the session, so CPU time of the job itself was not recorded. The job is reported as
    idle only if the load of all its CPUs is known and low.
    """
    allocated = series("cpu_allocated_cores", [2.0] * 240)
    cpus = [series("cpu_busy_percent", [0.5] * 240, f"cpu[{index}]") for index in range(2)]
    busy = series("cpu_busy_percent", [90.0] * 240, "cpu[1]")
    assert kinds(job_of(allocated, *cpus, elapsed_s=2400.0)) == [K.IDLE_ALLOCATION]
    assert kinds(job_of(allocated, cpus[0], busy, elapsed_s=2400.0)) == []
    assert kinds(job_of(allocated, cpus[0], elapsed_s=2400.0)) == []
