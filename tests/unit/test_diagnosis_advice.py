"""Tests of the advice of the diagnosis.

An advice must name the line to change. The model of the training loop must confirm its gain.
"""

import re
from dataclasses import replace
from random import Random

import pytest
from test_diagnosis_rules import job_of, series

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import Diagnosis, diagnose
from slurm_energy.diagnosis.finding_advice import FindingAdvice
from slurm_energy.diagnosis.observation import JobObservation, NodeObservation, ObservedAllocation
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps
from slurm_energy_lab.diagnosis_corpus.healthy import HEALTHY
from slurm_energy_lab.diagnosis_corpus.observe import observe
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED, training_job
from slurm_energy_lab.diagnosis_corpus.scores import build
from slurm_energy_lab.diagnosis_corpus.training_loop import step_times

JOBS = {job.name: job for job in (*PLANTED, *HEALTHY)}


def only(observation: JobObservation) -> FindingAdvice:
    (advice,) = diagnose(observation, DiagnosisConfig()).advice
    return advice


@pytest.mark.parametrize("seed", range(4))
def test_gain_of_more_workers_is_that_of_the_model(seed: int) -> None:
    shape = training_job(Random(seed), max_ranks=1)
    shape.elapsed_s, loop = 1800.0, shape.loop
    assert loop is not None
    compute_s = step_times(loop)[0].compute
    loop.workers, loop.cpus, shape.cpus = 1, 64, 64
    loop.sample_cpu_s = compute_s / loop.batch * (2 + seed)
    before = step_times(loop)[0].step
    advice = only(observe(shape, Random(seed)))
    loop.workers = int(advice.line.removeprefix("DataLoader(num_workers=").partition(")")[0])
    after = step_times(loop)[0].step
    steps = (shape.elapsed_s - shape.startup_s) / before
    assert advice.seconds_gain == pytest.approx((before - after) * steps, rel=0.1)
    assert advice.joules_gain is not None and advice.source and advice.verify


def test_more_workers_than_cpus_need_more_cpus() -> None:
    steps = {"step": [2.0] * 300, "data": [1.5] * 300}
    phases = {name: PhaseStatistics.of(values) for name, values in steps.items()}
    rank = RankSteps("n1", 0, None, 5, phases, hints={"num_workers": 2})
    signals = [("cpu_busy_cores", 2.0), ("cpu_allocated_cores", 2.0), ("io_pressure_percent", 1.0)]
    parts = [series(name, [value] * 60) for name, value in signals]
    advice = only(job_of(*parts, ranks=(rank,)))
    assert advice.line == "DataLoader(num_workers=9); #SBATCH --cpus-per-task=10"
    assert advice.seconds_gain == pytest.approx(450.0)
    assert advice.joules_gain is None  # the energy of the job is unknown
    changes = [change.to_json() for change in advice.changes]
    assert changes[0] == {"kind": "workers", "old": 2, "new": 9}
    assert changes[1] == {"kind": "cpus-per-task", "old": 2.0, "new": 10}


def test_loader_that_waits_without_cpus_gets_more_workers_than_cpus() -> None:
    steps = {"step": [2.0] * 300, "data": [1.5] * 300}
    phases = {name: PhaseStatistics.of(values) for name, values in steps.items()}
    rank = RankSteps("n1", 0, None, 5, phases, hints={"num_workers": 2})
    signals = [("cpu_busy_cores", 0.3), ("cpu_allocated_cores", 2.0), ("io_pressure_percent", 1.0)]
    advice = only(job_of(*(series(name, [value] * 60) for name, value in signals), ranks=(rank,)))
    assert advice.kind.value == "data-stall"
    assert advice.line == "DataLoader(num_workers=9)"
    assert [change.to_json() for change in advice.changes] == [{"kind": "workers", "old": 2, "new": 9}]


def test_workers_of_a_job_without_gpus_use_all_its_cpus() -> None:
    steps = {"step": [2.0] * 300, "data": [1.5] * 300}
    phases = {name: PhaseStatistics.of(values) for name, values in steps.items()}
    rank = RankSteps("n1", 0, None, 5, phases, hints={"num_workers": 1})
    signals = [("cpu_busy_cores", 1.25), ("cpu_allocated_cores", 2.0), ("io_pressure_percent", 1.0)]
    advice = only(job_of(*(series(name, [value] * 60) for name, value in signals), ranks=(rank,)))
    assert advice.changes[0].alone == 2


