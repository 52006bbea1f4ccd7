"""Which running jobs make way for jobs that would miss their deadline. Decides only: nothing is requeued."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from slurm_energy.priority.engine import Snapshot
from slurm_energy.priority.scheduling_tables import held_back
from slurm_energy.reports.scaling import with_unit
from slurm_energy.scheduling.preemption import Running, victims
from slurm_energy.scheduling.ranking import AGED
from slurm_energy.slurm.queue.columns import RUNNING
from slurm_energy.slurm.queue.node_resources import NodeResources

MARGIN_S: Final = 60.0
"""A job with less slack than this, and a cycle, is at risk: Slurm needs time to end and start jobs."""
MOST_LOOKED_AT: Final = 50
"""Jobs at risk that one cycle looks at, least slack first: anybody can submit jobs with deadlines."""
_CPUS: Final = ""  # the kind of hardware of jobs without GPUs


@dataclass(frozen=True, slots=True)
class Rescue:
    """How a job can still start in time.

    Attributes:
        job_id, submit_s: the job with the deadline.
        nodes: where it can start then.
        victims: running jobs to put back into the queue, the cheapest first.
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
class Rules:
    """Bounds of the site.

    Attributes:
        margin_s: slack below which a job is at risk.
        most: running jobs that one cycle may interrupt.
        spared: jobs that are not interrupted: interrupted not long ago, or refused by Slurm.
        spared_partitions: no job of these is interrupted.
        partitions: only jobs of these are; empty: of all.
        waiting: jobs with deadlines for which others make way already.
    """

    margin_s: float = MARGIN_S
    most: int = 4
    spared: Collection[int] = ()
    spared_partitions: Collection[str] = ()
    partitions: Collection[str] = ()
    waiting: Collection[int] = ()


def urgent_rows(snapshot: Snapshot, rules: Rules) -> list[int]:
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
    due = (snapshot.free() & ~held_back(queue))[rows] & (latest - rules.margin_s <= snapshot.computed)
    due &= queue.deadline_s[rows] > snapshot.computed
    due &= queue.het_job_id[rows] == 0  # its other components would still wait
    waiting = np.isin(queue.job_id[rows], list(rules.waiting))
    return [int(place) for place in snapshot.order if due[place] and not waiting[place]]


def rescues(
    snapshot: Snapshot, nodes: Sequence[NodeResources], places_of: Mapping[int, Collection[str]], rules: Rules
) -> list[Rescue]:
    """Return who makes way for whom, in the order of the queue; together at most `rules.most` victims.

    Nobody makes way for a job that runs by now or fits in what is free, nor where even all would not do, nor
    behind one that has waited past the bound for the same: that one would take what is freed. Each of the
    job's nodes is freed by the least energy lost on it, and the nodes are taken where that is least.

    Args:
        snapshot: the ranked queue; watts of running jobs are predicted.
        nodes: what is free.
        places_of: node names by running job.
        rules: bounds.

    Source: thesis, Algorithm 7; `scheduling.preemption`.
    """
    found: list[Rescue] = []
    left = rules.most
    free = {node.name: _free(node) for node in nodes}
    guests = _interruptible(snapshot, places_of, rules)
    first = _waited_for(snapshot, nodes, places_of, free)
    for place in urgent_rows(snapshot, rules)[:MOST_LOOKED_AT]:
        if int(snapshot.queue.job_id[snapshot.rows[place]]) in places_of:
            continue  # it has started since the queue was written down
        if first & _wants(snapshot, place) or _takes(snapshot, place, nodes, free):
            continue
        way = _cheapest(snapshot, place, nodes, free, guests, left)
        if way is None or len(way.victims) > left:
            continue
        left -= len(way.victims)
        _hand_over(way, guests, free)
        found.append(_rescue(snapshot, place, way))
        if left == 0:
            break
        guests = _without(guests, way.victims)
    return found


@dataclass(frozen=True, slots=True)
class _Guest:
    """A running job on one node."""

    job_id: int
    partition: str
    units: Mapping[str, int]
    lost_joules: float


