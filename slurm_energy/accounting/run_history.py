"""The history of finished runs, from which run times and energies of jobs are predicted.

Its size is bounded. A run enters the history once, when its job facts are final and the records of all its
nodes have arrived. The transaction that adds a run also marks the run's job as learned. A crash therefore
neither loses nor repeats a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from slurm_energy.accounting.engine import transaction
from slurm_energy.slurm.tres import parse_tres
from slurm_energy.user_quota import fair_quota

RUNS_PER_KIND: Final = 64
"""Number of newest runs kept of jobs with equal user, name, script, resources, limit, policy and caps."""

MAX_RUNS: Final = 200_000
"""Number of runs kept in total, about 100 MB. Beyond it, users with the most runs lose their oldest runs."""

SAME_START_S: Final = 2.0
"""Maximum difference, in seconds, between two start times of one job that count as the same start."""

MISSING_AFTER_S: Final = 3600.0
"""Seconds after which a run is stored although records of some nodes are missing; its energy is unknown."""

BATCH: Final = 500
_CHUNK: Final = 2000

_FINISHED = """
    SELECT j.id, j.user, j.account, j.partition, j.name, j.state, j.start, j."end", j.elapsed_s, j.nodes,
        j.time_limit_s, j.requested, count(r.id), count(r.energy_joules), sum(r.energy_joules), min(r.start),
        max(r."end"), max(r.policy), max(json_extract(r.body, '$.requested.cap_watts')),
        max(json_extract(r.body, '$.requested.gpu_cap_watts')), max(json_extract(r.body, '$.fingerprint')),
        sum(json_array_length(r.body, '$.gpus')),
        (SELECT p.predicted_s FROM predictions p WHERE p.cluster = j.cluster AND p.job_id = j.job_id
            AND abs(p.start - j.start) <= :same_start_s LIMIT 1)
    FROM jobs j JOIN records r ON r.job = j.id AND r.step = ''
    WHERE j.id IN (
        SELECT id FROM jobs WHERE finished AND NOT learned AND (
            SELECT count(*) >= max(coalesce(jobs.nodes, 1), 1) OR max(w.received) <= :missing_since
            FROM records w WHERE w.job = jobs.id AND w.step = '')
        ORDER BY updated LIMIT :batch)
    GROUP BY j.id ORDER BY max(r."end")
"""
"""Jobs with missing records of other nodes are not selected, so that they do not delay other jobs."""
_GPU_JOULES = """
    SELECT count(*) = count(json_extract(c.value, '$.energy_joules')),
        sum(json_extract(c.value, '$.energy_joules'))
    FROM records r, json_each(r.body, '$.components') c
    WHERE r.job = ? AND r.step = '' AND json_extract(c.value, '$.name') LIKE 'gpu[%'
