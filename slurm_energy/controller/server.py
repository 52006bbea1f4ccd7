"""The HTTP interface of the contract: routes, who may use them, and answers. No SQL and no Slurm here."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from slurm_energy import __version__
from slurm_energy.accounting import decisions, ingest, queries
from slurm_energy.accounting.selection import JobSelector, Selection
from slurm_energy.config import Config
from slurm_energy.controller import prioritypages
from slurm_energy.controller.identity import Access, Caller, identify, name_of, uid_of
from slurm_energy.controller.policyfile import policies_answer
from slurm_energy.controller.prediction import Memory, read_questions
from slurm_energy.controller.priority import PriorityLoop
from slurm_energy.controller.recurring import Recurring
from slurm_energy.controller.store import Store
from slurm_energy.errors import (
    EXIT_FAILURE,
    EnergyError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from slurm_energy.quantities import shown

MAX_BODY_BYTES: Final = 16 << 20
# Long job lists stand in the request line, and again, encoded, in the credential.
MAX_LINE_BYTES: Final = 64 << 10
MAX_FIELD_BYTES: Final = 192 << 10
BODY_TIMEOUT_S: Final = 60.0
WRITE_TIMEOUT_S: Final = 60.0
_TRACES_CHUNK: Final = 16  # jobs' answers carry traces, which may be megabytes each
_STATUS: Final[dict[type[EnergyError], int]] = {
    UsageError: 400,
    ForbiddenError: 403,
    NotFoundError: 404,
    UnavailableError: 503,
}

log = logging.getLogger("senergyctld")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KnownHandler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]


class Server:
    """Answers requests from the store and the configuration in force.

    `config` and `access` are replaced as a whole on reload. `state` adds to the status page.
    """

    def __init__(
        self,
        config: Config,
        access: Access,
        store: Store,
        recurring: Recurring,
        state: Callable[[], dict[str, Any]],
        memory: Memory | None = None,
        priority: PriorityLoop | None = None,
    ) -> None:
        self.config = config
        self.access = access
        self._store = store
        self._recurring = recurring
        self._state = state
        self._memory = memory
        self._priority = priority
        self._started = time.time()
        self._spooled: dict[str, int] = {}

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_explain(self._recurring)])
        application.router.add_post("/v1/records", self._known(self._post_records))
        application.router.add_post("/v1/predict", self._known(self._post_predict))
        application.router.add_get("/v1/records", self._known(self._get_records), allow_head=False)
        application.router.add_get("/v1/jobs/{id}", self._known(self._get_job), allow_head=False)
        application.router.add_get("/v1/policies", self._known(self._get_policies), allow_head=False)
        application.router.add_get("/v1/priority", self._known(self._get_priority), allow_head=False)
        application.router.add_get("/v1/shares", self._known(self._get_shares), allow_head=False)
        application.router.add_get("/v1/status", self._known(self._get_status), allow_head=False)
        return application

    def _known(self, handler: KnownHandler) -> Handler:
        """Let a handler see only requests with a good credential; the body is not read before that."""

        async def known(request: web.Request) -> web.StreamResponse:
            return await handler(request, await self._identify(request))

        return known

    async def _identify(self, request: web.Request) -> Caller:
        header = request.headers.get("Authorization", "")
        socket = self.config.cluster.munge_socket
        try:
            return await asyncio.to_thread(identify, header, request.method, request.raw_path, socket)
        except ForbiddenError as error:
            raise _CredentialError(error) from None

    async def _post_records(self, request: web.Request, caller: Caller) -> web.Response:
        if caller.uid not in self.access.agents:
            raise ForbiddenError(
                f"uid {caller.uid} may not deliver records",
                todo="add the agents' user to controller.agent_users",
            )
        body = await _body(request)
        caller.check_body(body)
        accepted, rejections, spooled = await self._store.write(_take, body)
        self._recurring.works("request")
        self._spooled |= spooled
        for rejection in rejections:
            kept = " (kept without its trace)" if rejection.kept else ""
            self._recurring.failed(f"record from {request.remote}", rejection.error + kept)
        answer = {"accepted": accepted, "rejected": [_rejected(r) for r in rejections if not r.kept]}
        return web.json_response(answer)

    async def _post_predict(self, request: web.Request, caller: Caller) -> web.Response:
        body = await _body(request)
        caller.check_body(body)
        operator = caller.uid in self.access.operators
        user = await asyncio.to_thread(name_of, caller.uid)
        questions = read_questions(_json(body), user, operator=operator)
        if self._memory is None:
            raise UnavailableError("history", "it is not kept here")
        answers = await self._memory.answers(questions, not operator)
        return web.json_response({"scope": "all" if operator else "own", "answers": answers})

    async def _get_records(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        selection = self._scoped(caller, Selection.from_query(_query(request)))
        selection = await asyncio.to_thread(_with_uids, selection)
        ids = await self._store.read(_find, selection)
        if selection.users and not selection.jobs:
            await self._store.read(queries.refuse_unknown_users, selection)
        scope = "all" if selection.own_uid is None else "own"
        return await self._stream(request, ids, f'{{"scope":"{scope}","records":[', queries.CHUNK, False)

    async def _get_job(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        job = JobSelector.parse(request.match_info["id"])
        duplicates = Selection.from_query(dict(request.query)).duplicates
        wanted = Selection(jobs=(job,), steps=True, duplicates=duplicates)
        ids = await self._store.read(_find, self._scoped(caller, wanted))
        if not len(ids):
            raise NotFoundError(f"job {job.text}", "no energy record", _why_not_found(job))
        made = await self._store.read(decisions.of_records, ids)
        if caller.uid not in self.access.operators:
            made = decisions.for_owners(made)
        head = f'{{"decisions":{json.dumps(made)},"records":['
        return await self._stream(request, ids, head, _TRACES_CHUNK, True)

    async def _get_priority(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        query, operator = _query(request), caller.uid in self.access.operators
        ask = functools.partial(prioritypages.jobs, self._ranking(), query, caller.uid, operator=operator)
        pieces = await asyncio.to_thread(ask)
        response = _json_stream()
        await response.prepare(request)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await _send(response, piece)
        await response.write_eof()
        return response

    async def _get_shares(self, request: web.Request, caller: Caller) -> web.Response:
        operator = caller.uid in self.access.operators
        return web.json_response(
            await asyncio.to_thread(prioritypages.shares, self._ranking(), caller.uid, operator=operator)
        )

    def _ranking(self) -> PriorityLoop:
        if self._priority is None:
            raise UnavailableError("priority", "the queue is not ranked here")
        return self._priority

    async def _get_policies(self, _: web.Request, __: Caller) -> web.Response:
        return web.json_response(policies_answer(self.config))

    async def _get_status(self, _: web.Request, __: Caller) -> web.Response:
        figures = await self._store.read(queries.figures)
        for node in figures["nodes"]:
            node["spooled"] = self._spooled.get(node["node"])
        now = time.time()
        return web.json_response(
            {
                "version": __version__,
                "cluster": self.config.cluster.name,
                "started": self._started,
                "uptime_s": now - self._started,
                "database": str(self._store.path),
                **figures,
                **self._state(),
            }
        )

    def _scoped(self, caller: Caller, selection: Selection) -> Selection:
        """Limit a selection to what the caller may see.

        Raises:
            ForbiddenError: it names other users.
        """
        if caller.uid in self.access.operators:
            return selection
        own = [name for name in selection.users if uid_of(name) == caller.uid]
        others = [name for name in selection.users if name not in own]
        others += [str(uid) for uid in selection.uids if uid != caller.uid]
        if others:
            raise ForbiddenError(
                f"jobs of user {others[0]}", "you may read your own", "ask an operator (controller.operators)"
            )
        return dataclasses.replace(selection, users=(), uids=(), own_uid=caller.uid)

    async def _stream(
        self, request: web.Request, ids: Sequence[int], head: str, chunk: int, with_traces: bool
    ) -> web.StreamResponse:
        """Send records piece by piece; the first is read before the status is sent."""
        response = _json_stream()
        separator = ""
        text = head
        for first in range(0, max(len(ids), 1), chunk):
            records = await self._chunk(ids[first : first + chunk], with_traces, response)
            text += "".join(f"{separator if i == 0 else ','}\n{r}" for i, r in enumerate(records))
            separator = "," if records or separator else ""
            if not response.prepared:
                await response.prepare(request)
            await _send(response, text)
            text = ""
        await _send(response, "\n]}\n")
        await response.write_eof()
        return response

    async def _chunk(self, ids: Sequence[int], with_traces: bool, response: web.StreamResponse) -> list[str]:
        try:
            return await self._store.read(queries.records_json, ids, with_traces=with_traces)
        except UnavailableError as error:
            if not response.prepared:
                raise
            # Too late for another status: breaking off tells the client that the answer is not whole.
            self._recurring.failed("request", str(error))
            raise ConnectionResetError("answer broken off") from None


class _CredentialError(Exception):
    def __init__(self, cause: ForbiddenError) -> None:
        self.cause = cause


def _explain(recurring: Recurring) -> Middleware:
    """Return a middleware that turns every error into one line of JSON with a status and an exit code."""

    @web.middleware
    async def explain(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except _CredentialError as error:
            return _error(401, error.cause)
        except EnergyError as error:
            if isinstance(error, UnavailableError):
                recurring.failed("request", str(error))
            return _error(_STATUS.get(type(error), 500), error)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, UsageError("body", f"larger than {MAX_BODY_BYTES} bytes"))
        except web.HTTPException as error:
            cause = NotFoundError(f"{request.method} {shown(request.path, 80)}", error.reason.lower())
            return _error(error.status, cause)
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, shown(request.path, 200))
            return _error(500, EnergyError("internal error", todo="see senergyctld's log"))

    return explain


def _query(request: web.Request) -> dict[str, str]:
    query = dict(request.query)
    if len(query) != len(request.query):
        raise UsageError("a parameter is given twice", todo="write values as a comma list")
    return query


def _json_stream() -> web.StreamResponse:
    return web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise UsageError("body", f"not complete within {BODY_TIMEOUT_S:g} s") from None


def _take(
    connection: sqlite3.Connection, body: bytes
) -> tuple[list[str], list[ingest.Rejection], dict[str, int]]:
    """Read and store a delivery; runs in the writing thread, so that large bodies do not stop the loop."""
    data = _json(body)
    items, rejections = ingest.read_items(data.get("items"))
    spooled = {}
    node, count = data.get("node"), data.get("spooled")
    if isinstance(node, str) and isinstance(count, int) and 0 <= count < 1 << 53:
        spooled[node] = count
    return ingest.store(connection, items, time.time()), rejections, spooled


def _json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError("body is not JSON", str(error)[:120]) from None
    if not isinstance(data, dict):
        raise UsageError("body is not a JSON object")
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _find(connection: sqlite3.Connection, selection: Selection) -> Sequence[int]:
    queries.refuse_jobs_of_others(connection, selection)
    return queries.find(connection, selection)


def _why_not_found(job: JobSelector) -> str:
    if job.task is not None or job.offset is not None:
        return "records arrive when a job ends, and get such ids a little later"
    return "records arrive when a job ends"


def _rejected(rejection: ingest.Rejection) -> dict[str, Any]:
    return {"index": rejection.index, "record_id": rejection.record_id, "error": rejection.error}


def _with_uids(selection: Selection) -> Selection:
    """Look names up, which may ask a directory service; those it does not know are sought in the records."""
    known = {name: uid for name in selection.users if (uid := uid_of(name)) is not None}
    unknown = tuple(name for name in selection.users if name not in known)
    return dataclasses.replace(selection, users=unknown, uids=(*selection.uids, *known.values()))


async def _send(response: web.StreamResponse, text: str) -> None:
    # A reader that stops reading must not keep the answer in memory for ever.
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await response.write(text.encode())
    except TimeoutError:
        raise ConnectionResetError("reader too slow") from None


def _error(status: int, error: EnergyError) -> web.Response:
    code = error.exit_code if error.exit_code is not None else EXIT_FAILURE
    return web.json_response({"error": str(error), "code": code}, status=status)
