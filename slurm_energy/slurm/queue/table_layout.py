"""Binary layout of `queue.table` (snapshot) and `queue.table.new` (journal), as constants and pure functions.

plugins/queue_writer.c writes both files.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

MAGIC: Final = b"SENERGYQ"
VERSION: Final = 2
SNAPSHOT: Final = 1
JOURNAL: Final = 2
NO_VALUE: Final = 0xFFFFFFFE
"""Slurm's NO_VAL; INFINITE is NO_VAL + 1."""
NICE_OFFSET: Final = 0x80000000
"""Offset that Slurm adds to nice values and site factors to store them as unsigned numbers."""
HELD, DEPENDENT, FIXED, REQUEUE = 1, 2, 4, 8
"""Flags in the field `bits` of an entry."""
NODE_CPUS_SHIFT: Final = 8
"""Position of the CPUs per node in `bits`.

If a pending job takes whole nodes, this is the number of CPUs of the largest node of its partitions; else it
is 0. Older plugins write 0.
"""
TEXTS: Final = ("account", "partition", "qos", "name", "reason", "tres", "gres", "flags")
"""The strings of an entry, in their order in the heap. `lengths` has the length of each in bytes.

`tres` is Slurm's list, `cpu=4,gres/gpu=2`. `gres` has the requests per job, node, socket and task. They are
prefixed by `job=`, `node=`, `socket=`, `task=` and separated by `;`. `flags` has `ENERGY_POLICY=edp`, ...,
separated by newlines.
"""
HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("kind", "<u4"),
        ("header_bytes", "<u4"),
        ("entry_bytes", "<u4"),
        ("generation", "<u8"),
        ("taken_unix_ns", "<i8"),
        ("count", "<u4"),
        ("left_out", "<u4"),
        ("heap_offset", "<u8"),
        ("heap_bytes", "<u8"),
        ("checksum", "<u8"),
    ]
)
"""Header of a file, 72 bytes.

`checksum` covers the header, with 0 in place of the checksum, and the entries. It is computed as in
priority.table.
"""
ENTRY: Final = np.dtype(
    [
        ("job_id", "<u4"),
        ("array_job_id", "<u4"),
        ("array_task_id", "<u4"),
        ("tasks", "<u4"),
        ("het_job_id", "<u4"),
        ("uid", "<u4"),
        ("state", "<u4"),
        ("bits", "<u4"),
        ("submit", "<i8"),
        ("eligible", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("deadline", "<i8"),
        ("time_limit_min", "<u4"),
        ("nodes", "<u4"),
        ("cpus", "<u4"),
        ("processes", "<u4"),
        ("priority", "<u4"),
        ("site_factor", "<u4"),
        ("nice", "<u4"),
        ("restart_count", "<u4"),
        ("shares_norm", "<f8"),
        ("heap_offset", "<u8"),
        ("lengths", "<u2", (len(TEXTS),)),
    ]
)
"""Entry of a job, 136 bytes.

`heap_offset` counts from the start of the heap in a snapshot, and from the end of the entry in a journal.
"""
RECORD: Final = np.dtype([("bytes", "<u4"), ("zero", "<u4"), ("checksum", "<u8")])
"""Head of each record in a journal.

An entry and its strings follow the head. `bytes` is the size of the whole record, a multiple of 8. `checksum`
covers the record, with 0 in place of the checksum.
"""


def checksum(words: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
    """Return a checksum of 64-bit words: their sum modulo 2**64, each mixed with its position.

    A change of a single word always changes the sum, because the mixing function has an inverse. Changes of
    several words cannot be made to cancel each other by plain arithmetic.

    Source: the output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), with a word as its seed.
    """
    mixed = words + np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return int(np.sum(mixed, dtype=np.uint64))
