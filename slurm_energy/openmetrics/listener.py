"""HTTP listener for Prometheus: `GET /metrics`, either with token and TLS, or on the loopback interface.

Until a client has sent the token, the listener limits the number of connections and the size and duration of
a request. Metrics are collected at most once per second, so that frequent requests cost little.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from slurm_energy.config.addresses import is_loopback, parse_listen
from slurm_energy.config.metrics_section import MetricsConfig
from slurm_energy.errors import AlreadyRunningError, ConfigError, EnergyError, UnavailableError
from slurm_energy.openmetrics.exposition import MetricFamily, render, require_library
from slurm_energy.trusted_files import read_trusted

PATH: Final = b"/metrics"
MAX_CONNECTIONS: Final = 32
MAX_HEAD_BYTES: Final = 8192
HEAD_TIMEOUT_S: Final = 5.0
RESPONSE_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 2.0
CACHE_S: Final = 1.0
MIN_TOKEN_BYTES: Final = 16

log = logging.getLogger(__name__)
Collect = Callable[[], Awaitable[Sequence[MetricFamily]]]


class _RefusedRequestError(Exception):
    """Error for a refused request. `args` contains the HTTP status line and the text of the response."""


class MetricsListener:
    """Listener for the metrics of one daemon.

    Args:
        address: HOST:PORT of the listener; an empty value means that metrics are not served.
        settings: section `metrics` of the configuration.
        collect: returns the current metrics.
    """

    def __init__(self, address: str, settings: MetricsConfig, collect: Collect) -> None:
        self._address, self._settings, self._collect = address, settings, collect
        self._server: asyncio.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._connections = 0
        self._token = b""
        self._lock = asyncio.Lock()
        self._families: tuple[float, Sequence[MetricFamily]] = (-CACHE_S, ())

    @property
    def port(self) -> int | None:
        """TCP port of the listener for metrics; None means that the listener is closed."""
        return self._server.sockets[0].getsockname()[1] if self._server else None

    async def open(self) -> None:
        """Listen; do nothing if the configuration names no address.

        Raises:
            ConfigError: token or certificate are missing, unsafe or unusable.
            UnavailableError: prometheus-client is missing, or the address cannot be used.
            AlreadyRunningError: another process uses the address.
        """
        if not self._address:
            return
        require_library()
        host, port = parse_listen(self._address)
        self._token, self._context = _token(self._settings), _tls_context(self._settings)
        if not is_loopback(host) and not (self._token and self._context):
            raise ConfigError(
                "metrics",
                f"{self._address} is not on the loopback interface",
                "set token_file, tls_certificate and tls_key, or listen on 127.0.0.1",
            )
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=MAX_HEAD_BYTES, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AlreadyRunningError(f"metrics {self._address}", "address in use") from None
            reason = error.strerror or str(error)
            raise UnavailableError(f"metrics {self._address}", reason) from None
        log.info("metrics at %s port %s", host, self.port)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        transport = writer.transport  # without TLS
        try:
            if self._connections > MAX_CONNECTIONS:
                return
            async with asyncio.timeout(HEAD_TIMEOUT_S + RESPONSE_TIMEOUT_S):
                await self._respond(reader, writer)
            writer.close()
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            pass  # a client that left, is slow or sends no request
        finally:
            # A connection counts until it is closed, also while a client does not read its response.
            transport.abort()
            self._connections -= 1

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            if self._context is not None:  # not before, so that the limits hold for handshakes, too
                await writer.start_tls(self._context, ssl_handshake_timeout=HEAD_TIMEOUT_S)
            head = await reader.readuntil(b"\r\n\r\n")
        writer.transport.set_write_buffer_limits(high=1, low=0)  # `drain` waits for the whole response
        extra = b""
        try:
            accept = self._check(head)
            body, content_type = render(await self._current(), accept)
            status = b"200 OK"
        except _RefusedRequestError as refusal:
            status, text = refusal.args
            body, content_type = text.encode() + b"\n", "text/plain; charset=utf-8"
            extra = b"WWW-Authenticate: Bearer\r\n" if status.startswith(b"401") else b""
        except EnergyError as error:
            status, content_type = b"503 Service Unavailable", "text/plain; charset=utf-8"
            body = f"{error}\n".encode()
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n"
            % (status, content_type.encode(), len(body), extra)
        )
        writer.write(body)
        await writer.drain()

    def _check(self, head: bytes) -> str:
        """Check the head of a request. Return the value of the Accept header.

        Raises:
            _RefusedRequestError: the request is malformed, has no valid token, or is not a GET of the
                metrics' path.
        """
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            raise _RefusedRequestError(b"400 Bad Request", "not an HTTP/1.1 request")
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers.setdefault(name.strip().lower(), value.strip())
        if self._token:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                raise _RefusedRequestError(b"401 Unauthorized", "wrong or missing bearer token")
        if words[0] != b"GET":
            raise _RefusedRequestError(b"405 Method Not Allowed", "only GET is possible")
        if words[1].partition(b"?")[0] != PATH:
            raise _RefusedRequestError(b"404 Not Found", "the metrics are at /metrics")
        return headers.get(b"accept", b"").decode("latin-1")

    async def _current(self) -> Sequence[MetricFamily]:
        """Return the metrics for Prometheus.

        If the last collection is more than `CACHE_S` seconds old, the metrics are collected again.
        """
        async with self._lock:
            made_s, families = self._families
            if time.monotonic() - made_s >= CACHE_S:
                families = await self._collect()
                self._families = time.monotonic(), families
            return families


def _token(settings: MetricsConfig) -> bytes:
    if settings.token_file is None:
        return b""
    try:
        token = read_trusted(settings.token_file, secret=True).split(b"\n")[0].strip()
    except OSError as error:
        raise ConfigError("metrics.token_file", f"{settings.token_file}: {error.strerror}") from None
    if len(token) < MIN_TOKEN_BYTES:
        raise ConfigError(
            "metrics.token_file",
            f"the token in {settings.token_file} is shorter than {MIN_TOKEN_BYTES} characters",
            "openssl rand -hex 32",
        )
    return token


def _tls_context(settings: MetricsConfig) -> ssl.SSLContext | None:
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        read_trusted(key, secret=True)  # its owner and mode are checked; OpenSSL reads it itself
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise ConfigError("metrics.tls_certificate", f"{certificate} with {key}: {reason}") from None
    return context
