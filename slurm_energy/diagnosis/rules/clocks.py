"""Rules of the diagnosis about clocks and power limits.

They find throttling by temperature or power, and unsuitable limits.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.diagnosis.distribution import percentile
from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.gpu_view import GpuView
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.series_means import mean_of, median_of_others

_BUSY = 60.0
_HIGH_CLOCK_PERCENTILE = 98.0


def thermal_throttling(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that GPUs lower their clocks because the GPUs are too hot."""
    hot = [
        (gpu, share)
        for gpu in view.busy_gpus
        if (share := gpu.mean("throttle_thermal_percent")) is not None
        and share >= view.threshold("thermal_share")
    ]
    if not hot:
        return
    facts = [_thermal_fact(view, gpu, share) for gpu, share in hot]
    worst, share = max(hot, key=lambda item: item[1])
    drop = _clock_drop(view, worst)
    lost = None if drop is None else drop * view.active_s
    yield view.finding(
        FindingKind.THERMAL_THROTTLING,
        f"{len(hot)} of {len(view.allocated_gpus)} GPUs are throttled by temperature,"
        f" up to {share:.0f} % of the time",
        facts,
        lost,
        0.95,
        time_share=share / 100,
        where=[gpu.name for gpu, _ in hot],
    )


def _thermal_fact(view: JobView, gpu: GpuView, share: float) -> FindingEvidence:
    celsius, mhz = gpu.maximum("gpu_temperature_celsius"), gpu.mean("sm_clock_mhz")
    text = f"{gpu.name} was throttled by temperature for {share:.0f} % of the time"
    text += "" if celsius is None else f", at up to {celsius:.0f} °C"
    text += "" if mhz is None else f", with {mhz:.0f} MHz on average"
    return view.fact("throttle_thermal_percent", share, f"{text}.", "thermal_share", gpu.name)


def _clock_drop(view: JobView, gpu: GpuView) -> float | None:
    """Return by which fraction the mean clock of a working GPU is below its highest clock.

    The result is None if a clock is unknown.
    """
    mean, reference = gpu.working_mean("sm_clock_mhz", _BUSY), reference_mhz(view, gpu)
    return None if mean is None or not reference else max(0.0, 1 - mean / reference)


def reference_mhz(view: JobView, gpu: GpuView) -> float | None:
    """Return the highest SM clock that a GPU supports.

    If the GPU does not report this clock, the result is the highest clock that other GPUs of the job support,
    or else the highest observed clock. None means that no clock is known.
    """
    if (own := gpu.maximum("max_sm_clock_mhz")) is not None:
        return own
    limits = [limit for one in view.gpus if (limit := one.maximum("max_sm_clock_mhz")) is not None]
    if limits:
        return max(limits)
    clocks = sorted(value for one in view.busy_gpus for value in one.values("sm_clock_mhz"))
    return percentile(clocks, _HIGH_CLOCK_PERCENTILE) if clocks else None


def limited_power(view: JobView) -> Iterator[JobFinding]:
    """Yield a finding if a power limit or clock limit slows the GPUs of a job down too much.

    A GPU that lowers its clock a little at its highest power limit works as designed. If no power limit is
    lowered, no clock limit is set, and the GPUs report no share of time throttled by power, the cause of a
    low clock is unknown, and there is no finding.
    """
    limited = [gpu for gpu in view.busy_gpus if _is_slowed(view, gpu)]
    if not limited:
        yield from _low_limit(view)
        return
    lowered = [gpu for gpu in limited if _has_lowered_limit(view, gpu)]
    group = lowered or limited
    throttled = mean_of([s for gpu in group if (s := gpu.mean("throttle_power_percent")) is not None])
    has_limit = bool(lowered) or _is_clock_set(view)
    if throttled is None and not has_limit:
        return
    is_power = not has_limit and throttled is not None and throttled >= view.threshold("power_share")
    drops = [drop for gpu in group if (drop := _clock_drop(view, gpu)) is not None]
    slow = max(drops, default=0.0)
    facts = [_clock_fact(view, gpu) for gpu in group]
    if is_power:
        kind, title = (
            FindingKind.POWER_THROTTLING,
            f"GPUs are throttled by power {throttled:.0f} % of the time",
        )
    else:
        kind = FindingKind.WRONG_LIMIT
        what = "power limit" if lowered else "clock limit"
        title = f"A {what} holds the GPU clock {100 * slow:.0f} % below its maximum"
    where = [gpu.name for gpu in group]
    yield view.finding(kind, title, facts, slow * view.active_s, 0.8, where=where)


