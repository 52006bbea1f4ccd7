"""Selection of records by the query parameters of the HTTP interface.

senergyctld decides which records a caller may see, and sets `RecordSelection.visible`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown, switch, words
from slurm_energy.quantities import shown

_JOB = re.compile(
    r"(?P<base>\d{1,18})(?:_(?P<task>\d{1,18})|\+(?P<offset>\d{1,18}))?(?:\.(?P<step>[A-Za-z0-9_+]{1,64}))?"
)
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_KEYS = (
    *("job", "user", "account", "partition", "node", "start", "end"),
    *("steps", "duplicates", "omit_others"),
)


@dataclass(frozen=True, slots=True)
class JobSelector:
    """A job or step in the form in which users write it: `12`, `12_3`, `14+0`, `12.batch`.

    `12` selects job 12, all tasks of job array 12, or all components of heterogeneous job 12.

    Attributes:
        text: the job as the user wrote it.
        base: job id, or id of the job array or heterogeneous job.
        task: array task id; None means that the text names no task.
        offset: component of a heterogeneous job; None means that the text names no component.
        step: Slurm step; None means that the text names no step.
    """

    text: str
    base: int
    task: int | None = None
    offset: int | None = None
    step: str | None = None

    @classmethod
    def parse(cls, text: str) -> JobSelector:
        """Parse a job or step as users write it.

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
        uid: numeric user id; records of this user's jobs are visible.
        accounts: Slurm accounts; records of jobs in these accounts are visible, too.
    """

    uid: int
    accounts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Conditions on records; an empty tuple or None means no condition.

    Attributes:
        jobs: jobs and steps to select.
        users, uids: user names as in the records, and numeric user ids. A record matches if its user name or
            its uid is listed.
        accounts, partitions: Slurm accounts and partitions.
        nodes: jobs that ran on at least one of these nodes are selected, with their records of all nodes.
        start, end: Unix seconds; jobs that ran at any time between `start` and `end` match.
        steps: whether to include records of Slurm steps. A job selector with a step selects the records of
            this step in any case.
        duplicates: whether to include earlier runs of requeued jobs, and earlier jobs whose id was reused.
        visible: limits the records to those that the caller may see; None means no limit.
        omit_others: True means that selected jobs which the caller may not see are left out. False means that
            the request is refused if it selects one of them.
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
    omit_others: bool = False

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
            omit_others=switch(query, "omit_others"),
        )


def _seconds(query: Mapping[str, str], key: str) -> float | None:
    text = query.get(key, "")
    if text and not _SECONDS.fullmatch(text):
        raise UsageError(f"{key}: '{shown(text)}' is not a time", todo="write Unix seconds")
    return float(text) if text else None
