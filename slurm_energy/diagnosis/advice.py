"""Advice on a finding of the diagnosis: the line of the program to change, and the expected gain.

A finding whose gain is unknown gets no advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.data_advice import more_cpus, more_workers, pinned_memory, staged_data
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.finding_advice import FindingAdvice, joules_of_part
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.limit_advice import raised_limit
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.diagnosis.parallel_advice import accumulated_gradients, balanced_work
from slurm_energy.diagnosis.rules.failure import TIMED_OUT
from slurm_energy.diagnosis.rules.iterations import WRITE_STALLS
from slurm_energy.diagnosis.trials.change_set import AdvisedChange

_CHECKPOINT_SHARE = 0.03
_TIME_LIMIT_MARGIN = 1.1
_BATCH_FACTOR = 2
_TIME_OUT_S = 600.0
_SAVED_PARTS = 10
"""Number of checkpoints in a job that has to end early.

On average, a twentieth of the job's time is then lost.
"""
_MEMORY_MARGIN = 1.25
_MIN_GAIN = 0.03
"""Minimum gain for which advice is given, as a fraction of the job's time or energy."""

_Adviser = Callable[[JobView, JobFinding], Iterator[FindingAdvice]]


def advise(
    observation: JobObservation, findings: Sequence[JobFinding], config: DiagnosisConfig
) -> tuple[FindingAdvice, ...]:
    """Return the advice for the findings of a job, in the order of the findings."""
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


