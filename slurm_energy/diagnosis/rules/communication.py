"""Rules with which the diagnosis finds problems between the ranks of a job.

The problems are communication, stragglers and load imbalance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_energy.diagnosis.cpu_waits import is_crowded
from slurm_energy.diagnosis.distribution import median
from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.gpu_view import GpuView
from slurm_energy.diagnosis.job_view import JobView, RankView
from slurm_energy.diagnosis.series_means import mean_of
from slurm_energy.diagnosis.stragglers import stragglers

_MIN_RANKS_FOR_MEDIAN = 4
_BUSY_WHILE_WAITING = 80.0
_UNEVEN_GPUS = 0.75
_MAX_STEP_RATIO = 1.1
"""Maximum ratio of the largest to the smallest step count of ranks that take their steps together."""
_ONE_SIDED = 0.5
"""Ranks that are spread evenly around the median have uneven work. Stragglers lie on one side only."""
_NETWORKS = ("infiniband_transmit_bytes_per_s", "network_transmit_bytes_per_s")


def communication(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that all ranks spend much time on communication.

    A rank that waits for a slower rank also reports the wait as communication. The rank with the least
    communication time does not wait, so that this time is the cost of the communication alone.
    """
    if not view.gpus and is_crowded(view):
        return  # ranks wait for ranks that wait for CPUs
    shares = [s for rank in view.ranks if (s := rank.times.share("communication")) is not None]
    if len(shares) >= 2 and len(shares) == len(view.ranks):
        share = 100 * min(shares)
        if share >= view.threshold("communication_share"):
            seconds = min(rank.times.seconds["communication"] for rank in view.ranks)
            text = f"Every rank spent at least {share:.0f} % of its step time on communication."
            fact = view.fact("communication", share, text, "communication_share")
            title = f"Communication takes {share:.0f} % of the step time"
            yield view.finding(FindingKind.COMMUNICATION_BOUND, title, [fact], seconds, 0.9)
    elif not shares:
        yield from _communication_without_steps(view)


def _communication_without_steps(view: JobView) -> Iterator[JobFinding]:
    busy, rate = view.gpu_busy, _network_rate(view)
    if busy is None or rate is None or len(view.busy_gpus) < 2 or busy < _BUSY_WHILE_WAITING:
        return
    active, level = view.gpu_mean("sm_active_percent"), _power_level(view)
    activity = active if active is not None else level
    limit = view.threshold("small_batch_sm") if active is not None else view.threshold("small_batch_power")
    if activity is None or activity >= limit * 1.4 or rate < view.threshold("communication_rate") * 1e9:
        return
    facts = [
        view.fact("network_transmit_bytes_per_s", rate, f"Each node sent {rate / 1e9:.1f} GB/s on average."),
        view.fact(
            "sm_active_percent" if active is not None else "power_watts",
            activity,
            f"GPUs are busy for {busy:.0f} % of the time, but their units are active for {activity:.0f} %"
            " only: communication kernels wait.",
        ),
    ]
    lost = max(0.0, 1 - activity / (1.6 * limit)) * view.active_s
    title = f"GPUs wait in communication: {rate / 1e9:.1f} GB/s per node, {activity:.0f} % activity"
    yield view.finding(FindingKind.COMMUNICATION_BOUND, title, facts, lost, 0.6)


def _network_rate(view: JobView) -> float | None:
    """Return the mean rate at which a node sends over its networks, in bytes per second; None if unknown."""
    rates = []
    for node in view.observation.nodes:
        sent = [
            mean
            for series in node.series
            if series.name in _NETWORKS and (mean := view.window_mean(series)) is not None
        ]
        if sent:
            rates.append(sum(sent))
    return mean_of(rates)


def _power_level(view: JobView) -> float | None:
    return mean_of([level for gpu in view.busy_gpus if (level := view.gpu_power_level(gpu)) is not None])


def uneven_ranks(view: JobView) -> Iterator[JobFinding]:
    """Find out whether some processes (ranks) of a job are slower than the others that wait for them.

    The function yields a finding: single slow ranks (stragglers) or a load imbalance. It compares the times
    of the ranks' steps. Without such times, it compares the activity of GPUs or nodes.
    """
    ranks = _joint_ranks(view)
    if len(ranks) < 2 <= len(view.ranks):
        return  # independent programs do not wait for each other
    found = list(_uneven_steps(view, ranks)) if len(ranks) >= 2 else []
    has_waits = any("communication" in rank.times.seconds for rank in view.ranks)
    if not found and not has_waits and len(view.busy_gpus) >= 2:
        found = list(_uneven_gpus(view))
    elif not view.ranks and not view.gpus:
        found = list(_uneven_nodes(view))
    yield from found


def _joint_ranks(view: JobView) -> list[RankView]:
    """Return the processes of a job that do their steps in lockstep.

    The result is empty if the job runs independent programs. Processes that exchange data in each step have
    completed about the same number of steps. Independent programs, such as those of a parameter search, have
    completed different numbers of steps. If several processes have the same rank, as after a restart, only
    the last of them counts.
    """
    last: dict[object, RankView] = {}
    for view_of_rank in sorted(view.ranks, key=_start_s):
        if view_of_rank.step_count:
            number = view_of_rank.steps.rank
            last[view_of_rank.name if number is None else number] = view_of_rank
    counts = [rank.step_count for rank in last.values()]
    is_joint = bool(counts) and max(counts) <= _MAX_STEP_RATIO * min(counts) + 1
    return list(last.values()) if is_joint else []


def _start_s(rank: RankView) -> float:
    intervals = rank.steps.intervals
    return 0.0 if intervals is None else intervals.start_s


