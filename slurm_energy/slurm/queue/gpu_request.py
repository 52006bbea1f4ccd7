"""Reader of the GPU request of a pending job, for a change of the request to other GPUs.

The module also computes the fields with which scontrol changes the request. The caller chooses the
new GPUs. The behaviour of Slurm 22.05 was tested. The behaviour of later releases was read in their
source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import NO_VALUES, squeue_rows
from slurm_energy.slurm.hostlist import expand_hostlist

# Before 24.05 neither format has all fields: --Format has no excluded nodes, --format no tres-per-job.
_LETTERS: Final = {
    "number": "%A",
    "array": "%F",
    "task": "%K",
    "display_id": "%i",
    "state": "%T",
    "nodes": "%n",
    "excluded": "%x",
    "features": "%f",
    "reservation": "%v",
}
_TRES: Final = tuple(f"tres-per-{what}" for what in ("job", "node", "socket", "task"))
_NAMES: Final = ("JobID", "ArrayJobID", "ArrayTaskID", *_TRES)
_GPU: Final = re.compile(r"gpu(?::(?P<kind>[A-Za-z0-9][A-Za-z0-9_.+-]*?))??(?::(?P<count>\d{1,6}))?")
_CPUS_PER_TASK: Final = re.compile(r"cpu[:=]\d{1,6}")  # cpu:4 in Slurm 23.11, cpu=4 in later releases
_HOSTLIST: Final = re.compile(r"[A-Za-z0-9_.,+\[\]-]{1,16384}")

GPU_TYPE_CHANGE_RELEASE: Final = (23, 2)
"""First release in which an update may change the type of GPU.

Earlier releases keep the old type beside the new one, and no node has both (SchedMD bug 13899).
"""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The parts of a job's resource request that matter for changing its GPUs.

    Attributes:
        pending: the job is pending.
        gpu_kind: Slurm's GRES type of the GPUs; empty if the job names none.
        gpus: GPUs per node; 0 means none.
        others: generic resources per node other than GPUs, in the notation of the request.
        excluded: host list of excluded nodes; an empty value means none.
        pins_nodes: whether the user named nodes, features or a reservation for the job.
        obstacle: why the GPUs cannot be changed; an empty value means that they can be changed.
    """

    pending: bool
    gpu_kind: str = ""
    gpus: int = 0
    others: tuple[str, ...] = ()
    excluded: str = ""
    pins_nodes: bool = False
    obstacle: str = ""

    @property
    def gres(self) -> str:
        """All generic resources per node, in the notation of the field `Gres` of scontrol."""
        kind = f":{self.gpu_kind}" if self.gpu_kind else ""
        return ",".join([*([f"gpu{kind}:{self.gpus}"] if self.gpus else []), *self.others])


def read_gpu_request(name: str, run: Runner = run_command) -> GpuRequest:
    """Read the GPU request of one job from slurmctld.

    Args:
        name: `QueueColumns.scontrol_name` of the job: `12`, or `12_3` for an array task.
        run: function that executes a command and returns the output of the command.

    Raises:
        UnavailableError: the job has left the queue, or slurmctld does not answer.
    """
    options = ("-a", "-h", "--local", "-t", "all", f"--jobs={name}")
    letters = _record(name, squeue_rows(options, tuple(_LETTERS.values()), run))
    names = _record(name, squeue_rows(options, _NAMES, run)) if letters else None
    if letters is None or names is None:
        return GpuRequest(pending=False)
    return gpu_request_of(dict(zip(_LETTERS, letters, strict=True)) | dict(zip(_NAMES, names, strict=True)))


def _record(name: str, rows: Iterable[list[str]]) -> list[str] | None:
    """Return the squeue row of the job that scontrol calls `name`, for example `7_3`.

    The result is None if there is no such row.

    For the job id of an array, squeue prints the rows of all its jobs. This function selects one of them.
    """
    array, _, task = name.partition("_")
    for row in rows:
        if (task and row[1] == array and row[2] == task) or (not task and row[0] == array):
            return row
    return None


