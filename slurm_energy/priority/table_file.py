"""Writer of `priority.table`, from which slurmctld's plugin reads the site factor of each job.

A site factor is the part of Slurm's job priority that slurm-energy sets. This module only defines the
layout of the file. The engine computes the site factors, and plugins/priority_table.c reads the file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.queue.table_layout import checksum
from slurm_energy.trusted_files import replace_public

MAX_JOBS: Final = 1 << 20
"""Size of the plugin's buffer in jobs. The plugin would not read further jobs."""
MAX_ABS_SITE_FACTOR: Final = 0x7FFFFFFF - 3
"""Maximum absolute value of a site factor: Slurm's NICE_OFFSET less the values that Slurm reserves."""
HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("sequence", "<u8"),
        ("written_unix_s", "<i8"),
        ("count", "<u4"),
        ("stale_s", "<u4"),
        ("default", "<i4"),
        ("reserved", "<u4"),
        ("checksum", "<u8"),
        ("end", "<u8"),
    ]
)
"""Header of 64 bytes, little-endian. Its field `end` repeats the sequence number. Entries of two 32-bit
numbers follow.
"""
ENTRY: Final = np.dtype([("job_id", "<u4"), ("site_factor", "<i4")])
_MAGIC: Final = b"SENERGYP"
_VERSION: Final = 2


def encode(
    job_ids: Any,
    site_factors: Any,
    *,
    sequence: int,
    written_unix_s: float,
    stale_s: float = 300.0,
    default: int = 0,
) -> bytes:
    """Return the bytes of a table file.

    `sequence` is the sequence number of the table. `write` describes the other arguments.

    Raises:
        ValueError: columns of different lengths, a duplicate job, too many jobs, or a number out of range.
    """
    ids, factors = np.asarray(job_ids, np.int64), np.asarray(site_factors, np.int64)
    if ids.shape != factors.shape or ids.ndim != 1:
        raise ValueError(f"{ids.shape} job ids and {factors.shape} site factors")
    if len(ids) > MAX_JOBS:
        raise ValueError(f"{len(ids)} jobs, at most {MAX_JOBS}")
    largest = max(abs(int(default)), int(np.max(np.abs(factors), initial=0)))
    if largest > MAX_ABS_SITE_FACTOR or np.any(ids < 1) or np.any(ids > 0xFFFFFFFF):
        raise ValueError("a job id or site factor is out of range")
    order = np.argsort(ids, kind="stable")
    entries = np.zeros(len(ids), ENTRY)
    entries["job_id"], entries["site_factor"] = ids[order], factors[order]
    if np.any(entries["job_id"][1:] == entries["job_id"][:-1]):
        raise ValueError("a job stands twice in the table")
    header = np.zeros(1, HEADER)
    header["magic"], header["version"], header["header_bytes"] = _MAGIC, _VERSION, HEADER.itemsize
    header["sequence"] = header["end"] = sequence
    header["written_unix_s"], header["stale_s"] = int(written_unix_s), round(stale_s)
    header["count"], header["default"] = len(ids), default
    words = np.frombuffer(header.tobytes() + entries.tobytes(), "<u8")
    header["checksum"] = checksum(words)
    return header.tobytes() + entries.tobytes()


def write(
    path: Path,
    job_ids: Any,
    site_factors: Any,
    *,
    stale_s: float = 300.0,
    default: int = 0,
    written_unix_s: float | None = None,
) -> None:
    """Write the table of site factors for the plugin of slurmctld.

    The table is replaced atomically: a reader sees either the old table or the new one.

    Args:
        path: the table file. A missing directory is created if its parent directory exists.
        job_ids: job ids without duplicates, in any order, shape (n,).
        site_factors: site factor of each job, as in `scontrol update SiteFactor=`, shape (n,). The job with
            the highest factor starts first.
        stale_s: age in seconds from which the plugin disregards the table and changes no job.
        default: site factor of new jobs that are not in the table; 0 means none. Jobs that are deliberately
            not ranked therefore need an entry with factor 0, or they get the default.
        written_unix_s: Unix seconds at which the order was computed; None means now.

    Raises:
        ValueError: columns of different lengths, a duplicate job, too many jobs, or a number out of range.
        ConfigError: another user could replace the file, on which slurmctld relies.
        UnavailableError: the directory cannot be created or written.
    """
    now = time.time() if written_unix_s is None else written_unix_s
    data = encode(
        job_ids,
        site_factors,
        sequence=time.time_ns(),
        written_unix_s=now,
        stale_s=stale_s,
        default=default,
    )
    try:
        replace_public(path, data)
    except OSError as error:
        raise UnavailableError(f"priority table {path}", error.strerror or str(error)) from None
