"""Advice: from a finding to the line to change, with the expected gain. Without a figure: no advice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.finding import FindingKind, JobFinding, finite_or_none
from slurm_energy.diagnosis.job_view import JobView, RankView, mean_of
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.diagnosis.trials.change_set import AdvisedChange, ChangeSet

_SPARE_WORKERS = 1.1
_CHECKPOINT_SHARE = 0.03
_TIME_LIMIT_MARGIN = 1.1
_BATCH_FACTOR = 2
_MIN_UNTHROTTLED = 0.1
"""A job that its quota stops for longer needs at most ten times the CPUs."""
_MEMORY_MARGIN = 1.25
_MIN_GAIN = 0.03
"""Minimum gain, as a share of the job's time or energy, for which something is advised."""


@dataclass(frozen=True, slots=True)
class FindingAdvice:
    """A change that removes the cause of a finding.

    Attributes:
        kind: kind of the finding.
        text: what to change, in one or two sentences.
        line: the exact line or argument.
        seconds_gain: expected gain of time; 0 if the time does not change.
        joules_gain: expected gain of energy; None if the energy of the job is unknown.
        source: where the expectation comes from.
        verify: how to check the gain.
        changes: the same change as typed values, for `senergy diagnose --apply`; empty: it cannot be applied.
    """

    kind: FindingKind
    text: str
    line: str
    seconds_gain: float
    joules_gain: float | None
    source: str
    verify: str
    changes: tuple[AdvisedChange, ...] = ()

    @property
    def change_set(self) -> ChangeSet:
        """The typed changes with the expected gain."""
        return ChangeSet(self.kind.value, self.changes, self.seconds_gain, self.joules_gain, self.source)

    def to_json(self) -> dict[str, Any]:
        """Return the advice as a JSON object."""
        values = {name: finite_or_none(getattr(self, name)) for name in self.__slots__}
        return values | {"changes": [change.to_json() for change in self.changes]}


_Adviser = Callable[[JobView, JobFinding], Iterator[FindingAdvice]]


def advise(
    observation: JobObservation, findings: Sequence[JobFinding], config: DiagnosisConfig
) -> tuple[FindingAdvice, ...]:
    """Return the advice for the findings of a job, in their order."""
    view = JobView(observation, config)
    return tuple(
        advice
        for finding in findings
        if (adviser := _ADVISERS.get(finding.kind)) is not None
        for advice in adviser(view, finding)
        if _is_worthwhile(view, advice)
    )


def _is_worthwhile(view: JobView, advice: FindingAdvice) -> bool:
    watts = view.mean_watts
    energy = None if watts is None else watts * view.elapsed_s
    saves_energy = advice.joules_gain is not None and energy and advice.joules_gain >= _MIN_GAIN * energy
    return advice.seconds_gain >= _MIN_GAIN * view.elapsed_s or bool(saves_energy)


def _share_of(finding: JobFinding, seconds: float) -> float | None:
    """Return the energy of a part of the time that a finding lost; None if unknown."""
    if finding.joules_lost is None or not finding.seconds_lost:
        return None
    return finding.joules_lost * min(1.0, seconds / finding.seconds_lost)


