"""Rules about idle time of the whole job or of single nodes.

Examples are jobs that are idle at the end, forgotten interactive sessions, and unused nodes.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.series_means import MAX_GAP_INTERVALS, between, mean_of
from slurm_energy.diagnosis.signals import ObservedSeries

_Activity = list[tuple[float, float, bool]]
"""Start, end and activity of consecutive intervals of equal length."""
_USED_CORES = 0.2
"""Minimum number of CPUs that tasks of the job use on a node that works."""


def idle_time(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the whole job is idle for one long period.

    The period lies at the end of the job or earlier.
    """
    activity = _activity(view)
    stretches = _idle_stretches(activity)
    if not stretches:
        return
    start, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    length = end - start
    job_end = view.context.start_s + view.elapsed_s
    is_tail = end >= activity[-1][1] - 1e-6 and start > activity[0][0] and _is_end_known(view, activity)
    if is_tail and not view.context.is_interactive:
        limit = max(view.threshold("idle_tail"), view.threshold("idle_tail_share") / 100 * view.elapsed_s)
        length = max(length, job_end - start)
        if length < limit or view.context.state is None:
            return
        kind, threshold = FindingKind.IDLE_TAIL, "idle_tail"
        title = f"The job is idle for its last {_duration(length)}"
    elif length >= view.threshold("idle_stretch"):
        kind, threshold = FindingKind.IDLE_ALLOCATION, "idle_stretch"
        length = math.fsum(b - a for a, b in stretches if b - a >= view.threshold("idle_tail"))
        title = f"The job is idle for {_duration(length)}"
    else:
        return
    what = "GPUs were" if view.gpus else "CPUs were"
    text = f"All {what} idle for {_duration(end - start)} in one piece."
    fact = view.fact("activity", end - start, text, threshold, "", (start, end))
    watts = _mean_watts(view, start, end)
    joules = None if watts is None else watts * length
    yield view.finding(kind, title, [fact], length, 0.9, joules_lost=joules)


def idle_tail_s(view: JobView) -> float | None:
    """Return the seconds without activity at the end of a job; None if the activity at the end is unknown."""
    activity = _activity(view)
    if not activity or not _is_end_known(view, activity):
        return None
    stretches = _idle_stretches(activity)
    return view.context.start_s + view.elapsed_s - stretches[-1][0] if not activity[-1][2] else 0.0


def _is_end_known(view: JobView, activity: _Activity) -> bool:
    """Return whether the activity is known up to the end of the job, apart from a short gap."""
    start, end, _ = activity[-1]
    return view.context.start_s + view.elapsed_s - end <= MAX_GAP_INTERVALS * (end - start)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _mean_watts(view: JobView, start: float, end: float) -> float | None:
    """Return the mean power of the job in a time window; None if the power of any part of it is unknown."""
    if not view.context.is_energy_complete:
        return None
    nodes = []
    for node in view.observation.nodes:
        traces = [series for series in node.series if series.name == "power_watts"]
        whole = [series for series in traces if series.part == "node"] or traces
        means = [mean for series in whole if (mean := mean_of(between(series, start, end))) is not None]
        if not means:
            return None
        nodes.append(math.fsum(means))
    return math.fsum(nodes) if nodes else None


def _activity(view: JobView) -> _Activity:
    """Return the intervals in which it is known whether the job's GPUs were active.

    For a job without GPUs, the CPUs are examined. An interval without activity is returned only if the
    activity of all GPUs, or of the CPUs of all nodes, is known. The result is empty if the activity is
    unknown.
    """
    tests = [
        test for gpu in view.gpus if (test := _gpu_test(view, gpu.node, gpu.part, gpu.series)) is not None
    ]
    if view.gpus and len(tests) < len(view.allocated_gpus):
        return []
    waits = []
    if not view.gpus:
        nodes = [_cpu_test(view, node.node) for node in view.observation.nodes]
        tests = [test for test in nodes if test is not None]
        if len(tests) < len(nodes):
            return []
        waits = list(_wait_tests(view))
    if not tests:
        return []
    series_tested = [series for series, _ in (*tests, *waits)]
    interval_s = max(series.interval_s for series in series_tested)
    start, end = min(s.start_s for s in series_tested), max(s.end_s for s in series_tested)
    intervals = max(0, math.ceil((end - start) / interval_s - 1e-9))
    rows: _Activity = []
    for index in range(intervals):
        low = start + index * interval_s
        own, waiting = (
            [(between(series, low, low + interval_s), limit) for series, limit in group]
            for group in (tests, waits)
        )
        is_active = any(value > limit for known, limit in (*own, *waiting) for value in known)
        is_active = is_active or _has_steps(view, low, low + interval_s)
        if is_active or all(known for known, _ in own):
            rows.append((low, low + interval_s, is_active))
    return rows


def _has_steps(view: JobView, start: float, end: float) -> bool:
    """Return whether a process completed steps in a time window."""
    for rank in view.ranks:
        steps = rank.steps.intervals
        if steps is not None:
            first = math.floor((start - steps.start_s) / steps.interval_s)
            last = math.ceil((end - steps.start_s) / steps.interval_s)
            if any(steps.steps[max(0, first) : max(0, last)]):
                return True
    return False


