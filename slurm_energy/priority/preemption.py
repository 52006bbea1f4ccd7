"""Choice of running jobs to preempt for jobs that would miss their deadline.

This module only plans; it does not requeue jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from slurm_energy.priority.scheduling_tables import blocked_rows
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.scheduling.preemption import Running, victims
from slurm_energy.scheduling.ranking import AGED, NORMAL
from slurm_energy.slurm.queue.columns import RUNNING
from slurm_energy.slurm.queue.node_resources import NodeResources

START_MARGIN_S: Final = 60.0
"""A job whose slack is below this margin plus one cycle is at risk: Slurm needs time to end and start jobs.
"""
MAX_JOBS_AT_RISK: Final = 50
"""Maximum number of jobs at risk that are considered per cycle, those with the least slack first. A bound is
needed, because any user can submit jobs with deadlines.
"""
_CPU_KIND: Final = ""  # type of hardware of jobs without GPUs


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Plan to requeue running jobs so that a job with a deadline can start in time.

    Attributes:
        job_id: the job with the deadline.
        submit_s: submission time of the job with the deadline, Unix seconds.
        nodes: nodes on which the job with the deadline can then start.
        victims: ids of the running jobs to requeue. The first one is the job whose preemption wastes the
            least energy.
        lost_joules: energy that the victims have used so far and that is lost when they are requeued.
        why: the reason, in one line.
    """

    job_id: int
    submit_s: float
    nodes: tuple[str, ...]
    victims: tuple[int, ...]
    lost_joules: float
    why: str


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """Limits on preemption.

    Attributes:
        margin_s: slack in seconds below which a job is at risk of missing its deadline.
        max_victims: maximum number of jobs preempted per cycle.
        protected: ids of jobs that are not preempted, because they were preempted recently or because Slurm
            refused to preempt them.
        protected_partitions: partitions whose jobs are not preempted.
        partitions: partitions whose jobs may be preempted; an empty value means all.
        already_served: ids of jobs with deadlines for which other jobs were already preempted.
    """

    margin_s: float = START_MARGIN_S
    max_victims: int = 4
    protected: Collection[int] = ()
    protected_partitions: Collection[str] = ()
    partitions: Collection[str] = ()
    already_served: Collection[int] = ()


def at_risk_jobs(snapshot: Snapshot, rules: PreemptionRules) -> list[int]:
    """Return the indices of ranked jobs that may miss their deadline, in queue order.

    Only jobs that wait for resources and nothing else are returned. A job is at risk after its latest safe
    start, `deadline - max(predicted time, time limit) - margin`. The predicted time is that of the fastest
    shape (number and kind of GPUs) in which the job could run. The time limit is part of the formula because
    Slurm cancels a pending job whose time limit would end after its deadline (sbatch(1), --deadline).
    """
    queue, rows = snapshot.queue, snapshot.rows
    if len(rows) == 0:
        return []
    table = snapshot.shapes.table
    fastest = np.minimum.reduceat(table.time_s, table.first[:-1])
    latest = queue.deadline_s[rows] - np.fmax(fastest, queue.time_limit_s[rows])
    due = (snapshot.startable() & ~blocked_rows(queue))[rows] & (latest - rules.margin_s <= snapshot.computed)
    due &= queue.deadline_s[rows] > snapshot.computed
    due &= snapshot.ranking.tier <= NORMAL  # a job over a level of its quota takes nothing from others
    due &= queue.het_job_id[rows] == 0  # the other components of a heterogeneous job would still wait
    already_served = np.isin(queue.job_id[rows], list(rules.already_served))
    return [int(index) for index in snapshot.order if due[index] and not already_served[index]]


