"""Advice for training programs that wait for data.

The advice concerns the number of loader processes, the CPUs for them, a copy of the data set on fast
storage, and pinned memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.finding_advice import FindingAdvice, cpus_per_rank, joules_of_part
from slurm_energy.diagnosis.job_view import JobView, RankView
from slurm_energy.diagnosis.rules.data_pipeline import LOADER_STARTS, loader_starts, reception_seconds
from slurm_energy.diagnosis.series_means import mean_of
from slurm_energy.diagnosis.trials.change_set import AdvisedChange

_SPARE_WORKERS = 1.1
_MIN_UNTHROTTLED = 0.1
"""Minimum fraction of the time in which a quota lets a job run.

Below it, the advice stays at ten times the CPUs.
"""
_VERIFY_DATA = "phase data of the next run: senergy diagnose"
_VERIFY_RUN = "duration and energy of the next run: senergy job OLD NEW --html FILE"


def more_workers(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to use more processes that load data (loader workers).

    The advised number is sufficient to keep up with the rest of the step. Without GPUs, workers can use all
    CPUs, because the computation uses no CPU while it waits for data. If workers mostly wait for something
    other than CPUs, such as network storage, they need no additional CPUs.
    """
    if not view.ranks:
        yield from _workers_for_serial_loader(view, finding)
        return
    if finding.evidence[0].signal == LOADER_STARTS:
        yield from _persistent_workers(view, finding)
        return
    workers, cpus = _workers(view), cpus_per_rank(view)
    if workers is None or cpus is None:
        return
    data_s, step_s = _steady_data_and_step_s(view)
    rest_s = step_s - data_s
    if rest_s <= 0 or data_s <= 0:
        return
    work_s = workers * step_s if workers else data_s  # CPU time of the loader per step
    wanted = max(1, math.ceil(_SPARE_WORKERS * work_s / rest_s))
    waits_only = finding.kind is FindingKind.DATA_STALL
    fits = max(1, math.floor(cpus) - (1 if view.gpus else 0))
    lines = [f"DataLoader(num_workers={wanted})"]
    text = f"With {wanted} loader workers per rank instead of {workers}, loading keeps up with the steps."
    change = AdvisedChange(AdjustmentKind.WORKERS, wanted, workers)
    changes = [change]
    if wanted > fits and not waits_only:
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
    gain_s *= view.programs_in_turn
    yield FindingAdvice(
        finding.kind,
        text,
        "; ".join(lines),
        gain_s,
        joules_of_part(finding, gain_s),
        "step times of this job, if workers scale"
        + (" and wait for something else than CPUs" if waits_only else ""),
        _VERIFY_DATA,
        tuple(changes),
    )


