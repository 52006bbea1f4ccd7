"""Rules about failed jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.summary import total_joules

_MIN_LOST = 60.0
"""Runs that were lost within a minute cost nearly nothing."""
_FAILED = ("FAILED", "NODE_FAIL", "BOOT_FAIL")


def early_failure(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the job failed soon after its start, or after it had been requeued."""
    context = view.context
    if context.state not in _FAILED:
        return
    runs = context.restart_count + 1
    is_early = view.elapsed_s <= view.threshold("early_failure")
    if not is_early and runs < view.threshold("restarts"):
        return
    code = "" if context.exit_code is None else f" with exit code {context.exit_code}"
    text = f"The job ended as {context.state}{code} after {view.elapsed_s:.0f} s."
    facts = [view.fact("state", view.elapsed_s, text, "early_failure" if is_early else None)]
    if runs > 1:
        facts.append(view.fact("restart_count", float(runs), f"It was run {runs} times.", "restarts"))
    title = f"The job failed after {view.elapsed_s:.0f} s" + (f", in run {runs}" if runs > 1 else "")
    joules = total_joules(view.observation)
    yield view.finding(FindingKind.EARLY_FAILURE, title, facts, view.elapsed_s, 0.95, joules_lost=joules)


def lost_runs(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that runs of the job ended with a requeue, because of preemption or a failed node.

    The work since the last checkpoint of such a run is lost. The energy of the whole runs is an upper bound.
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