def test_no_advice_without_the_figures_that_it_needs() -> None:
    steps = {"step": [2.0] * 300, "data": [1.5] * 300}
    phases = {name: PhaseStatistics.of(values) for name, values in steps.items()}
    rank = RankSteps("n1", 0, None, 5, phases)
    signals = [("cpu_busy_cores", 2.0), ("cpu_allocated_cores", 2.0), ("io_pressure_percent", 1.0)]
    diagnosis = diagnose(job_of(*(series(name, [v] * 60) for name, v in signals), ranks=(rank,)))
    assert diagnosis.findings and diagnosis.advice == ()
    for name in ("training", "cpu-program"):
        assert diagnose(build(JOBS[name], 3)).advice == ()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cpu-program-on-gpus", "##SBATCH --gpus-per-node="),
        ("one-node-works", "#SBATCH --nodes=1"),
        ("frequent-checkpoints", 'slurm_energy.adjusted("checkpoint-interval", default='),
        ("idle-tail", "#SBATCH --time="),
    ],
)
def test_line_to_change(name: str, line: str) -> None:
    advice = only(build(JOBS[name], 6))
    assert advice.line.startswith(line) and advice.joules_gain is not None and advice.joules_gain > 0


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("slow-storage", {"stage-data": 1}),
        ("slow-storage-no-steps", {"stage-data": 1}),
        ("slow-network", {"accumulation": 2}),
        ("slow-network-no-steps", {"accumulation": 2}),
        ("straggler", {"balance": 1}),
        ("straggler-no-steps", {"balance": 1}),
        ("uneven-work", {"balance": 1}),
        ("one-hot-gpu", {"balance": 1}),
        ("slow-copies-no-steps", {"pin-memory": 1}),
        ("thrashing", {"mem": 299}),
    ],
)
def test_change_that_can_be_applied(name: str, changes: dict[str, int]) -> None:
    diagnosis = diagnose(build(JOBS[name], 6))
    advice = next(one for one in diagnosis.advice if one.kind is diagnosis.findings[0].kind)
    assert {change.kind.value: change.new for change in advice.changes} == changes
    assert advice.joules_gain is not None and advice.joules_gain > 0


@pytest.mark.parametrize("name", ["hot-gpus", "gpu-memory-leak", "slow-iterations"])
def test_no_advice_where_no_setting_of_the_job_helps(name: str) -> None:
    assert diagnose(build(JOBS[name], 6)).advice == ()


def test_serial_loader_gets_the_idle_cpus_as_workers() -> None:
    observation = build(JOBS["no-workers-no-steps"], 6)
    advice = only(observation)
    (change,) = advice.changes
    gpus = len(observation.context.gpus["n1"])
    cpus = (observation.context.cpus or 0) / len(observation.nodes)
    assert change.old is None and 1 <= change.new < cpus / gpus


def test_checkpoints_without_steps_are_counted_by_their_writes() -> None:
    advice = only(build(JOBS["frequent-checkpoints-no-steps"], 6))
    (change,) = advice.changes
    assert change.kind.value == "checkpoint-interval" and change.old is not None and change.new > change.old


def test_loader_on_too_few_cpus_gets_those_that_it_needs_but_never_more_than_its_processes() -> None:
    observation = build(JOBS["oversubscribed-workers"], 6)
    (change,) = only(observation).changes
    workers = observation.ranks[0].hints["num_workers"]
    assert change.kind.value == "cpus-per-task" and isinstance(workers, int)
    assert change.old is not None and change.old < change.new <= workers + 1


@pytest.mark.parametrize("seed", range(5))
def test_limit_is_raised_only_as_far_as_energy_falls(seed: int) -> None:
    shape = next(job for job in PLANTED if job.name == "low-clock").build
    observation = shape(Random(seed))
    for advice in diagnose(observation).advice:
        (change,) = advice.changes
        assert change.kind.value == "gpu-clock" and change.old is not None
        assert change.old < change.new <= 1980
        assert advice.joules_gain is not None and advice.joules_gain > 0


def partly_unknown_gpus(missing_nodes: int | None) -> Diagnosis:
    """Return the diagnosis of a job with one busy GPU, one unused GPU and two GPUs without signals."""
    busy = [series("gpu_busy_percent", [value] * 60, f"gpu[{index}]") for index, value in enumerate((95, 0))]
    job = job_of(*busy, series("cpu_busy_cores", [4.0] * 60), series("cpu_allocated_cores", [8.0] * 60))
    energies = {f"gpu[{index}]": joules for index, joules in enumerate((18e4, 4e4, 18e4, 18e4))}
    context = replace(
        job.context,
        gpus={"n1": (0, 1, 2, 3)},
        energy_joules={"n1": energies},
        missing_nodes=missing_nodes,
    )
    return diagnose(replace(job, context=context))


