"""Model of a network switch whose links have a bandwidth and a latency.

Each node has one link to the switch. A packet waits until the sender's link is free, and occupies this link
for the time that results from the packet's size and the bandwidth. The packet then occupies the receiver's
link (cut-through), and arrives after the latency. The model does not limit the length of queues, but TCP
windows limit it.
"""

from __future__ import annotations

import collections
import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from slurm_energy.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Latency and bandwidth of the network.

    Attributes:
        latency_s: seconds that a packet needs from one node to another.
        bits_per_s: bandwidth of each link in each direction; None means no limit.
    """

    latency_s: float = 0.0
    bits_per_s: float | None = None


def address(number: int) -> str:
    """Return the IPv4 address of the node with this number in the network. Numbers start at 0."""
    return f"10.98.{(number + 1) // 256}.{(number + 1) % 256}"


def parse_latency(text: str) -> float:
    """Return the seconds of a duration such as `5ms`, `200us` or `0.1s`.

    Raises:
        UsageError: the text is no duration, or the duration is longer than 10 s.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else -1.0
    if not 0 <= seconds <= 10:
        raise UsageError(f"latency '{text}'", "is invalid", "e.g. 200us or 5ms, at most 10s")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Return the bits per second of a rate such as `100mbit` or `1gbit`.

    Raises:
        UsageError: the text is no rate, or the rate is below 1 Mbit/s.
    """
    match = _RATE.fullmatch(text)
    bits = float(match[1]) * _BITS[match[2]] if match else 0.0
    if bits < 1e6:
        raise UsageError(f"bandwidth '{text}'", "is invalid", "e.g. 100mbit or 1gbit, at least 1mbit")
    return bits


@dataclass(slots=True)
class Switch:
    """The emulated network switch, which holds the packets on their way between nodes.

    Attributes:
        links: latency and bandwidth of the links.
    """

    links: LinkSpec
    _sent_s: collections.defaultdict[int, float] = field(
        default_factory=lambda: collections.defaultdict(lambda: float("-inf"))
    )
    _received_s: collections.defaultdict[int, float] = field(
        default_factory=lambda: collections.defaultdict(lambda: float("-inf"))
    )
    _queue: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _count: int = 0

    def send(self, source: int, target: int, packet: bytes, now_s: float) -> float:
        """Accept a packet.

        Args:
            source: number of the sending node.
            target: number of the receiving node.
            packet: content of the packet.
            now_s: current time in seconds.

        Returns:
            Time at which the packet arrives.
        """
        size_s = len(packet) * 8 / self.links.bits_per_s if self.links.bits_per_s else 0.0
        sent_s = self._sent_s[source] = max(now_s, self._sent_s[source]) + size_s
        received_s = self._received_s[target] = max(sent_s, self._received_s[target] + size_s)
        arrival_s = received_s + self.links.latency_s
        self._count += 1
        heapq.heappush(self._queue, (arrival_s, self._count, target, packet))
        return arrival_s

    def due(self, now_s: float) -> Iterator[tuple[int, bytes]]:
        """Remove and yield the packets that have arrived, each with its receiving node."""
        while self._queue and self._queue[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._queue)
            yield target, packet

    @property
    def next_s(self) -> float | None:
        """Time at which the next packet arrives; None if no packet is on its way."""
        return self._queue[0][0] if self._queue else None
