"""Where running jobs are, and which partitions spare theirs: asked only when a deadline is at risk."""

from __future__ import annotations

import re
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.hostlist import expand_hostlist

_PARTITION = re.compile(r"(?:^| )(PartitionName|PreemptMode)=([^ ]*)")
_CLUSTER = re.compile(r"^PreemptMode\s*=\s*(\S+)", re.MULTILINE)

_LONGEST_NUMBER: Final = 10  # in a federation the upper bits of a number name the cluster: up to 2^32


def read_job_nodes(run: Runner = run_command) -> dict[int, tuple[str, ...]]:
    """Return the node names of each running job by its number, in one call.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    found: dict[int, tuple[str, ...]] = {}
    for line in run(["squeue", "-a", "-h", "--local", "-t", "R,CF", "-o", "%A %N"]).splitlines():
        number, _, hostlist = line.partition(" ")
        if number.isdecimal() and len(number) <= _LONGEST_NUMBER and hostlist.strip():
            try:
                found[int(number)] = tuple(expand_hostlist(hostlist.strip()))
            except UsageError:
                continue
    return found


def non_preemptible_partitions(run: Runner = run_command) -> frozenset[str]:
    """Return the partitions of which no job may be interrupted.

    Those with `PreemptMode=OFF` where the cluster has another mode. Where the cluster's own mode is `OFF`, as
    by default, Slurm's preemption is not used at all, and `priority.preempt` is the site's word.

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