def test_gpus_of_unknown_use_are_not_advised_away() -> None:
    diagnosis = partly_unknown_gpus(missing_nodes=0)
    (finding,), (advice,) = diagnosis.findings, diagnosis.advice
    assert finding.title == "1 of 4 GPUs are never used"
    assert advice.line == "#SBATCH --gpus-per-node=3"
    assert advice.text == "Request 3 instead of 4 GPUs per node: the program never uses the others."
    assert [change.to_json() for change in advice.changes] == [{"kind": "gpus-per-node", "old": 4, "new": 3}]


@pytest.mark.parametrize("missing_nodes", [1, None])
def test_no_fewer_gpus_per_node_if_the_gpus_of_a_node_may_be_unknown(missing_nodes: int | None) -> None:
    diagnosis = partly_unknown_gpus(missing_nodes)
    assert [finding.kind.value for finding in diagnosis.findings] == ["unused-gpu"]
    assert diagnosis.advice == ()


@pytest.mark.parametrize(
    ("missing_nodes", "title", "line"),
    [
        (0, "1 of 3 nodes are never used", "#SBATCH --nodes=2"),
        (2, "1 of 5 nodes are never used", None),  # the energy of the job is unknown
        (None, "1 of 3 nodes are never used", None),
    ],
)
def test_nodes_of_unknown_use_are_not_advised_away(
    missing_nodes: int | None, title: str, line: str | None
) -> None:
    nodes = [
        NodeObservation(
            name,
            (
                series("cpu_busy_cores", [cores] * 60, node=name),
                series("cpu_allocated_cores", [8.0] * 60, node=name),
            ),
        )
        for name, cores in (("n1", 7.0), ("n2", 0.0))
    ]
    names = ("n1", "n2", "n3")
    energies = {name: {"cpu": 6e4} for name in names}
    context = ObservedAllocation(
        1, 0.0, 600.0, "COMPLETED", nodes=names, energy_joules=energies, missing_nodes=missing_nodes
    )
    diagnosis = diagnose(JobObservation(context, (*nodes, NodeObservation("n3"))))
    assert [finding.title for finding in diagnosis.findings] == [title]
    assert [advice.line for advice in diagnosis.advice] == ([] if line is None else [line])


@pytest.mark.parametrize("has_node_meter", [False, True])
def test_gain_of_a_raised_limit_counts_the_energy_of_a_node_once(has_node_meter: bool) -> None:
    values = {
        "gpu_busy_percent": 99.0,
        "throttle_power_percent": 98.0,
        "sm_clock_mhz": 900.0,
        "max_sm_clock_mhz": 1800.0,
        "power_watts": 150.0,
    }
    job = job_of(*(series(name, [value] * 60, "gpu[0]") for name, value in values.items()))
    energies = {"gpu[0]": 90e3, "cpu": 180e3} | ({"node": 270e3} if has_node_meter else {})
    context = replace(
        job.context,
        energy_joules={"n1": energies},
        idle_watts={"n1": {"gpu[0]": 60.0}},
        limit_watts={"n1": {"gpu[0]": 150.0}},
        max_limit_watts={"n1": {"gpu[0]": 400.0}},
    )
    advice = only(replace(job, context=context))
    # 450 W, 90 W of them grow fourfold at twice the clock, in half of the time.
    assert advice.joules_gain == pytest.approx((1 - (360 + 4 * 90) / 2 / 450) * 270e3)


@pytest.mark.parametrize(("max_mhz", "limits"), [(1800.0, ["gpu-clock"]), (1410.0, [])])
def test_no_limit_is_advised_for_gpus_whose_highest_clocks_differ(max_mhz: float, limits: list[str]) -> None:
    values = {"gpu_busy_percent": 99.0, "throttle_power_percent": 0.0, "sm_clock_mhz": 900.0}
    gpus = {"gpu[0]": 1800.0, "gpu[1]": max_mhz}
    parts = [
        series(name, [value] * 60, gpu)
        for gpu, highest in gpus.items()
        for name, value in (values | {"power_watts": 150.0, "max_sm_clock_mhz": highest}).items()
    ]
    job = job_of(*parts)
    energies = {"cpu": 360e3} | dict.fromkeys(gpus, 90e3)
    idle = {"n1": dict.fromkeys(gpus, 60.0)}
    context = replace(job.context, energy_joules={"n1": energies}, idle_watts=idle)
    diagnosis = diagnose(replace(job, context=context), DiagnosisConfig())
    assert [finding.where for finding in diagnosis.findings] == [("n1 gpu[0]", "n1 gpu[1]")]
    assert [change.kind.value for one in diagnosis.advice for change in one.changes] == limits


@pytest.mark.slow
def test_gain_of_energy_takes_waiting_gpus_as_idle() -> None:
    observation = build(JOBS["one-worker"], 3)
    total = sum(sum(parts.values()) for parts in observation.context.energy_joules.values())
    advice = only(observation)
    time_share = advice.seconds_gain / observation.context.elapsed_s
    assert advice.joules_gain is not None and advice.joules_gain / total < 0.8 * time_share


