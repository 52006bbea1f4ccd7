"""Rule about jobs that hang.

When a job hangs, all its GPUs wait in compute kernels for communication until the job ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from slurm_energy.diagnosis.distribution import percentile
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.gpu_view import GpuView
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.series_means import MAX_GAP_INTERVALS, between, mean_of
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.quantities import format_duration

_BUSY = 90.0
"""Minimum use, in percent, of a GPU that runs a waiting kernel. Such a kernel never ends."""
_USUAL_PERCENTILE = 90.0


def hang(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that all GPUs are busy until the job ends but compute nothing.

    A compute kernel that waits for another rank keeps its GPU busy, but few of the GPU's compute units are
    active, and the GPU draws little power. This state lasts until the end of the job, because the other rank
    has failed or also waits.
    """
    length_s = hang_s(view)
    has_ended = view.context.state is not None
    limit_s = view.threshold("idle_tail" if has_ended else "idle_stretch")
    limit_s = max(limit_s, view.threshold("idle_tail_share") / 100 * view.elapsed_s)
    if length_s < limit_s or view.context.is_interactive:
        return
    end_s = view.context.start_s + view.elapsed_s
    ratios = [quiet[1] for gpu in view.busy_gpus if (quiet := _quiet_end(view, gpu)) is not None]
    ratio = 100 * (mean_of(ratios) or 0.0)
    text = f"All GPUs were busy up to the end, with {ratio:.0f} % of the activity that they had before."
    fact = view.fact("hang", ratio, text, "hang_activity", "", (end_s - length_s, end_s))
    title = f"The job hangs for its last {format_duration(length_s)}: its GPUs only wait"
    yield view.finding(FindingKind.HANG, title, [fact], length_s, 0.75)


def hang_s(view: JobView) -> float:
    """Return for how long before the job's end all active GPUs were busy but computed nothing.

    The time is in seconds. It is 0 if not all active GPUs were in this state when the job ended.
    """
    ends = [_quiet_end(view, gpu) for gpu in view.busy_gpus]
    starts = [quiet[0] for quiet in ends if quiet is not None]
    if not starts or len(starts) < len(ends):
        return 0.0
    return max(0.0, view.context.start_s + view.elapsed_s - max(starts))


def _quiet_end(view: JobView, gpu: GpuView) -> tuple[float, float] | None:
    """Find the time at the end of a job in which a GPU seems busy but does almost no work.

    A GPU seems busy if it reports a high use. How much work it does is measured by a second signal, its
    activity. The function returns the start of this time, and the activity in this time relative to the
    usual activity. It returns None in four cases: the GPU still works in the last interval, its use in the
    last interval is below the threshold `gpu_active`, its mean use in this time is below `_BUSY`, or its use
    or activity at the end of the job is unknown.
    """
    busy, active = gpu.series.get("gpu_busy_percent"), view.threshold("gpu_active")
    if busy is None or not _reaches_end(view, busy) or not busy.values[-1] >= active:  # NaN: unknown
        return None
    activity = itertools.chain(_activity(view, gpu, busy), itertools.repeat(math.nan))
    pairs = list(zip(busy.values, activity, strict=False))
    working = sorted(value for use, value in pairs if use >= active and value == value)
    usual = percentile(working, _USUAL_PERCENTILE) if working else 0.0
    limit = view.threshold("hang_activity") / 100 * usual
    first = _quiet_start(pairs, active, limit)
    quiet = [value for _, value in pairs[first:] if value == value]
    uses = [use for use, _ in pairs[first:] if use == use]
    if not quiet or (mean_of(uses) or 0.0) < _BUSY:
        return None
    return busy.start_s + first * busy.interval_s, (mean_of(quiet) or 0.0) / usual


def _reaches_end(view: JobView, series: ObservedSeries) -> bool:
    """Return whether a series has values up to the end of the job, apart from a short gap."""
    gap_s = view.context.start_s + view.elapsed_s - series.end_s
    return len(series.values) > 0 and gap_s <= MAX_GAP_INTERVALS * series.interval_s


def _quiet_start(pairs: Sequence[tuple[float, float]], active: float, limit: float) -> int:
    """Return the index at which the quiet end begins.

    The quiet end consists of the last intervals, in which the GPU is busy but does no work. At most
    three consecutive intervals with unknown values may lie in or after it. The result is the number of
    intervals if there is no quiet end.

    Args:
        pairs: use and activity of the GPU in each interval; NaN means unknown.
        active: minimum use of a busy GPU.
        limit: minimum activity of a GPU that does work.
    """
    first = index = len(pairs)
    while index and first - index <= MAX_GAP_INTERVALS:
        index -= 1
        use, activity = pairs[index]
        if use < active or activity >= limit:
            break
        if use == use and activity == activity:
            first = index
    return first


def _activity(view: JobView, gpu: GpuView, busy: ObservedSeries) -> Sequence[float]:
    """Return how active a GPU is in each interval of the series `busy`.

    The values are the GPU's SM activity. If this signal is unknown, the values are the power above idle. NaN
    marks an unknown value. The sequence is empty if the GPU reports neither signal.
    """
    active = gpu.series.get("sm_active_percent")
    if active is not None and (active.start_s, active.interval_s) == (busy.start_s, busy.interval_s):
        return active.values
    watts, idle = gpu.series.get("power_watts"), view.context.idle_watts.get(gpu.node, {}).get(gpu.part)
    if watts is None or idle is None:
        return ()
    starts = (busy.start_s + index * busy.interval_s for index in range(len(busy.values)))
    means = (mean_of(between(watts, start, start + busy.interval_s)) for start in starts)
    return [math.nan if mean is None else mean - idle for mean in means]
