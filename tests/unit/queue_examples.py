"""Example queues for the tests of the queue engine, and a source that returns them."""

from __future__ import annotations

from typing import Any

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns, queue_columns

NOW = 1_800_000_000.0


def queue(*rows: dict[str, Any], now: float = NOW) -> QueueColumns:
    """Return a queue for tests, with one job per argument.

    An argument contains only the values that matter. All other values are those of a pending job that alice
    has just submitted.
    """
    plain = {
        "user": "alice",
        "account": "physics",
        "partition": "cpu",
        "uid": 64002,
        "submit_s": now,
        "eligible_s": float("nan"),
        "start_s": float("nan"),
        "end_s": float("nan"),
        "deadline_s": float("nan"),
        "time_limit_s": 3600.0,
        "shares_norm": float("nan"),
        "state": PENDING,
        "requeue": True,
        "nodes": 1,
        "cpus": 1,
        "tasks": 1,
        "array_task_id": -1,
        "flags": {},
    }
    whole = [plain | {"job_id": 101 + place} | row for place, row in enumerate(rows)]
    names = {name for row in whole for name in row} - {"job_id"}
    empty: dict[str, Any] = {"qos": "", "name": "", "gpu_kind": "", "reason": ""}
    columns = {name: [row.get(name, empty.get(name, 0)) for row in whole] for name in names}
    return queue_columns(now, [row["job_id"] for row in whole], **columns)


def running(**more: Any) -> dict[str, Any]:
    return {"state": RUNNING, **more}


class Source:
    """Queue source for tests. It returns `columns`, or raises an error if the test has set `fails`."""

    def __init__(self, columns: QueueColumns) -> None:
        self.columns = columns
        self.fails: str | None = None
        self.reads = 0

    def read(self) -> QueueColumns:
        self.reads += 1
        if self.fails is not None:
            raise UnavailableError("queue", self.fails)
        return self.columns
