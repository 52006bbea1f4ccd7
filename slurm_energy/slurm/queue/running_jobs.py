"""Nodes of running jobs, and partitions that forbid preemption.

They are read only if a job is at risk of missing its deadline.
"""

from __future__ import annotations

import re
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.hostlist import expand_hostlist

_PARTITION = re.compile(r"(?:^| )(PartitionName|PreemptMode)=([^ ]*)")
_CLUSTER = re.compile(r"^PreemptMode\s*=\s*(\S+)", re.MULTILINE)

_MAX_ID_DIGITS: Final = 10  # in a federation the upper bits of a job id name the cluster: up to 2^32


def read_job_nodes(run: Runner = run_command) -> dict[int, tuple[str, ...]]:
    """Return the node names of each running or configuring job by job id, read with one squeue command.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    nodes_by_job: dict[int, tuple[str, ...]] = {}
    for line in run(["squeue", "-a", "-h", "--local", "-t", "R,CF", "-o", "%A %N"]).splitlines():
        number, _, hostlist = line.partition(" ")
        if number.isdecimal() and len(number) <= _MAX_ID_DIGITS and hostlist.strip():
            try:
                nodes_by_job[int(number)] = tuple(expand_hostlist(hostlist.strip()))
            except UsageError:
                continue
    return nodes_by_job


def non_preemptible_partitions(run: Runner = run_command) -> frozenset[str]:
    """Return the partitions whose jobs must not be preempted.

    These are the partitions with `PreemptMode=OFF` if the cluster has another mode. If the mode of the
    cluster is `OFF`, which is the default, the result is empty: Slurm itself does not preempt, and the
    configuration key `priority.preempt` alone decides.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    mode = _CLUSTER.search(run(["scontrol", "show", "config"]))
    if mode is None or mode[1].upper().startswith("OFF"):
        return frozenset()
    lines = run(["scontrol", "--oneliner", "show", "partition"]).splitlines()
    values = [dict(_PARTITION.findall(line)) for line in lines]
    off = [one["PartitionName"] for one in values if one.get("PreemptMode", "").upper() == "OFF"]
    return frozenset(off)
