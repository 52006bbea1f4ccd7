"""Checks of the addresses of senergyctld: the listening address, and the URLs that agents and the CLI use."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Final

from slurm_energy.config import Config
from slurm_energy.config.addresses import is_loopback, parse_listen, parse_url
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext, DaemonRole
from slurm_energy.validation.host import Host

_ANY_ADDRESS: Final = ("0.0.0.0", "::")


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield findings if `controller.listen` and `cluster.controller_url` do not match."""
    listen, urls = context.config.controller.listen, context.config.cluster.controller_url
    listen_host, listen_port = parse_listen(listen)
    addresses = [parse_url(url) for url in urls]
    remote = [url for url, (host, _) in zip(urls, addresses, strict=True) if not is_loopback(host)]
    if is_loopback(listen_host) and remote:
        yield context.error(
            "controller",
            "listen",
            f"'{listen}' is reachable on the controller only, but cluster.controller_url is '{urls}'",
            f"listen on an address of the cluster network, or on 0.0.0.0:{addresses[0][1]}",
        )
    if len(remote) < len(urls) and not is_loopback(listen_host):
        own = next(url for url in urls if url not in remote)
        yield context.warning(
            "cluster",
            "controller_url",
            f"'{own}' is each node's own address, but senergyctld listens on '{listen}'",
            f"write http://CONTROLLER:{listen_port or addresses[0][1]}",
        )
    yield from _check_port(context, listen_port, [port for _, port in addresses])


def check_several(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about a cluster with several controllers. The checks run on the controllers' hosts."""
    urls, location = context.config.cluster.controller_url, context.config.controller.database
    if len(urls) == 1 or not_a_controller(context):
        return
    if location.path is not None:
        yield context.error(
            "controller",
            "database",
            f"'{location}' is a SQLite file, which only one of the {len(urls)} controllers can open",
            "use a MariaDB or PostgreSQL server, see docs/high-availability.md",
        )
    elif location.host is None and not all(is_loopback(parse_url(url)[0]) for url in urls):
        why = f"'{location}' is a server on this host; the controllers must use the same one"
        yield context.warning("controller", "database", why, "name the server by its host name")
    if own_url(context.config, context.host) is None:
        yield context.warning(
            "cluster",
            "controller_url",
            f"none of '{urls}' is an address of this host with the port of controller.listen",
            "name this host in the list",
        )


def own_url(config: Config, host: Host) -> str | None:
    """Return the URL of this host in `cluster.controller_url`; None if no URL belongs to this host."""
    listen_host, listen_port = parse_listen(config.controller.listen)
    for url in config.cluster.controller_url:
        url_host, url_port = parse_url(url)
        if listen_port not in (0, url_port):
            continue
        if url_host == listen_host or host.is_called(url_host) or _is_local(url_host):
            return url
    return None


def not_a_controller(context: CheckContext) -> str:
    """Return the reason why this host is not a controller; an empty text if this host is a controller."""
    if context.role is DaemonRole.CONTROLLER:
        return ""
    hosts = [parse_url(url)[0] for url in context.config.cluster.controller_url]
    named = context.host.slurm.controllers
    if any(map(context.host.is_called, (*hosts, *named))):
        return ""
    remote = [host for host in hosts if not is_loopback(host)]
    names = remote or sorted(named)
    return f"this host is not the controller '{', '.join(names)}'" if names else ""


def _check_port(context: CheckContext, listen_port: int, url_ports: Sequence[int]) -> Iterator[Finding]:
    # Port 0 is any free port, which only the log shows.
    listen, urls = context.config.controller.listen, context.config.cluster.controller_url
    if listen_port == 0:
        yield context.warning(
            "controller", "listen", f"'{listen}' is a different port at each start", "name a port"
        )
    elif listen_port not in url_ports:
        both = context.is_set("controller", "listen") and context.is_set("cluster", "controller_url")
        finding = context.error if both else context.warning
        yield finding(
            "controller" if context.is_set("controller", "listen") else "cluster",
            "listen" if context.is_set("controller", "listen") else "controller_url",
            f"senergyctld listens on port {listen_port}, but cluster.controller_url is '{urls}'",
            "use the same port in both",
        )


def _is_local(name: str) -> bool:
    """Return whether a host name or address belongs to an interface of this host."""
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    if address[0] in _ANY_ADDRESS:
        return False
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
