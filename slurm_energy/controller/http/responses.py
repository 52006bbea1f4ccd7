"""HTTP responses of senergyctld: JSON with a signature at the end, and unsigned errors.

The module contains no routes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import struct
import termios
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from slurm_energy import __version__
from slurm_energy.accounting.controller_lease import LostLeaseError
from slurm_energy.controller.standby.passive_error import PassiveControllerError
from slurm_energy.errors import EXIT_FAILURE, EnergyError
from slurm_energy.protocol.controller_endpoint import PASSIVE_ROLE
from slurm_energy.protocol.release_header import RELEASE_HEADER
from slurm_energy.protocol.response_proof import ResponseSeal

WRITE_TIMEOUT_S: Final = 60.0
MAX_UNREAD_BYTES: Final = 16 << 10
"""A response counts as read when the kernel holds at most this many bytes for the client."""
_POLL_S: Final = 0.01
_RELEASE: Final = {RELEASE_HEADER: __version__}
_JSON: Final = {"Content-Type": "application/json; charset=utf-8", **_RELEASE}
_LARGE: Final = 64 << 10

Pieces = AsyncIterator[str]
"""Text of a JSON object in pieces, without its last brace: the proof follows as the last key."""


class SignedResponder:
    """Sender of responses to one request, signed with munge under the uid of this process.

    Args:
        request: request to which the responses are sent.
        credential: munge credential of the request.
        munge_socket: munged's socket; None means the library's default.
        threads: executor for calls of munge.
    """

    def __init__(
        self, request: web.Request, credential: str, munge_socket: Path | None, threads: Executor
    ) -> None:
        self._request = request
        self._credential = credential
        self._munge_socket = munge_socket
        self._threads = threads

    async def send_object(self, status: int, value: Mapping[str, Any]) -> web.Response:
        """Return a response with one JSON object. `value` must have at least one key.

        Raises:
            UnavailableError: munged does not answer.
        """
        seal = ResponseSeal(self._credential, status)

        def body() -> bytes:
            text = json.dumps(value)[:-1].encode()
            seal.update(text)
            return text + seal.tail(self._munge_socket)

        content = await asyncio.get_running_loop().run_in_executor(self._threads, body)
        return web.Response(body=content, status=status, headers=_JSON)

    async def error(self, status: int, error: EnergyError) -> web.Response:
        """Return a signed error response.

        Raises:
            UnavailableError: munged does not answer.
        """
        return await self.send_object(status, error_object(error))

    async def stream(self, pieces: Pieces) -> web.StreamResponse:
        """Send a JSON object in pieces and sign it.

        `pieces` yields the text of the object without the closing brace. The first piece is computed before
        the HTTP status is sent. An error in this piece can therefore still change the status.

        Raises:
            ConnectionResetError: the client does not read, or the object can no longer be completed.
            Exception: any error of the first piece.
        """
        seal = ResponseSeal(self._credential, 200)
        piece: str | None = await anext(pieces)
        response = web.StreamResponse(headers=_JSON)
        await response.prepare(self._request)
        try:
            while piece is not None:
                await _send(response, await _encoded(piece, seal))
                piece = await anext(pieces, None)
            loop = asyncio.get_running_loop()
            await _send(response, await loop.run_in_executor(self._threads, seal.tail, self._munge_socket))
        except EnergyError as error:
            # Too late for another status: closing early shows the client that the response is incomplete.
            raise ConnectionResetError(str(error)) from None
        await response.write_eof()
        return response

    async def finish(self, response: web.StreamResponse) -> None:
        """Send the rest of a response and wait until the client has read it.

        Without this wait, the kernel would buffer megabytes for a client that does not read, and would keep
        these data after the connection is closed.

        Raises:
            ConnectionResetError: the client does not read.
        """
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await response.prepare(self._request)
                await response.write_eof()
                while _unread_bytes(self._request) > MAX_UNREAD_BYTES:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ConnectionResetError("the client does not read the response") from None


def _unread_bytes(request: web.Request) -> int:
    """Return the number of bytes of the response that the client's host has not acknowledged yet."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return 0
    connected = transport.get_extra_info("socket")
    if connected is None:
        return 0
    queued = struct.unpack("i", fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return int(queued) + transport.get_write_buffer_size()


def unsigned_error(status: int, error: EnergyError, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error response without a signature.

    Unsigned responses go to clients that are not identified. Unsigned responses are also used for errors for
    which a signature would cost too much.
    """
    return web.json_response(error_object(error), status=status, headers={**_RELEASE, **(headers or {})})


def error_object(error: EnergyError) -> dict[str, Any]:
    """Return an error as a JSON object for an HTTP response of senergyctld."""
    code = error.exit_code if error.exit_code is not None else EXIT_FAILURE
    described: dict[str, Any] = {"error": str(error), "code": code}
    if isinstance(error, PassiveControllerError | LostLeaseError):
        described["role"] = PASSIVE_ROLE
    if isinstance(error, PassiveControllerError):
        described["active"] = error.active
    return described


async def _encoded(piece: str, seal: ResponseSeal) -> bytes:
    """Return a piece of a response as bytes. Add the bytes to the digest that is signed.

    Large pieces are encoded in a thread.
    """

    def encode() -> bytes:
        content = piece.encode()
        seal.update(content)
        return content

    return await asyncio.to_thread(encode) if len(piece) > _LARGE else encode()


async def _send(response: web.StreamResponse, content: bytes) -> None:
    # A client that stops reading must not keep the response in memory for ever.
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await response.write(content)
    except TimeoutError:
        raise ConnectionResetError("the client does not read the response") from None
