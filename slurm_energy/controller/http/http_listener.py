"""HTTP listener of senergyctld, the process's limit on open files, and log messages about requests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import HttpProcessingError

from slurm_energy.config.addresses import parse_listen
from slurm_energy.controller.http.connection_admission import ConnectionAdmission
from slurm_energy.controller.http.request_head import MAX_HEAD_BYTES
from slurm_energy.errors import AlreadyRunningError, UnavailableError

BACKLOG: Final = 512
MAX_OPEN_FILES: Final = 65536
LINGERING_S: Final = 2.0
SHUTDOWN_TIMEOUT_S: Final = 5.0

log = logging.getLogger(__name__)


def application_runner(application: web.Application) -> web.AppRunner:
    """Return the aiohttp runner for connections that `ConnectionAdmission` has admitted."""
    return web.AppRunner(
        application,
        access_log=log,
        access_log_class=RequestLogger,
        # `connection_admission` has already bounded the whole head.
        max_line_size=MAX_HEAD_BYTES,
        max_field_size=MAX_HEAD_BYTES,
        lingering_time=LINGERING_S,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )


async def listen(address: str, runner: web.AppRunner, admission: ConnectionAdmission) -> asyncio.Server:
    """Listen for requests. A request is served when its connection has been admitted.

    Args:
        address: HOST:PORT of `controller.listen`.
        runner: serves requests.
        admission: limits connections before their users are identified.

    Raises:
        UnavailableError: the address cannot be used.
        AlreadyRunningError: another process uses the address.
    """
    host, port = parse_listen(address)
    subject, handlers = f"controller.listen {address}", runner.server
    assert handlers is not None
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: admission.connection(handlers), host, port, backlog=BACKLOG
        )
    except socket.gaierror as error:
        raise UnavailableError(subject, error.strerror or str(error)) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AlreadyRunningError(subject, "address in use", "is another senergyctld running?") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UnavailableError(subject, reason) from None


def listening_addresses(listener: asyncio.Server) -> str:
    """Return the addresses of a listener as HOST:PORT, separated by commas."""
    names = (listening.getsockname() for listening in listener.sockets)
    return ", ".join(f"{address[0]}:{address[1]}" for address in names)


def raise_open_file_limit() -> None:
    """Raise the process's limit on open files to the number that `ConnectionAdmission` needs.

    A higher limit is left unchanged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    enough = MAX_OPEN_FILES if hard == unlimited else min(hard, MAX_OPEN_FILES)
    if soft != unlimited and soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def is_not_about_bad_requests(record: logging.LogRecord) -> bool:
    """Return False for log records with stack traces about requests that are not HTTP, e.g. port scans."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class RequestLogger(AbstractAccessLogger):
    """Writes a line to the log for each answered HTTP request, at level debug."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log method, path, status and duration in seconds.

        The path is quoted because the client chose it.
        """
        request_line = f"{request.method} {request.raw_path[:200]!r} from {request.remote}"
        self.logger.debug("%s: status %d, %.3f s", request_line, response.status, time)

    @property
    def enabled(self) -> bool:
        """Return whether the log level is debug."""
        return self.logger.isEnabledFor(logging.DEBUG)
