"""Rules about failed jobs."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.summary import total_joules

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
