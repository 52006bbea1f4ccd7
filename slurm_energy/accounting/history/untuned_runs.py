"""Reader of untuned runs: completed runs to which no power settings were applied.

A run that a power budget limited is not untuned. The runs come from the run history and are grouped by
program.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, select

from slurm_energy.accounting.schema.tables import history
from slurm_energy.protocol.untuned_runs import ComparableProgram, UntunedRuns

_USERS_PER_QUERY: Final = 200
_ROWS_AT_ONCE: Final = 2000
_UNTUNED: Final = (None, "monitor")
"""Policies that change no setting. A job with `monitor` counts only if its flags limit no device."""


def find_untuned_runs(
    connection: Connection,
    programs: Sequence[ComparableProgram],
    user: str | None,
    accounts: Collection[str] = (),
    *,
    everything: bool,
) -> list[UntunedRuns | None]:
    """Return the untuned runs of each program; None for a program without runs that the caller may see.

    Args:
        connection: connection to the database.
        programs: the programs whose runs to return.
        user: login name of the caller; None means unknown.
        accounts: accounts whose runs the caller may see.
        everything: whether the caller may see all runs.
    """
    wanted = set(programs)
    found: dict[ComparableProgram, list[tuple[float, float]]] = defaultdict(list)
    users = sorted({program.user for program in wanted})
    if not (everything or accounts):  # the time of a response must not depend on the jobs of other users
        users = [name for name in users if name == user]
    for first in range(0, len(users), _USERS_PER_QUERY):
        names = users[first : first + _USERS_PER_QUERY]
        for text in _bodies(connection, names):
            run = json.loads(text)
            visible = everything or run.get("user") == user or run.get("account") in accounts
            program = _program(run)
            if visible and program in wanted and _is_untuned(run):
                found[program].append((run["energy_joules"], run["duration_s"]))
    return [_mean(found.get(program, [])) for program in programs]


def _bodies(connection: Connection, users: Sequence[str]) -> Iterator[str]:
    """Yield the stored runs of the given users, each as JSON text.

    The runs are read from the database in batches.
    """
    columns = select(history.c.id, history.c.body).where(history.c.user.in_(users))
    last = -1
    while True:
        query = columns.where(history.c.id > last).order_by(history.c.id).limit(_ROWS_AT_ONCE)
        rows = connection.execute(query).all()
        yield from (body for _, body in rows)
        if len(rows) < _ROWS_AT_ONCE:
            return
        last = rows[-1].id


def _program(run: dict[str, Any]) -> ComparableProgram | None:
    if not run.get("user") or not run.get("fingerprint"):
        return None
    keys = ("name", "nodes", "cpus", "gpus", "gpu_kind")
    return ComparableProgram(run["user"], run["fingerprint"], **{key: run.get(key) for key in keys})


def _is_untuned(run: dict[str, Any]) -> bool:
    capped = run.get("cap_watts") is not None or run.get("gpu_cap_watts") is not None
    completed = str(run.get("state")).partition(" ")[0] == "COMPLETED"
    is_limited = capped or run.get("budget_limited")
    return (
        completed
        and not is_limited
        and run.get("policy") in _UNTUNED
        and run.get("energy_joules") is not None
    )


def _mean(runs: Sequence[tuple[float, float]]) -> UntunedRuns | None:
    if not runs:
        return None
    joules, seconds = (math.fsum(values) / len(runs) for values in zip(*runs, strict=True))
    return UntunedRuns(len(runs), joules, seconds)
