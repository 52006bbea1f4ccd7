"""Rules about memory of nodes and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView, mean_of
from slurm_energy.diagnosis.signals import ObservedSeries

_GROWTH = 1.05
"""Factor by which memory grows from the second to the last quarter if it grows steadily."""


def memory_pressure(view: JobView) -> Iterator[JobFinding]:
    """Yield the findings that memory is nearly exhausted, or that tasks wait for memory.

    Memory above the limit that stays constant is no finding: caching allocators and servers reserve it.
    """
    stall = view.mean("memory_pressure_percent")
    facts = [*_host_facts(view), *_gpu_facts(view)]
    lost, confidence = 0.0, 0.7
    if stall is not None and stall >= view.threshold("memory_stall"):
        text = f"Tasks waited for memory for {stall:.0f} % of the time."
        facts.insert(0, view.fact("memory_pressure_percent", stall, text, "memory_stall"))
        lost, confidence = stall / 100 * view.active_s, 0.9
    if facts:
        title = facts[0].text.rstrip(".")
        where = list(dict.fromkeys(fact.where for fact in facts if fact.where))
        yield view.finding(FindingKind.MEMORY_PRESSURE, title, facts, lost, confidence, where=where)


def _host_facts(view: JobView) -> Iterator[FindingEvidence]:
    for node in view.observation.nodes:
        used = view.node_series(node, "memory_used_bytes")
        limit = view.node_series(node, "memory_limit_bytes")
        if used is not None and limit is not None:
            yield from _fact(view, used, max(limit.known()), node.node, "memory of the job")


def _gpu_facts(view: JobView) -> Iterator[FindingEvidence]:
    for gpu in view.gpus:
        used, total = gpu.series.get("gpu_memory_used_bytes"), gpu.maximum("gpu_memory_total_bytes")
        if used is not None and total:
            yield from _fact(view, used, total, gpu.name, "GPU memory")


def _fact(
    view: JobView, used: ObservedSeries, limit: float, where: str, what: str
) -> Iterator[FindingEvidence]:
    values = used.known()
    if not values or limit <= 0:
        return
    share = 100 * max(values) / limit
    near, high = view.threshold("memory_near_limit"), view.threshold("memory_used")
    name = "memory_near_limit" if share >= near else "memory_used"
    if share >= high and _grows(values):
        text = f"{where} uses up to {share:.0f} % of the {what}, and more over time."
        yield view.fact(used.name, share, text, name, where)
    elif share >= near and what != "GPU memory":
        text = f"{where} uses up to {share:.0f} % of the {what}."
        yield view.fact(used.name, share, text, name, where)


def _grows(values: Sequence[float]) -> bool:
    """Return whether values grow from quarter to quarter, after the first quarter."""
    quarter = len(values) // 4
    if quarter < 2:
        return False
    means = [mean_of(values[index * quarter : (index + 1) * quarter]) or 0.0 for index in (1, 2, 3)]
    return means[0] < means[1] < means[2] and means[2] > _GROWTH * means[0]


def out_of_memory(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the job ended because its memory was exhausted."""
    if view.context.state != "OUT_OF_MEMORY":
        return
    facts = [view.fact("state", None, "Slurm ended the job with state OUT_OF_MEMORY.")]
    facts += _host_facts(view)
    title = "The job ran out of memory"
    yield view.finding(FindingKind.OUT_OF_MEMORY, title, facts, view.elapsed_s, 1.0)