@dataclass(frozen=True, slots=True)
class _Way:
    """What would free enough: jobs to interrupt, and what is then taken of which nodes."""

    lost_joules: float
    victims: tuple[int, ...]
    kind: str
    units: int
    names: tuple[str, ...]


def _free(node: NodeResources) -> dict[str, int]:
    if not node.usable:
        return {}
    return {_CPUS: node.cpus_free} | {kind: count for kind, count in node.gpus_free.items() if kind}


def _needs(snapshot: Snapshot, place: int) -> Iterable[tuple[str, int, int]]:
    """Yield (kind, units per node, nodes) of each shape that meets the deadline; CPUs without GPUs."""
    queue, table, row = snapshot.queue, snapshot.shapes.table, int(snapshot.rows[place])
    nodes = max(1, int(queue.nodes[row]))
    left_s = float(queue.deadline_s[row]) - snapshot.computed
    for shape in range(int(table.first[place]), int(table.first[place + 1])):
        if table.time_s[shape] > left_s:
            continue
        kind = snapshot.shapes.gpu_kind[shape]
        units = int(table.gpus[shape]) if kind else int(queue.cpus[row])
        if kind or queue.gpus[row] == 0:  # GPUs of any kind: what has to be free is not known
            yield kind, max(1, -(-units // nodes)), nodes


def _cores(snapshot: Snapshot, place: int) -> int:
    """Return the CPUs that a job needs on each node."""
    row = int(snapshot.rows[place])
    return -(-int(snapshot.queue.cpus[row]) // max(1, int(snapshot.queue.nodes[row])))


def _wants(snapshot: Snapshot, place: int) -> set[tuple[str, str]]:
    """Return what a job competes for: partition and kind of hardware."""
    partitions = snapshot.queue.partition[int(snapshot.rows[place])].split(",")
    return {(partition, kind) for kind, _, _ in _needs(snapshot, place) for partition in partitions}


def _waited_for(
    snapshot: Snapshot,
    nodes: Sequence[NodeResources],
    places_of: Collection[int],
    free: Mapping[str, dict[str, int]],
) -> set[tuple[str, str]]:
    """Return what jobs beyond the bound on waiting wait for; those that fit take what they need of `free`."""
    queue, found = snapshot.queue, set[tuple[str, str]]()
    aged = (snapshot.free() & ~held_back(queue))[snapshot.rows] & (snapshot.ranking.tier == AGED)
    aged &= np.isnan(queue.deadline_s[snapshot.rows])
    for place in snapshot.order.tolist():
        if not aged[place] or int(queue.job_id[snapshot.rows[place]]) in places_of:
            continue
        wants = _wants(snapshot, place)
        if not wants <= found and not _takes(snapshot, place, nodes, free):
            found |= wants
    return found


def _takes(
    snapshot: Snapshot, place: int, nodes: Sequence[NodeResources], free: Mapping[str, dict[str, int]]
) -> bool:
    """Let the job have what it needs of what is free, if that is enough; return whether it was."""
    partitions = snapshot.queue.partition[int(snapshot.rows[place])].split(",")
    for (kind, units, count), partition in product(_needs(snapshot, place), partitions):
        able = [n.name for n in nodes if partition in n.partitions and free[n.name].get(kind, 0) >= units]
        if len(able) >= count:
            for name in able[:count]:
                free[name][kind] = free[name].get(kind, 0) - units
            return True
    return False


def _interruptible(
    snapshot: Snapshot, places_of: Mapping[int, Collection[str]], rules: Rules
) -> dict[str, list[_Guest]]:
    """Return the jobs that may be interrupted, by node.

    Never one that may not be requeued, has a deadline itself, or is part of a heterogeneous job.
    """
    queue = snapshot.queue
    may = (queue.state == RUNNING) & queue.requeue & np.isnan(queue.deadline_s) & (queue.het_job_id == 0)
    may &= ~np.isnan(queue.start_s)
    guests: dict[str, list[_Guest]] = {}
    for row in np.flatnonzero(may).tolist():
        job_id, names = int(queue.job_id[row]), places_of.get(int(queue.job_id[row]), ())
        partition = queue.partition[row]
        outside = rules.partitions and partition not in rules.partitions
        if not names or job_id in rules.spared or outside or partition in rules.spared_partitions:
            continue
        ran_s = max(0.0, snapshot.computed - float(queue.start_s[row]))
        units = {_CPUS: int(queue.cpus[row]) // len(names)}
        if queue.gpu_kind[row]:
            units[queue.gpu_kind[row]] = int(queue.gpus[row]) // len(names)
        lost = float(snapshot.predicted.power_watts[row]) * ran_s
        guest = _Guest(job_id, queue.partition[row], units, lost)
        for name in names:
            guests.setdefault(name, []).append(guest)
    return guests


def _cheapest(
    snapshot: Snapshot,
    place: int,
    nodes: Sequence[NodeResources],
    free: Mapping[str, Mapping[str, int]],
    guests: Mapping[str, list[_Guest]],
    most: int,
) -> _Way | None:
    partitions = snapshot.queue.partition[int(snapshot.rows[place])].split(",")
    loss = {guest.job_id: guest.lost_joules for here in guests.values() for guest in here}
    ways: list[_Way] = []
    for kind, units, count in _needs(snapshot, place):
        freed: list[tuple[float, str, Sequence[int], Collection[str]]] = []
        for node in nodes:
            if not node.usable or not node.in_any(partitions):
                continue
            here = guests.get(node.name, [])
            out = _out_of(here, free[node.name], kind, units, _cores(snapshot, place), most)
            if out is not None:
                freed.append((sum(loss[job] for job in out), node.name, out, node.partitions))
        freed.sort(key=lambda one: one[:2])
        for partition in partitions:  # a job runs in one of them
            some = [one for one in freed if partition in one[3]][:count]
            if len(some) == count:
                taken = tuple(dict.fromkeys(job for _, _, out, _ in some for job in out))
                names = tuple(name for _, name, _, _ in some)
                ways.append(_Way(sum(loss[job] for job in taken), taken, kind, units, names))
    return min(ways, key=lambda way: (way.lost_joules, len(way.victims), way.kind), default=None)


def _out_of(
    here: Sequence[_Guest], free: Mapping[str, int], kind: str, units: int, cores: int, most: int
) -> Sequence[int] | None:
    """Return which jobs of a node make way for so much of a kind and so many cores; None: all will not do."""
    sizes = sorted((guest.units.get(kind, 0) for guest in here), reverse=True)
    if sum(sizes[:most]) < units - free.get(kind, 0):
        return None  # so few jobs cannot; the search for the cheapest takes long
    running = [Running(guest.job_id, 0, guest.units.get(kind, 0), guest.lost_joules) for guest in here]
    out = victims(running, 0, units, free.get(kind, 0))
    if out is None:
        return None
    left = free.get(_CPUS, 0) + sum(guest.units[_CPUS] for guest in here if guest.job_id in out)
    return out if left >= cores else None


def _without(guests: Mapping[str, list[_Guest]], jobs: Collection[int]) -> dict[str, list[_Guest]]:
    return {name: [one for one in here if one.job_id not in jobs] for name, here in guests.items()}


def _hand_over(way: _Way, guests: Mapping[str, list[_Guest]], free: Mapping[str, dict[str, int]]) -> None:
    """Count what the victims leave as free, and what the job takes as taken."""
    for name, here in guests.items():
        for guest in here if name in free else ():
            for kind, units in guest.units.items() if guest.job_id in way.victims else ():
                free[name][kind] = free[name].get(kind, 0) + units
    for name in way.names:
        free[name][way.kind] = free[name].get(way.kind, 0) - way.units


def _rescue(snapshot: Snapshot, place: int, way: _Way) -> Rescue:
    queue, row = snapshot.queue, int(snapshot.rows[place])
    left_s = float(queue.deadline_s[row]) - snapshot.computed
    what = f"gpu:{way.kind}" if way.kind else "CPUs"
    lost = with_unit(way.lost_joules, "J")
    return Rescue(
        job_id=int(queue.job_id[row]),
        submit_s=float(queue.submit_s[row]),
        nodes=way.names,
        victims=way.victims,
        lost_joules=way.lost_joules,
        why=f"its deadline is in {left_s:.0f} s; least energy lost to free {what}: {lost}",
    )
