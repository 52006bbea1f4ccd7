"""Storage of adjustments of programs in the database.

An adjustment changes one value, such as a number of workers, for the next run of a program. The database
stores which adjustments a user permits, the trials of adjustments, and the values that were offered to runs.
The owners of programs are identified by uid. senergyctld learns the uids from munge and from Slurm. The
attributes `body` are JSON text that this module does not interpret.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.history.tuning_starts import JobRun
from slurm_energy.accounting.json_fields import text_value
from slurm_energy.accounting.schema.adjustment_tables import adjustment_permissions as _permissions
from slurm_energy.accounting.schema.adjustment_tables import adjustment_runs as _runs
from slurm_energy.accounting.schema.adjustment_tables import adjustment_trials as _trials
from slurm_energy.accounting.schema.tables import jobs as _jobs
from slurm_energy.accounting.schema.tables import records as _records
from slurm_energy.accounting.upserts import delete_selected, insert_or_replace

PENDING: Final = "pending"
KEPT: Final = "kept"
WITHDRAWN: Final = "withdrawn"
MAX_TRIALS_PER_USER: Final = 500
"""Maximum number of stored trials per user. Above this number, the oldest decided trials are deleted."""
MAX_LISTED: Final = 200
BATCH: Final = 100
_RECENT_RUNS: Final = 400
"""Number of a user's newest records that are searched for the runs of a program."""
_COLUMNS: Final = ("id", "cluster", "uid", "workload", "state", "source", "created", "decided", "body")


class StoredTrial(NamedTuple):
    """A trial in the database: a test whether adjustments of a program remove a cause of waste.

    The cause is described by one finding.

    Attributes:
        key: row id of the trial; 0 means that the trial is not stored yet.
        cluster: Slurm's ClusterName.
        uid: owner of the program.
        workload: identity of the program. The identity is the fingerprint of the batch script or, if this is
            unknown, the value of `--energy-model`.
        state: `PENDING`, a verdict of `diagnosis.trials.verification`, or `WITHDRAWN`.
        source: origin of the trial: `apply` or `auto`.
        created: creation time in Unix seconds.
        decided: time of the verdict in Unix seconds; None while the trial is pending.
        body: description of the trial as JSON text.
    """

    key: int
    cluster: str
    uid: int
    workload: str
    state: str
    source: str
    created: float
    decided: float | None
    body: str


class OfferedRun(NamedTuple):
    """Adjusted values that the controller sent to a run of a job.

    Attributes:
        run: the run that got the values.
        uid: owner of the job.
        workload: program of the job.
        trial: row id of the trial in which the run takes part; None means that the run takes part in no
            trial.
        submitted: whether the job was submitted with the options of the trial.
        offered: values that the run may use, by kind of adjustment.
        requested: kinds of adjustment that the program has requested.
        created: time at which the values were sent, in Unix seconds.
    """

    run: JobRun
    uid: int
    workload: str
    trial: int | None
    submitted: bool
    offered: Mapping[str, int]
    requested: frozenset[str]
    created: float


class ProgramRun(NamedTuple):
    """A run of a program that has energy records.

    Attributes:
        run: identity of the run.
        start: start of the first record in Unix seconds.
        end: end of the last record in Unix seconds.
        policy: energy policy.
        state: job state, as Slurm writes it; None means not known yet.
    """

    run: JobRun
    start: float
    end: float
    policy: str
    state: str | None


def permissions_of(connection: Connection, cluster: str, uid: int) -> str | None:
    """Return the stored permissions of a user, as text; None if the user has set no permissions.

    The permissions state which adjustments the user allows.
    """
    columns = _permissions.c
    query = select(columns.body).where(columns.cluster == cluster, columns.uid == uid)
    return connection.execute(query).scalar()


def set_permissions(connection: Connection, cluster: str, uid: int, body: str, now: float) -> None:
    """Store which adjustments a user permits.

    An adjustment is a change of a value of a program for its next run, such as the number of workers.
    """
    row = {"cluster": cluster, "uid": uid, "body": body, "updated": now}
    with transaction(connection):
        insert_or_replace(connection, _permissions, [row])


