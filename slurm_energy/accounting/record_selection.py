"""Selection of records: the query parameters of the HTTP interface as data, and as an SQL condition.

senergyctld decides which records a caller may see, and sets `RecordSelection.visible`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown, switch, words
from slurm_energy.quantities import shown

_JOB = re.compile(
    r"(?P<base>\d{1,18})(?:_(?P<task>\d{1,18})|\+(?P<offset>\d{1,18}))?(?:\.(?P<step>[A-Za-z0-9_+]{1,64}))?"
)
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_KEYS = ("job", "user", "account", "partition", "node", "start", "end", "steps", "duplicates")
_MAX_STEPS = 200


@dataclass(frozen=True, slots=True)
class JobSelector:
    """A job as users name it: `12`, `12_3`, `14+0`, `12.batch`.

    `12` selects the job with that id, all tasks of that job array, or all components of that heterogeneous
    job.

    Attributes:
        text: the job as the user wrote it.
        base: job id, or id of the job array or heterogeneous job.
        task: array task id; None: not given.
        offset: component of a heterogeneous job; None: not given.
        step: Slurm step; None: not given.
    """

    text: str
    base: int
    task: int | None = None
    offset: int | None = None
    step: str | None = None

    @classmethod
    def parse(cls, text: str) -> JobSelector:
        """Parse a job as users name it.

        Raises:
            UsageError: the text is not a job id.
        """
        match = _JOB.fullmatch(text)
        if match is None:
            raise UsageError(f"job: '{shown(text)}' is not a job id", todo="write 12, 12_3, 14+0 or 12.batch")
        task, offset = (int(match[n]) if match[n] is not None else None for n in ("task", "offset"))
        return cls(text, int(match["base"]), task, offset, match["step"])


@dataclass(frozen=True, slots=True)
class Visibility:
    """The records that a user without operator rights may see.

    Attributes:
        uid: records of jobs of this user are visible.
        accounts: records of jobs under these Slurm accounts are visible too.
    """

    uid: int
    accounts: frozenset[str] = frozenset()

    def condition(self) -> tuple[str, list[Any]]:
        """Return an SQL condition on the table `records`, aliased `r`, and the values of its placeholders."""
        own: tuple[str, Sequence[Any]] = ("r.uid = ?", [self.uid])
        text, values = _any([own, _among("r.account", sorted(self.accounts))]) if self.accounts else own
        return text, list(values)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Conditions on records; an empty tuple or None means no condition.

    Attributes:
        jobs: jobs and steps to select.
        users, uids: user names as in the records, and numeric user ids. A record matches if either matches.
        accounts, partitions: Slurm accounts and partitions.
        nodes: jobs that ran on one of these nodes match, with their records of all nodes.
        start, end: Unix seconds; jobs that overlap the window from `start` to `end` match.
        steps: include step records. A job selector with a step selects its step records even if this is
            False.
        duplicates: include earlier runs of requeued jobs, and earlier jobs whose id was reused.
        visible: limits the records to those that the caller may see; None: no limit.
    """

    jobs: tuple[JobSelector, ...] = ()
    users: tuple[str, ...] = ()
    uids: tuple[int, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None
    steps: bool = False
    duplicates: bool = False
    visible: Visibility | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> RecordSelection:
        """Parse the query parameters of `GET /v1/records`; a number among the users is a uid.

        Raises:
            UsageError: unknown parameter or invalid value.
        """
        refuse_unknown(query, _KEYS)
        if "[" in query.get("node", ""):
            raise UsageError("node: host lists must be expanded", todo="write n1,n2")
        users = words(query, "user")
        return cls(
            jobs=tuple(JobSelector.parse(text) for text in words(query, "job")),
            users=tuple(user for user in users if not user.isdecimal()),
            uids=tuple(int(user[:18]) for user in users if user.isdecimal()),
            accounts=words(query, "account"),
            partitions=words(query, "partition"),
            nodes=words(query, "node"),
            start=_seconds(query, "start"),
            end=_seconds(query, "end"),
            steps=switch(query, "steps"),
            duplicates=switch(query, "duplicates"),
        )

    def condition(self) -> tuple[str, list[Any]]:
        """Return an SQL condition on the table `records`, aliased `r`, and the values of its placeholders."""
        parts: list[tuple[str, Sequence[Any]]] = []
        if self.visible is not None:
            parts.append(self.visible.condition())
        if self.jobs:
            parts.append(_jobs_condition(self.jobs, self.steps))
        elif not self.steps:
            parts.append(("r.step = ''", []))
        if self.users or self.uids:
            clauses = [_among("r.user", self.users)] if self.users else []
            clauses += [_among("r.uid", self.uids)] if self.uids else []
            parts.append(_any(clauses))
        parts.append(_among("r.account", self.accounts) if self.accounts else _ALWAYS)
        parts.append(_among("r.partition", self.partitions) if self.partitions else _ALWAYS)
        if self.nodes:
            parts.append(_ran_on(self.nodes))
        if self.start is not None:
            parts.append(('r."end" >= ?', [self.start]))
        if self.end is not None:
            parts.append(("r.start < ?", [self.end]))
        if not self.duplicates:
            parts.append((_LAST_RUN, []))
        return " AND ".join(text for text, _ in parts), [value for _, values in parts for value in values]


_ALWAYS: tuple[str, Sequence[Any]] = ("1", [])

# A record is superseded if a later run of the same job id has a record of the whole job. A later run has a
# higher restart count. If Slurm reused the id, it has other facts, or starts long after this record's end.
_LAST_RUN = """NOT EXISTS (
    SELECT 1 FROM records l
    WHERE l.job_id = r.job_id AND l.start >= r.start AND l.cluster = r.cluster AND l.step = ''
        AND (l.restart_count > r.restart_count OR l.job <> r.job AND l.start > r.start
            OR l.start > r."end" + 3600))"""


def _jobs_condition(jobs: Sequence[JobSelector], steps: bool) -> tuple[str, Sequence[Any]]:
    """Return one SQL condition that selects all given jobs, and its values.

    The condition is grouped by step, because SQLite limits the number of ORs.

    Args:
        jobs: jobs to select.
        steps: include the step records of jobs that are selected without a step.
    """
    by_step: dict[str | None, list[JobSelector]] = {}
    for job in jobs:
        by_step.setdefault(job.step, []).append(job)
    if len(by_step) > _MAX_STEPS:
        raise UsageError(f"job: more than {_MAX_STEPS} different steps")
    clauses = []
    for step, group in by_step.items():
        text, values = _any(list(_id_conditions(group)))
        if step is not None or not steps:
            text, values = f"({text} AND r.step = ?)", [*values, step or ""]
        clauses.append((text, values))
    return _any(clauses)


def _id_conditions(jobs: Sequence[JobSelector]) -> Iterator[tuple[str, Sequence[Any]]]:
    plain = [job.base for job in jobs if job.task is None and job.offset is None]
    if plain:
        yield _among("r.job_id", plain)
        yield _by_facts(*_among("array_job_id", plain))
        yield _by_facts(*_among("het_job_id", plain))
    for name in ("task", "offset"):
        columns = "(array_job_id, array_task_id)" if name == "task" else "(het_job_id, het_offset)"
        pairs = [(job.base, getattr(job, name)) for job in jobs if getattr(job, name) is not None]
        if pairs:
            rows = ",".join("(?,?)" for _ in pairs)
            yield _by_facts(f"{columns} IN (VALUES {rows})", [number for pair in pairs for number in pair])


def _by_facts(condition: str, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    return f"r.job IN (SELECT id FROM jobs WHERE {condition})", values


def _ran_on(nodes: Sequence[str]) -> tuple[str, Sequence[Any]]:
    inner, values = _among("n.node", nodes)
    return (
        "(r.cluster, r.job_id, r.restart_count) IN "
        f"(SELECT n.cluster, n.job_id, n.restart_count FROM records n WHERE {inner})",
        values,
    )


def _among(column: str, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    return f"{column} IN ({','.join('?' * len(values))})", values


def _any(clauses: Sequence[tuple[str, Sequence[Any]]]) -> tuple[str, Sequence[Any]]:
    text = " OR ".join(text for text, _ in clauses)
    return f"({text})", [value for _, values in clauses for value in values]


def _seconds(query: Mapping[str, str], key: str) -> float | None:
    text = query.get(key, "")
    if text and not _SECONDS.fullmatch(text):
        raise UsageError(f"{key}: '{shown(text)}' is not a time", todo="write Unix seconds")
    return float(text) if text else None