def _own_seconds(rank: RankView) -> float:
    """Return the seconds per step in which a rank does not wait for other ranks.

    If the program marks no phase `communication`, the whole backward pass is subtracted, because ranks wait
    for each other during this pass. The time outside of all phases is subtracted too, because a rank may
    also wait in this time, for example for a broadcast.
    """
    waiting = rank.times.seconds.get("communication")
    if waiting is None and "forward" in rank.steps.phases and "backward" in rank.steps.phases:
        waiting = rank.steps.phases["backward"].sum_s
    unmarked = rank.times.seconds.get("other", 0.0)
    return max(0.0, rank.times.step_s - (waiting or 0.0) - unmarked) / rank.step_count


def _uneven_steps(view: JobView, ranks: Sequence[RankView]) -> Iterator[JobFinding]:
    own = [_own_seconds(rank) for rank in ranks]
    middle, slowest = median(own), max(own)
    exchange_s = min(rank.times.seconds.get("communication", 0.0) for rank in ranks)
    working_s = max(rank.times.step_s for rank in ranks) - exchange_s
    if middle is None or middle <= 0 or working_s <= 0:
        return
    slow = stragglers(own, view.threshold("straggler_ratio"))
    few = 100 * len(slow) <= view.threshold("straggler_ranks") * len(ranks)
    is_one_sided = middle - min(own) < _ONE_SIDED * (slowest - middle)
    if slow and few and is_one_sided and len(ranks) >= _MIN_RANKS_FOR_MEDIAN:
        names = [ranks[index].name for index in slow]
        facts = [_straggler_fact(view, ranks[index], own[index] / middle) for index in slow]
        title = f"{', '.join(names[:3])}: {slowest / middle:.2f} times the median time per step"
        lost = (1 - middle / slowest) * working_s
        yield view.finding(FindingKind.STRAGGLER, title, facts, lost, 0.9, where=names)
        return
    share = 100 * (1 - (mean_of(own) or 0.0) / slowest)
    if share >= view.threshold("imbalance"):
        text = f"Ranks waited for the slowest one for {share:.0f} % of the step time on average."
        title = f"Uneven work: ranks wait {share:.0f} % of the step time for the slowest one"
        fact = view.fact("step", share, text, "imbalance")
        lost = share / 100 * working_s
        yield view.finding(FindingKind.LOAD_IMBALANCE, title, [fact], lost, 0.85)


def _straggler_fact(view: JobView, rank: RankView, ratio: float) -> FindingEvidence:
    text = f"{rank.name} on {rank.steps.node} needs {ratio:.2f} times the median time per step."
    return view.fact("step", ratio, text, "straggler_ratio", rank.name)


def _uneven_gpus(view: JobView) -> Iterator[JobFinding]:
    """Yield a finding if the GPUs of a job have unequal loads.

    The load is the activity of a GPU's compute units, or its power if the activity is unknown. The
    utilisation is not used, because a GPU that waits for other GPUs is shown as busy.
    """
    signal = "sm_active_percent"
    if any(signal not in gpu.series for gpu in view.busy_gpus):
        signal = "power_watts"
    levels = [_activity(view, gpu, signal) for gpu in view.busy_gpus]
    known = [level for level in levels if level is not None]
    if len(known) < len(levels) or max(known) <= 0 or min(known) >= _UNEVEN_GPUS * max(known):
        return
    high = [i for i, level in enumerate(known) if level >= (min(known) + max(known)) / 2]
    is_straggler = 100 * len(high) <= view.threshold("straggler_ranks") * len(known) and len(known) >= 4
    where = [view.busy_gpus[index].name for index in high]
    lost = (1 - (mean_of(known) or 0.0) / max(known)) * view.active_s
    text = f"The most active GPU is active for {max(known):.0f} %, the least active for {min(known):.0f} %."
    fact = view.fact(signal, min(known) / max(known), text, None, ", ".join(where[:3]))
    if is_straggler:
        title = f"The other GPUs wait for {', '.join(where[:3])}"
        yield view.finding(FindingKind.STRAGGLER, title, [fact], lost, 0.6, where=where)
    else:
        title = (
            f"Uneven work: the least active GPU does {100 * min(known) / max(known):.0f} % of the most active"
        )
        yield view.finding(FindingKind.LOAD_IMBALANCE, title, [fact], lost, 0.6)


def _activity(view: JobView, gpu: GpuView, signal: str) -> float | None:
    return gpu.mean(signal) if signal == "sm_active_percent" else view.gpu_power_level(gpu)


def _uneven_nodes(view: JobView) -> Iterator[JobFinding]:
    uses = {}
    for node in view.observation.nodes:
        series = view.node_series(node, "cpu_busy_cores")
        mean = series.mean() if series else None
        if mean is not None:
            uses[node.node] = mean
    if len(uses) < 2 or len(uses) < len(view.context.nodes) or max(uses.values()) <= 1:
        return
    low, high = min(uses, key=lambda name: uses[name]), max(uses, key=lambda name: uses[name])
    if uses[low] >= _UNEVEN_GPUS * uses[high]:
        return
    lost = (1 - (mean_of(list(uses.values())) or 0.0) / uses[high]) * view.elapsed_s
    text = f"{low} used {uses[low]:.1f} CPUs on average, {high} {uses[high]:.1f}."
    fact = view.fact("cpu_busy_cores", uses[low] / uses[high], text, None, low)
    title = f"Uneven work: {low} uses {100 * uses[low] / uses[high]:.0f} % of the CPU time of {high}"
    yield view.finding(FindingKind.LOAD_IMBALANCE, title, [fact], lost, 0.7, where=[low])
