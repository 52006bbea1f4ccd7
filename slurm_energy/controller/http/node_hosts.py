"""Check that a node's records come from a host of that node.

The addresses of the host are looked up in Slurm and in the name service, by the node's name. Several nodes
may share a host, as in a test cluster. While Slurm does not answer, no sender is refused, except in mode
`strict`.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from slurm_energy.errors import EnergyError, ForbiddenError, NotFoundError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.node_addresses import read_node_addresses

OFF, CHECK, STRICT = "off", "check", "strict"
MAX_AGE_S: Final = 600.0
"""Age after which Slurm and the name service are queried again."""
MIN_AGE_S: Final = 30.0
"""Age after which Slurm and the name service are queried again because a sender does not match."""
WAIT_S: Final = 2.0
"""Maximum time that a delivery waits for both. A later answer counts for the next delivery."""
_SUBJECT: Final = "addresses of nodes"
_MAX_NODES: Final = 100_000


class Verdict(Enum):
    """Result of the check whether a host may deliver the records of a node.

    Attributes:
        ALLOWED: the host has an address of the node.
        REFUSED: the host has no address of the node.
        ABSENT: the node does not exist in Slurm.
        UNKNOWN: Slurm or the name service did not answer.
    """

    ALLOWED = auto()
    REFUSED = auto()
    ABSENT = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Sender:
    """Addresses from which a delivery of records came.

    Attributes:
        peer: IP address of the remote end of the connection.
        own: IP address of the local end of the connection.
        origin: IP address in the munge credential, see `munge.Credential`; None means unknown.
    """

    peer: str | None = None
    own: str | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class _Resolved:
    addresses: frozenset[str]
    time_s: float


class NodeHosts:
    """Cache of the addresses of nodes. Entries are valid for ten minutes; a background thread refreshes them.

    Args:
        run: runs sinfo.
        failures: log of failures; a repeated failure is logged once.
        resolve: returns the addresses of a host name; empty if the name service does not know the name.
    """

    def __init__(
        self, run: Runner, failures: RepeatedFailureLog, resolve: Callable[[str], Iterable[str]] | None = None
    ) -> None:
        self._run = run
        self._failures = failures
        self._resolve = resolve or resolve_host
        self._names: Mapping[str, frozenset[str]] = {}
        self._names_time_s: float | None = None
        self._resolved: dict[str, _Resolved] = {}
        self._threads = ThreadPoolExecutor(2, "node-addresses")
        self._refreshing: dict[str, asyncio.Future[None]] = {}

    async def verdicts(self, nodes: Iterable[str], sender: Sender, mode: str) -> dict[str, Verdict]:
        """Return, for each node, whether this sender may deliver the node's records.

        Args:
            nodes: names of the nodes.
            sender: sender of the records.
            mode: value of the configuration key `controller.record_hosts`.
        """
        names = set(nodes)
        if mode == OFF:
            return dict.fromkeys(names, Verdict.ALLOWED)
        await self._refresh_older_than(names, MAX_AGE_S)
        verdicts = {node: self._verdict(node, sender, mode) for node in names}
        doubtful = {node for node, verdict in verdicts.items() if verdict is not Verdict.ALLOWED}
        if doubtful:  # the node's address may have changed
            await self._refresh_older_than(doubtful, MIN_AGE_S)
            verdicts |= {node: self._verdict(node, sender, mode) for node in doubtful}
        return verdicts

    def close(self) -> None:
        """Cancel outstanding lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verdict(self, node: str, sender: Sender, mode: str) -> Verdict:
        resolved = self._resolved.get(node)
        peer, own, origin = (canonical(address) for address in (sender.peer, sender.own, sender.origin))
        if self._names and node not in self._names:
            return Verdict.ABSENT
        if resolved is None or not resolved.addresses or peer is None:
            return Verdict.UNKNOWN
        addresses = resolved.addresses
        if peer in addresses or (mode != STRICT and origin in addresses and not _is_loopback(origin)):
            return Verdict.ALLOWED
        # A node on the controller's own host may be registered with one address and connect from another.
        is_local = any(_is_loopback(address) or address == own for address in addresses)
        return Verdict.ALLOWED if is_local and (_is_loopback(peer) or peer == own) else Verdict.REFUSED

    async def _refresh_older_than(self, nodes: Iterable[str], max_age_s: float) -> None:
        """Look up the hosts of nodes again if the known addresses are older than `max_age_s` seconds.

        The method waits for the results only a short time.
        """
        now = time.monotonic()
        waits = []
        if self._names_time_s is None or now - self._names_time_s > max_age_s:
            waits.append(self._refresh("", self._read_names))
        if waits:
            await asyncio.wait(waits, timeout=WAIT_S / 2)
        old = [node for node in nodes if self._is_older_than(node, now - max_age_s)]
        waits = [self._refresh(node, functools.partial(self._resolve_node, node)) for node in old]
        if waits:
            await asyncio.wait(waits, timeout=WAIT_S / 2)

    def _is_older_than(self, node: str, before_s: float) -> bool:
        resolved = self._resolved.get(node)
        return node in self._names and (resolved is None or resolved.time_s < before_s)

    def _refresh(self, key: str, call: Callable[[], None]) -> asyncio.Future[None]:
        """Start `call` in a background thread and return the future of its result.

        If a call with the same key is already running, return the future of that call.
        """
        running = self._refreshing.get(key)
        if running is None:
            running = asyncio.get_running_loop().run_in_executor(self._threads, call)
            self._refreshing[key] = running
            running.add_done_callback(lambda _: self._refreshing.pop(key, None))
        return running

    def _read_names(self) -> None:
        self._names_time_s = time.monotonic()
        try:
            self._names = read_node_addresses(self._run)
        except EnergyError as error:
            self._failures.report(_SUBJECT, f"not known, senders are not checked: {error}")
            return
        self._resolved = {node: resolved for node, resolved in self._resolved.items() if node in self._names}
        self._failures.clear(_SUBJECT)

    def _resolve_node(self, node: str) -> None:
        addresses: set[str] = set()
        for name in {node, *self._names.get(node, ())}:
            addresses.update(filter(None, map(canonical, self._resolve(name))))
        if len(self._resolved) < _MAX_NODES:
            self._resolved[node] = _Resolved(frozenset(addresses), time.monotonic())