def _low_limit(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that a very low power limit throttles GPUs whose highest clock is unknown."""
    if any("max_sm_clock_mhz" in gpu.series for gpu in view.gpus):
        return
    facts, shares = [], []
    for gpu in view.busy_gpus:
        limit = view.context.limit_watts.get(gpu.node, {}).get(gpu.part)
        highest = view.context.max_limit_watts.get(gpu.node, {}).get(gpu.part)
        share = gpu.mean("throttle_power_percent")
        if limit is None or not highest or share is None or share < view.threshold("power_share"):
            continue
        ratio = 100 * limit / highest
        if ratio <= view.threshold("limit_ratio"):
            text = f"{gpu.name} has a power limit of {limit:.0f} W of {highest:.0f} W, which throttled it for"
            text += f" {share:.0f} % of the time."
            facts.append(view.fact("power_watts", ratio, text, "limit_ratio", gpu.name))
            shares.append(share / 100)
    if facts:
        title = f"Low power limits throttle {len(facts)} GPUs"
        where = [fact.where for fact in facts]
        yield view.finding(
            FindingKind.WRONG_LIMIT, title, facts, None, 0.6, time_share=max(shares), where=where
        )


def _is_slowed(view: JobView, gpu: GpuView) -> bool:
    """Return whether a busy GPU runs far below the highest clock that it could have.

    A clock that is low because of the temperature does not count.
    """
    drop = _clock_drop(view, gpu)
    if drop is None or 100 * (1 - drop) >= view.threshold("clock_ratio"):
        return False
    thermal = gpu.mean("throttle_thermal_percent")
    return thermal is None or thermal < view.threshold("thermal_share")


def _has_lowered_limit(view: JobView, gpu: GpuView) -> bool:
    limit = view.context.limit_watts.get(gpu.node, {}).get(gpu.part)
    highest = view.context.max_limit_watts.get(gpu.node, {}).get(gpu.part)
    return limit is not None and highest is not None and limit < 0.97 * highest


def _is_clock_set(view: JobView) -> bool:
    return any("clock" in key for settings in view.context.settings.values() for key, _, _ in settings)


def _clock_fact(view: JobView, gpu: GpuView) -> FindingEvidence:
    mean, reference = gpu.working_mean("sm_clock_mhz", _BUSY) or 0.0, reference_mhz(view, gpu) or 0.0
    text = f"{gpu.name} ran at {mean:.0f} MHz while it was busy, {reference:.0f} MHz are possible"
    limit = view.context.limit_watts.get(gpu.node, {}).get(gpu.part)
    text += "" if limit is None else f"; its power limit is {limit:.0f} W"
    return view.fact("sm_clock_mhz", mean, f"{text}.", "clock_ratio", gpu.name)


def slow_cpus(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that a node's CPUs run at a much lower clock than those of other nodes."""
    nodes, clocks = [], []
    for node in view.observation.nodes:
        series = view.node_series(node, "cpu_mhz")
        mean = view.window_mean(series) if series else None
        if mean is not None:
            nodes.append(node.node)
            clocks.append(mean)
    for index, mhz in enumerate(clocks):
        others = median_of_others(clocks, index)
        if others is None or 100 * mhz >= view.threshold("node_clock_ratio") * others:
            continue
        text = (
            f"The CPUs of {nodes[index]} ran at {mhz:.0f} MHz, those of the other nodes at {others:.0f} MHz."
        )
        fact = view.fact("cpu_mhz", mhz, text, "node_clock_ratio", nodes[index])
        title = f"CPUs of {nodes[index]} run at {100 * mhz / others:.0f} % of the clock of the other nodes"
        lost = (1 - mhz / others) * view.elapsed_s
        yield view.finding(FindingKind.WRONG_LIMIT, title, [fact], lost, 0.85, where=[nodes[index]])
