"""HTTP responses of senergyctld to `/v1/priority` and `/v1/shares`, as pieces of JSON text.

The server has identified the caller before. The module imports numpy only after the queue was ranked for the
first time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.queue.priority_loop import PriorityLoop
from slurm_energy.errors import NotFoundError
from slurm_energy.protocol.query_parameters import words
from slurm_energy.quantities import shown
from slurm_energy.user_lookup import uid_of

if TYPE_CHECKING:
    from slurm_energy.priority.engine import EngineState
    from slurm_energy.priority.snapshot import Snapshot

_CHUNK: Final = 200


def jobs(priority: PriorityLoop, query: Mapping[str, str], rights: Rights) -> Iterator[str]:
    """Yield the response to `GET /v1/priority` in pieces, without the closing brace.

    If the query is invalid, the call itself raises the error, before the first piece is requested.

    Raises:
        UsageError: a parameter is unknown or malformed.
        ForbiddenError: the query names jobs of other users.
        NotFoundError: the query names an unknown user.
    """
    head = _head(priority) | rights.described()
    snapshot = priority.snapshot
    if snapshot is None:
        return iter([json.dumps(head | {"jobs": []})[:-1]])
    from slurm_energy.priority.explanation import Explainer
    from slurm_energy.priority.query import PriorityQuery, matching_rows, visible_rows
    from slurm_energy.priority.snapshot_tables import ranking_input

    job_query = PriorityQuery.from_parameters(query)
    if (visible := rights.visibility) is None:
        _refuse_unknown_users(job_query.users, snapshot, priority.engine_state)
    else:
        job_query = job_query.limited_to(visible, rights.name)
    rows = matching_rows(snapshot, job_query)
    if job_query.state:
        head["state"] = ranking_input(snapshot)
    explainer = Explainer(snapshot, visible_rows(snapshot.queue, visible))
    deferral, queue = priority.deferral, snapshot.queue

    def job(row: int) -> dict[str, Any]:
        ids = tuple(int(ids[row]) for ids in (queue.job_id, queue.array_job_id, queue.het_job_id))
        return explainer.job(row) | {"deferral": deferral.facts(ids) if deferral else None}

    return _pieces(head, rows, job)


def names_without_jobs(
    priority: PriorityLoop, query: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return those accounts and partitions in the query that no job in the queue has."""
    accounts, partitions = words(query, "account"), words(query, "partition")
    snapshot = priority.snapshot
    if snapshot is None or not (accounts or partitions):
        return accounts, partitions
    queued = {name for names in snapshot.queue.partition for name in names.split(",")}
    return (
        tuple(name for name in accounts if name not in set(snapshot.queue.account)),
        tuple(name for name in partitions if name not in queued),
    )


def _refuse_unknown_users(users: Sequence[str], snapshot: Snapshot, state: EngineState | None) -> None:
    """Raise NotFoundError for an unknown user.

    A user is unknown if this host does not know the user, and the user has no jobs, shares or usage.
    """
    unknown = {name for name in users if uid_of(name) is None} - set(snapshot.queue.user)
    if unknown and state is not None:
        unknown -= {row["user"] for row in _share_rows(snapshot, state, None)}
    if unknown:
        why = "the controller does not know this user, who has neither pending jobs nor shares"
        raise NotFoundError(f"user {shown(min(unknown))}", why, "is it spelt right?")


def shares(priority: PriorityLoop, rights: Rights) -> dict[str, Any]:
    """Return the response to `GET /v1/shares`.

    Operators see the values of all users. Other users see the values of all accounts and their own.
    Coordinators also see the values of the users in the accounts that they coordinate.
    """
    snapshot, state = priority.snapshot, priority.engine_state
    answer: dict[str, Any] = {
        "computed": snapshot.computed if snapshot else None,
        "half_life_s": priority.config.priority.half_life_s,
        **rights.described(),
        "rows": [],
    }
    if snapshot is not None and state is not None:
        answer["rows"] = _share_rows(snapshot, state, None if rights.everything else rights)
    return answer


def _share_rows(snapshot: Snapshot, state: EngineState, limit: Rights | None) -> list[dict[str, Any]]:
    from slurm_energy.priority.snapshot_tables import share_rows

    rows = share_rows(snapshot, state)
    if limit is None:
        return rows
    names = (None, limit.name, str(limit.uid))
    return [row for row in rows if row["user"] in names or row["account"] in limit.accounts]


def _head(priority: PriorityLoop) -> dict[str, Any]:
    settings, status = priority.config.priority, priority.status()
    snapshot = priority.snapshot
    weights = snapshot.options.weights if snapshot else settings.weights
    return {
        **{
            key: status[key] for key in ("mode", "policy", "computed", "source", "pending", "ranked", "error")
        },
        "queue_time": snapshot.queue.taken_unix_s if snapshot else None,
        "interval_s": settings.interval_s,
        "weights": weights,
        "age_weight": settings.age_weight,
        "wait_bound_s": settings.wait_bound_s,
    }


def _pieces(head: Mapping[str, Any], rows: list[int], job: Callable[[int], dict[str, Any]]) -> Iterator[str]:
    """Yield a JSON object in pieces, without its closing brace.

    The last field of the object is a list of jobs. Pieces are used so that the text of a long queue is never
    in memory as a whole.

    Args:
        head: the first fields of the object.
        rows: queue rows of the jobs to list.
        job: returns the entry of the job in a queue row.
    """
    text = json.dumps(head)[:-1] + ',"jobs":['
    for first in range(0, len(rows), _CHUNK):
        chunk = [json.dumps(job(row)) for row in rows[first : first + _CHUNK]]
        yield text + ",\n".join(chunk)
        text = ",\n"
    yield ("" if rows else text) + "\n]"