def _fewer_checkpoints(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to write checkpoints less often, so that checkpoints take 3 % of the time."""
    phases = [p for rank in view.ranks if (p := rank.steps.phases.get("checkpoint")) is not None and p.count]
    counts = [phase.count for phase in phases] or [
        round(fact.value or 0) for fact in finding.evidence if fact.signal == WRITE_STALLS
    ]
    count, seconds = max(counts, default=0), finding.seconds_lost
    if not count or seconds is None or view.elapsed_s <= 0:
        return
    kept = max(1, math.floor(count * _CHECKPOINT_SHARE * view.elapsed_s / seconds))
    if kept >= count:
        return
    interval_s, gain_s = view.elapsed_s / kept, seconds * (1 - kept / count)
    yield FindingAdvice(
        finding.kind,
        f"Write {kept} checkpoints instead of {count}: they then take {100 * _CHECKPOINT_SHARE:.0f} % of the"
        f" time. A failure costs {interval_s / 120:.0f} minutes on average.",
        _checkpoint_line(interval_s),
        gain_s,
        joules_of_part(finding, gain_s),
        "duration of the checkpoints of this job",
        "phase checkpoint of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.CHECKPOINT_INTERVAL, math.ceil(interval_s), view.elapsed_s / count),),
    )


def _saved_work(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to write checkpoints more often, so that a job that ends early loses little work."""
    interval_s = view.elapsed_s / _SAVED_PARTS
    gain_s = (finding.seconds_lost or 0.0) - interval_s / 2
    if gain_s <= 0:
        return
    lines = [_checkpoint_line(interval_s)]
    if view.context.state in TIMED_OUT:
        lines.append("#SBATCH --signal=B:USR1@120")
    yield FindingAdvice(
        finding.kind,
        f"Write a checkpoint every {math.ceil(interval_s / 60)} minutes and load the last one at the start."
        " The next job then continues where this one ended, instead of repeating its work.",
        "; ".join(lines),
        gain_s,
        joules_of_part(finding, gain_s),
        "work of this job that is lost, less half of the time between two checkpoints",
        "number of checkpoints of the next run: senergy diagnose",
    )


def _time_out(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to set a time-out for communication. A job that hangs then ends by itself."""
    gain_s = (finding.seconds_lost or 0.0) - _TIME_OUT_S
    if gain_s <= 0:
        return
    yield FindingAdvice(
        finding.kind,
        f"A time-out of the communication ends such a job after {_TIME_OUT_S / 60:.0f} minutes. The program's"
        " log then names the rank that failed first.",
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1;"
        " torch.distributed.init_process_group(timeout=datetime.timedelta(minutes=10))",
        gain_s,
        joules_of_part(finding, gain_s),
        "time that this job hung, less the time-out",
        "state and duration of the next run: senergy diagnose",
    )


def _checkpoint_line(interval_s: float) -> str:
    return f'slurm_energy.adjusted("checkpoint-interval", default={math.ceil(interval_s)})'


def _fewer_gpus(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to request fewer GPUs per node.

    A GPU whose use is unknown counts as used. No advice is given unless all nodes have a record, because the
    number of used GPUs may differ from node to node.
    """
    used = dict.fromkeys((node for node, _ in view.allocated_gpus), 0)
    for node, part in view.allocated_gpus:
        used[node] += f"{node} {part}" not in finding.where
    counts = set(used.values())
    if finding.joules_lost is None or len(counts) != 1 or view.context.missing_nodes != 0:
        return
    count = counts.pop()
    allocated = len(view.allocated_gpus) // len(used)
    # A second # turns an option off: 0 GPUs would still select the partition and nodes with GPUs.
    line = f"#SBATCH --gpus-per-node={count}" if count else f"##SBATCH --gpus-per-node={allocated}"
    changes = (AdvisedChange(AdjustmentKind.GPUS_PER_NODE, count, allocated),) if count else ()
    yield FindingAdvice(
        finding.kind,
        f"Request {count} instead of {allocated} GPUs per node: the program never uses the others."
        if count
        else "The program uses no GPU: request none.",
        line,
        0.0,
        finding.joules_lost,
        "measured energy of the unused GPUs",
        "energy of the next run: senergy job OLD NEW --html FILE",
        changes,
    )


def _fewer_nodes(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to request fewer nodes. A node whose use is unknown counts as used."""
    if not finding.where or finding.joules_lost is None or view.node_count is None:
        return
    count = view.node_count - len(finding.where)
    yield FindingAdvice(
        finding.kind,
        f"Request {count} instead of {view.node_count} nodes: the program never uses the others.",
        f"#SBATCH --nodes={count}",
        0.0,
        finding.joules_lost,
        "measured energy of the unused nodes",
        "energy of the next run: senergy job OLD NEW --html FILE",
        (AdvisedChange(AdjustmentKind.NODES, count, view.node_count),),
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
        joules_of_part(finding, gain_s),
        "activity of this job; equal runs take equally long",
        "duration of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.TIME, limit_minutes, None),),
    )


def _larger_batch(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to double the batch size.

    Each step has a fixed time besides the computation. With twice the batch size, this time occurs half
    as often.
    """
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
        joules_of_part(finding, gain_s),
        "half of the time that small steps lose, an upper bound",
        "time and energy per sample of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.BATCH_SIZE, size, batch),),
    )


def _more_memory(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to raise the memory limit if tasks waited for memory.

    Memory use near the limit does not justify the advice, because only waits for memory cost time.
    """
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
        (AdvisedChange(AdjustmentKind.MEMORY, size, math.floor(max(limits) / (1 << 30))),),
    )


_ADVISERS: Final[Mapping[FindingKind, _Adviser]] = {
    FindingKind.DATA_STALL_CPU: more_workers,
    FindingKind.DATA_STALL: more_workers,
    FindingKind.DATA_STALL_IO: staged_data,
    FindingKind.CHECKPOINT_STALL: _fewer_checkpoints,
    FindingKind.HOST_TO_DEVICE_COPY: pinned_memory,
    FindingKind.COMMUNICATION_BOUND: accumulated_gradients,
    FindingKind.STRAGGLER: balanced_work,
    FindingKind.LOAD_IMBALANCE: balanced_work,
    FindingKind.THERMAL_THROTTLING: balanced_work,
    FindingKind.WRONG_LIMIT: raised_limit,
    FindingKind.UNUSED_GPU: _fewer_gpus,
    FindingKind.IDLE_ALLOCATION: _fewer_nodes,
    FindingKind.IDLE_TAIL: _shorter_limit,
    FindingKind.SMALL_BATCH: _larger_batch,
    FindingKind.CPU_CONTENTION: more_cpus,
    FindingKind.MEMORY_PRESSURE: _more_memory,
    FindingKind.UNFINISHED_WORK: _saved_work,
    FindingKind.HANG: _time_out,
}
