"""Diagnosis rules about the iterations of a job.

The rules find iterations that wait for checkpoints, and iterations that take much longer than the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from slurm_energy.diagnosis.cpu_waits import other_load
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView, RankView
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.series_means import between, mean_of
from slurm_energy.diagnosis.steps import StepOutlier

WRITE_STALLS: Final = "write_stalls"
"""Name of a fact in a finding: the number of periods with writes and idle GPUs."""
_WRITES = ("block_write_bytes_per_s", "network_transmit_bytes_per_s", "infiniband_transmit_bytes_per_s")
_IDLE_BUSY = 30.0
_MIN_STALLS = 3
_MIN_WORKING = 0.2
"""Minimum fraction of the intervals in which GPUs work."""
_BURST = 2.0
"""Minimum rate of writes in a stall, divided by the rate while GPUs work and send gradients."""


def checkpoint_stalls(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the computation stops for checkpoints for a notable share of the time."""
    seconds = view.category_seconds("checkpoint")
    if seconds is not None and view.elapsed_s > 0:
        share = 100 * seconds / view.elapsed_s
        if share >= view.threshold("checkpoint_share"):
            # Often only the first rank writes checkpoints.
            phases = [rank.steps.phases.get("checkpoint") for rank in view.ranks]
            count = max(phase.count for phase in phases if phase is not None)
            text = f"{count} checkpoints took {share:.0f} % of the job's time."
            fact = view.fact("checkpoint", share, text, "checkpoint_share")
            title = f"Checkpoints take {share:.0f} % of the time"
            yield view.finding(FindingKind.CHECKPOINT_STALL, title, [fact], seconds, 0.95)
        return
    if not view.ranks and view.busy_gpus:
        yield from _write_stalls(view)


def _write_stalls(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that GPUs are often idle while the job writes data, probably checkpoints.

    Such stalls are recognised by repeated bursts of writes while the GPUs are idle.
    """
    shares, stalls = [], 0
    for node in view.observation.nodes:
        share, count = _write_stall_share(view, node)
        if share is not None:
            shares.append(share)
            stalls = max(stalls, count)
    share = mean_of(shares)
    if share is None or stalls < _MIN_STALLS or share < view.threshold("checkpoint_share"):
        return
    text = f"The job wrote data while its GPUs were idle for {share:.0f} % of the time."
    fact = view.fact("block_write_bytes_per_s", share, text, "checkpoint_share")
    number = view.fact(WRITE_STALLS, stalls, f"There were {stalls} such stretches of writes.")
    title = f"GPUs are idle during writes, probably checkpoints, {share:.0f} % of the time"
    yield view.finding(FindingKind.CHECKPOINT_STALL, title, [fact, number], share / 100 * view.active_s, 0.65)


def _write_stall_share(view: JobView, node: NodeObservation) -> tuple[float | None, int]:
    """Return in which percentage of the time GPUs were idle while the node wrote data.

    The second result is the number of periods in which this happened.
    """
    gpus = [gpu.series["gpu_busy_percent"] for gpu in view.busy_gpus if gpu.node == node.node]
    writes = [series for series in node.series if series.name in _WRITES]
    window = view.active_window
    if not gpus or not writes or window is None:
        return None, 0
    interval_s = max(series.interval_s for series in (*gpus, *writes))
    starts = [
        window[0] + index * interval_s for index in range(int((window[1] - window[0]) / interval_s + 1e-6))
    ]
    busy = [
        mean_of([value for series in gpus for value in between(series, start, start + interval_s)])
        for start in starts
    ]
    bursts = [0.0] * len(starts)
    for series in writes:
        rates = [mean_of(between(series, start, start + interval_s)) or 0.0 for start in starts]
        bursts = [total + burst for total, burst in zip(bursts, _bursts(rates, busy), strict=True)]
    limit = view.threshold("checkpoint_write") * 1e9
    stalls = [
        use is not None and use < _IDLE_BUSY and written >= limit
        for use, written in zip(busy, bursts, strict=True)
    ]
    stretches = sum(now and not before for before, now in pairwise([False, *stalls]))
    return (100 * sum(stalls) / len(stalls) if stalls else None), stretches


def _bursts(rates: Sequence[float], busy: Sequence[float | None]) -> list[float]:
    """Return the write rates of bursts; all other rates become 0.

    A burst is a rate far above the mean rate during work of the GPUs.
    """
    working = [rate for rate, use in zip(rates, busy, strict=True) if use is not None and use >= _IDLE_BUSY]
    if len(working) < _MIN_WORKING * len(rates):
        return [0.0] * len(rates)  # the usual rate is unknown
    usual = mean_of(working) or 0.0
    return [rate if rate >= _BURST * usual else 0.0 for rate in rates]


def outliers(view: JobView) -> Iterator[JobFinding]:
    """Find out whether single slow training iterations cost a job a notable part of its time.

    An iteration is slow if its time is more than 3 sigma above the rolling mean. The function yields a
    finding if the fraction of the time lost to slow iterations is at least the threshold `outlier_share`.
    """
    ranks = [rank for rank in view.ranks if rank.steps.outlier_count and rank.times.step_s > 0]
    if not ranks:
        return
    worst = max(ranks, key=lambda rank: _own_excess_s(view, rank))
    excess = _own_excess_s(view, worst)
    share = 100 * excess / worst.times.step_s
    phases = Counter(outlier.phase for outlier in worst.steps.outliers if outlier.phase)
    phase = phases.most_common(1)[0][0] if phases else ""
    if share < view.threshold("outlier_share") or phase == "checkpoint":
        return
    count = worst.steps.outlier_count
    text = f"{count} iterations of {worst.name} took {share:.0f} % of the step time beyond the rolling mean."
    fact = view.fact("step", share, text, "outlier_share", worst.name)
    listed = sorted(worst.steps.outliers, key=lambda outlier: outlier.duration_s, reverse=True)[:3]
    facts = [
        view.fact(
            outlier.phase or "step",
            outlier.duration_s,
            f"An iteration took {outlier.duration_s:.3g} s instead of {outlier.expected_s:.3g} s.",
            None,
            worst.name,
            (outlier.at_s, outlier.at_s + outlier.duration_s),
        )
        for outlier in listed
    ]
    inside = f", mostly in phase {phase}" if phase else ""
    title = f"{count} slow iterations cost {share:.0f} % of the step time{inside}"
    yield view.finding(FindingKind.ITERATION_OUTLIERS, title, [fact, *facts], excess, 0.85)


def _own_excess_s(view: JobView, rank: RankView) -> float:
    """Return the seconds of slow iterations of a rank beyond their expected times.

    Delays by other work on the node are left out, because the job does not cause them. Their fraction is
    known only for the slow iterations (outliers) that are listed individually. All other outliers are
    assumed to have the same fraction.
    """
    listed = math.fsum(outlier.duration_s - outlier.expected_s for outlier in rank.steps.outliers)
    limit = view.threshold("other_load")
    own = math.fsum(
        outlier.duration_s - outlier.expected_s
        for outlier in rank.steps.outliers
        if (_other_load(view, rank, outlier) or 0.0) < limit
    )
    return rank.steps.outlier_excess_s * (own / listed if listed > 0 else 1.0)


def _other_load(view: JobView, rank: RankView, outlier: StepOutlier) -> float | None:
    return other_load(view, rank.steps.node, (outlier.at_s, outlier.at_s + outlier.duration_s))