def plan_preemptions(
    snapshot: Snapshot,
    nodes: Sequence[NodeResources],
    nodes_of: Mapping[int, Collection[str]],
    rules: PreemptionRules,
) -> list[PreemptionPlan]:
    """Plan preemptions that let urgent jobs start in time.

    Return one plan, in queue order, for each job that is at risk of missing its deadline and that preemption
    enables to start in time.

    No job is preempted in each of these cases:

    - The urgent job already runs or fits in the free resources.
    - Preempting every candidate would not free enough.
    - A job that has waited longer than the bound on waiting needs the same resources. That job
      would take the freed resources.

    On each node, the plan selects the victims whose preemption wastes the least energy. Of all nodes, it
    selects those on which the least energy is wasted.

    Args:
        snapshot: the ranked queue; watts of running jobs are predicted.
        nodes: nodes with their free resources.
        nodes_of: names of the nodes of each running job, by job id.
        rules: the limits. All plans together have at most `rules.max_victims` victims.

    Source: thesis, Algorithm 7; `scheduling.preemption`.
    """
    plans: list[PreemptionPlan] = []
    left = rules.max_victims
    free = {node.name: _free(node) for node in nodes}
    candidates = _candidates(snapshot, nodes_of, rules)
    reserved = _reserved_for_aged(snapshot, nodes, nodes_of, free)
    for index in at_risk_jobs(snapshot, rules)[:MAX_JOBS_AT_RISK]:
        if int(snapshot.queue.job_id[snapshot.rows[index]]) in nodes_of:
            continue  # the job has started since the queue was read
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
    """A running job that may be preempted, with the resources that it uses on one node."""

    job_id: int
    partition: str
    units: Mapping[str, int]
    lost_joules: float


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to free enough resources for an urgent job by interrupting other jobs (victims).

    Attributes:
        lost_joules: energy that the victims lose.
        victims: the jobs to interrupt.
        kind: kind of the units that the urgent job takes.
        units: units (GPUs or CPUs) that the urgent job takes on each of the nodes.
        names: names of the nodes.
    """

    lost_joules: float
    victims: tuple[int, ...]
    kind: str
    units: int
    names: tuple[str, ...]


def _free(node: NodeResources) -> dict[str, int]:
    if not node.usable:
        return {}
    return {_CPU_KIND: node.cpus_free} | {
        gpu_kind: count for gpu_kind, count in node.gpus_free.items() if gpu_kind
    }


def _needs(snapshot: Snapshot, index: int) -> Iterable[tuple[str, int, int]]:
    """Yield the possible resources with which a job would end before its deadline.

    A job may have several choices of GPU type and number of GPUs. Each choice that is fast enough gives
    one entry (GPU type, units per node, number of nodes). Units are GPUs, or CPUs if the GPU type is
    empty. `index` is the index of the job among the ranked jobs.
    """
    queue, table, row = snapshot.queue, snapshot.shapes.table, int(snapshot.rows[index])
    nodes = max(1, int(queue.nodes[row]))
    left_s = float(queue.deadline_s[row]) - snapshot.computed
    for shape in range(int(table.first[index]), int(table.first[index + 1])):
        if table.time_s[shape] > left_s:
            continue
        gpu_kind = snapshot.shapes.gpu_kind[shape]
        units = int(table.gpus[shape]) if gpu_kind else int(queue.cpus[row])
        if gpu_kind or queue.gpus[row] == 0:  # for GPUs of any type, the units to free are unknown
            yield gpu_kind, max(1, -(-units // nodes)), nodes


def _cpus_per_node(snapshot: Snapshot, index: int) -> int:
    """Return the number of CPUs that a ranked job needs on each of its nodes."""
    row = int(snapshot.rows[index])
    return -(-int(snapshot.queue.cpus[row]) // max(1, int(snapshot.queue.nodes[row])))


def _demands(snapshot: Snapshot, index: int) -> set[tuple[str, str]]:
    """Return the pairs of partition and GPU type in which a ranked job needs resources."""
    partitions = snapshot.queue.partition[int(snapshot.rows[index])].split(",")
    return {(partition, kind) for kind, _, _ in _needs(snapshot, index) for partition in partitions}


def _reserved_for_aged(
    snapshot: Snapshot,
    nodes: Sequence[NodeResources],
    nodes_of: Collection[int],
    free: Mapping[str, dict[str, int]],
) -> set[tuple[str, str]]:
    """Return the resources that preemption must leave free for aged jobs.

    Preemption ends running jobs so that an urgent job can start. Aged jobs are pending jobs that have
    waited longer than a limit. The resources are given as pairs (partition, GPU type).

    An aged job may fit into the resources that are free now. Then no pair is reserved for it. Instead,
    the resources that it will take are subtracted from `free`.
    """
    queue, reserved = snapshot.queue, set[tuple[str, str]]()
    aged = (snapshot.startable() & ~blocked_rows(queue))[snapshot.rows] & (snapshot.ranking.tier == AGED)
    aged &= np.isnan(queue.deadline_s[snapshot.rows])
    for index in snapshot.order.tolist():
        if not aged[index] or int(queue.job_id[snapshot.rows[index]]) in nodes_of:
            continue
        demands = _demands(snapshot, index)
        if not demands <= reserved and not _reserve(snapshot, index, nodes, free):
            reserved |= demands
    return reserved


def _reserve(
    snapshot: Snapshot, index: int, nodes: Sequence[NodeResources], free: Mapping[str, dict[str, int]]
) -> bool:
    """Subtract a job's units from `free` (units by node and GPU type) if it fits; return whether it fits."""
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
    """Return the jobs that may be preempted, by node name.

    Excluded are jobs that may not be requeued, have a deadline themselves, or are components of
    heterogeneous jobs.
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
    loss = {
        candidate.job_id: candidate.lost_joules
        for candidates_here in candidates.values()
        for candidate in candidates_here
    }
    ways: list[_Option] = []
    for kind, units, count in _needs(snapshot, index):
        freed: list[tuple[float, str, Sequence[int], Collection[str]]] = []
        for node in nodes:
            if not node.usable or not node.in_any(partitions):
                continue
            candidates_here = candidates.get(node.name, [])
            out = _cheapest_victims(
                candidates_here, free[node.name], kind, units, _cpus_per_node(snapshot, index), most
            )
            if out is not None:
                freed.append((sum(loss[job] for job in out), node.name, out, node.partitions))
        freed.sort(key=lambda one: one[:2])
        for partition in partitions:  # a job runs in a single partition
            some = [one for one in freed if partition in one[3]][:count]
            if len(some) == count:
                victims_of_option = tuple(dict.fromkeys(job for _, _, out, _ in some for job in out))
                names = tuple(name for _, name, _, _ in some)
                ways.append(
                    _Option(
                        sum(loss[job] for job in victims_of_option), victims_of_option, kind, units, names
                    )
                )
    return min(ways, key=lambda option: (option.lost_joules, len(option.victims), option.kind), default=None)


def _cheapest_victims(
    here: Sequence[_Candidate], free: Mapping[str, int], kind: str, units: int, cores: int, most: int
) -> Sequence[int] | None:
    """Return the ids of the jobs whose preemption makes room for an urgent job on one node.

    The selected jobs lose the least energy. The result is None if the node would have too few free resources
    even after the preemptions.

    Args:
        here: the jobs on the node that may be preempted (candidates).
        free: number of free GPUs on the node by GPU type; the empty key holds the free CPUs.
        kind: GPU type that the urgent job needs; an empty value means CPUs.
        units: number of GPUs of this type, or of CPUs, that the urgent job needs on the node.
        cores: number of CPUs that the urgent job needs on the node.
        most: maximum number of jobs to preempt.
    """
    sizes = sorted((candidate.units.get(kind, 0) for candidate in here), reverse=True)
    if sum(sizes[:most]) < units - free.get(kind, 0):
        return None  # too few units: skip the slow search for the cheapest victims
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
    """Update the free units (GPUs or CPUs) of the nodes for a planned preemption.

    Units that the preempted jobs release are added to `free`. Units that the urgent job takes are
    subtracted.
    """
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
