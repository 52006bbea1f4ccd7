"""Rules with which the diagnosis finds problems with the memory of nodes and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.series_means import mean_of
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.summary import total_joules
from slurm_energy.slurm.exit_status import ExitStatus

_GROWTH = 1.05
"""Minimum ratio of the memory use in the last quarter to that in the second quarter, if it grows steadily."""


@dataclass(frozen=True, slots=True)
class _MemoryUse:
    """Evidence that a memory is almost full.

    Attributes:
        fact: the maximum use of the memory, as evidence for a finding.
        grows: whether the use grew over time.
    """

    fact: FindingEvidence
    grows: bool


def memory_pressure(view: JobView) -> Iterator[JobFinding]:
    """Yield the findings that memory is almost exhausted, or that tasks wait for memory.

    Constant memory use above the threshold is no finding, because caching allocators and servers reserve
    memory.
    """
    stall = view.mean("memory_pressure_percent")
    facts = [use.fact for use in _memory_uses(view)]
    lost, confidence = 0.0, 0.7
    if stall is not None and stall >= view.threshold("memory_stall"):
        text = f"Tasks waited for memory for {stall:.0f} % of the time."
        facts.insert(0, view.fact("memory_pressure_percent", stall, text, "memory_stall"))
        lost, confidence = stall / 100 * view.active_s, 0.9
    if facts:
        title = facts[0].text.rstrip(".")
        where = list(dict.fromkeys(fact.where for fact in facts if fact.where))
        yield view.finding(FindingKind.MEMORY_PRESSURE, title, facts, lost, confidence, where=where)


def _memory_uses(view: JobView) -> Iterator[_MemoryUse]:
    for node in view.observation.nodes:
        used = view.node_series(node, "memory_used_bytes")
        limit = view.node_series(node, "memory_limit_bytes")
        if used is not None and limit is not None:
            yield from _use(view, used, max(limit.known()), node.node, "memory of the job")
    for gpu in view.gpus:
        used, total = gpu.series.get("gpu_memory_used_bytes"), gpu.maximum("gpu_memory_total_bytes")
        if used is not None and total:
            yield from _use(view, used, total, gpu.name, "GPU memory")


def _use(view: JobView, used: ObservedSeries, limit: float, where: str, what: str) -> Iterator[_MemoryUse]:
    values = used.known()
    if not values or limit <= 0:
        return
    share = 100 * max(values) / limit
    near, high = view.threshold("memory_near_limit"), view.threshold("memory_used")
    name = "memory_near_limit" if share >= near else "memory_used"
    text = f"{where} uses up to {share:.0f} % of the {what}"
    if share >= high and _grows(values):
        yield _MemoryUse(view.fact(used.name, share, f"{text}, and more over time.", name, where), grows=True)
    elif share >= near and what != "GPU memory":
        yield _MemoryUse(view.fact(used.name, share, f"{text}.", name, where), grows=False)


def _grows(values: Sequence[float]) -> bool:
    """Return whether values grow steadily; the first quarter of the time is ignored."""
    quarter = len(values) // 4
    if quarter < 2:
        return False
    means = [mean_of(values[index * quarter : (index + 1) * quarter]) or 0.0 for index in (1, 2, 3)]
    return means[0] < means[1] < means[2] and means[2] > _GROWTH * means[0]


def out_of_memory(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the job, or one of its steps, ended because its memory was exhausted.

    Slurm reports exhausted memory if Linux reports it for the job's cgroup. Otherwise the signs are SIGKILL
    near the limit, or a failure while the memory of the node or of a GPU grew up to its limit.
    """
    context = view.context
    statuses = [s for s in (context.exit_status, context.step_exit_status) if s is not None]
    uses = list(_memory_uses(view))
    near = [use.fact for use in uses]
    is_step = any(status.is_out_of_memory for status in statuses)
    if context.state == "OUT_OF_MEMORY":
        title, confidence = "The job ran out of memory", 1.0
        facts = [view.fact("state", None, "Slurm ended the job with state OUT_OF_MEMORY.")]
    elif is_step:
        title, confidence = "A step ran out of memory", 1.0
        facts = [view.fact("step_exit_status", None, "Slurm reports that a step ran out of memory.")]
    elif context.state == "FAILED" and (facts := _signs(view, statuses, uses)):
        title, confidence = "The job probably ran out of memory", 0.8
    else:
        return
    has_failed = context.state != "COMPLETED"
    seconds = view.elapsed_s if has_failed else None
    joules = total_joules(view.observation) if has_failed else None
    where = list(dict.fromkeys(fact.where for fact in near))
    evidence = facts + [fact for fact in near if fact not in facts]
    yield view.finding(
        FindingKind.OUT_OF_MEMORY, title, evidence, seconds, confidence, joules_lost=joules, where=where
    )


def _signs(
    view: JobView, statuses: Sequence[ExitStatus], uses: Sequence[_MemoryUse]
) -> list[FindingEvidence]:
    """Return the evidence that a failed job ran out of memory; an empty list if there is none."""
    killed = next((status for status in statuses if status.is_killed), None)
    is_host = any(use.fact.signal == "memory_used_bytes" for use in uses)
    if killed is not None and is_host:
        return [view.fact("exit_status", None, f"The job ended with {killed} while its memory was full.")]
    limit = view.threshold("memory_near_limit")
    full = [use.fact for use in uses if use.grows and (use.fact.value or 0.0) >= limit]
    return [*full, view.fact("state", None, "The job failed while memory was full.")] if full else []
