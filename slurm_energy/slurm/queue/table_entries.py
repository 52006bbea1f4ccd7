"""Conversion of the job entries of the file `queue.table` to arrays (queue columns).

A plugin of slurmctld writes the file. The caller has checked that all strings lie inside the heap,
which is the part of the file with all strings. The contents of the strings are not trusted.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.slurm.queue.columns import QueueColumns, queue_columns
from slurm_energy.slurm.queue.table_layout import (
    DEPENDENT,
    FIXED,
    HELD,
    NICE_OFFSET,
    NO_VALUE,
    NODE_CPUS_SHIFT,
    REQUEUE,
    TEXTS,
)
from slurm_energy.slurm.tres import MAX_GPUS, parse_gpu_request, parse_tres

_FLAG: Final = re.compile(r"ENERGY_[A-Z_]{1,32}")
_TIMES: Final = {
    "submit_s": "submit",
    "eligible_s": "eligible",
    "start_s": "start",
    "end_s": "end",
    "deadline_s": "deadline",
}
_COUNTS: Final = (
    "job_id",
    "array_job_id",
    "tasks",
    "het_job_id",
    "uid",
    "state",
    "nodes",
    "cpus",
    "priority",
)


def columns_of(taken_unix_s: float, entries: NDArray[np.void], heap: bytes) -> QueueColumns:
    """Return the queue that the entries of `queue.table` describe.

    Args:
        taken_unix_s: Unix time of the snapshot of the queue.
        entries: entries with the layout `table_layout.ENTRY`. All their strings must lie inside the heap.
        heap: bytes of all strings.
    """
    texts = _texts(entries, heap)
    tres, gres = texts.pop("tres"), texts.pop("gres")
    gpus, kinds, memory_mib = _gpus_and_memory(
        tres, gres, entries["nodes"].tolist(), entries["processes"].tolist()
    )
    bits, limit = entries["bits"], entries["time_limit_min"]
    task = entries["array_task_id"].astype(np.int64)
    columns: dict[str, Any] = {name: entries[name].astype(np.int64) for name in (*_COUNTS, "restart_count")}
    columns |= {name: _time(entries[field]) for name, field in _TIMES.items()}
    columns |= {"flags": _flags(texts.pop("flags")), **texts}
    columns |= {"held": bits & HELD != 0, "dependent": bits & DEPENDENT != 0}
    columns |= {"fixed": bits & FIXED != 0, "requeue": bits & REQUEUE != 0}
    columns["held_cpus"] = columns["nodes"] * (bits >> NODE_CPUS_SHIFT).astype(np.int64)
    return queue_columns(
        taken_unix_s,
        **columns,
        array_task_id=np.where(task >= NO_VALUE, -1, task),
        time_limit_s=np.where(limit >= NO_VALUE, np.nan, limit * 60.0),
        site_factor=entries["site_factor"].astype(np.int64) - NICE_OFFSET,
        nice=entries["nice"].astype(np.int64) - NICE_OFFSET,
        shares_norm=_shares(entries["shares_norm"]),
        user=_users(entries["uid"]),
        gpus=gpus,
        gpu_kind=kinds,
        memory_mib=memory_mib,
    )


def _time(seconds: NDArray[Any]) -> NDArray[np.float64]:
    return np.where(seconds <= 0, np.nan, seconds.astype(np.float64))


def _shares(shares: NDArray[Any]) -> NDArray[np.float64]:
    """Return normalised fair shares; values outside 0 to 1 become NaN (unknown)."""
    return np.where((shares >= 0) & (shares <= 1), shares, np.nan)


def _texts(entries: NDArray[np.void], heap: bytes) -> dict[str, list[str]]:
    """Return the string columns by name; bytes that are not UTF-8 become replacement characters."""
    lengths = entries["lengths"].astype(np.int64)
    ends = np.cumsum(lengths, axis=1) + entries["heap_offset"].astype(np.int64)[:, None]
    starts = ends - lengths
    ranges = [zip(starts[:, i].tolist(), ends[:, i].tolist(), strict=True) for i in range(len(TEXTS))]
    if heap.isascii():
        text = heap.decode("ascii")
        return {name: [text[a:b] for a, b in column] for name, column in zip(TEXTS, ranges, strict=True)}
    return {
        name: [heap[a:b].decode("utf-8", "replace") for a, b in column]
        for name, column in zip(TEXTS, ranges, strict=True)
    }


def _users(uids: NDArray[Any]) -> list[str]:
    names, positions = np.unique(uids, return_inverse=True)
    logins = [_user(int(uid)) for uid in names]
    return [logins[position] for position in positions.tolist()]


def _user(uid: int) -> str:
    try:
        return _login(uid)
    except (KeyError, OverflowError):
        return str(uid)


@lru_cache(maxsize=1 << 16)
def _login(uid: int) -> str:
    """Return the login name of a uid. Names are cached, because a directory service may be slow."""
    return pwd.getpwuid(uid).pw_name


def _flags(texts: list[str]) -> list[Mapping[str, str]]:
    """Return the energy flags of each job, parsed from the job's text `flags`.

    Jobs with equal texts share one result.
    """
    by_text = {text: _flag_values(text) for text in set(texts)}
    return [by_text[text] for text in texts]


def _flag_values(text: str) -> Mapping[str, str]:
    pairs = (line.partition("=") for line in text.split("\n") if line)
    return {name: value for name, _, value in pairs if _FLAG.fullmatch(name)}


def _gpus_and_memory(
    tres: list[str], gres: list[str], nodes: list[int], processes: list[int]
) -> tuple[NDArray[np.int64], list[str], NDArray[np.int64]]:
    """Return the number of GPUs, the GPU type and the memory in MiB that each job requests.

    The numbers cover all nodes of the job. An empty type means that the job names no type. A memory of 0
    means unknown.

    A job may request resources in two forms. The first form is a TRES list (trackable resources) for the
    whole job. The second form consists of amounts per job, per node, per socket or per task. The numbers
    in the TRES list take precedence.

    Args:
        tres: Slurm's TRES list of each job.
        gres: requested amounts of each job in the second form, as described in `table_layout.TEXTS`.
        nodes: number of nodes of each job.
        processes: number of tasks of each job.
    """
    cache: dict[tuple[Any, ...], tuple[int, str, int]] = {}
    requests = []
    for key in zip(tres, gres, nodes, processes, strict=True):
        answer = cache.get(key)
        if answer is None:
            answer = cache[key] = _request(*key)
        requests.append(answer)
    counts, kinds, memory_mib = zip(*requests, strict=True) if requests else ((), (), ())
    return np.array(counts, np.int64), list(kinds), np.array(memory_mib, np.int64)


def _request(tres: str, gres: str, nodes: int, processes: int) -> tuple[int, str, int]:
    times = {"job": 1, "node": nodes, "socket": nodes, "task": processes}
    counted = parse_tres(tres)
    requested, kind = 0, counted.gpu_kind or ""
    for part in gres.split(";"):
        what, _, text = part.partition("=")
        request = parse_gpu_request(text)
        kind = kind or request.gpu_kind or ""
        requested = max(requested, (request.gpus or 0) * times.get(what, 0))
    gpus = min(requested if counted.gpus is None else counted.gpus, MAX_GPUS)
    return gpus, kind[:64], counted.memory_mib or 0