def _persistent_workers(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to start the loader's processes only once, unless the program already does so."""
    persistent = {rank.steps.hints.get("persistent_workers") for rank in view.ranks}
    if persistent != {False} or finding.seconds_lost is None:
        return
    yield FindingAdvice(
        finding.kind,
        "Start the loader's processes once instead of in each epoch.",
        "DataLoader(persistent_workers=True)",
        finding.seconds_lost,
        finding.joules_lost,
        "waits for the first batches of all epochs but one, an upper bound",
        _VERIFY_DATA,
    )


def _workers_for_serial_loader(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to load training data with more worker processes on idle CPUs.

    The advice is given if a single process prepares the data of each GPU, and CPUs of the job are idle.
    """
    fact, cpus = finding.evidence[0], view.mean("cpu_allocated_cores")
    use, gpus_per_node = view.cpu_use, len(view.busy_gpus) / max(1, len(view.observation.nodes))
    if fact.threshold is not None or cpus is None or use is None or not gpus_per_node:
        return  # all CPUs are busy already
    workers = math.floor(cpus * (1 - use / 100) / gpus_per_node)
    if workers < 1 or finding.seconds_lost is None:
        return
    gain_s = finding.seconds_lost * workers / (workers + 1)
    yield FindingAdvice(
        finding.kind,
        f"Each GPU waits for one process, while {workers} of its CPUs are idle: load the data in {workers}"
        " workers per rank.",
        f"DataLoader(num_workers={workers})",
        gain_s,
        joules_of_part(finding, gain_s),
        f"idle time of the GPUs, if {workers} workers share the loading, an upper bound",
        _VERIFY_RUN,
        (AdvisedChange(AdjustmentKind.WORKERS, workers, None),),
    )


def _data_and_step_s(rank: RankView) -> tuple[float, float]:
    steps = max(1, rank.step_count)
    return rank.times.seconds.get("data", 0.0) / steps, rank.times.step_s / steps


def _steady_data_and_step_s(view: JobView) -> tuple[float, float]:
    """Return the mean wait for data and the mean step time in seconds, in normal operation.

    Both times exclude the starts of the data loader's processes. The wait for data also excludes the time
    to receive batches that are ready.
    """
    timed = [_data_and_step_s(rank) for rank in view.ranks]
    data_s, step_s = (mean_of([pair[index] for pair in timed]) or 0.0 for index in (0, 1))
    steps = max(1, *(rank.step_count for rank in view.ranks))
    start_s, reception_s = loader_starts(view).seconds / steps, reception_seconds(view) / steps
    return max(0.0, data_s - start_s - reception_s), max(0.0, step_s - start_s)


def _workers(view: JobView) -> int | None:
    """Return the number of loader workers per rank.

    Return None if the number is unknown or differs between ranks.
    """
    hints = {rank.steps.hints.get("num_workers") for rank in view.ranks}
    hint = hints.pop() if len(hints) == 1 else None
    return hint if isinstance(hint, int) and not isinstance(hint, bool) and 0 <= hint <= 1024 else None


def staged_data(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to copy the data set to the node's fast storage or to its memory."""
    if finding.seconds_lost is None:
        return
    yield FindingAdvice(
        finding.kind,
        "Copy the data set to fast storage of the node, such as $TMPDIR on NVMe or /dev/shm, before the first"
        " epoch. This helps a program that reads its data several times: each further epoch does not wait.",
        'cp -r DATASET "$TMPDIR"; slurm_energy.adjusted("stage-data", default=True)',
        finding.seconds_lost,
        finding.joules_lost,
        "wait for storage in this job, an upper bound for many epochs",
        _VERIFY_RUN,
        (AdvisedChange(AdjustmentKind.STAGE_DATA, 1, None),),
    )


def pinned_memory(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to use pinned memory.

    Yield nothing if the loader already uses pinned memory.
    """
    pinned = {rank.steps.hints.get("pin_memory") for rank in view.ranks}
    if pinned - {False, None} or finding.seconds_lost is None:
        return
    old = 0 if pinned == {False} else None
    yield FindingAdvice(
        finding.kind,
        "Pinned memory lets copies overlap with computation; at most their whole time is gained."
        + ("" if old == 0 else " Whether the program uses it already is unknown."),
        "DataLoader(pin_memory=True); tensor.to(device, non_blocking=True)",
        finding.seconds_lost,
        finding.joules_lost,
        "time of the copies of this job, an upper bound"
        if view.ranks
        else "idle time of the GPUs of this job, an upper bound",
        "phase copy of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.PIN_MEMORY, 1, old),),
    )


def more_cpus(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to request more CPUs per task, as many as the tasks can use at once.

    The number follows from the number of tasks that waited for a CPU. If a CPU quota stops the tasks at
    times, the number follows from the fraction of time in which they are stopped. In other cases it
    follows from the needs of the data loader. No advice is given if more CPUs would not help.
    """
    cpus, fact = cpus_per_rank(view), finding.evidence[0]
    if cpus is None or not fact.value:
        return
    if fact.signal == "cpu_waiting_tasks":
        factor, source = fact.value, "tasks that ran or waited for a CPU in this job, an upper bound"
    elif fact.signal == "cpu_throttled_percent":
        factor = 1 / max(_MIN_UNTHROTTLED, 1 - fact.value / 100)
        source = "time in which the quota stopped this job, an upper bound"
    elif (needed := _loader_cpus(view, cpus)) is not None:
        factor, source = needed / cpus, "step times and CPU use of this job, if the loader scales"
    else:
        return  # the pressure signal does not contain the number of waiting tasks
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
        joules_of_part(finding, gain_s),
        source,
        "waits for CPUs and time of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.CPUS_PER_TASK, wanted, cpus),),
    )


def _loader_cpus(view: JobView, cpus: float) -> float | None:
    """Return how many CPUs per rank the loader needs to keep up with the GPU; None if unknown.

    The result is at most the number of the loader's processes.
    """
    workers, use = _workers(view), view.cpu_use
    timed = [_data_and_step_s(rank) for rank in view.ranks]
    if not view.gpus or not workers or use is None or not timed:
        return None
    data_s, step_s = (mean_of([pair[index] for pair in timed]) or 0.0 for index in (0, 1))
    if not 0 < data_s < step_s:
        return None
    work_s = use / 100 * cpus * step_s
    return min(workers + 1.0, _SPARE_WORKERS * work_s / (step_s - data_s))
