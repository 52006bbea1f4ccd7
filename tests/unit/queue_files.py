"""Functions that write the binary files of slurmctld's plugin, for tests of their readers."""

from __future__ import annotations

import numpy as np

from slurm_energy.slurm.queue.table_layout import (
    ENTRY,
    HEADER,
    JOURNAL,
    MAGIC,
    NICE_OFFSET,
    NO_VALUE,
    RECORD,
    SNAPSHOT,
    TEXTS,
    VERSION,
    checksum,
)


def entry(job_id: int, heap_offset: int = 0, **values):
    """Return one job's entry in the file of slurmctld's plugin, and the bytes of its strings.

    `values` contains the fields and strings of the entry by name. `TEXTS` lists the names of the strings.
    """
    row = np.zeros(1, ENTRY)
    row["job_id"], row["tasks"], row["nodes"], row["cpus"] = job_id, 1, 1, 1
    row["array_task_id"], row["site_factor"], row["nice"] = NO_VALUE, NICE_OFFSET, NICE_OFFSET
    texts = [values.pop(name, "").encode() for name in TEXTS]
    row["lengths"], row["heap_offset"] = [len(text) for text in texts], heap_offset
    for name, value in values.items():
        row[name] = value
    return row, b"".join(texts)


def header(kind: int, generation: int, **values) -> np.ndarray:
    head = np.zeros(1, HEADER)
    head["magic"], head["version"], head["kind"], head["generation"] = MAGIC, VERSION, kind, generation
    head["header_bytes"], head["entry_bytes"] = HEADER.itemsize, ENTRY.itemsize
    for name, value in values.items():
        head[name] = value
    return head


def snapshot(jobs, generation: int = 1, taken_unix_ns: int = 10**18, gap: int = 0) -> bytes:
    """Return the bytes of a queue snapshot file that contains the given jobs.

    The part of the file for strings (heap) comes after a gap of `gap` unused bytes.

    Args:
        jobs: fields of each job, such as `{"job_id": 1, "name": ...}`.
    """
    rows, heap = [], b""
    for values in jobs:
        row, texts = entry(**({"heap_offset": len(heap)} | values))
        rows.append(row)
        heap += texts
    entries = np.concatenate(rows) if rows else np.zeros(0, ENTRY)
    start = HEADER.itemsize + entries.nbytes + gap
    head = header(SNAPSHOT, generation, taken_unix_ns=taken_unix_ns, count=len(entries), heap_offset=start)
    head["heap_bytes"] = len(heap)
    head["checksum"] = checksum(np.frombuffer(head.tobytes() + entries.tobytes(), "<u8"))
    return head.tobytes() + entries.tobytes() + bytes(gap) + heap


def record(values) -> bytes:
    row, texts = entry(**values)
    texts += bytes(-len(texts) % 8)
    head = np.zeros(1, RECORD)
    head["bytes"] = RECORD.itemsize + ENTRY.itemsize + len(texts)
    head["checksum"] = checksum(np.frombuffer(head.tobytes() + row.tobytes() + texts, "<u8"))
    return head.tobytes() + row.tobytes() + texts


def journal(jobs, generation: int = 1) -> bytes:
    return header(JOURNAL, generation).tobytes() + b"".join(record(values) for values in jobs)
