"""Slurm's lists of trackable resources, `cpu=4,mem=1G,node=1,gres/gpu:a100=2`: what a job asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# As squeue shows a request: `gres:gpu:a100:2` in 22.05, `gres/gpu:a100:2` later, `gpu` alone for one.
_GPUS: Final = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<kind>(?!\d+(?:[(:=]|$))[^:=,()]{1,64}))?(?:[:=](?P<count>\d{1,7}))?(?:\(.*\))?",
    re.ASCII,
)
MAX_GPUS: Final = 1 << 31
"""No job has more; what a user makes of counts times nodes stays a number that can be reckoned with."""


@dataclass(frozen=True, slots=True)
class RequestedResources:
    """Resources of a job on all its nodes together. None: the list does not say.

    `gpus` is None also for a job without GPUs where Slurm does not account for them (AccountingStorageTRES).
    """

    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None


def parse_tres(text: str | None) -> RequestedResources:
    """Read a list; what cannot be read is left out."""
    counts: dict[str, int] = {}
    for item in (text or "").split(","):
        name, _, value = item.partition("=")
        if value.isdecimal() and len(value) <= 9:
            counts[name] = int(value)
    kinds = {name.removeprefix("gres/gpu:"): count for name, count in counts.items() if ":" in name}
    gpus = counts.get("gres/gpu", sum(kinds.values()) if kinds else None)
    return RequestedResources(counts.get("node"), counts.get("cpu"), gpus, min(kinds, default=None))


def parse_gpu_request(text: str) -> RequestedResources:
    """Read the GPUs of a request per job, node, socket or task; `gpus` is 0 where it names none.

    The type is the first that was named.
    """
    found = [match for part in text.split(",") if (match := _GPUS.fullmatch(part))]
    kind = next((match["kind"] for match in found if match["kind"]), None)
    return RequestedResources(gpus=sum(int(match["count"] or 1) for match in found), gpu_kind=kind)
