"""SQL conditions and queries that select energy records in the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select, true, tuple_, union_all

from slurm_energy.accounting.records.record_selection import JobSelector, RecordSelection, Visibility
from slurm_energy.accounting.schema.tables import jobs, records
from slurm_energy.errors import UsageError

r: Final = records.alias("r")
"""The table of records, to which all conditions refer."""
_LATER: Final = records.alias("l")
_OTHER: Final = records.alias("n")
_OF_JOB: Final = records.alias("j")
_MAX_STEPS: Final = 200
_ID_REUSED_AFTER_S: Final = 3600.0


def selected(selection: RecordSelection) -> ColumnElement[bool]:
    """Return the SQL condition for a selection of records.

    The condition refers to the table of records by the alias `r`.
    """
    parts: list[ColumnElement[bool]] = [true()]
    if selection.visible is not None:
        parts.append(is_visible(selection.visible))
    if selection.jobs:
        parts.append(_is_of_jobs(selection.jobs, selection.steps))
    elif not selection.steps:
        parts.append(r.c.step == "")
    if selection.users or selection.uids:
        # Empty lists are left out, because no index would be used with them.
        named = [r.c.user.in_(selection.users)] if selection.users else []
        parts.append(or_(*named, *([r.c.uid.in_(selection.uids)] if selection.uids else [])))
    if selection.accounts:
        parts.append(r.c.account.in_(selection.accounts))
    if selection.partitions:
        parts.append(r.c.partition.in_(selection.partitions))
    if selection.nodes:
        parts.append(_ran_on(selection.nodes))
    if selection.start is not None:
        parts.append(r.c.end >= selection.start)
    if selection.end is not None:
        parts.append(r.c.start < selection.end)
    if not selection.duplicates:
        parts.append(_is_last_run())
    return and_(*parts)


def is_visible(visible: Visibility) -> ColumnElement[bool]:
    """Return the SQL condition that a record (alias `r`) is visible to a user."""
    own = r.c.uid == visible.uid
    return or_(own, r.c.account.in_(sorted(visible.accounts))) if visible.accounts else own


def _is_last_run() -> ColumnElement[bool]:
    """Return the SQL condition that a record belongs to the last run with its job id.

    A later run supersedes the record's run if it has a record of the whole job and meets one of these
    conditions:

    - It is a run of the same job with a higher restart count.
    - It is a run of another job that reuses the id. This is recognised by other facts about the
      job, or by a start long after the end of the record.
    """
    later = _LATER.c
    return ~exists().where(
        later.job_id == r.c.job_id,
        later.start >= r.c.start,
        later.cluster == r.c.cluster,
        later.step == "",
        or_(
            later.restart_count > r.c.restart_count,
            and_(later.job != r.c.job, later.start > r.c.start),
            later.start > r.c.end + _ID_REUSED_AFTER_S,
        ),
    )


def _is_of_jobs(selectors: Sequence[JobSelector], steps: bool) -> ColumnElement[bool]:
    """Return one SQL condition that selects the records of all given jobs.

    The condition has one part for each job step, not one for each job. SQLite limits the depth of
    conditions.

    Args:
        selectors: jobs to select.
        steps: whether to include the step records of jobs that are selected without a step.

    Raises:
        UsageError: too many different steps.
    """
    by_step: dict[str | None, list[JobSelector]] = {}
    for selector in selectors:
        by_step.setdefault(selector.step, []).append(selector)
    if len(by_step) > _MAX_STEPS:
        raise UsageError(f"job: more than {_MAX_STEPS} different steps")
    clauses = []
    for step, group in by_step.items():
        ids = r.c.id.in_(_ids_of_jobs(group))
        clauses.append(ids if step is None and steps else and_(ids, r.c.step == (step or "")))
    return or_(*clauses)


def _ids_of_jobs(selectors: Sequence[JobSelector]) -> Select[int]:
    """Return an SQL query for the row ids of the selected jobs.

    The query is a UNION of one query for each way to select jobs. A single condition with OR and subqueries
    would make PostgreSQL read all rows that fulfil the other conditions. The UNION is a derived table,
    because MariaDB evaluates only derived tables once.
    """
    derived = union_all(*_queries_of_jobs(selectors)).subquery("of_jobs")
    return select(derived.c.id)


def _queries_of_jobs(selectors: Sequence[JobSelector]) -> Iterator[Select[int]]:
    plain = [one.base for one in selectors if one.task is None and one.offset is None]
    if plain:
        yield select(_OF_JOB.c.id).where(_OF_JOB.c.job_id.in_(plain))
        yield _with_facts(jobs.c.array_job_id.in_(plain))
        yield _with_facts(jobs.c.het_job_id.in_(plain))
    tasks = [(one.base, one.task) for one in selectors if one.task is not None]
    if tasks:
        yield _with_facts(_are_among(jobs.c.array_job_id, jobs.c.array_task_id, tasks))
    offsets = [(one.base, one.offset) for one in selectors if one.offset is not None]
    if offsets:
        yield _with_facts(_are_among(jobs.c.het_job_id, jobs.c.het_offset, offsets))


def _are_among(
    base: ColumnElement[int], part: ColumnElement[int], pairs: Sequence[tuple[int, int | None]]
) -> ColumnElement[bool]:
    """Return the SQL condition that two columns contain the values of one of the given pairs.

    The condition is built for SQLite, which uses an index only for a condition on a single column.
    """
    return and_(base.in_(sorted({pair[0] for pair in pairs})), tuple_(base, part).in_(pairs))


def _with_facts(condition: ColumnElement[bool]) -> Select[int]:
    return select(_OF_JOB.c.id).join_from(jobs, _OF_JOB, _OF_JOB.c.job == jobs.c.id).where(condition)


def _ran_on(nodes: Sequence[str]) -> ColumnElement[bool]:
    other = _OTHER.c
    runs = select(other.cluster, other.job_id, other.restart_count).where(other.node.in_(nodes))
    return tuple_(r.c.cluster, r.c.job_id, r.c.restart_count).in_(runs)