def add_trial(connection: Connection, trial: StoredTrial) -> StoredTrial:
    """Store a pending trial and return a copy that contains its row id.

    A trial tests adjustments of one program. An earlier pending trial of the same program gets the state
    "withdrawn". Beyond `MAX_TRIALS_PER_USER`, the oldest decided trials of the user are deleted.
    """
    columns = _trials.c
    own = (columns.uid == trial.uid, columns.cluster == trial.cluster)
    values = trial._asdict()
    del values["key"]
    with transaction(connection):
        pending = (*own, columns.workload == trial.workload, columns.state == PENDING)
        connection.execute(update(_trials).where(*pending).values(state=WITHDRAWN, decided=trial.created))
        key = connection.execute(insert(_trials).values(values)).inserted_primary_key
        oldest = select(columns.id).where(*own).order_by(columns.decided.is_(None).desc(), columns.id.desc())
        delete_selected(connection, _trials, oldest.offset(MAX_TRIALS_PER_USER).limit(BATCH))
    assert key is not None, "the row was inserted"
    return trial._replace(key=int(key[0]))


def decide_trial(connection: Connection, key: int, state: str, now: float, body: str | None = None) -> bool:
    """Set the state of a trial of adjustments.

    A trial tests whether changed values of a program remove a cause of waste. The state is changed only
    if the trial is pending, or if its adjustments are kept. Otherwise the function changes nothing and
    returns False.

    Args:
        connection: connection of the writing thread.
        key: row id of the trial.
        state: new state. `PENDING` means that the trial stays undecided and only its data change.
        now: Unix seconds.
        body: new data of the trial; None means that the data stay unchanged.
    """
    values: dict[str, Any] = {"state": state, "decided": None if state == PENDING else now}
    if body is not None:
        values["body"] = body
    open_ones = _trials.c.state.in_((PENDING, KEPT))
    with transaction(connection):
        statement = update(_trials).where(_trials.c.id == key, open_ones).values(values)
        return bool(connection.execute(statement).rowcount)


def trials_of(
    connection: Connection, cluster: str, uid: int | None, workload: str | None = None
) -> list[StoredTrial]:
    """Return the newest trials of adjustments, at most `MAX_LISTED` of them, oldest first.

    A trial tests whether changed values of a program, such as its number of workers, save time or energy.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        uid: owner of the program; None means all users.
        workload: identity of the program; None means all programs.
    """
    columns = _trials.c
    query = select(*columns[_COLUMNS]).where(columns.cluster == cluster)
    query = query if uid is None else query.where(columns.uid == uid)
    query = query if workload is None else query.where(columns.workload == workload)
    rows = connection.execute(query.order_by(columns.id.desc()).limit(MAX_LISTED)).fetchall()
    return [StoredTrial(*row) for row in reversed(rows)]


def pending_trials(connection: Connection, cluster: str) -> list[StoredTrial]:
    """Return all trials of adjustments that are not decided yet, oldest first.

    A trial tests whether adjustments of a program remove the cause of a finding.
    """
    columns = _trials.c
    query = select(*columns[_COLUMNS]).where(columns.state == PENDING, columns.cluster == cluster)
    return [StoredTrial(*row) for row in connection.execute(query.order_by(columns.id))]


def offer(connection: Connection, offered: OfferedRun) -> OfferedRun:
    """Store the values of adjustments that are offered to a run, and return the stored values.

    An adjustment is a value that the advice of the diagnosis changes, such as the number of loader
    processes. A run keeps the values of its first request, so that all its processes get the same values. A
    later request changes no values. It only adds the kinds of adjustment that it names to `requested`, the
    list of the kinds that the run uses.
    """
    with transaction(connection):
        earlier = offered_run(connection, offered.run, offered.uid)
        if earlier is not None:
            offered = earlier._replace(requested=earlier.requested | offered.requested)
        if earlier != offered:
            insert_or_replace(connection, _runs, [_run_row(offered)])
    return offered


