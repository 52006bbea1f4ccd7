"""Server of the agent's sockets: receives messages, checks the sender's permission and sends responses.

A message is one JSON object per line. The kernel reports the sender's uid (SO_PEERCRED); the uid is never
taken from the message. The module `messages` checks the form of messages, `connections` limits connections,
and the job manager executes the operations.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.sockets import messages, responses
from slurm_energy.agent.sockets.connections import (
    LINE_LIMIT,
    ConnectionPool,
    Listener,
    peer_uid,
    privileged,
    refusal,
)
from slurm_energy.errors import (
    EXIT_FAILURE,
    AlreadyRunningError,
    EnergyError,
    ForbiddenError,
    UnavailableError,
    UsageError,
)
from slurm_energy.log_once import UnexpectedErrorLog
from slurm_energy.protocol.agent_socket import root_socket_path

__all__ = ["LINE_LIMIT", "AgentServer", "peer_uid", "privileged", "refuse_if_served"]

log = logging.getLogger(__name__)

_ACCT_GATHER = "acct_gather_energy"
_OPERATIONS = (
    "begin",
    "end",
    "step",
    "set",
    "energy",
    "observation",
    _ACCT_GATHER,
    "progress",
    "adjusted",
    "status",
    "spool",
    "resend",
)

Work = Callable[..., Awaitable[Any]]
HungUp = Callable[[], bool]


class AgentServer:
    """Server of the agent's sockets, which receives the messages of hooks and users.

    Args:
        jobs: executes the operations.
        work: function that runs a method of the job manager in the worker thread.
        replay: function that processes stored hook messages that could not be delivered earlier. The server
            calls it in the worker thread before each begin and end of a job, and before it handles a Slurm
            step of an unknown job.
    """

    def __init__(self, jobs: JobManager, work: Work, replay: Callable[[], None] | None = None) -> None:
        self._jobs = jobs
        self._work = work
        self._replay = replay
        self._users = asyncio.Lock()
        self._connections = ConnectionPool(self.respond)
        self._listeners: list[Listener] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._errors = UnexpectedErrorLog(log)

    async def open(self, path: Path) -> None:
        """Listen at the socket `path` and at the socket for root beside it.

        The caller must hold the lock of these sockets.

        Raises:
            UnavailableError: the sockets cannot be created there.
        """
        try:
            # Everyone may connect; the uid decides which operations are allowed.
            for socket_path, mode in ((path, 0o666), (root_socket_path(path), 0o600)):
                self._listeners.append(Listener(socket_path, mode, self._connections.admit))
        except OSError as error:
            raise UnavailableError(
                f"agent.socket {path}", error.strerror or str(error), "is the path short and writable?"
            ) from None
        self._sweeping = asyncio.create_task(self._connections.sweep())

    async def close(self) -> None:
        """Stop listening and close all connections."""
        for listener in self._listeners:
            listener.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        await self._connections.close()

    async def respond(
        self, line: bytes, uid: int, has_hung_up: HungUp = lambda: False, pid: int = 0
    ) -> dict[str, Any]:
        """Return the response to one message.

        Args:
            line: the message.
            uid: uid of the sender.
            has_hung_up: returns whether the sender has disconnected. It is called in the worker thread.
            pid: process id of the sender; 0 if unknown.
        """
        response = await self._respond(line, uid, has_hung_up, pid)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("uid %d: %.120r: %s", uid, line, "ok" if response["ok"] else repr(response["error"]))
        return response

    async def _respond(self, line: bytes, uid: int, has_hung_up: HungUp, pid: int) -> dict[str, Any]:
        try:
            if privileged(uid):
                message = messages.parse(line)
                return {"ok": True, **await self._dispatch(message, uid, has_hung_up, pid)}
            # One request of all users at a time waits for the worker thread, so that root's request
            # never waits for more than that one. The others wait as text, because a parsed message can
            # take many times the memory.
            async with self._users:
                message = messages.parse(line, messages.MAX_USER_BRACKETS)
                return {"ok": True, **await self._dispatch(message, uid, has_hung_up, pid)}
        except EnergyError as error:
            return refusal(error)
        except Exception as error:
            summary = f"message from uid {uid} failed; further ones like it are not logged"
            self._errors.report(error, summary)
            return {"ok": False, "error": "internal error, see the agent's log", "code": EXIT_FAILURE}

    async def _dispatch(
        self, message: Mapping[str, Any], uid: int, has_hung_up: HungUp, pid: int
    ) -> dict[str, Any]:
        operation = messages.operation(message, _OPERATIONS)
        jobs = self._jobs
        if operation == "status":
            return dict(await self._work(jobs.status, _reader(uid)))
        if operation == "energy":
            return await self._energy(message, uid)
        if operation == "observation":
            job_id = messages.job_id(message)
            return dict(await self._work(jobs.queries.observation, job_id, _reader(uid)))
        if operation == "progress":
            report = messages.progress(message)
            return dict(await self._work(jobs.progress.receive, report, _reader(uid), pid))
        if operation == "adjusted":
            job_id, name = messages.job_id(message), message.get("name")
            return dict(await self._work(jobs.queries.adjusted.ask, job_id, name, _reader(uid)))
        if not privileged(uid):
            raise ForbiddenError(f"{operation}: uid {uid} may not", todo="root only")
        if operation == _ACCT_GATHER:
            return dict(await self._work(jobs.acct_gather.answer, pid, jobs.acct_gather.now()))
        if operation in ("begin", "end"):
            hook = (jobs.begin if operation == "begin" else jobs.end), messages.environment(message)
            return dict(await self._work(self._run_hook, *hook, jobs.acct_gather.now(), has_hung_up))
        if operation == "step":
            return await self._step(message, jobs.acct_gather.now())
        if operation == "spool":
            return dict(await self._work(responses.spool_response, jobs.spool, jobs.period_spool))
        if operation == "resend":
            ids = messages.record_ids(message)
            response = await self._work(responses.resend_response, jobs.spool, ids, jobs.period_spool)
            jobs.notify_written()
            return dict(response)
        return dict(await self._work(jobs.set_caps, messages.job_id(message), messages.caps(message)))

    def _run_hook(
        self,
        run: Callable[..., dict[str, Any]],
        environment: Mapping[str, str],
        received_s: float,
        has_hung_up: HungUp,
    ) -> dict[str, Any]:
        """Process the message about the start or end of a job.

        Deferred messages are processed first. Call this method in the worker thread.

        Raises:
            UsageError: the hook has disconnected. A hook disconnects before it defers its message, so that
                the message has been processed already or will be processed as a deferred one.
        """
        if self._replay is not None:
            self._replay()
        if has_hung_up():
            raise UsageError("the hook no longer waits for the response")
        return run(environment, received_s=received_s)

    async def _step(self, message: Mapping[str, Any], received_s: float) -> dict[str, Any]:
        """Process the message about the start or end of a Slurm step.

        If the job of the step is unknown, the message about the start of the job may have been deferred
        (stored as a file) just before. In this case, deferred messages are processed and the step is tried
        once more.
        """
        run = functools.partial(self._jobs.step, *messages.step(message), received_s=received_s)
        response = dict(await self._work(run))
        if response.get("known") is False:
            if self._replay is not None:
                await self._work(self._replay)
            response = dict(await self._work(run))
        return response

    async def _energy(self, message: Mapping[str, Any], uid: int) -> dict[str, Any]:
        job_id, fresh = messages.job_id(message), messages.fresh(message)
        ask = functools.partial(self._jobs.energy, job_id, reader=_reader(uid), fresh=fresh)
        _, response = await self._work(ask)
        return dict(response)


def _reader(uid: int) -> int | None:
    """Return whose jobs a user may read.

    The result is the given `uid` if the user may read only own jobs. It is None if the user may read all
    jobs.
    """
    return None if privileged(uid) else uid


async def refuse_if_served(path: Path) -> None:
    """Check that no process listens at a socket.

    Raises:
        AlreadyRunningError: another process listens there.
    """
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return
    writer.close()
    raise AlreadyRunningError(f"agent.socket {path}", "another senergyd answers there", "stop that one first")