async def check_sender(hosts: NodeHosts | None, node: str, sender: Sender, mode: str) -> None:
    """Check that an agent may speak for a node.

    Args:
        hosts: addresses of nodes; None means that any agent may speak for any node.
        node: Slurm's name of the node.
        sender: addresses of the agent's host.
        mode: value of `controller.record_hosts`.

    Raises:
        ForbiddenError: the sender does not run on the node.
        NotFoundError: Slurm does not know the node.
        UnavailableError: in mode `strict`, Slurm does not answer.
    """
    if hosts is None:
        return
    verdict = (await hosts.verdicts({node}, sender, mode))[node]
    if verdict is Verdict.REFUSED:
        raise ForbiddenError(f"node {shown(node)}", f"{sender.peer} is not an address of it")
    if verdict is Verdict.ABSENT:
        raise NotFoundError(f"node {shown(node)}", "Slurm has no such node")
    if verdict is Verdict.UNKNOWN and mode == STRICT:
        raise UnavailableError(f"node {shown(node)}", "Slurm does not tell its addresses")


def resolve_host(name: str) -> list[str]:
    """Return the IP addresses of a host name or address; empty if the name service does not know it."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def canonical(address: str | None) -> str | None:
    """Return an IP address in canonical form; None if the text is not an address.

    An IPv4 address that is mapped to IPv6 is returned as IPv4.
    """
    try:
        parsed = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(parsed)


def _is_loopback(address: str | None) -> bool:
    return address is not None and ipaddress.ip_address(address).is_loopback