@pytest.mark.slow
def test_gain_is_never_more_than_the_finding_lost() -> None:
    for name in ("one-worker", "frequent-checkpoints", "idle-tail"):
        diagnosis = diagnose(build(JOBS[name], 7))
        losses = {finding.kind: finding for finding in diagnosis.findings}
        for advice in diagnosis.advice:
            lost = losses[advice.kind]
            assert lost.seconds_lost is not None and advice.seconds_gain <= lost.seconds_lost * 1.001
            assert advice.joules_gain is None or advice.joules_gain <= (lost.joules_lost or 0) * 1.001


def test_pinned_memory_is_advised_only_if_the_loader_does_not_use_it() -> None:
    phases = {"step": PhaseStatistics.of([2.0] * 300), "copy": PhaseStatistics.of([0.6] * 300)}
    rank = RankSteps("n1", 0, None, 5, phases, hints={"pin_memory": False})
    assert only(job_of(ranks=(rank,))).line.startswith("DataLoader(pin_memory=True)")
    assert diagnose(job_of(ranks=(replace(rank, hints={"pin_memory": True}),))).advice == ()


def test_small_batch_doubles_if_the_program_reports_its_size() -> None:
    observation = build(JOBS["tiny-batch"], 3)
    advice = only(observation)
    (change,) = advice.changes
    assert change.new == 2 * observation.ranks[0].hints["batch_size"]
    assert advice.line == f"DataLoader(batch_size={change.new})"
    assert not diagnose(build(JOBS["tiny-batch-no-steps"], 3), DiagnosisConfig()).advice


@pytest.mark.parametrize(
    ("signal", "value", "line", "gain_s"),
    [
        ("cpu_waiting_tasks", 6.0, "#SBATCH --cpus-per-task=10", 300.0),
        ("cpu_throttled_percent", 50.0, "#SBATCH --cpus-per-task=8", 300.0),
        ("cpu_pressure_percent", 90.0, None, None),
    ],
)
def test_more_cpus_only_if_their_number_is_known(
    signal: str, value: float, line: str | None, gain_s: float | None
) -> None:
    phases = {"step": PhaseStatistics.of([2.0] * 300), "data": PhaseStatistics.of([1.0] * 300)}
    rank = RankSteps("n1", 0, None, 5, phases, hints={"num_workers": 9})
    values = {"cpu_busy_cores": 3.9, "cpu_allocated_cores": 4.0, signal: value}
    parts = [series(name, [value] * 60) for name, value in values.items()]
    found = diagnose(job_of(*parts, ranks=(rank,)))
    assert found.findings[0].kind.value == "cpu-contention"
    if line is None:
        assert found.advice == ()
    else:
        (advice,) = found.advice
        assert (advice.line, advice.seconds_gain) == (line, gain_s)
        assert advice.changes[0].to_json() == {"kind": "cpus-per-task", "old": 4.0, "new": int(line[24:])}


@pytest.mark.parametrize(("stall", "gain_s"), [(50.0, 300.0), (0.0, None)])
def test_more_memory_only_if_tasks_waited_for_it(stall: float, gain_s: float | None) -> None:
    values = {"memory_used_bytes": 8e9, "memory_limit_bytes": 8 * 2.0**30, "memory_pressure_percent": stall}
    parts = [series(name, [value] * 60) for name, value in values.items()]
    used = series("memory_used_bytes", [(2 + index / 10) * 2**30 for index in range(60)])
    advice = diagnose(job_of(*parts[1:], used)).advice
    assert [(one.line, one.seconds_gain) for one in advice] == (
        [("#SBATCH --mem=10G", pytest.approx(gain_s))] if gain_s else []
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(
            "slow-storage",
            "one-worker",
            "tiny-batch",
            "slow-copies",
            "slow-network",
            "straggler",
            "thrashing",
        ),
        *("frequent-checkpoints", "low-power-limit", "cpu-program-on-gpus", "one-node-works", "idle-tail"),
    ],
)
def test_each_line_of_advice_can_be_pasted_and_has_figures(name: str) -> None:
    advised = diagnose(build(JOBS[name], 6)).advice
    assert advised
    for advice in advised:
        assert advice.seconds_gain > 0 or advice.joules_gain
        for line in advice.line.split("; "):
            if line.startswith(("#SBATCH", "##SBATCH")):
                assert re.fullmatch(r"##?SBATCH --[a-z-]+=[\w,.:@-]+", line)
            elif not line.startswith("cp -r "):
                compile(line, "advice", "eval")  # a whole Python expression
            assert len(line) <= 76