def _gpu_test(
    view: JobView, node: str, part: str, by_name: Mapping[str, ObservedSeries]
) -> tuple[ObservedSeries, float] | None:
    """Return data to decide whether a GPU is active: a signal, and a limit above which it is active.

    The signal is the use of the GPU, or its power if the use is unknown. Return None if both are unknown.
    """
    if "gpu_busy_percent" in by_name:
        return by_name["gpu_busy_percent"], view.threshold("gpu_active")
    idle = view.context.idle_watts.get(node, {}).get(part)
    limit = view.context.limit_watts.get(node, {}).get(part)
    if "power_watts" not in by_name or idle is None or limit is None:
        return None
    return by_name["power_watts"], idle + view.threshold("idle_power") / 100 * (limit - idle)


def _wait_tests(view: JobView) -> Iterator[tuple[ObservedSeries, float]]:
    """Yield the signals that show whether a job without CPU use waits for something.

    Each signal comes with a limit. A job without CPU use may be idle, or it may wait for storage, or for
    CPUs that other work on the node occupies. A signal above its limit means that the job waits and is
    not idle.
    """
    rate, share = view.threshold("data_rate") * 1e6, view.threshold("other_load")
    limits = {
        "block_read_bytes_per_s": rate,
        "block_write_bytes_per_s": rate,
        "cpu_waiting_tasks": share / 100,
        "cpu_pressure_percent": share,
    }
    for node in view.observation.nodes:
        for name, limit in limits.items():
            if (series := view.node_series(node, name)) is not None:
                yield series, limit


def _cpu_test(view: JobView, name: str) -> tuple[ObservedSeries, float] | None:
    node = next(node for node in view.observation.nodes if node.node == name)
    allocated = view.node_series(node, "cpu_allocated_cores")
    if allocated is None:
        return None
    busy = view.node_series(node, "cpu_busy_cores") or _busy_cores(node, max(allocated.known()))
    if busy is None:
        return None
    return busy, view.threshold("idle_cpu") / 100 * min(max(allocated.known()), 10.0)


def _busy_cores(node: NodeObservation, allocated: float) -> ObservedSeries | None:
    """Return the number of a job's CPUs in use over time, computed from the busy time of each CPU.

    The result replaces the CPU time of the job's cgroup on a node where no process of the job runs and where
    the cgroup does not exist. The result is None if the use of one of the CPUs is unknown, or if there is no
    interval in which the use of all CPUs is known.
    """
    cpus = [series for series in node.series if series.name == "cpu_busy_percent"]
    times = {(series.start_s, series.interval_s, len(series.values)) for series in cpus}
    if len(cpus) < allocated or len(times) != 1:
        return None
    sums = (math.fsum(values) / 100 for values in zip(*(series.values for series in cpus), strict=True))
    busy = replace(cpus[0], name="cpu_busy_cores", part="", values=array("d", sums))
    return busy if busy.known() else None


def _idle_stretches(activity: _Activity) -> list[tuple[float, float]]:
    """Return the start and end of each period without activity.

    A short gap of unknown activity does not end a period.
    """
    stretches: list[tuple[float, float]] = []
    was_active = True
    for start, end, is_active in activity:
        if is_active:
            was_active = True
            continue
        if stretches and not was_active and start - stretches[-1][1] <= MAX_GAP_INTERVALS * (end - start):
            stretches[-1] = (stretches[-1][0], end)
        else:
            stretches.append((start, end))
        was_active = False
    return stretches


def unused_nodes(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that some nodes of the job do nothing while others work."""
    uses: dict[str, float] = {}
    idle: list[str] = []
    for node in view.observation.nodes:
        test = _use_test(view, node)
        if test is not None and not _has_gpu_activity(view, node.node):
            series, limit = test
            uses[node.node] = max(_smoothed(series.known()))
            if uses[node.node] < limit:
                idle.append(node.node)
    if not idle or len(idle) == len(view.observation.nodes):
        return
    facts = [
        view.fact(
            "cpu_busy_cores", uses[name], f"{name} never used more than {uses[name]:.2f} CPUs.", None, name
        )
        for name in idle
    ]
    energies = [view.context.node_joules(name) for name in idle]
    known = [joules for joules in energies if joules is not None]
    yield view.finding(
        FindingKind.IDLE_ALLOCATION,
        f"{len(idle)} of {view.node_count or len(view.observation.nodes)} nodes are never used",
        facts,
        None,
        0.95,
        joules_lost=math.fsum(known) if len(known) == len(idle) else None,
        time_share=1.0,
        where=idle,
    )


def _use_test(view: JobView, node: NodeObservation) -> tuple[ObservedSeries, float] | None:
    """Return the data by which to decide whether a job used a node.

    The data are the number of busy CPUs over time, and a limit. If the number stays below the limit, the
    job did not use the node. The result is None if the number is unknown.

    Normally the CPUs that the job's cgroup keeps busy are counted. If no Slurm step ran on the node, the
    job has no cgroup there. In this case all busy CPUs of the node are counted, including those that the
    operating system keeps busy.
    """
    own = view.node_series(node, "cpu_busy_cores")
    return (own, _USED_CORES) if own is not None else _cpu_test(view, node.node)


def _has_gpu_activity(view: JobView, node: str) -> bool:
    return any(gpu.node == node for gpu in view.busy_gpus)


def _smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of each two neighbouring values of a series of measured CPU use.

    A program start that lasts only one interval would otherwise look like use of the node.
    """
    return [(a + b) / 2 for a, b in itertools.pairwise(values)] or list(values)
