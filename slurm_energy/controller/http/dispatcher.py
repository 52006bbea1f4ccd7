"""Processing of an HTTP request to senergyctld before and after its handler.

Before the handler runs, the module checks the credential, the rate limit and the body. Afterwards it
sends the signed response. The module contains no routes and no SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import select
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from slurm_energy.accounting.controller_lease import LostLeaseError
from slurm_energy.config import Config
from slurm_energy.controller.http.authorization import PrivilegedUsers, Rights
from slurm_energy.controller.http.connection_admission import ConnectionAdmission
from slurm_energy.controller.http.identity import Caller, identify
from slurm_energy.controller.http.request_limiter import RETRY_AFTER_S, BusyError, ByteBudget, RequestLimiter
from slurm_energy.controller.http.responses import Pieces, SignedResponder, unsigned_error
from slurm_energy.controller.records.deliveries import SMALL_BODY_BYTES
from slurm_energy.controller.standby.passive_error import PassiveControllerError
from slurm_energy.errors import EnergyError, ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.quantities import shown

_DELIVERIES_BYTES: Final = 96 << 20  # bound on all deliveries in memory
DELIVERY_TIMEOUT_S: Final = 30.0
BODY_TIMEOUT_S: Final = 10.0
BUSY_DELAY_S: Final = 2.0
RIGHTS_TIMEOUT_S: Final = 5.0
"""Time for which a request waits for the directory service, shorter than the client's time limit."""
_DECODERS: Final = 4  # few, because munged serves Slurm too
_SIGNERS: Final = 2
_RIGHTS_THREADS: Final = 8
"""Threads of their own, so that a slow directory service blocks only requests that need it."""
_HTTP_STATUS: Final[dict[type[EnergyError], int]] = {
    UsageError: 400,
    ForbiddenError: 403,
    NotFoundError: 404,
    UnavailableError: 503,
    PassiveControllerError: 503,
    LostLeaseError: 503,
}

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ResponseContent = dict[str, Any] | Pieces
CallerHandler = Callable[[web.Request, Caller, bytes], Awaitable[ResponseContent]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the HTTP interface.

    Attributes:
        handler: returns the content of the response: an object, or an object's JSON text in pieces, without
            the closing brace at its end.
        limiter: limits the concurrent requests of this route.
        max_body_bytes: maximum length of the request body.
        for_agents: whether only agents may use the route.
    """

    handler: CallerHandler
    limiter: RequestLimiter
    max_body_bytes: int = 0
    for_agents: bool = False


class RequestDispatcher:
    """Dispatcher that passes each request with a valid credential to the handler of its route.

    Args:
        current: returns the current configuration and the privileged users.
        rights: takes a uid and returns the rights of this user; may block.
        failures: log of failures; a repeated failure is logged once.
        admission: the connections; it is notified of identified users and refusals.
        permit: raises an error while this process must not answer because another controller is active.

    Attributes:
        errors: log of unexpected errors. A repeated error is logged once, so that no user can fill the log.
    """

    def __init__(
        self,
        current: Callable[[], tuple[Config, PrivilegedUsers]],
        rights: Callable[[int], Rights],
        failures: RepeatedFailureLog,
        admission: ConnectionAdmission,
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        self._permit = permit
        self._current = current
        self._rights = rights
        self._failures = failures
        self.errors = UnexpectedErrorLog(log)
        self._admission = admission
        self._decoders = ThreadPoolExecutor(_DECODERS, "munge-decode")
        self._decoding = asyncio.Semaphore(_DECODERS)
        self._signers = ThreadPoolExecutor(_SIGNERS, "munge-encode")
        self._deliveries = ByteBudget(_DELIVERIES_BYTES)
        self._serving_tasks: set[asyncio.Task[web.StreamResponse]] = set()
        self._rights_threads = ThreadPoolExecutor(_RIGHTS_THREADS, "rights")
        self._rights_lookups: dict[int, asyncio.Task[Rights]] = {}

    def handler(self, route: Route) -> Handler:
        """Return an aiohttp handler for a route. The handler verifies the credential, then reads the body."""

        async def with_credential(request: web.Request) -> web.StreamResponse:
            try:
                caller = await self._identify(request)
            except ConnectionError as error:
                return _aborted_response(request, error)
            self._admission.mark_identified(request.protocol)
            # A started request is completed even if the client leaves: the user's turn ends with the work.
            task = asyncio.create_task(self._serve(route, request, caller))
            self._serving_tasks.add(task)
            task.add_done_callback(self._finish_task)
            try:
                return await asyncio.shield(task)
            except ConnectionError as error:
                return _aborted_response(request, error)

        return with_credential

    def _finish_task(self, task: asyncio.Task[web.StreamResponse]) -> None:
        self._serving_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here; a connected client has received it

    async def _identify(self, request: web.Request) -> Caller:
        header = request.headers.get("Authorization", "")
        socket = self._current()[0].cluster.munge_socket
        call = functools.partial(identify, header, request.method, request.raw_path, socket)
        try:
            async with self._decoding:
                if not _client_connected(request):  # saves munged the work
                    raise ConnectionResetError("the client has disconnected")
                return await asyncio.get_running_loop().run_in_executor(self._decoders, call)
        except EnergyError:
            self._admission.mark_refused(request.protocol)
            raise

    async def _rights_of(self, uid: int) -> Rights:
        """Return the rights of a user. Simultaneous requests of one user share one lookup thread.

        Raises:
            UnavailableError: the directory service does not answer in time.
        """
        lookup = self._rights_lookups.get(uid)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up_rights(uid))
            self._rights_lookups[uid] = lookup
            lookup.add_done_callback(functools.partial(self._finish_lookup, uid))
        try:
            async with asyncio.timeout(RIGHTS_TIMEOUT_S):
                return await asyncio.shield(lookup)
        except TimeoutError:
            raise _late_rights(uid) from None

    async def _look_up_rights(self, uid: int) -> Rights:
        """Look up the rights of a user in a thread. The lookup is dropped if no thread is free in time.

        A running lookup cannot be stopped. It continues, so that the user occupies one thread only.
        """
        call = self._rights_threads.submit(self._rights, uid)
        result = asyncio.wrap_future(call)
        await asyncio.wait([result], timeout=RIGHTS_TIMEOUT_S)
        if call.cancel():
            raise _late_rights(uid)
        return await result

    def _finish_lookup(self, uid: int, lookup: asyncio.Task[Rights]) -> None:
        self._rights_lookups.pop(uid, None)
        if not lookup.cancelled():
            lookup.exception()  # retrieved here; the requests that waited for it have received it

    async def _serve(self, route: Route, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Answer a request of an identified user. Sign every response except "server busy"."""
        munge_socket = self._current()[0].cluster.munge_socket
        responder = SignedResponder(request, caller.credential, munge_socket, self._signers)
        try:
            self._permit()
            if not (route.for_agents and caller.uid in self._current()[1].agents):  # agents need no rights
                caller = dataclasses.replace(caller, rights=await self._rights_of(caller.uid))
            return await self._serve_in_turn(route, request, caller, responder)
        except BusyError as error:
            await asyncio.sleep(BUSY_DELAY_S)  # slows clients that retry at once
            return unsigned_error(503, error, {"Retry-After": str(RETRY_AFTER_S)})
        except EnergyError as error:
            if isinstance(error, UnavailableError) and not isinstance(error, PassiveControllerError):
                self._failures.report("request", str(error))
            return await responder.error(_HTTP_STATUS.get(type(error), 500), error)
        except web.HTTPRequestEntityTooLarge:
            too_large = UsageError("body", f"larger than {route.max_body_bytes} bytes")
            return await responder.error(413, too_large)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            return await responder.error(500, _unexpected_error(self.errors, request, error))

    async def _serve_in_turn(
        self, route: Route, request: web.Request, caller: Caller, responder: SignedResponder
    ) -> web.StreamResponse:
        _, access = self._current()
        agent = caller.uid in access.agents
        if route.for_agents and not agent:
            raise ForbiddenError(
                f"uid {caller.uid} may not deliver records or ask as an agent",
                todo="add the agents' user to controller.agent_users",
            )
        length = request.content_length or 0
        if length > route.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(route.max_body_bytes, length)
        trusted = agent or caller.rights.everything
        budget = self._deliveries.reserve(length) if route.for_agents else contextlib.nullcontext()
        async with route.limiter.user_slot(caller.uid, trusted=trusted), budget:
            if not _client_connected(request):  # it gave up while it waited, and sends the request again
                raise ConnectionResetError("the client has disconnected")
            timeout_s = DELIVERY_TIMEOUT_S if route.for_agents else BODY_TIMEOUT_S
            body = await _body(request, timeout_s) if length else b""
            if len(body) > SMALL_BODY_BYTES:
                await asyncio.to_thread(caller.check_body, body)
            else:
                caller.check_body(body)
            async with route.limiter.shared_slot(trusted=trusted):
                if request.transport is None:
                    raise ConnectionResetError("the client has disconnected")
                answer = await route.handler(request, caller, body)
                response: web.StreamResponse
                if isinstance(answer, dict):
                    response = await responder.send_object(200, answer)
                else:
                    response = await responder.stream(answer)
            await responder.finish(response)  # an unread response keeps its user's turn
            return response


def _late_rights(uid: int) -> UnavailableError:
    why = f"no answer about uid {uid} within {RIGHTS_TIMEOUT_S:g} s"
    return UnavailableError("directory service of the controller's host", why, "try again later")


def _client_connected(request: web.Request) -> bool:
    """Return whether the client still has its end of the connection open.

    The event loop notices a closed connection only when it reads from the connection, and the event loop does
    not read during a request. This function asks the kernel instead. The server thus does no work for a
    disconnected client.
    """
    transport = request.transport
    if transport is None or transport.is_closing():
        return False
    connected = transport.get_extra_info("socket")
    if connected is None:
        return True
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLRDHUP)
    return not poll.poll(0)


