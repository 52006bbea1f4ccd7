"""How a pending job gets other GPUs: what it asks for now, and the fields that scontrol has to change.

Which shape it gets is decided elsewhere. Tried on 22.05; what later releases do is from their source.
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
_HOSTLIST: Final = re.compile(r"[A-Za-z0-9_.,+\[\]-]{1,16384}")

GPU_TYPE_CHANGE_RELEASE: Final = (23, 2)
"""From this release on an update may name another type of GPU. Before it slurmctld keeps the old type beside
the new one, and no node has both (SchedMD's bug 13899)."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a job asks for, as far as it matters here.

    Attributes:
        pending: it waits.
        gpu_kind: type of GPU, empty if none is named.
        gpus: per node; 0: none.
        others: generic resources per node beside GPUs, as they are written.
        excluded: host list that it must not run on; empty: none.
        places: it names its nodes, their features or a reservation itself.
        obstacle: why its GPUs cannot be changed; empty: they can.
    """

    pending: bool
    gpu_kind: str = ""
    gpus: int = 0
    others: tuple[str, ...] = ()
    excluded: str = ""
    places: bool = False
    obstacle: str = ""

    @property
    def gres(self) -> str:
        """All generic resources per node, as scontrol takes them."""
        kind = f":{self.gpu_kind}" if self.gpu_kind else ""
        return ",".join([*([f"gpu{kind}:{self.gpus}"] if self.gpus else []), *self.others])


def read_gpu_request(name: str, run: Runner = run_command) -> GpuRequest:
    """Ask slurmctld what one job asks for.

    Args:
        name: what means this record alone: `12`, or `12_3` for a task of an array.
        run: what executes a command.

    Raises:
        UnavailableError: the job is gone, or slurmctld does not answer.
    """
    options = ("-a", "-h", "--local", "-t", "all", f"--jobs={name}")
    letters = _record(name, squeue_rows(options, tuple(_LETTERS.values()), run))
    names = _record(name, squeue_rows(options, _NAMES, run)) if letters else None
    if letters is None or names is None:
        return GpuRequest(pending=False)
    return gpu_request_of(dict(zip(_LETTERS, letters, strict=True)) | dict(zip(_NAMES, names, strict=True)))


def _record(name: str, rows: Iterable[list[str]]) -> list[str] | None:
    """Return the row of one record; squeue shows all records of an array by the array's number."""
    array, _, task = name.partition("_")
    for row in rows:
        if (task and row[1] == array and row[2] == task) or (not task and row[0] == array):
            return row
    return None


def gpu_request_of(fields: Mapping[str, str]) -> GpuRequest:
    """Build the request from squeue's fields; `N/A` and the like mean that a field is not set."""
    values = {key: value for key, value in fields.items() if value not in NO_VALUES}
    places = not values.keys().isdisjoint(("features", "nodes", "reservation"))
    kind, gpus, others, obstacle = _gres(values.get("tres-per-node", ""))
    if not values.keys().isdisjoint(set(_TRES) - {"tres-per-node"}):
        obstacle = "it asks for GPUs by job, socket or task: only --gres and --gpus-per-node can be changed"
    elif places:
        obstacle = "it names its nodes, their features or a reservation itself"
    # queue.table may tell of a new job before slurmctld has made an array or a heterogeneous job of it.
    if "+" in values.get("display_id", ""):
        obstacle = "it is part of a heterogeneous job: a change would concern the other parts too"
    elif not values.get("task", "0").isdecimal():
        obstacle = "it is an array: a change would concern all of its tasks"
    excluded = values.get("excluded", "")
    if excluded and not _HOSTLIST.fullmatch(excluded):
        obstacle = "its list of excluded nodes cannot be read"
    return GpuRequest(values.get("state") == "PENDING", kind, gpus, others, excluded, places, obstacle)


def _gres(text: str) -> tuple[str, int, tuple[str, ...], str]:
    """Return type and number of GPUs, the other resources, and why the GPUs cannot be changed."""
    kind, gpus, found, others = "", 0, 0, []
    for item in text.split(","):
        plain = re.sub(r"^gres[:/]", "", item)
        match = _GPU.fullmatch(plain)
        if match:
            kind, gpus, found = match["kind"] or "", int(match["count"] or 1), found + 1
        elif plain:
            others.append(plain)
    return kind, gpus, tuple(others), "it asks for two kinds of GPU at once" if found > 1 else ""


def scontrol_fields(
    asked: GpuRequest, gpu_kind: str, gpus: int, release: tuple[int, ...], without_kind: str, excluded: str
) -> dict[str, str]:
    """Return the fields to give to scontrol so that a job gets this shape.

    Before `GPU_TYPE_CHANGE_RELEASE` the kind is chosen by excluding the nodes that do not have it.

    Args:
        asked: what it asks for now.
        gpu_kind: Slurm's type of GPU.
        gpus: how many per node.
        release: Slurm's release.
        without_kind: host list of the partition's nodes that do not have this kind; empty: all have it.
        excluded: host list that the job's owner excluded.

    Raises:
        UsageError: this job cannot get it; the message says why.
    """
    if asked.obstacle or asked.gpus == 0:
        raise UsageError("its GPUs stay", asked.obstacle or "it asks for none by --gres or --gpus-per-node")
    named = release >= GPU_TYPE_CHANGE_RELEASE or asked.gpu_kind == gpu_kind
    if asked.gpu_kind and not named:
        raise UsageError(
            "its GPUs stay",
            f"Slurm before 23.02 cannot turn gpu:{asked.gpu_kind} into another kind",
            "submit with --gres=gpu:COUNT without a kind",
        )
    shape = f"gpu:{gpu_kind}:{gpus}" if named else f"gpu:{gpus}"
    fields = {"Gres": ",".join([shape, *asked.others])}
    if not named:
        fields["ExcNodeList"] = ",".join(part for part in (excluded, without_kind) if part)
    elif not same_nodes(asked.excluded, excluded):
        fields["ExcNodeList"] = excluded
    return fields


def same_nodes(one: str, other: str) -> bool:
    """Return whether two host lists name the same nodes: squeue prints them sorted and folded."""
    if one == other:
        return True
    try:
        return {*expand_hostlist(one)} == {*expand_hostlist(other)} if one and other else False
    except UsageError:
        return False
