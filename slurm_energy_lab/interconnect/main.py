"""Process that connects the nodes of a lab: one network namespace with a TUN device per node, and a switch.

The Linux kernels of containers and small virtual machines often lack the queueing discipline netem. The
process therefore delays the packets itself. The tasks of a Slurm step run in their node's network namespace:
the SPANK plugin `lab_tasks.c` connects to the node's socket, receives the namespace, and enters it. slurmd
and batch scripts run outside this namespace. In the tasks' /etc/hosts, the names of the nodes have addresses
of the emulated network.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_energy_lab.interconnect.links import LinkSpec, Switch, address

DEVICE = "net0"
MTU = 9000
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SET_ADDRESS, _SET_MASK, _SET_MTU, _SET_FLAGS = 0x8916, 0x891C, 0x8922, 0x8914
_UP_AND_RUNNING = 0x41
_BURST = 64
_EARLY_S = 3e-5
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _NodeLink:
    """Connection of one node to the emulated network.

    Attributes:
        tun: descriptor of the node's TUN device.
        namespace: descriptor of the node's network namespace.
        listener: socket on which Slurm tasks of the node receive the namespace descriptor.
    """

    tun: int
    namespace: int
    listener: socket.socket


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def _configure(device: str, number: int | None) -> None:
    """Activate a network device of this network namespace.

    If `number` is not None, give the device the address of the node with this number.
    """
    name = device.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        if number is not None:
            for request, text in ((_SET_ADDRESS, address(number)), (_SET_MASK, "255.255.0.0")):
                own = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
                fcntl.ioctl(control, request, struct.pack("16s16s8x", name, own))
            fcntl.ioctl(control, _SET_MTU, struct.pack("16si20x", name, MTU))
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH22x", name, _UP_AND_RUNNING))


def _open_link(number: int, path: Path) -> _NodeLink:
    """Create network namespace and TUN device of a node. The process stays in its own namespace."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _check(_libc.unshare(_CLONE_NEWNET), "unshare")
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        _configure("lo", None)
        _configure(DEVICE, number)
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        _check(_libc.setns(home, _CLONE_NEWNET), "setns")
        os.close(home)
    listener = socket.socket(socket.AF_UNIX)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return _NodeLink(tun, namespace, listener)


class SwitchProcess:
    """Emulated network switch: a process that forwards packets between the nodes' TUN devices.

    Args:
        links: latency and bandwidth of the links between nodes and switch.
        sockets: path of each node's socket, by the name of the node. The file `hosts` is written into the
            same directory.
    """

    def __init__(self, links: LinkSpec, sockets: Mapping[str, Path]) -> None:
        self._switch = Switch(links)
        self._numbers = {socket.inet_aton(address(number)): number for number in range(len(sockets))}
        lines = ["127.0.0.1 localhost", *(f"{address(number)} {name}" for number, name in enumerate(sockets))]
        for path in sockets.values():
            path.with_name("hosts").write_text("\n".join(lines) + "\n")
        self._nodes = [_open_link(number, path) for number, path in enumerate(sockets.values())]

    def serve(self) -> None:
        """Forward packets until the process ends."""
        tuns = {node.tun: number for number, node in enumerate(self._nodes)}
        listeners = {node.listener.fileno(): node for node in self._nodes}
        watched = [*tuns, *listeners]
        while True:
            next_s = self._switch.next_s
            wait_s = None if next_s is None else max(0.0, next_s - time.monotonic() - _EARLY_S)
            # Unlike epoll, select waits with a resolution of microseconds.
            ready, _, _ = select.select(watched, [], [], wait_s)
            for entry in ready:
                if entry in tuns:
                    self._receive(entry, tuns[entry])
                else:
                    _hand_out(listeners[entry])
            for target, packet in self._switch.due(time.monotonic() + _EARLY_S):
                self._deliver(target, packet)

    def _receive(self, tun: int, source: int) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(tun, MTU + 64)
            except BlockingIOError:
                return
            # The target address of an IPv4 packet; packets to other targets are lost.
            target = self._numbers.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is not None:
                self._switch.send(source, target, packet, time.monotonic())

    def _deliver(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._nodes[target].tun, packet)
        except OSError:
            return  # a full device drops packets, as a real one does


def _hand_out(node: _NodeLink) -> None:
    connection = node.listener.accept()[0]
    with connection:
        connection.settimeout(1)
        try:
            socket.send_fds(connection, [b"n"], [node.namespace])
        except OSError:
            return  # the client has ended


def main() -> int:
    """Run the emulated network switch: connect to the nodes and forward packets until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency-s", type=float, required=True)
    parser.add_argument("--bits-per-s", type=float)
    parser.add_argument("sockets", nargs="+", metavar="NODE=SOCKET", help="name and socket of each node")
    arguments = parser.parse_args()
    pairs = (entry.partition("=") for entry in arguments.sockets)
    sockets = {name: Path(path) for name, _, path in pairs}
    process = SwitchProcess(LinkSpec(arguments.latency_s, arguments.bits_per_s), sockets)
    print("ready", flush=True)
    process.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
