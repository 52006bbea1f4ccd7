"""Which running jobs make way for jobs that would miss their deadline. Decides only: nothing is requeued."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from slurm_energy.priority.scheduling_tables import blocked_rows
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.reports.scaling import with_unit
from slurm_energy.scheduling.preemption import Running, victims
from slurm_energy.scheduling.ranking import AGED
from slurm_energy.slurm.queue.columns import RUNNING
from slurm_energy.slurm.queue.node_resources import NodeResources

START_MARGIN_S: Final = 60.0
"""A job with less slack than this, and a cycle, is at risk: Slurm needs time to end and start jobs."""
MAX_JOBS_AT_RISK: Final = 50
"""Jobs at risk that one cycle looks at, least slack reserved: anybody can submit jobs with deadlines."""
_CPU_KIND: Final = ""  # the kind of hardware of jobs without GPUs


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """How a job can still start in time.

    Attributes:
        job_id, submit_s: the job with the deadline.
        nodes: where it can start then.
        victims: running jobs to put back into the queue, the cheapest reserved.
        lost_joules: what they have used in vain.
        why: one line.
    """

    job_id: int
    submit_s: float
    nodes: tuple[str, ...]
    victims: tuple[int, ...]
    lost_joules: float
    why: str


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """Bounds of the site.

    Attributes:
        margin_s: slack below which a job is at risk.
        max_victims: running jobs that one cycle may interrupt.
        spared: jobs that are not interrupted: interrupted not long ago, or refused by Slurm.
        spared_partitions: no job of these is interrupted.
        partitions: only jobs of these are; empty: of all.
        waiting: jobs with deadlines for which others make way already.
    """

    margin_s: float = START_MARGIN_S
    max_victims: int = 4
    protected: Collection[int] = ()
    protected_partitions: Collection[str] = ()
    partitions: Collection[str] = ()
    already_served: Collection[int] = ()


def at_risk_jobs(snapshot: Snapshot, rules: PreemptionRules) -> list[int]:
    """Return places among the ranked jobs, in order, that are at risk and wait only for resources.

    At risk: `deadline - max(fastest shape's predicted time, time limit) - margin` is over. The limit counts
    as Slurm cancels a pending job that could not use it up before its deadline (sbatch(1), --deadline).
    """
    queue, rows = snapshot.queue, snapshot.rows
    if len(rows) == 0:
        return []
    table = snapshot.shapes.table
    fastest = np.minimum.reduceat(table.time_s, table.first[:-1])
    latest = queue.deadline_s[rows] - np.fmax(fastest, queue.time_limit_s[rows])
    due = (snapshot.startable() & ~blocked_rows(queue))[rows] & (latest - rules.margin_s <= snapshot.computed)
    due &= queue.deadline_s[rows] > snapshot.computed
    due &= queue.het_job_id[rows] == 0  # its other components would still wait
    already_served = np.isin(queue.job_id[rows], list(rules.already_served))
    return [int(index) for index in snapshot.order if due[index] and not already_served[index]]


def plan_preemptions(
    snapshot: Snapshot,
    nodes: Sequence[NodeResources],
    nodes_of: Mapping[int, Collection[str]],
    rules: PreemptionRules,
) -> list[PreemptionPlan]:
    """Return who makes way for whom, in the order of the queue; together at most `rules.max_victims` victims.

    Nobody makes way for a job that runs by now or fits in what is free, nor where even all would not do, nor
    behind one that has waited past the bound for the same: that one would take what is freed. Each of the
    job's nodes is freed by the least energy lost on it, and the nodes are taken where that is least.

    Args:
        snapshot: the ranked queue; watts of running jobs are predicted.
        nodes: what is free.
        nodes_of: node names by running job.
        rules: bounds.

    Source: thesis, Algorithm 7; `scheduling.preemption`.
    """
    plans: list[PreemptionPlan] = []
    left = rules.max_victims
    free = {node.name: _free(node) for node in nodes}
    candidates = _candidates(snapshot, nodes_of, rules)
    reserved = _reserved_for_aged(snapshot, nodes, nodes_of, free)
    for index in at_risk_jobs(snapshot, rules)[:MAX_JOBS_AT_RISK]:
        if int(snapshot.queue.job_id[snapshot.rows[index]]) in nodes_of:
            continue  # it has started since the queue was written down
        if reserved & _demands(snapshot, index) or _reserve(snapshot, index, nodes, free):
            continue
        option = _cheapest_option(snapshot, index, nodes, free, candidates, left)
        if option is None or len(option.victims) > left:
            continue
        left -= len(option.victims)
        _move_units(option, candidates, free)
        plans.append(_plan(snapshot, index, option))
        if left == 0:
            break
        candidates = _without(candidates, option.victims)
    return plans


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A running job on one node."""

    job_id: int
    partition: str
    units: Mapping[str, int]
    lost_joules: float


