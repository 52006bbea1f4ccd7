"""Queries of squeue and scontrol about running jobs.

They return the nodes and owners of running jobs, and the partitions whose jobs must not be preempted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from slurm_energy.errors import UsageError
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import NO_VALUES, squeue_rows
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.slurm.queue.comment_flags import parse_comment_flags

_PARTITION = re.compile(r"(?:^| )(PartitionName|PreemptMode)=([^ ]*)")
_CLUSTER = re.compile(r"^PreemptMode\s*=\s*(\S+)", re.MULTILINE)

_MAX_ID_DIGITS: Final = 10  # in a federation the upper bits of a job id name the cluster: up to 2^32
_MAX_TIME_DIGITS: Final = 12
_OPTIONS: Final = ("-a", "-h", "--local", "-t", "R,CF,S,CG")
_FIELDS: Final = (
    *("JobID", "UserID", "RestartCnt", "Partition", "NodeList", "admin_comment"),
    *("Account", "QOS", "Licenses", "EndTime", "Deadline"),
)
LARGEST_UID: Final = 0xFFFFFFFF  # squeue prints the upper half of them as negative numbers


class AllocatedJob(NamedTuple):
    """A job that has allocated nodes: a running, configuring, suspended or completing job.

    Attributes:
        job_id: Slurm's job id.
        uid: uid of the owner.
        restart_count: number of earlier requeues.
        partition: name of the partition.
        hostlist: nodes in Slurm's notation.
        flags: energy flags that the job_submit module wrote to AdminComment, values by name. Users cannot
            write there.
        account, qos: names of the Slurm account and of the quality of service; empty if not set.
        licenses: licenses as squeue shows them; empty if the job has no licenses.
        end_unix_s: time at which the job reaches its time limit, in Unix seconds; None means no limit.
        deadline_unix_s: deadline in Unix seconds; None means no deadline.
    """

    job_id: int
    uid: int
    restart_count: int
    partition: str
    hostlist: str
    flags: Mapping[str, str]
    account: str = ""
    qos: str = ""
    licenses: str = ""
    end_unix_s: float | None = None
    deadline_unix_s: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes; empty if the notation is not understood."""
        try:
            return frozenset(expand_hostlist(self.hostlist))
        except UsageError:
            return frozenset()


def read_running_jobs(run: Runner = run_command) -> dict[int, AllocatedJob]:
    """Return the running, configuring, suspended and completing jobs by job id, read with one squeue command.

    Raises:
        UnavailableError: slurmctld does not answer, or the output is incomplete.
    """
    rows = squeue_rows(_OPTIONS, _FIELDS, run)
    return {job.job_id: job for row in rows if (job := _allocated_job(row)) is not None}


def _allocated_job(row: list[str]) -> AllocatedJob | None:
    number, uid, restarts, partition, hostlist, comment, *texts, end, deadline = row
    if not (number.isdecimal() and len(number) <= _MAX_ID_DIGITS and uid.lstrip("-").isdecimal()):
        return None
    account, qos, licenses = ("" if text in NO_VALUES else text for text in texts)
    return AllocatedJob(
        int(number),
        int(uid) & LARGEST_UID,
        int(restarts) if restarts.isdecimal() else 0,
        partition,
        hostlist,
        parse_comment_flags(comment),
        account=account,
        qos=qos,
        licenses=licenses,
        end_unix_s=_unix_s(end),
        deadline_unix_s=_unix_s(deadline),
    )


def _unix_s(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) <= _MAX_TIME_DIGITS else None


def read_job_nodes(run: Runner = run_command) -> dict[int, tuple[str, ...]]:
    """Return the node names of each running or configuring job by job id. One squeue command is used.

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

    If the mode of the cluster is not `OFF`, the result contains the partitions with `PreemptMode=OFF`. If the
    mode of the cluster is `OFF` (the default), the result is empty: Slurm itself does not preempt, and the
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