def offered_run(connection: Connection, run: JobRun, uid: int) -> OfferedRun | None:
    """Return the adjusted values that senergyctld has offered to one run of a user's job.

    An adjustment changes a value of a program, such as its number of workers. A job keeps its sbatch options
    when it is requeued. If nothing was offered to a requeued run, the result therefore contains the values
    with which the job was submitted, and `requested` is empty. The result is None if nothing was offered to
    this run and the job was not submitted with adjusted values.
    """
    columns = _runs.c
    query = select(_runs).where(
        columns.cluster == run.cluster,
        columns.job_id == run.job_id,
        (columns.restart_count == run.restart_count) | ((columns.restart_count == 0) & columns.submitted),
        columns.uid == uid,
    )
    row = connection.execute(query.order_by(columns.restart_count.desc()).limit(1)).mappings().first()
    if row is None:
        return None
    is_own = row["restart_count"] == run.restart_count
    requested = frozenset(json.loads(row["requested"]) if is_own else ())
    values = (row["uid"], row["workload"], row["trial"], bool(row["submitted"]))
    return OfferedRun(run, *values, json.loads(row["offered"]), requested, row["created"])


def _run_row(offered: OfferedRun) -> dict[str, Any]:
    values = offered._asdict() | offered.run._asdict()
    del values["run"]
    return values | {
        "offered": json.dumps(dict(offered.offered)),
        "requested": json.dumps(sorted(offered.requested)),
    }


def program_runs(connection: Connection, cluster: str, uid: int, workload: str) -> list[ProgramRun]:
    """Return the runs of a program, oldest first.

    Only the newest records of the program's owner are searched.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        uid: owner as senergyd reported it. Runs of other users are never returned.
        workload: fingerprint or `--energy-model`.
    """
    columns = _records.c
    names = [text_value(connection, columns.body, key) for key in ("fingerprint", "model")]
    query = (
        select(columns.job_id, columns.restart_count, columns.start, columns.end, columns.policy)
        .add_columns(_jobs.c.state, _jobs.c.finished, *names)
        .select_from(_records.outerjoin(_jobs, _jobs.c.id == columns.job))
        .where(columns.uid == uid, columns.cluster == cluster, columns.step == "")
        .order_by(columns.end.desc())
        .limit(_RECENT_RUNS)
    )
    runs: dict[JobRun, ProgramRun] = {}
    for job_id, restarts, start, end, policy, state, finished, fingerprint, model in connection.execute(
        query
    ):
        if workload != (fingerprint or model):
            continue
        run = JobRun(cluster, job_id, restarts)
        other = runs.get(run)
        times = (min(start, other.start), max(end, other.end)) if other else (start, end)
        runs[run] = ProgramRun(run, *times, policy, state.partition(" ")[0] if finished else None)
    return sorted(runs.values(), key=lambda one: one.end)


def recent_runs(
    connection: Connection, policies: Collection[str], since: float, until: float
) -> list[tuple[str, int, int, int]]:
    """Return the newest ended runs of jobs with one of the given energy policies.

    Each run is given as (cluster, job id, restart count, uid).

    Args:
        connection: connection to the database.
        policies: names of energy policies.
        since: earliest end of the jobs in Unix seconds.
        until: latest end of the jobs in Unix seconds.
    """
    columns = _records.c
    query = (
        select(columns.cluster, columns.job_id, columns.restart_count, columns.uid)
        .join_from(_records, _jobs, _jobs.c.id == columns.job)
        .where(columns.end.between(since, until), columns.step == "")
        .where(columns.policy.in_(policies), _jobs.c.finished)
        .order_by(columns.end.desc())
    )
    return list(dict.fromkeys((row[0], row[1], row[2], row[3]) for row in connection.execute(query)))


def record_ids(connection: Connection, run: JobRun, uid: int) -> list[int]:
    """Return the database ids of all energy records of one run of a user's job.

    The records of the job's steps are included.
    """
    columns = _records.c
    query = select(columns.id).where(
        columns.cluster == run.cluster,
        columns.job_id == run.job_id,
        columns.restart_count == run.restart_count,
        columns.uid == uid,
    )
    return list(connection.execute(query.order_by(columns.node, columns.step)).scalars())


def drop_before(connection: Connection, before: float) -> None:
    """Delete old offers of adjusted values to runs, and old trials of adjustments.

    An offer is old if it was made before `before` (Unix seconds). A trial is old if it was decided before
    this time. Trials whose adjustments were kept are not deleted.
    """
    columns = _trials.c
    with transaction(connection):
        connection.execute(delete(_runs).where(_runs.c.created < before))
        decided = columns.decided.is_not(None) & (columns.decided < before)
        connection.execute(delete(_trials).where(decided, columns.state != KEPT))