@dataclass(frozen=True, slots=True)
class _Option:
    """What would free enough: jobs to interrupt, and what is then taken of which nodes."""

    lost_joules: float
    victims: tuple[int, ...]
    kind: str
    units: int
    names: tuple[str, ...]


def _free(node: NodeResources) -> dict[str, int]:
    if not node.usable:
        return {}
    return {_CPU_KIND: node.cpus_free} | {kind: count for kind, count in node.gpus_free.items() if kind}


def _needs(snapshot: Snapshot, index: int) -> Iterable[tuple[str, int, int]]:
    """Yield (kind, units per node, nodes) of each shape that meets the deadline; CPUs without GPUs."""
    queue, table, row = snapshot.queue, snapshot.shapes.table, int(snapshot.rows[index])
    nodes = max(1, int(queue.nodes[row]))
    left_s = float(queue.deadline_s[row]) - snapshot.computed
    for shape in range(int(table.first[index]), int(table.first[index + 1])):
        if table.time_s[shape] > left_s:
            continue
        kind = snapshot.shapes.gpu_kind[shape]
        units = int(table.gpus[shape]) if kind else int(queue.cpus[row])
        if kind or queue.gpus[row] == 0:  # GPUs of any kind: what has to be free is not known
            yield kind, max(1, -(-units // nodes)), nodes


def _cpus_per_node(snapshot: Snapshot, index: int) -> int:
    """Return the CPUs that a job needs on each node."""
    row = int(snapshot.rows[index])
    return -(-int(snapshot.queue.cpus[row]) // max(1, int(snapshot.queue.nodes[row])))


def _demands(snapshot: Snapshot, index: int) -> set[tuple[str, str]]:
    """Return what a job competes for: partition and kind of hardware."""
    partitions = snapshot.queue.partition[int(snapshot.rows[index])].split(",")
    return {(partition, kind) for kind, _, _ in _needs(snapshot, index) for partition in partitions}


def _reserved_for_aged(
    snapshot: Snapshot,
    nodes: Sequence[NodeResources],
    nodes_of: Collection[int],
    free: Mapping[str, dict[str, int]],
) -> set[tuple[str, str]]:
    """Return what jobs beyond the bound on waiting wait for; those that fit take what they need of `free`."""
    queue, reserved = snapshot.queue, set[tuple[str, str]]()
    aged = (snapshot.startable() & ~blocked_rows(queue))[snapshot.rows] & (snapshot.ranking.tier == AGED)
    aged &= np.isnan(queue.deadline_s[snapshot.rows])
    for index in snapshot.order.tolist():
        if not aged[index] or int(queue.job_id[snapshot.rows[index]]) in nodes_of:
            continue
        wants = _demands(snapshot, index)
        if not wants <= reserved and not _reserve(snapshot, index, nodes, free):
            reserved |= wants
    return reserved


def _reserve(
    snapshot: Snapshot, index: int, nodes: Sequence[NodeResources], free: Mapping[str, dict[str, int]]
) -> bool:
    """Let the job have what it needs of what is free, if that is enough; return whether it was."""
    partitions = snapshot.queue.partition[int(snapshot.rows[index])].split(",")
    for (kind, units, count), partition in product(_needs(snapshot, index), partitions):
        able = [n.name for n in nodes if partition in n.partitions and free[n.name].get(kind, 0) >= units]
        if len(able) >= count:
            for name in able[:count]:
                free[name][kind] = free[name].get(kind, 0) - units
            return True
    return False


def _candidates(
    snapshot: Snapshot, nodes_of: Mapping[int, Collection[str]], rules: PreemptionRules
) -> dict[str, list[_Candidate]]:
    """Return the jobs that may be interrupted, by node.

    Never one that may not be requeued, has a deadline itself, or is part of a heterogeneous job.
    """
    queue = snapshot.queue
    may = (queue.state == RUNNING) & queue.requeue & np.isnan(queue.deadline_s) & (queue.het_job_id == 0)
    may &= ~np.isnan(queue.start_s)
    candidates: dict[str, list[_Candidate]] = {}
    for row in np.flatnonzero(may).tolist():
        job_id, names = int(queue.job_id[row]), nodes_of.get(int(queue.job_id[row]), ())
        partition = queue.partition[row]
        outside = rules.partitions and partition not in rules.partitions
        if not names or job_id in rules.protected or outside or partition in rules.protected_partitions:
            continue
        ran_s = max(0.0, snapshot.computed - float(queue.start_s[row]))
        units = {_CPU_KIND: int(queue.cpus[row]) // len(names)}
        if queue.gpu_kind[row]:
            units[queue.gpu_kind[row]] = int(queue.gpus[row]) // len(names)
        lost = float(snapshot.predicted.power_watts[row]) * ran_s
        candidate = _Candidate(job_id, queue.partition[row], units, lost)
        for name in names:
            candidates.setdefault(name, []).append(candidate)
    return candidates


def _cheapest_option(
    snapshot: Snapshot,
    index: int,
    nodes: Sequence[NodeResources],
    free: Mapping[str, Mapping[str, int]],
    candidates: Mapping[str, list[_Candidate]],
    most: int,
) -> _Option | None:
    partitions = snapshot.queue.partition[int(snapshot.rows[index])].split(",")
    loss = {candidate.job_id: candidate.lost_joules for here in candidates.values() for candidate in here}
    ways: list[_Option] = []
    for kind, units, count in _needs(snapshot, index):
        freed: list[tuple[float, str, Sequence[int], Collection[str]]] = []
        for node in nodes:
            if not node.usable or not node.in_any(partitions):
                continue
            here = candidates.get(node.name, [])
            out = _cheapest_victims(here, free[node.name], kind, units, _cpus_per_node(snapshot, index), most)
            if out is not None:
                freed.append((sum(loss[job] for job in out), node.name, out, node.partitions))
        freed.sort(key=lambda one: one[:2])
        for partition in partitions:  # a job runs in one of them
            some = [one for one in freed if partition in one[3]][:count]
            if len(some) == count:
                taken = tuple(dict.fromkeys(job for _, _, out, _ in some for job in out))
                names = tuple(name for _, name, _, _ in some)
                ways.append(_Option(sum(loss[job] for job in taken), taken, kind, units, names))
    return min(ways, key=lambda option: (option.lost_joules, len(option.victims), option.kind), default=None)


def _cheapest_victims(
    here: Sequence[_Candidate], free: Mapping[str, int], kind: str, units: int, cores: int, most: int
) -> Sequence[int] | None:
    """Return which jobs of a node make way for so much of a kind and so many cores; None: all will not do."""
    sizes = sorted((candidate.units.get(kind, 0) for candidate in here), reverse=True)
    if sum(sizes[:most]) < units - free.get(kind, 0):
        return None  # so few jobs cannot; the search for the cheapest takes long
    running = [
        Running(candidate.job_id, 0, candidate.units.get(kind, 0), candidate.lost_joules)
        for candidate in here
    ]
    out = victims(running, 0, units, free.get(kind, 0))
    if out is None:
        return None
    left = free.get(_CPU_KIND, 0) + sum(
        candidate.units[_CPU_KIND] for candidate in here if candidate.job_id in out
    )
    return out if left >= cores else None


def _without(
    candidates: Mapping[str, list[_Candidate]], jobs: Collection[int]
) -> dict[str, list[_Candidate]]:
    return {name: [one for one in here if one.job_id not in jobs] for name, here in candidates.items()}


def _move_units(
    option: _Option, candidates: Mapping[str, list[_Candidate]], free: Mapping[str, dict[str, int]]
) -> None:
    """Count what the victims leave as free, and what the job takes as taken."""
    for name, here in candidates.items():
        for candidate in here if name in free else ():
            for kind, units in candidate.units.items() if candidate.job_id in option.victims else ():
                free[name][kind] = free[name].get(kind, 0) + units
    for name in option.names:
        free[name][option.kind] = free[name].get(option.kind, 0) - option.units


def _plan(snapshot: Snapshot, index: int, option: _Option) -> PreemptionPlan:
    queue, row = snapshot.queue, int(snapshot.rows[index])
    left_s = float(queue.deadline_s[row]) - snapshot.computed
    what = f"gpu:{option.kind}" if option.kind else "CPUs"
    lost = with_unit(option.lost_joules, "J")
    return PreemptionPlan(
        job_id=int(queue.job_id[row]),
        submit_s=float(queue.submit_s[row]),
        nodes=option.names,
        victims=option.victims,
        lost_joules=option.lost_joules,
        why=f"its deadline is in {left_s:.0f} s; least energy lost to free {what}: {lost}",
    )
