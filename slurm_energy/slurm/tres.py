"""Slurm's lists of trackable resources, `cpu=4,mem=1G,node=1,gres/gpu:a100=2`: what a job asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requested:
    """Resources of a job on all its nodes together. None: the list does not say.

    `gpus` is None also for a job without GPUs where Slurm does not account for them (AccountingStorageTRES).
    """

    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None


def requested(text: str | None) -> Requested:
    """Read a list; what cannot be read is left out."""
    counts: dict[str, int] = {}
    for item in (text or "").split(","):
        name, _, value = item.partition("=")
        if value.isdecimal() and len(value) <= 9:
            counts[name] = int(value)
    kinds = {name.removeprefix("gres/gpu:"): count for name, count in counts.items() if ":" in name}
    gpus = counts.get("gres/gpu", sum(kinds.values()) if kinds else None)
    return Requested(counts.get("node"), counts.get("cpu"), gpus, min(kinds, default=None))