def _aborted_response(request: web.Request, error: ConnectionError) -> web.Response:
    log.debug("%s %s aborted: %s", request.method, shown(request.path, 200), error)
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # never sent: the connection is closed


def explain_errors(errors: UnexpectedErrorLog) -> Middleware:
    """Return a middleware that converts errors to one line of unsigned JSON.

    The middleware converts errors that occur before the user is identified.

    Args:
        errors: log of unexpected errors.
    """

    @web.middleware
    async def explain(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ForbiddenError as error:
            return unsigned_error(401, error)
        except EnergyError as error:
            return unsigned_error(_HTTP_STATUS.get(type(error), 500), error)
        except web.HTTPException as error:
            cause = NotFoundError(f"{request.method} {shown(request.path, 80)}", error.reason.lower())
            return unsigned_error(error.status, cause)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            return unsigned_error(500, _unexpected_error(errors, request, error))

    return explain


def _unexpected_error(errors: UnexpectedErrorLog, request: web.Request, error: Exception) -> EnergyError:
    """Log an unexpected error, and return the error that the client receives."""
    message = f"{request.method} {shown(request.path, 200)} failed; further ones like it are not logged"
    errors.report(error, message)
    return EnergyError("internal error", todo="see senergyctld's log")


async def one_request_per_connection(_: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after the response, even if the client asked to keep it open."""
    response.force_close()
    response.headers["Connection"] = "close"


async def _body(request: web.Request, timeout_s: float) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise UnavailableError("body", f"not complete within {timeout_s:g} s") from None
