"""Parsers of lists of trackable resources (TRES), such as `cpu=4,mem=1G,node=1,gres/gpu:a100=2`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

# A request as squeue prints it: `gres:gpu:a100:2` in 22.05, `gres/gpu:a100:2` later; `gpu` means one GPU.
_GPUS: Final = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<kind>(?!\d+(?:[(:=]|$))[^:=,()]{1,64}))?(?:[:=](?P<count>\d{1,7}))?(?:\(.*\))?",
    re.ASCII,
)
_MEMORY: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGTPE]?)", re.ASCII)
_UNITS: Final = "KMGTPE"
_GPU_KIND: Final = "gres/gpu:"
MAX_GPUS: Final = 1 << 31
"""Maximum number of GPUs of a job. With it, the product of GPUs and nodes fits into 64 bits."""
MAX_MEMORY_MIB: Final = 1 << 50
"""Maximum memory of a job in MiB. Larger values are reduced to this maximum."""


@dataclass(frozen=True, slots=True)
class RequestedResources:
    """Resources that a job requests on all nodes together, read from a list of Slurm's TRES.

    An attribute is None if the list does not contain the resource. If Slurm does not account for GPUs
    (AccountingStorageTRES), the list of a job without GPUs contains none, and `gpus` is None.

    Attributes:
        nodes, cpus, gpus: number of nodes, of CPUs and of GPUs.
        gpu_kind: Slurm's GRES type of the GPUs.
        memory_mib: memory in MiB, rounded up.
    """

    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None
    memory_mib: int | None = None


def parse_tres(text: str | None) -> RequestedResources:
    """Parse a list of Slurm's trackable resources (TRES), such as `cpu=4,node=1`.

    None means an empty list. Items that cannot be parsed are skipped.
    """
    counts: dict[str, int] = {}
    memory_mib = None
    for item in (text or "").split(","):
        name, _, value = item.partition("=")
        if name == "mem":
            memory_mib = _memory_mib(value)
        elif value.isdecimal() and len(value) <= 9:
            counts[name] = int(value)
    by_kind = {name[len(_GPU_KIND) :]: count for name, count in counts.items() if name.startswith(_GPU_KIND)}
    gpus = counts.get("gres/gpu", sum(by_kind.values()) if by_kind else None)
    gpu_kind = min(by_kind, default=None)
    return RequestedResources(counts.get("node"), counts.get("cpu"), gpus, gpu_kind, memory_mib)


def _memory_mib(text: str) -> int | None:
    """Return an amount of memory in MiB, rounded up; None means that the text cannot be parsed."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        return None
    power = _UNITS.index(match[2] or "M") - 1  # Slurm's numbers without a unit are MiB
    return math.ceil(min(float(match[1]) * 1024.0**power, MAX_MEMORY_MIB))


def gpus_of_run(tres: str | None, recorded: int | None) -> int:
    """Return the number of GPUs of a run.

    Args:
        tres: TRES request of the job; None means unknown. If the request lists any GRES but no GPUs, the job
            has no GPUs.
        recorded: number of GPUs in the run's records, used if Slurm does not account for GPUs; None means
            unknown.
    """
    requested = parse_tres(tres).gpus
    if requested is not None:
        return requested
    return 0 if tres and "gres/" in tres else recorded or 0


def parse_gpu_request(text: str) -> RequestedResources:
    """Return the GPUs in a request per job, node, socket or task; `gpus` is 0 if the request names none.

    `gpu_kind` is the first type in the request.
    """
    matches = [match for part in text.split(",") if (match := _GPUS.fullmatch(part))]
    kind = next((match["kind"] for match in matches if match["kind"]), None)
    return RequestedResources(gpus=sum(int(match["count"] or 1) for match in matches), gpu_kind=kind)