"""
_KIND = ("user", "name", "fingerprint", "nodes", "cpus", "gpus", "gpu_kind", "time_limit_s", "policy")


class FinishedRun(NamedTuple):
    """A finished run of a job; None in a field: unknown, or not requested.

    The fields are described in `oracle.history.observed_run`. Differences and additions:

    Attributes:
        end: Unix seconds.
        duration_s: run time in seconds.
        state: job state, as Slurm writes it.
        energy_joules: energy of the run on all nodes.
        gpu_joules: energy of all GPUs.
        predicted_s: run time in seconds that was predicted at the start.
    """

    end: float
    duration_s: float
    state: str
    energy_joules: float | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    fingerprint: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None
    policy: str | None = None
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    time_limit_s: float | None = None
    gpu_joules: float | None = None
    predicted_s: float | None = None


PolicyCaps = Mapping[str, tuple[float | None, float | None]]
"""Power caps by energy policy: watts per node and per GPU for jobs without caps of their own."""


def store_finished_runs(
    connection: Connection, now: float, policy_caps: PolicyCaps | None = None
) -> tuple[list[FinishedRun], bool]:
    """Add newly finished runs to the history, at most `BATCH` in one transaction.

    Args:
        connection: connection of the writing thread.
        now: current time, Unix seconds.
        policy_caps: caps of the site's policies; None: no policy has caps.

    Returns:
        The new runs in the order of their ends, and True if there may be more.
    """
    runs = []
    with transaction(connection):
        rows = connection.exec_driver_sql(
            _FINISHED,
            {"missing_since": now - MISSING_AFTER_S, "batch": BATCH, "same_start_s": SAME_START_S},
        ).fetchall()
        for row in rows:
            count, nodes = row[12], row[9]
            complete, gpu_joules = connection.exec_driver_sql(_GPU_JOULES, (row[0],)).one()
            run = _run(row, policy_caps or {}, missing=count < (nodes or 1))
            if complete and run.energy_joules is not None:
                run = run._replace(gpu_joules=gpu_joules)
            connection.exec_driver_sql("UPDATE jobs SET learned = 1 WHERE id = ?", (row[0],))
            if run.duration_s > 0:
                _insert(connection, run)
                runs.append(run)
    return runs, len(rows) == BATCH


def read_runs(connection: Connection) -> Iterator[FinishedRun]:
    """Yield all runs in the history in the order of their ends."""
    rows = connection.exec_driver_sql('SELECT body FROM history ORDER BY "end", id')
    while some := rows.fetchmany(_CHUNK):
        for (body,) in some:
            yield FinishedRun(**json.loads(body))


def delete_old_runs(connection: Connection, before: float) -> int:
    """Delete at most `BATCH` runs that ended before `before`, and at most `BATCH` runs beyond `MAX_RUNS`.

    Args:
        connection: connection of the writing thread.
        before: Unix seconds. Start predictions from before this time are deleted too.

    Returns:
        The number of deleted runs; if it is `BATCH` or more, call again.
    """
    with transaction(connection):
        connection.exec_driver_sql("DELETE FROM predictions WHERE start < ?", (before,))
        done = connection.exec_driver_sql(
            'DELETE FROM history WHERE id IN (SELECT id FROM history WHERE "end" < ? LIMIT ?)',
            (before, BATCH),
        )
        return done.rowcount + _delete_excess(connection)


def _delete_excess(connection: Connection) -> int:
    """Delete the oldest runs of users beyond their fair quota of `MAX_RUNS`; return how many were deleted."""
    counts = connection.exec_driver_sql("SELECT user, count(*) FROM history GROUP BY user").fetchall()
    if sum(count for _, count in counts) <= MAX_RUNS:
        return 0
    quota, deleted = fair_quota((count for _, count in counts), MAX_RUNS), 0
    for user, count in counts:
        excess = min(count - quota, BATCH - deleted)
        if excess > 0:
            deleted += connection.exec_driver_sql(
                "DELETE FROM history WHERE id IN "
                '(SELECT id FROM history WHERE user IS ? ORDER BY "end" LIMIT ?)',
                (user, excess),
            ).rowcount
    return deleted


def _insert(connection: Connection, run: FinishedRun) -> None:
    kind = _kind(run)
    values = {name: value for name, value in run._asdict().items() if value is not None}
    connection.exec_driver_sql(
        'INSERT INTO history (kind, "end", body, user) VALUES (?, ?, ?, ?)',
        (kind, run.end, json.dumps(values, separators=(",", ":")), run.user),
    )
    connection.exec_driver_sql(
        "DELETE FROM history WHERE kind = ? AND id NOT IN "
        '(SELECT id FROM history WHERE kind = ? ORDER BY "end" DESC, id DESC LIMIT ?)',
        (kind, kind, RUNS_PER_KIND),
    )


def _kind(run: FinishedRun) -> bytes:
    values = [getattr(run, name) for name in (*_KIND, "cap_watts", "gpu_cap_watts")]
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).digest()


def _run(row: tuple[Any, ...], policy_caps: PolicyCaps, missing: bool) -> FinishedRun:
    _, user, account, partition, name, state, start, end, elapsed_s, nodes, limit_s, tres = row[:12]
    _, known_energies, joules, first, last, policy, cap, gpu_cap, script, gpus, predicted_s = row[12:]
    requested, (policy_cap, policy_gpu_cap) = parse_tres(tres), policy_caps.get(policy, (None, None))
    complete = not missing and known_energies == row[12]
    return FinishedRun(
        end=end or last,
        duration_s=_duration(start, end, elapsed_s, last - first),
        state=state,
        energy_joules=joules if complete else None,
        user=user,
        account=account,
        partition=partition,
        name=name or None,
        fingerprint=script,
        nodes=requested.nodes or nodes,
        cpus=requested.cpus,
        gpus=_gpus(requested.gpus, tres, gpus),
        gpu_kind=requested.gpu_kind,
        policy=policy,
        cap_watts=_watts(cap) or policy_cap,
        gpu_cap_watts=_watts(gpu_cap) or policy_gpu_cap,
        time_limit_s=limit_s,
        predicted_s=predicted_s,
    )


def _duration(start: float | None, end: float | None, elapsed_s: float | None, measured_s: float) -> float:
    """Return the duration of a run in seconds: the measured one, limited to 1 s around that of Slurm.

    Args:
        start: Unix seconds from Slurm's accounting; None: unknown.
        end: Unix seconds from Slurm's accounting; None: unknown.
        elapsed_s: Slurm's elapsed time in seconds; None: end minus start is used, or else `measured_s`.
        measured_s: seconds from the first start to the last end of the run's records.
    """
    if elapsed_s is None:
        elapsed_s = end - start if start is not None and end is not None else measured_s
    return min(max(measured_s, elapsed_s - 1), elapsed_s + 1)


def _gpus(requested: int | None, tres: str | None, recorded: int | None) -> int:
    """Return the number of GPUs of a run.

    Args:
        requested: requested GPUs in Slurm's accounting; None: not listed there.
        tres: TRES request of the job. If it lists any GRES but no GPUs, the job has none.
        recorded: number of GPUs in the run's records, used if Slurm does not account for GPUs; None: unknown.
    """
    if requested is not None:
        return requested
    return 0 if tres and "gres/" in tres else recorded or 0


def _watts(text: str | float | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
