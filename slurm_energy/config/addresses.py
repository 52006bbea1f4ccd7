"""Parsers of the addresses in the configuration: HOST:PORT, and the URLs of senergyctld. Pure functions."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

DEFAULT_PORT = 6828
MAX_CONTROLLERS = 4
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9.])?")


class ControllerUrls(tuple[str, ...]):
    """URLs of the controllers of a cluster, in the order in which clients try them."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(self)


def parse_listen(text: str) -> tuple[str, int]:
    """Return the host and the port in a text of the form HOST:PORT.

    Port 0 means any free port. An IPv6 address is written in brackets in the text, and returned without
    brackets.

    Raises:
        ValueError: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    valid = _is_ipv6(host) if bracketed else bool(_HOST.fullmatch(host))
    if not (colon and valid and port.isascii() and port.isdecimal() and len(port) <= 5):
        raise ValueError("must be HOST:PORT such as 127.0.0.1:6828")
    if int(port) > 65535:
        raise ValueError("must have a port from 1 to 65535")
    return host, int(port)


def parse_url(text: str) -> tuple[str, int]:
    """Return the host and the port in the URL `http://HOST[:PORT]`; the default port is `DEFAULT_PORT`.

    Raises:
        ValueError: the URL has another form.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    extra = parts.username or parts.password or parts.query or parts.fragment
    valid = host is not None and (bool(_HOST.fullmatch(host)) or _is_ipv6(host))
    if host is None or not valid or parts.scheme != "http" or parts.path not in ("", "/") or extra:
        raise ValueError("must be http://HOST:PORT")
    if port == 0:
        raise ValueError("must have a port from 1 to 65535")
    return host, port or DEFAULT_PORT


def url_faults(urls: ControllerUrls) -> str | None:
    """Check the URLs of the controllers of a cluster: return None, or the fault."""
    if not 1 <= len(urls) <= MAX_CONTROLLERS:
        return f"must be one URL, or a list of at most {MAX_CONTROLLERS}"
    try:
        addresses = [parse_url(url) for url in urls]
    except ValueError as error:
        return str(error)
    return None if len(set(addresses)) == len(addresses) else "must not name a controller twice"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address refers to the loopback interface of the machine that uses it."""
    if host.lower().rstrip(".") in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
