"""Queries of Slurm for the nodes that running and pending jobs need.

One squeue command reads the jobs. The reservations of nodes are read with another command.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.slurm.batch_script import parse_time_limit
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import squeue_rows
from slurm_energy.slurm.hostlist import expand_hostlist

_OPTIONS: Final = ("-a", "-h", "--local", "-t", "PD,R,CF,S", "-S", "-p")
_FIELDS: Final = (
    *("State", "Partition", "NumNodes", "NodeList", "TimeLimit", "EndTime", "EligibleTime", "Reason"),
    *("ArrayTaskID", "JobID", "StartTime"),
)
_WAITING: Final = frozenset({"NONE", "PRIORITY", "RESOURCES", "BEGINTIME", "CLEANING"})
"""Reasons of pending jobs that start as soon as nodes are free or their begin time is reached."""
_MAX_TASKS: Final = 10_000
_MAX_NODES: Final = 1_000_000
_MAX_TIME_DIGITS: Final = 12
_RESERVED: Final = re.compile(r"(?:^| )(StartTime|EndTime|NodeCnt|PartitionName)=([^ ]*)")
_OVERDUE_SHARE: Final = 0.1
"""Remaining time assumed for a job beyond its expected run time, as a fraction of its run time so far."""
_UNLIMITED_S: Final = 365 * 86400.0


@dataclass(frozen=True, slots=True)
class RequestedNodes:
    """Nodes and run time that a pending job requests.

    Attributes:
        partitions: partitions in which the job may run.
        nodes: number of nodes of one task.
        tasks: number of tasks of a job array; 1 for other jobs.
        time_s: expected run time in seconds, at most the time limit.
        from_unix_s: earliest start in Unix seconds.
    """

    partitions: frozenset[str]
    nodes: int
    tasks: int
    time_s: float
    from_unix_s: float


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """Nodes that running jobs occupy, and pending jobs that will need nodes.

    Attributes:
        busy_until_unix_s: latest expected end of the jobs that run on a node, by node, in Unix seconds. The
            expected end of a job is never after its time limit.
        pending: pending jobs in the order of their priority.
    """

    busy_until_unix_s: dict[str, float]
    pending: tuple[RequestedNodes, ...]


def read_node_demand(
    run: Runner = run_command, times_s: Mapping[int, float] | None = None, now: float = 0.0
) -> NodeDemand:
    """Return the nodes that running and pending jobs need.

    Pending jobs that are held, depend on other jobs or are blocked by limits are left out.

    Args:
        run: function that runs Slurm's commands.
        times_s: expected run times by job id; a job without an entry is expected to run until its time limit.
        now: Unix seconds.

    Raises:
        UnavailableError: slurmctld does not answer, or the output is incomplete.
    """
    busy: dict[str, float] = {}
    pending: list[RequestedNodes] = []
    for row in squeue_rows(_OPTIONS, _FIELDS, run):
        state, partition, nodes, hostlist, limit, end, eligible, reason, tasks, job_id, start = row
        time_s = (times_s or {}).get(int(job_id)) if job_id.isdecimal() and len(job_id) <= 12 else None
        if state == "PENDING":
            if reason.upper() in _WAITING and nodes.isdecimal() and len(nodes) <= 9:
                request = RequestedNodes(
                    frozenset(partition.split(",")) - {""},
                    min(int(nodes), _MAX_NODES),
                    count_tasks(tasks),
                    min(_limit_s(limit), math.inf if time_s is None else time_s),
                    _unix_s(eligible, 0.0),
                )
                pending.append(request)
            continue
        until_s = _unix_s(end, math.inf)
        if time_s is not None and state in ("RUNNING", "SUSPENDED"):
            until_s = min(until_s, _expected_end_s(_unix_s(start, now), time_s, now))
        for name in _names(hostlist):
            busy[name] = max(busy.get(name, 0.0), until_s)
    return NodeDemand(busy, tuple(pending))


def _expected_end_s(start_s: float, time_s: float, now: float) -> float:
    end_s = start_s + time_s
    return end_s if end_s > now else now + _OVERDUE_SHARE * max(0.0, now - start_s)


def count_tasks(text: str) -> int:
    """Return the number of pending tasks in a task list of squeue, such as `1-10,12%4`.

    For other texts the result is 1.
    """
    total = 0
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if match is None:
            return 1
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        total += max(0, last - first) // max(1, step) + 1
    return min(total, _MAX_TASKS)


def _names(hostlist: str) -> list[str]:
    try:
        return expand_hostlist(hostlist) if hostlist else []
    except UsageError:
        return []


def _limit_s(text: str) -> float:
    try:
        limit_s = parse_time_limit(text)
    except UsageError:
        return _UNLIMITED_S
    return _UNLIMITED_S if limit_s is None else limit_s


def _unix_s(text: str, unknown: float) -> float:
    return float(text) if text.isdecimal() and len(text) <= _MAX_TIME_DIGITS else unknown


def read_reserved_nodes(run: Runner = run_command) -> list[RequestedNodes]:
    """Return the reservations of nodes in Slurm, read with one command.

    Reservations that have already begun are included.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    requests = []
    for line in run(["scontrol", "--oneliner", "show", "reservations"]).splitlines():
        values = dict(reversed(_RESERVED.findall(line)))
        start, end = values.get("StartTime", ""), values.get("EndTime", "")
        count = values.get("NodeCnt", "")
        if not (start.isdecimal() and count.isdecimal() and len(count) <= 9):
            continue
        name = values.get("PartitionName", "")
        partitions = frozenset() if name in ("", "(null)") else frozenset({name})
        start_s = _unix_s(start, 0.0)
        time_s = max(0.0, min(_UNLIMITED_S, _unix_s(end, start_s + _UNLIMITED_S) - start_s))
        requests.append(RequestedNodes(partitions, min(int(count), _MAX_NODES), 1, time_s, start_s))
    return requests
