"""Parser of the environment of prolog and epilog. The result is the same for every Slurm release.

The names of the variables differ between releases, and this module hides the differences. The job-control
values (`SPANK_ENERGY_*`) are user-supplied and unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import ClusterShell.NodeSet  # noqa: F401 - loaded at start, as hostlist loads it only on use

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm import hostlist

_FLAG_PREFIX = "SPANK_ENERGY_"
_NUMBER = re.compile(r"[0-9]{1,10}")
_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")
_MAX_GPUS = 1024


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job on this node, as the environment of a prolog or epilog describes it.

    A field is None if this Slurm release does not set the value.

    Attributes:
        job_id: Slurm's job id. Each array task and each component of a heterogeneous job has a different id.
        restart_count: number of earlier requeues; 0 if Slurm does not state it. The epilog of a run that is
            requeued may state the count of the next run.
        uid: uid of the job's owner.
        user: login name of the job's owner.
        partition: partition of the job.
        cluster: ClusterName.
        node: NodeName of this node.
        slurm_conf: path of the slurm.conf that slurmd uses.
        cpus: number of CPUs of the job on this node.
        node_count: number of nodes of the job.
        gpus: Slurm's numbers of the job's GPUs on this node; None means not set, not numbers, or the job has
            none.
        exclusive: True if Slurm allows no other job on this node.
        sluid: Slurm's unique job id, which exists from Slurm 25.11 on.
        states_restart_count: whether Slurm states the restart count. The epilog of a job whose credential
            slurmd no longer has does not state it.
        flags: energy flags by name (`ENERGY_POLICY`, ...), unchecked.
    """

    job_id: int
    restart_count: int
    uid: int
    user: str | None = None
    partition: str | None = None
    cluster: str | None = None
    node: str | None = None
    slurm_conf: str | None = None
    cpus: int | None = None
    gpus: tuple[int, ...] | None = None
    exclusive: bool = False
    sluid: str | None = None
    node_count: int | None = None
    states_restart_count: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        """Job id and restart count. Both together identify a job on a node."""
        return self.job_id, self.restart_count


def job_context(env: Mapping[str, str]) -> JobContext:
    """Return the job that the environment of a prolog or epilog describes.

    Args:
        env: variables named `SLURM*` and `SPANK_ENERGY_*`.

    Raises:
        UsageError: job id or uid is missing or not a number.
    """
    return JobContext(
        job_id=_number(env, "SLURM_JOB_ID", "SLURM_JOBID"),
        restart_count=_number(env, "SLURM_JOB_RESTART_COUNT", default=0),
        uid=_number(env, "SLURM_JOB_UID", "SLURM_UID"),
        user=env.get("SLURM_JOB_USER") or None,
        partition=env.get("SLURM_JOB_PARTITION") or None,
        cluster=env.get("SLURM_CLUSTER_NAME") or None,
        node=env.get("SLURMD_NODENAME") or None,
        slurm_conf=env.get("SLURM_CONF") or None,
        cpus=_cpus(env),
        gpus=_gpus(env.get("SLURM_JOB_GPUS", "")),
        # 26.05 sets the exclusivity of the job as scontrol shows it: no, node, user, mcs, topo.
        exclusive=env.get("SLURM_JOB_EXCLUSIVE", "").lower() in ("node", "yes"),
        sluid=env.get("SLURM_JOB_SLUID") or None,
        node_count=_node_count(env),
        states_restart_count=bool(env.get("SLURM_JOB_RESTART_COUNT")),
        flags={
            "ENERGY_" + name.removeprefix(_FLAG_PREFIX): value
            for name, value in env.items()
            if name.startswith(_FLAG_PREFIX)
        },
    )


def _number(env: Mapping[str, str], *names: str, default: int | None = None) -> int:
    text = next((env[name] for name in names if env.get(name)), None)
    if text is None and default is not None:
        return default
    if text is None or not _NUMBER.fullmatch(text):
        what = "is missing" if text is None else f"'{shown(text)}' is not a number"
        raise UsageError(f"hook environment: {names[0]} {what}")
    return int(text)


def _cpus(env: Mapping[str, str]) -> int | None:
    """Return the number of the job's CPUs on this node; None means unknown.

    The node list is in SLURM_NODELIST in 22.05 and in SLURM_JOB_NODELIST in later releases.
    """
    counts, node = env.get("SLURM_JOB_CPUS_PER_NODE"), env.get("SLURMD_NODENAME")
    nodes = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if not (counts and node and nodes):
        return None
    try:
        if hostlist.is_uniform(counts):  # all nodes have the same count, so that the position does not matter
            return hostlist.count_at(counts, 0)
        position = hostlist.node_position(node, nodes)
        return None if position is None else hostlist.count_at(counts, position)
    except UsageError:
        return None


def _node_count(env: Mapping[str, str]) -> int | None:
    """Return the number of the job's nodes, computed from the list of CPU counts; None means unknown."""
    try:
        return hostlist.sum_repeats(env["SLURM_JOB_CPUS_PER_NODE"])
    except (KeyError, UsageError):
        return None


def _gpus(text: str) -> tuple[int, ...] | None:
    """Return the numbers of GPUs in SLURM_JOB_GPUS, for example `0,2-3`.

    MIG devices, UUIDs and other text yield None, which means unknown.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        numbers.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
        if len(numbers) > _MAX_GPUS:
            return None
    return tuple(numbers)
