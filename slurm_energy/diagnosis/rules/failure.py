"""Rules about jobs that failed, or that ended before their work was completed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.rules.allocation import idle_tail_s
from slurm_energy.diagnosis.rules.hang import hang_s
from slurm_energy.diagnosis.series_means import scaled
from slurm_energy.diagnosis.summary import total_joules
from slurm_energy.quantities import format_duration

_MIN_LOST = 60.0
"""Minimum run time in seconds of a lost run that counts. Shorter lost runs cost almost nothing."""
_FAILED = ("FAILED", "NODE_FAIL", "BOOT_FAIL")
TIMED_OUT: Final = ("TIMEOUT", "DEADLINE")
"""States of jobs that reached a limit of their time."""
_WRITES: Final = (
    "block_write_bytes_per_s",
    "network_transmit_bytes_per_s",
    "infiniband_transmit_bytes_per_s",
)


def early_failure(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the job failed soon after its start, or after it had been requeued."""
    context = view.context
    runs = context.restart_count + 1
    is_early = view.elapsed_s <= view.threshold("early_failure")
    if context.state not in _FAILED or not (is_early or runs >= view.threshold("restarts")):
        return
    facts = [_end_fact(view, "early_failure" if is_early else None), *_step_facts(view)]
    if runs > 1:
        facts.append(view.fact("restart_count", float(runs), f"It was run {runs} times.", "restarts"))
    title = f"The job failed after {view.elapsed_s:.0f} s" + (f", in run {runs}" if runs > 1 else "")
    joules = total_joules(view.observation)
    yield view.finding(FindingKind.EARLY_FAILURE, title, facts, view.elapsed_s, 0.95, joules_lost=joules)


def _end_fact(view: JobView, threshold: str | None = None) -> FindingEvidence:
    """Return evidence for a finding: in which state and with which exit status a job ended.

    The exit status is left out if it is unknown or reports success.
    """
    status = view.context.exit_status
    how = "" if status is None or status.is_success else f" with {status}"
    text = f"The job ended as {view.context.state}{how} after {view.elapsed_s:.0f} s."
    return view.fact("state", view.elapsed_s, text, threshold)


def _step_facts(view: JobView) -> Iterator[FindingEvidence]:
    """Yield as evidence the exit status of a failed step, if it differs from that of the job."""
    status = view.context.step_exit_status
    if status is not None and not status.is_success and status != view.context.exit_status:
        yield view.fact("step_exit_status", None, f"A step of srun ended with {status}.")


def unfinished_work(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that a job ended before its work was completed, and that the work was not saved.

    A job with checkpoints loses, on average, half of the time between two checkpoints. A job that reports no
    checkpoints may have saved its work in other files. Therefore it gets a finding only if it wrote almost
    nothing. A service also runs until its time limit. A job without reported steps may be a service and gets
    a finding only if it was busy all the time.
    """
    context = view.context
    is_late = context.state in _FAILED and view.elapsed_s > view.threshold("early_failure")
    if context.is_interactive or not (is_late or context.state in TIMED_OUT):
        return
    if max(idle_tail_s(view) or 0.0, hang_s(view)) >= view.threshold("idle_tail"):
        return  # the work was completed, or the program hung
    lost_s, facts = _lost_work(view)
    if not lost_s:
        return  # no loss is known, or the job took 0 s
    share = lost_s / view.elapsed_s
    if 100 * share < view.threshold("lost_work"):
        return
    what = "reached its time limit" if context.state in TIMED_OUT else "failed"
    title = f"The job {what} after {format_duration(view.elapsed_s)}: "
    title += f"{format_duration(lost_s)} of work were not saved"
    joules = scaled(total_joules(view.observation), share)
    confidence = 0.85 if view.ranks else 0.6
    yield view.finding(
        FindingKind.UNFINISHED_WORK,
        title,
        [_end_fact(view), *_step_facts(view), *facts],
        lost_s,
        confidence,
        joules_lost=joules,
    )


def _lost_work(view: JobView) -> tuple[float, list[FindingEvidence]]:
    """Return the seconds of work that were not saved (0 if unknown), and the evidence."""
    count = checkpoint_count(view)
    if count:
        text = f"{count} checkpoints were written: half of the time between two is lost on average."
        return view.elapsed_s / (2 * count), [view.fact("checkpoint", count, text, "lost_work")]
    if view.ranks and all(rank.steps.hints.get("marks_checkpoints") is True for rank in view.ranks):
        return view.elapsed_s, [view.fact("checkpoint", 0.0, "The program wrote no checkpoint.")]
    written = [_max_written_bytes(node) for node in view.observation.nodes]
    known = [size for size in written if size is not None]
    if not known or len(known) < len(written) or (not view.ranks and not _is_busy(view)):
        return 0.0, []
    limit = 1e6 * view.threshold("checkpoint_size")
    if max(known) >= limit:
        return 0.0, []
    text = f"No checkpoint was reported, and a node wrote at most {max(known) / 1e6:.3g} MB in an interval."
    return view.elapsed_s, [view.fact("checkpoint", max(known) / 1e6, text, "checkpoint_size")]


def checkpoint_count(view: JobView) -> int:
    """Return the number of reported checkpoints. Often only the first rank writes checkpoints."""
    phases = (rank.steps.phases.get("checkpoint") for rank in view.ranks)
    return max((phase.count for phase in phases if phase is not None), default=0)


def _max_written_bytes(node: NodeObservation) -> float | None:
    """Return the maximum number of bytes that a node wrote or sent in an interval; None if unknown."""
    sizes: list[float] = []
    for name in _WRITES:
        parts = [series for series in node.series if series.name == name and series.known()]
        sizes += [series.interval_s * max(series.known()) for series in parts]
    has_storage = any(series.name == _WRITES[0] and series.known() for series in node.series)
    return max(sizes) if has_storage else None


def _is_busy(view: JobView) -> bool:
    """Return whether the job's GPUs, or the CPUs of a job without GPUs, computed all the time."""
    use, limit = (view.gpu_busy, "gpu_stalled") if view.gpus else (view.cpu_use, "cpu_saturated")
    return use is not None and use >= view.threshold(limit)


def lost_runs(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that runs of the job were requeued because of preemption or a failed node.

    When a run is requeued, its work since the last checkpoint is lost. The energy of the entire run is an
    upper bound of the loss.
    """
    runs = [run for run in view.context.lost_runs if run.elapsed_s >= _MIN_LOST]
    if not runs:
        return
    facts = [
        view.fact(
            "state",
            run.elapsed_s,
            f"A run of {run.elapsed_s:.0f} s ended as {run.state or 'requeued'}.",
            window=(run.start_s, run.start_s + run.elapsed_s),
        )
        for run in runs
    ]
    states = ", ".join(dict.fromkeys(run.state or "requeued" for run in runs))
    known = [run.energy_joules for run in runs if run.energy_joules is not None]
    seconds = math.fsum(run.elapsed_s for run in runs)
    count = "An earlier run was" if len(runs) == 1 else f"{len(runs)} earlier runs were"
    yield view.finding(
        FindingKind.LOST_RUN,
        f"{count} lost after {seconds:.0f} s: {states}",
        facts,
        None,
        0.7,
        joules_lost=math.fsum(known) if len(known) == len(runs) else None,
        time_share=seconds / (seconds + view.elapsed_s),
    )
