"""The agent's unix socket: who asks, may they, what do they want. One JSON object a line, each answered.

Identity is the kernel's (SO_PEERCRED), never the message's. Values are checked here; what they do is the
engine's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import re
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_energy.agent.engine import Engine
from slurm_energy.errors import (
    EXIT_FAILURE,
    AlreadyRunningError,
    EnergyError,
    ForbiddenError,
    UnavailableError,
    UsageError,
)
from slurm_energy.quantities import shown

log = logging.getLogger(__name__)

LINE_LIMIT = 64 * 1024
_IDLE_S = 60.0
_MOST_CONNECTIONS = 128
_STEP_NAME = re.compile(r"[A-Za-z0-9_+.-]{1,32}")
_PEER = struct.Struct("3i")

Work = Callable[..., Awaitable[Any]]


class Server:
    """Answers connections.

    Args:
        engine: what does the work.
        work: runs a function of the engine in the worker thread.
        before_hooks: does what hooks left while nobody answered; called there before each begin and end.
    """

    def __init__(self, engine: Engine, work: Work, before_hooks: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._work = work
        self._before_hooks = before_hooks
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def open(self, path: Path) -> None:
        """Listen at `path`; the caller holds the lock that makes it ours.

        Raises:
            UnavailableError: the socket cannot be made there.
        """
        try:
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._accept, path, limit=LINE_LIMIT)
            path.chmod(0o666)  # everyone may ask; what they may ask is decided by their uid
        except OSError as error:
            raise UnavailableError(
                f"agent.socket {path}", error.strerror or str(error), "is the path short and writable?"
            ) from None
        self._path = path

    async def close(self) -> None:
        """Stop listening, and end connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        uid = peer_uid(connection)
        while True:
            try:
                async with asyncio.timeout(_IDLE_S):
                    line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as rest:
                line = rest.partial  # a last line without newline counts
            except asyncio.LimitOverrunError:
                await _send(writer, _refusal(UsageError("message: longer than 64 KiB")))
                return
            if not line:
                return
            await _send(writer, await self.answer(line, uid, gone=has_hung_up(connection)))
            if not line.endswith(b"\n"):
                return

    async def answer(self, line: bytes, uid: int, *, gone: bool = False) -> dict[str, Any]:
        """Return the answer to one message from a user, who may be gone already."""
        try:
            message = _message(line)
            if gone and message.get("op") == "begin":  # its hook has left it beside the socket, see missed.py
                raise UsageError("begin: nobody waits for the answer any more")
            return {"ok": True, **await self._dispatch(message, uid)}
        except EnergyError as error:
            return _refusal(error)
        except Exception:
            log.exception("message from uid %d failed", uid)
            return {"ok": False, "error": "internal error, see the agent's log", "code": EXIT_FAILURE}

    async def _dispatch(self, message: Mapping[str, Any], uid: int) -> dict[str, Any]:
        operation = message.get("op")
        engine = self._engine
        if operation == "status":
            return _object(await self._work(engine.status, _reader(uid)))
        if operation == "energy":
            return await self._energy(message, uid)
        if operation not in ("begin", "end", "step", "set"):
            raise UsageError(
                f"message: op {shown(repr(operation))} is not known",
                todo="one of begin, end, step, set, energy, status",
            )
        if not privileged(uid):
            raise ForbiddenError(f"{operation}: uid {uid} may not", todo="root only")
        if operation in ("begin", "end"):
            await self._work(self._before_hooks)
        if operation == "begin":
            return _object(await self._work(engine.begin, _environment(message)))
        if operation == "end":
            return _object(await self._work(engine.end, _environment(message)))
        if operation == "step":
            return _object(await self._work(engine.step, *_step(message)))
        return _object(await self._work(engine.set_caps, _job_id(message), _caps(message)))

    async def _energy(self, message: Mapping[str, Any], uid: int) -> dict[str, Any]:
        fresh = message.get("fresh", False)
        if not isinstance(fresh, bool):
            raise UsageError(f"message: fresh {shown(repr(fresh))} is not true or false")
        ask = functools.partial(self._engine.energy, _job_id(message), reader=_reader(uid), fresh=fresh)
        _, found = await self._work(ask)
        return _object(found)


def _reader(uid: int) -> int | None:
    """Return whose jobs a user may read: None for all."""
    return None if privileged(uid) else uid


def privileged(uid: int) -> bool:
    """Return whether a user may do everything: root, and whoever runs the agent."""
    return uid in (0, os.geteuid())


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end, as the kernel knows it."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(data)[1])


def has_hung_up(connection: socket.socket) -> bool:
    """Return whether the other end is closed; one that only sends no more still waits for answers."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


async def refuse_if_answered(path: Path) -> None:
    """Check that nobody answers at a socket.

    Raises:
        AlreadyRunningError: somebody does.
    """
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return
    writer.close()
    raise AlreadyRunningError(f"agent.socket {path}", "another senergyd answers there", "stop that one first")


async def _send(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
    async with asyncio.timeout(_IDLE_S):
        await writer.drain()


def _refusal(error: EnergyError) -> dict[str, Any]:
    return {"ok": False, "error": str(error), "code": error.exit_code}


def _message(line: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError("message: not JSON", shown(line[:40].decode("ascii", "replace"))) from None
    return _object(message)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError("message: not a JSON object")
    return value


def _environment(message: Mapping[str, Any]) -> dict[str, str]:
    env = message.get("env")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise UsageError("message: env is not an object of strings")
    return env


def _job_id(message: Mapping[str, Any]) -> int:
    job_id = message.get("job_id")
    if not isinstance(job_id, int) or isinstance(job_id, bool) or not 0 < job_id < 2**32:
        raise UsageError(f"message: job_id {shown(repr(job_id))} is not a job id")
    return job_id


def _step(message: Mapping[str, Any]) -> tuple[str, int, str]:
    event, step = message.get("event"), message.get("step")
    if event not in ("start", "end"):
        raise UsageError(f"message: event {shown(repr(event))} is not start or end")
    if not isinstance(step, str) or not _STEP_NAME.fullmatch(step):
        raise UsageError(f"message: step {shown(repr(step))} is not a step name")
    return event, _job_id(message), step


def _caps(message: Mapping[str, Any]) -> dict[str, float | None]:
    caps: dict[str, float | None] = {}
    for name in ("cap_watts", "gpu_cap_watts"):
        if name not in message:
            continue
        value = message[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value) and 0 < value <= 1e7):
            raise UsageError(f"message: {name} {shown(repr(value))} is not a power in watts")
        caps[name] = None if value is None else float(value)
    return caps
