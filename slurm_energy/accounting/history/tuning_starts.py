"""Operating points of programs in the database.

There are two kinds: starting points, which senergyctld has assigned to jobs, and pinned points, which a user
or an operator has fixed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, insert, not_, select, text

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.tables import tuning_pins as _pins
from slurm_energy.accounting.schema.tables import tuning_starts as _starts
from slurm_energy.accounting.upserts import insert_or_replace

MAX_PINS_PER_OWNER: Final = 1000
_EXPLORATION: Final = text("exploration")  # as in the condition of the index
_PINS: Final = select(*_pins.c["owner", "workload", "hardware", "point", "pinned_by", "time"])


class Program(NamedTuple):
    """A program that a user runs repeatedly.

    Tuning learns the best operating point for each program separately. An operating point can also be fixed
    for each program separately.

    Attributes:
        owner: login name of the user.
        workload: fingerprint of the batch script; if it is missing, the value of `--energy-model`.
        hardware: kind of hardware.
    """

    owner: str
    workload: str
    hardware: str


class JobRun(NamedTuple):
    """One run of a job.

    Attributes:
        cluster: Slurm's ClusterName.
        job_id: Slurm's job id.
        restart_count: number of earlier requeues.
    """

    cluster: str
    job_id: int
    restart_count: int


class Pin(NamedTuple):
    """An operating point (set of hardware settings) that a user has fixed for a program.

    Attributes:
        program: the program to which the pin applies.
        point: JSON text of the operating point.
        pinned_by: login name of the user who pinned it.
        time: time of the pinning in Unix seconds.
    """

    program: Program
    point: str
    pinned_by: str
    time: float


class IssuedStart(NamedTuple):
    """The starting point of a job: the operating point with which tuning starts, assigned by senergyctld.

    Attributes:
        program: the job's program as known when the starting point was assigned. If the agent learned the
            fingerprint later, the job now belongs to another program.
        exploration: whether the operating point is tried only for learning.
        body: JSON text of the operating point and of the source from which it was chosen.
    """

    program: Program
    exploration: bool
    body: str


def issued_start(connection: Connection, run: JobRun, hardware: str) -> IssuedStart | None:
    """Return the operating point with which a run of a job was told to start its tuning.

    The result is None if no such starting point was assigned to the run.
    """
    columns = _starts.c
    row = connection.execute(
        select(*columns["owner", "workload", "hardware", "exploration", "body"]).where(
            columns.cluster == run.cluster,
            columns.job_id == run.job_id,
            columns.restart_count == run.restart_count,
            columns.hardware == hardware,
        )
    ).fetchone()
    return IssuedStart(Program(*row[:3]), bool(row[3]), row[4]) if row else None


def exploring_jobs(connection: Connection, program: Program) -> set[int]:
    """Return the ids of jobs of a program that were started to try an operating point (exploration).

    Some of these jobs may have ended.
    """
    query = select(_starts.c.job_id).where(_of_program(_starts, program), _EXPLORATION)
    return set(connection.execute(query).scalars())


def store_start(
    connection: Connection,
    run: JobRun,
    start: IssuedStart,
    fallback: IssuedStart,
    running: Collection[int],
    now: float,
) -> IssuedStart:
    """Store the settings with which a job starts, and return the settings that are stored.

    If settings are already stored for the job, they stay and are returned. An exploration is a start with
    settings that are tried in order to learn the program's response. The transaction also checks for other
    explorations. So at most one of two jobs that start at the same moment explores.

    Args:
        connection: connection of the writing thread.
        run: the run of the job.
        start: the settings to store.
        fallback: the settings to store instead if `start` is an exploration and another running job already
            explores.
        running: ids of the jobs that are running.
        now: current time, Unix seconds.
    """
    with transaction(connection):
        earlier = issued_start(connection, run, start.program.hardware)
        if earlier is not None:
            return earlier
        if start.exploration and (exploring_jobs(connection, start.program) - {run.job_id}) & set(running):
            start = fallback
        program = start.program
        values = {"exploration": start.exploration, "time": now, "body": start.body}
        connection.execute(insert(_starts), [run._asdict() | program._asdict() | values])
    return start


def pins_of(connection: Connection, owners: Collection[str] | None) -> list[Pin]:
    """Return the operating points (hardware settings) that users have fixed for their programs.

    An operating point that is fixed in this way is called a pin.

    Args:
        connection: connection to the database.
        owners: owners of the programs; None means all owners.
    """
    query = _PINS.order_by(*_pins.c["owner", "workload", "hardware"])
    if owners is not None:
        query = query.where(_pins.c.owner.in_(owners))
    return [Pin(Program(*row[:3]), *row[3:]) for row in connection.execute(query)]


def pin_of(connection: Connection, owner: str, hardware: str, workloads: Collection[str]) -> Pin | None:
    """Return the operating point that a user or operator has fixed for a program (pin).

    None is returned if the program has no pin.

    Args:
        connection: connection to the database.
        owner: login name of the user.
        hardware: kind of hardware.
        workloads: fingerprint and model of the program, in the order of precedence.
    """
    for workload in workloads:
        query = _PINS.where(_of_program(_pins, Program(owner, workload, hardware)))
        if row := connection.execute(query).fetchone():
            return Pin(Program(*row[:3]), *row[3:])
    return None


def set_pin(connection: Connection, pin: Pin) -> bool:
    """Store a pin, which is an operating point that a user or operator fixed for a program.

    Return False if the owner of the program already has `MAX_PINS_PER_OWNER` other pins.
    """
    with transaction(connection):
        others = (
            select(func.count())
            .select_from(_pins)
            .where(_pins.c.owner == pin.program.owner, not_(_of_program(_pins, pin.program)))
        )
        if connection.execute(others).scalar_one() >= MAX_PINS_PER_OWNER:
            return False
        values = {"point": pin.point, "pinned_by": pin.pinned_by, "time": pin.time}
        insert_or_replace(connection, _pins, [pin.program._asdict() | values])
    return True


def remove_pin(connection: Connection, program: Program) -> bool:
    """Delete the pin (the fixed operating point) of a program. Return whether the program had a pin."""
    with transaction(connection):
        return bool(connection.execute(delete(_pins).where(_of_program(_pins, program))).rowcount)


def drop_starts(connection: Connection, before: float) -> int:
    """Delete the records of the settings with which jobs were told to start their tuning.

    Only records from before `before` (Unix seconds) are deleted. Return the number of deleted records.
    """
    with transaction(connection):
        return connection.execute(delete(_starts).where(_starts.c.time < before)).rowcount


def _of_program(table: Table, program: Program) -> ColumnElement[bool]:
    columns = table.c
    return and_(
        columns.owner == program.owner,
        columns.workload == program.workload,
        columns.hardware == program.hardware,
    )
