"""HTTP routes about one job.

They return the job's records with traces, the decisions about the job, and its observations.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Concatenate, Final, ParamSpec, TypeVar

from aiohttp import web
from sqlalchemy import Connection

from slurm_energy.accounting import decisions
from slurm_energy.accounting.records import observations, record_queries
from slurm_energy.accounting.records.record_selection import JobSelector, RecordSelection
from slurm_energy.controller.http.dispatcher import ResponseContent
from slurm_energy.controller.http.identity import Caller
from slurm_energy.controller.http.record_visibility import restricted_selection
from slurm_energy.controller.http.responses import Pieces
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import NotFoundError
from slurm_energy.protocol.observation_requests import NODES_KEY

_QUERY_TIMEOUT_S: Final = 20.0
_ATTACHMENTS_CHUNK: Final = 4  # responses about jobs contain attachments of up to megabytes each
P = ParamSpec("P")
R = TypeVar("R")


class RecordReader:
    """Reader of energy records. It limits the query time of callers who are not operators.

    Args:
        store: the database.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(
        self,
        caller: Caller,
        function: Callable[Concatenate[Connection, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a function on a database connection and return its result.

        The time of the function is limited unless the caller is an operator.
        """
        if caller.rights.everything:
            return await self._store.read(function, *args, **kwargs)
        return await self._store.read_within(_QUERY_TIMEOUT_S, function, *args, **kwargs)

    async def records(
        self, caller: Caller, ids: Sequence[int], head: str, chunk: int, with_traces: bool
    ) -> Pieces:
        """Yield a JSON object in pieces, without its closing brace. Its last field is a list of records.

        Args:
            caller: the user who made the request.
            ids: database ids of the records.
            head: text of the object before the list.
            chunk: number of records per piece.
            with_traces: include the power traces.
        """

        def texts(connection: Connection, part: Sequence[int]) -> list[str]:
            return record_queries.records_json(connection, part, with_traces=with_traces)

        async for piece in self._pieces(caller, ids, head, chunk, texts):
            yield piece

    async def observations(self, caller: Caller, ids: Sequence[int], head: str) -> Pieces:
        """Yield a JSON object in pieces, without its closing brace. Its last field is a list of observations.

        Args:
            caller: the user who made the request.
            ids: database ids of the records.
            head: text of the object before the list.
        """
        read = observations.observations_json
        async for piece in self._pieces(caller, ids, head, _ATTACHMENTS_CHUNK, read):
            yield piece

    async def _pieces(
        self,
        caller: Caller,
        ids: Sequence[int],
        head: str,
        chunk: int,
        texts: Callable[[Connection, Sequence[int]], list[str]],
    ) -> Pieces:
        text, separator = head, ""
        for first in range(0, max(len(ids), 1), chunk):
            items = await self.read(caller, texts, ids[first : first + chunk])
            text += "".join(f"{separator if i == 0 else ','}\n{item}" for i, item in enumerate(items))
            separator = "," if items or separator else ""
            yield text
            text = ""
        yield "\n]"


class JobRoutes:
    """HTTP handlers for requests about one job.

    Args:
        reader: reads records.
    """

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    async def job(self, request: web.Request, caller: Caller, _: bytes) -> ResponseContent:
        """Return the records of a job and of its steps with their traces, and the decisions about the job.

        Raises:
            NotFoundError: there is no record.
            ForbiddenError: the job belongs to another user.
        """
        ids = await self._find(request, caller, steps=True)
        made = await self._reader.read(caller, decisions.of_records, ids)
        unnamed = 0
        if not caller.rights.everything:
            unnamed, made = decisions.unnamed_jobs(made), decisions.for_owners(made)
        first = caller.rights.described() | {"unnamed_jobs": unnamed, "decisions": made}
        head = f'{json.dumps(first)[:-1]},"records":['
        return self._reader.records(caller, ids, head, _ATTACHMENTS_CHUNK, True)

    async def observation(self, request: web.Request, caller: Caller, _: bytes) -> ResponseContent:
        """Return the observations of a job: one for each record of the job that has an observation.

        Raises:
            NotFoundError: there is no record.
            ForbiddenError: the job belongs to another user.
        """
        ids = await self._find(request, caller, steps=False)
        head = f'{json.dumps(caller.rights.described())[:-1]},"{NODES_KEY}":['
        return self._reader.observations(caller, ids, head)

    async def _find(self, request: web.Request, caller: Caller, *, steps: bool) -> Sequence[int]:
        """Return the database ids of the records of the requested job.

        Records hidden from the caller are left out.
        """
        job = JobSelector.parse(request.match_info["id"])
        duplicates = RecordSelection.from_query(dict(request.query)).duplicates
        requested = RecordSelection(jobs=(job,), steps=steps, duplicates=duplicates)
        selection = await asyncio.to_thread(restricted_selection, caller, requested)
        ids = await self._reader.read(caller, find_selected, selection)
        if not len(ids):
            raise NotFoundError(f"job {job.text}", "no energy record", _why_not_found(job))
        return ids


def find_selected(connection: Connection, selection: RecordSelection) -> Sequence[int]:
    """Return the row ids of the energy records that match a user's query.

    Raises:
        ForbiddenError: a selected job belongs to another user.
    """
    if not selection.omit_others:
        record_queries.refuse_jobs_of_others(connection, selection)
    return record_queries.find_records(connection, selection)


def _why_not_found(job: JobSelector) -> str:
    if job.task is not None or job.offset is not None:
        return "a record arrives when its job ends, and gets such an id a little later"
    return "a record arrives when its job ends"
