"""HTTP requests to providers of carbon intensities and prices.

The size of a response and the time are limited. TLS certificates are verified.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from slurm_energy.errors import UnavailableError
from slurm_energy.grid.providers.base import FetchRequest
from slurm_energy.quantities import shown

MAX_BODY_BYTES: Final = 16 << 20
TIMEOUT_S: Final = 30.0
_REJECTED: Final = (401, 403)
_TOO_MANY: Final = 429
_MAX_RETRY_AFTER_S: Final = 86_400.0


class FetchError(UnavailableError):
    """A provider did not give a usable response.

    Args:
        what: provider and zone of the request.
        why: cause of the failure; the text must not contain the token.
        todo: remedy for the user; empty if no remedy is known.
        retry_after_s: seconds that the provider asks to wait; None means that the provider does not state a
            time.
        rejected: whether the provider rejected the token.
    """

    def __init__(
        self,
        what: str,
        why: str,
        todo: str = "",
        *,
        retry_after_s: float | None = None,
        rejected: bool = False,
    ) -> None:
        super().__init__(what, why, todo)
        self.retry_after_s = retry_after_s
        self.rejected = rejected


async def fetch_body(request: FetchRequest, subject: str, secret: str = "") -> bytes:
    """Return the body of a successful response, at most `MAX_BODY_BYTES` long.

    Redirects are refused, because the token would go to another server. Requests with https use the proxy
    that the environment variable https_proxy names.

    Args:
        request: request to send.
        subject: provider and zone, for errors.
        secret: token or password, which is removed from error texts.

    Raises:
        FetchError: the server does not answer, answers with a status other than 200, or sends too many bytes.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _fetch(request, subject)
    except TimeoutError:
        raise FetchError(subject, f"no whole response within {TIMEOUT_S:g} s") from None
    except aiohttp.ClientConnectorCertificateError:
        raise FetchError(subject, "the certificate of the server is not valid") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = type(error).__name__ if isinstance(error, aiohttp.InvalidURL) else str(error)
        if secret:
            why = why.replace(secret, "***")
        raise FetchError(subject, shown(why, 160) or type(error).__name__) from None


async def _fetch(request: FetchRequest, subject: str) -> bytes:
    headers = {"Accept-Encoding": "identity", **request.headers}
    async with (
        aiohttp.ClientSession(
            auto_decompress=False,
            trust_env=request.url.startswith("https:"),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session,
        session.get(request.url, allow_redirects=False, headers=headers) as response,
    ):
        if response.status != 200:
            raise _status_error(response, subject)
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise FetchError(subject, f"the response is longer than {MAX_BODY_BYTES} bytes")
        return bytes(body)


def _status_error(response: aiohttp.ClientResponse, subject: str) -> FetchError:
    status = response.status
    if status in _REJECTED:
        todo = "check the token, and whether it permits this zone"
        return FetchError(subject, f"HTTP status {status}", todo, rejected=True)
    if 300 <= status < 400:
        return FetchError(subject, f"HTTP status {status}: redirects are refused", "check the key url")
    retry_after_s = _retry_after_s(response.headers.get("Retry-After", ""))
    return FetchError(
        subject,
        f"HTTP status {status}" + (": too many requests" if status == _TOO_MANY else ""),
        retry_after_s=retry_after_s,
    )


def _retry_after_s(text: str) -> float | None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), _MAX_RETRY_AFTER_S)