def _more_workers(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the number of loader workers that keeps up with the rest of the step."""
    workers, cpus = _workers(view), _cpus_per_rank(view)
    timed = [_data_and_step_s(rank) for rank in view.ranks]
    if workers is None or cpus is None or not timed:
        return
    data_s, step_s = (mean_of([pair[index] for pair in timed]) or 0.0 for index in (0, 1))
    rest_s = step_s - data_s
    if rest_s <= 0 or data_s <= 0:
        return
    work_s = workers * step_s if workers else data_s  # CPU time of the loader per step
    wanted = max(1, math.ceil(_SPARE_WORKERS * work_s / rest_s))
    fits = max(1, math.floor(cpus) - 1)
    lines = [f"DataLoader(num_workers={wanted})"]
    text = f"With {wanted} loader workers per rank instead of {workers}, loading keeps up with the steps."
    change = AdvisedChange(AdjustmentKind.WORKERS, wanted, workers)
    changes = [change]
    if wanted > fits:
        alone = fits if fits > workers else None
        changes = [
            replace(change, requires=AdjustmentKind.CPUS_PER_TASK, alone=alone),
            AdvisedChange(AdjustmentKind.CPUS_PER_TASK, wanted + 1, cpus),
        ]
        lines.append(f"#SBATCH --cpus-per-task={wanted + 1}")
        text += f" They need {wanted + 1} CPUs per rank; the job has {cpus:.0f}."
    if wanted <= workers:
        return
    gain_s = (step_s - max(rest_s, work_s / wanted)) * max(rank.step_count for rank in view.ranks)
    yield FindingAdvice(
        finding.kind,
        text,
        "; ".join(lines),
        gain_s,
        _share_of(finding, gain_s),
        "step times of this job, if workers scale",
        "phase data of the next run: senergy diagnose",
        tuple(changes),
    )


def _data_and_step_s(rank: RankView) -> tuple[float, float]:
    steps = max(1, rank.step_count)
    return rank.times.seconds.get("data", 0.0) / steps, rank.times.step_s / steps


def _workers(view: JobView) -> int | None:
    """Return the loader workers per rank; None if unknown or different."""
    hints = {rank.steps.hints.get("num_workers") for rank in view.ranks}
    hint = hints.pop() if len(hints) == 1 else None
    return hint if isinstance(hint, int) and not isinstance(hint, bool) and 0 <= hint <= 1024 else None


def _cpus_per_rank(view: JobView) -> float | None:
    """Return the CPUs of the job per rank; None if unknown."""
    cpus = [
        max(series.known())
        for node in view.observation.nodes
        if (series := view.node_series(node, "cpu_allocated_cores")) is not None
    ]
    total = sum(cpus) if len(cpus) == len(view.observation.nodes) else view.context.cpus
    return total / len(view.ranks) if total and view.ranks else None


def _fewer_checkpoints(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield a longer interval between checkpoints, so that they take 3 % of the time."""
    phases = [p for rank in view.ranks if (p := rank.steps.phases.get("checkpoint")) is not None and p.count]
    if not phases or finding.seconds_lost is None or view.elapsed_s <= 0:
        return
    count, seconds = max(phase.count for phase in phases), finding.seconds_lost
    kept = max(1, math.floor(count * _CHECKPOINT_SHARE * view.elapsed_s / seconds))
    if kept >= count:
        return
    interval_s, gain_s = view.elapsed_s / kept, seconds * (1 - kept / count)
    yield FindingAdvice(
        finding.kind,
        f"Write {kept} checkpoints instead of {count}: they then take {100 * _CHECKPOINT_SHARE:.0f} % of the"
        f" time. A failure costs {interval_s / 120:.0f} minutes on average.",
        f"one checkpoint every {interval_s / 60:.0f} minutes",
        gain_s,
        _share_of(finding, gain_s),
        "duration of the checkpoints of this job",
        "phase checkpoint of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.CHECKPOINT_INTERVAL, math.ceil(interval_s), view.elapsed_s / count),),
    )


def _pinned_memory(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield pinned memory, if the loader does not use it."""
    pinned = {rank.steps.hints.get("pin_memory") for rank in view.ranks}
    if pinned != {False} or finding.seconds_lost is None:
        return
    yield FindingAdvice(
        finding.kind,
        "Pinned memory lets copies overlap with computation; at most their whole time is gained.",
        "DataLoader(pin_memory=True); tensor.to(device, non_blocking=True)",
        finding.seconds_lost,
        finding.joules_lost,
        "time of the copies of this job, an upper bound",
        "phase copy of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.PIN_MEMORY, 1, 0),),
    )


def _fewer_gpus(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    used = dict.fromkeys((gpu.node for gpu in view.gpus), 0)
    for gpu in view.gpus:
        used[gpu.node] += gpu.name not in finding.where
    counts = set(used.values())
    if finding.joules_lost is None or len(counts) != 1:
        return
    count = counts.pop()
    line = f"#SBATCH --gpus-per-node={count}" if count else "no --gpus option"
    allocated = len(view.gpus) // len(used)
    changes = (AdvisedChange(AdjustmentKind.GPUS_PER_NODE, count, allocated),) if count else ()
    yield FindingAdvice(
        finding.kind,
        f"Request the GPUs that the program uses: {count} per node.",
        line,
        0.0,
        finding.joules_lost,
        "measured energy of the unused GPUs",
        "energy of the next run: senergy job OLD NEW --html FILE",
        changes,
    )


def _fewer_nodes(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    if not finding.where or finding.joules_lost is None:
        return
    count = len(view.observation.nodes) - len(finding.where)
    yield FindingAdvice(
        finding.kind,
        f"{count} of {len(view.observation.nodes)} nodes do all the work.",
        f"#SBATCH --nodes={count}",
        0.0,
        finding.joules_lost,
        "measured energy of the unused nodes",
        "energy of the next run: senergy job OLD NEW --html FILE",
        (AdvisedChange(AdjustmentKind.NODES, count, len(view.observation.nodes)),),
    )


def _shorter_limit(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    if finding.seconds_lost is None or finding.joules_lost is None:
        return
    active_s = view.elapsed_s - finding.seconds_lost
    limit_minutes = math.ceil(_TIME_LIMIT_MARGIN * active_s / 60)
    gain_s = view.elapsed_s - 60 * limit_minutes
    if gain_s <= 0:
        return
    hours, minutes = divmod(limit_minutes, 60)
    yield FindingAdvice(
        finding.kind,
        f"The work ends after {active_s / 60:.0f} minutes. A time limit with a tenth as margin ends the job"
        " then.",
        f"#SBATCH --time={hours:02d}:{minutes:02d}:00",
        gain_s,
        _share_of(finding, gain_s),
        "activity of this job; equal runs take equally long",
        "duration of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.TIME, limit_minutes, None),),
    )


def _larger_batch(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield twice the batch size: half the steps cost half the constant time per step."""
    batch = view.hint("batch_size")
    if batch is None or batch < 1 or finding.seconds_lost is None:
        return
    size, gain_s = round(_BATCH_FACTOR * batch), finding.seconds_lost * (1 - 1 / _BATCH_FACTOR)
    yield FindingAdvice(
        finding.kind,
        f"A batch of {size} instead of {batch:.0f} halves the number of steps, if memory permits. Another"
        " batch size changes the training: check its learning rate and result.",
        f"DataLoader(batch_size={size})",
        gain_s,
        _share_of(finding, gain_s),
        "half of the time that small steps lose, an upper bound",
        "time and energy per sample of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.BATCH_SIZE, size, batch),),
    )


def _more_cpus(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield as many CPUs as the tasks of the job can use at the same time, or as its quota lacks."""
    cpus, fact = _cpus_per_rank(view), finding.evidence[0]
    if cpus is None or not fact.value:
        return
    if fact.signal == "cpu_waiting_tasks":
        factor, source = fact.value, "tasks that ran or waited for a CPU in this job, an upper bound"
    elif fact.signal == "cpu_throttled_percent":
        factor = 1 / max(_MIN_UNTHROTTLED, 1 - fact.value / 100)
        source = "time in which the quota stopped this job, an upper bound"
    else:
        return  # pressure does not say how many tasks wait
    wanted = math.ceil(factor * cpus)
    if wanted <= cpus:
        return
    waited_s = (1 - 1 / factor) * view.active_s
    gain_s = waited_s if finding.seconds_lost is None else min(waited_s, finding.seconds_lost)
    yield FindingAdvice(
        finding.kind,
        f"The tasks of each rank can use {wanted} CPUs; it has {cpus:.0f}. Fewer loader workers and threads"
        " (OMP_NUM_THREADS) lose less time to each other as well, but gain less.",
        f"#SBATCH --cpus-per-task={wanted}",
        gain_s,
        _share_of(finding, gain_s),
        source,
        "waits for CPUs and time of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.CPUS_PER_TASK, wanted, cpus),),
    )


def _more_memory(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield a higher memory limit, if tasks waited for memory. To be near the limit costs no time."""
    limits = [
        max(series.known())
        for node in view.observation.nodes
        if (series := view.node_series(node, "memory_limit_bytes")) is not None
    ]
    if not limits or not finding.seconds_lost:
        return
    size = math.ceil(_MEMORY_MARGIN * max(limits) / (1 << 30))
    yield FindingAdvice(
        finding.kind,
        f"A quarter more memory per node: {size} GiB instead of {max(limits) / (1 << 30):.3g}. Fewer workers"
        " and smaller batches need less.",
        f"#SBATCH --mem={size}G",
        finding.seconds_lost,
        finding.joules_lost,
        "time in which tasks of this job waited for memory, an upper bound",
        "waits for memory of the next run: senergy diagnose",
    )


_ADVISERS: Final[Mapping[FindingKind, _Adviser]] = {
    FindingKind.DATA_STALL_CPU: _more_workers,
    FindingKind.CHECKPOINT_STALL: _fewer_checkpoints,
    FindingKind.HOST_TO_DEVICE_COPY: _pinned_memory,
    FindingKind.UNUSED_GPU: _fewer_gpus,
    FindingKind.IDLE_ALLOCATION: _fewer_nodes,
    FindingKind.IDLE_TAIL: _shorter_limit,
    FindingKind.SMALL_BATCH: _larger_batch,
    FindingKind.CPU_CONTENTION: _more_cpus,
    FindingKind.MEMORY_PRESSURE: _more_memory,
}