def gpu_request_of(fields: Mapping[str, str]) -> GpuRequest:
    """Return the GPU request that squeue's fields describe.

    Args:
        fields: text by field name (`number`, `state`, `tres-per-node`, ...). Texts such as `N/A` mean that
            the field is not set.
    """
    values = {key: value for key, value in fields.items() if value not in NO_VALUES}
    pins_nodes = not values.keys().isdisjoint(("features", "nodes", "reservation"))
    gpu_kind, gpus, others, obstacle = _gres(values.get("tres-per-node", ""))
    # From Slurm 23.11 on, sbatch also writes --cpus-per-task into tres-per-task.
    per_task = [
        item for item in values.get("tres-per-task", "").split(",") if not _CPUS_PER_TASK.fullmatch(item)
    ]
    if any(per_task) or not values.keys().isdisjoint(("tres-per-job", "tres-per-socket")):
        obstacle = "it requests GPUs per job, socket or task: only --gres and --gpus-per-node can be changed"
    elif pins_nodes:
        obstacle = "it names nodes, features or a reservation itself"
    # queue.table may list a new job before slurmctld has marked it as an array or a heterogeneous job.
    if "+" in values.get("display_id", ""):
        obstacle = "it is part of a heterogeneous job: a change would affect the other components too"
    elif not values.get("task", "0").isdecimal():
        obstacle = "it is an array: a change would affect all of its tasks"
    excluded = values.get("excluded", "")
    if excluded and not _HOSTLIST.fullmatch(excluded):
        obstacle = "its list of excluded nodes cannot be parsed"
    return GpuRequest(
        values.get("state") == "PENDING", gpu_kind, gpus, others, excluded, pins_nodes, obstacle
    )


def _gres(text: str) -> tuple[str, int, tuple[str, ...], str]:
    """Parse the generic resources that a job requests per node.

    Returns:
        Type of the GPUs, their number, the other resources, and the reason why the GPUs cannot be changed. An
        empty type means that no type is named. An empty reason means that the GPUs can be changed.
    """
    gpu_kind, gpus, gpu_items, others = "", 0, 0, []
    for item in text.split(","):
        plain = re.sub(r"^gres[:/]", "", item)
        match = _GPU.fullmatch(plain)
        if match:
            gpu_kind, gpus, gpu_items = match["kind"] or "", int(match["count"] or 1), gpu_items + 1
        elif plain:
            others.append(plain)
    return gpu_kind, gpus, tuple(others), "it requests two types of GPU at once" if gpu_items > 1 else ""


def scontrol_fields(
    request: GpuRequest, gpu_kind: str, gpus: int, release: tuple[int, ...], without_kind: str, excluded: str
) -> dict[str, str]:
    """Return the fields that `scontrol update` must set to give a job other GPUs.

    In releases before `GPU_TYPE_CHANGE_RELEASE`, Slurm cannot change the type of the GPUs. There, the nodes
    without GPUs of the wanted type are excluded instead.

    Args:
        request: the job's GPU request before the change.
        gpu_kind: Slurm's GRES type of the wanted GPUs; an empty value means any type on the nodes that are
            not excluded.
        gpus: wanted GPUs per node.
        release: Slurm's release.
        without_kind: host list of the partition's nodes that lack GPUs of the wanted types; an empty value
            means that all nodes have such GPUs.
        excluded: host list of the nodes that the job's owner excluded.

    Raises:
        UsageError: this job cannot get these GPUs; the message names the reason.
    """
    if request.obstacle or request.gpus == 0:
        raise UsageError("its GPUs stay", request.obstacle or "it requests none by --gres or --gpus-per-node")
    can_change = release >= GPU_TYPE_CHANGE_RELEASE
    named = bool(gpu_kind) and (can_change or request.gpu_kind == gpu_kind)
    if request.gpu_kind and not named and not can_change:
        raise UsageError(
            "its GPUs stay",
            f"Slurm before 23.02 cannot turn gpu:{request.gpu_kind} into another type",
            "submit with --gres=gpu:COUNT without a type",
        )
    shape = f"gpu:{gpu_kind}:{gpus}" if named else f"gpu:{gpus}"
    fields = {"Gres": ",".join([shape, *request.others])}
    if not named:
        fields["ExcNodeList"] = ",".join(part for part in (excluded, without_kind) if part)
    elif not same_nodes(request.excluded, excluded):
        fields["ExcNodeList"] = excluded
    return fields


def same_nodes(one: str, other: str) -> bool:
    """Return whether two host lists name the same nodes, even if they are folded in different ways."""
    if one == other:
        return True
    try:
        return {*expand_hostlist(one)} == {*expand_hostlist(other)} if one and other else False
    except UsageError:
        return False
