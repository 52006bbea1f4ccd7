"""Server of a socket on which Slurm's PrologSlurmctld waits until the nodes of a job have booted.

slurmctld allocates nodes that are powered down and boots them. Two events then start a batch job whose nodes
have booted. The first event is a pass of slurmctld every 30 s (PERIODIC_TIMEOUT in slurmctld.h,
job_time_limit in job_mgr.c, all releases up to 26.05). The second event is the end of PrologSlurmctld
(prolog_running_decr). There is no other such event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slurm_energy.controller.power_saving.node_boots import NodeBoots
from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.slurm.node_power_states import NodePowerStatus

POLL_S: Final = 1.0
MAX_WAITS: Final = 1000
"""Maximum number of jobs that wait at the same time. Further jobs start in slurmctld's own pass."""
_MAX_REQUEST_BYTES: Final = 1 << 18
_REQUEST_TIMEOUT_S: Final = 2.0
_ALIVE: Final = b"."
"""Byte that shows a waiting program that this process is not stuck, sent every `_ALIVE_S`."""
_ALIVE_S: Final = 2.0
_DEFAULT_TIMEOUT_S: Final = 600.0
_DEFAULT_AGE_S: Final = 90.0
_PEER: Final = struct.Struct("3i")
_SUBJECT: Final = "boot socket"

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _BootWait:
    """A job that waits for the boot of its nodes."""

    names: frozenset[str]
    until_s: float
    done: asyncio.Event


class BootWaitServer:
    """Server of the socket on which PrologSlurmctld waits for the boots of a job's nodes.

    The server replies when all nodes of the job respond to slurmctld, or when a further wait is pointless.

    Args:
        path: returns the path of the socket; None means that there is no socket.
        read: reads the power states of all nodes; it is called in a thread.
        boots: last known power states of the nodes.
        failures: log of failures.
        clock: returns Unix seconds.
        poll_s: seconds between two readings of the nodes while a job waits.

    Attributes:
        timeout_s: maximum wait in seconds.
        slurm_uid: uid of SlurmUser; None means unknown. Only this user, root and the user of this process may
            wait.
        max_age_s: maximum age of known node states. If states of at most this age show that all nodes are
            ready, a job is released without a new reading.
    """

    def __init__(
        self,
        path: Callable[[], Path | None],
        read: Callable[[], Sequence[NodePowerStatus]],
        boots: NodeBoots,
        failures: RepeatedFailureLog,
        clock: Callable[[], float] = time.time,
        poll_s: float = POLL_S,
    ) -> None:
        self._path, self._read, self._boots = path, read, boots
        self._failures, self._clock, self._poll_s = failures, clock, poll_s
        self._waits: set[_BootWait] = set()
        self._changed = asyncio.Event()
        self.timeout_s, self.max_age_s = _DEFAULT_TIMEOUT_S, _DEFAULT_AGE_S
        self.slurm_uid: int | None = None

    async def loop(self) -> None:
        """Serve the socket until cancelled.

        If the configuration names a new path for the socket, the server moves there within a few polls.
        """
        while True:
            path = self._path()
            if path is None:
                await asyncio.sleep(5 * POLL_S)
                continue
            try:
                server = await self._listen(path)
            except OSError as error:
                self._failures.report(_SUBJECT, f"{path}: {error.strerror or error}")
                await asyncio.sleep(5 * POLL_S)
                continue
            self._failures.clear(_SUBJECT)
            try:
                await self._watch(path)
            finally:
                server.close()
                self._release(self._waits)
                with contextlib.suppress(OSError):
                    path.unlink()

    async def _listen(self, path: Path) -> asyncio.Server:
        with contextlib.suppress(FileNotFoundError):
            # A killed process leaves its socket. No other senergyctld runs: this one has bound its port.
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        server = await asyncio.start_unix_server(self._serve, path, limit=_MAX_REQUEST_BYTES)
        # SlurmUser may be another user than this process. The kernel reports who connects.
        path.chmod(0o666)
        return server

    async def _watch(self, path: Path) -> None:
        """Read the nodes while jobs wait, and release the jobs whose nodes have booted."""
        while self._path() == path:
            if not self._waits:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 5 * POLL_S)
                self._changed.clear()
                continue
            try:
                self._boots.observe(await asyncio.to_thread(self._read), self._clock())
            except EnergyError as error:
                # Without states it is unknown when nodes are ready: slurmctld's periodic pass starts jobs.
                self._failures.report(_SUBJECT, str(error))
                self._release(self._waits)
                continue
            self._failures.clear(_SUBJECT)
            now = self._clock()
            self._release(
                one for one in self._waits if one.until_s <= now or self._boots.is_settled(one.names)
            )
            await asyncio.sleep(self._poll_s)

    def _release(self, waits: Iterable[_BootWait]) -> None:
        for wait in tuple(waits):
            self._waits.discard(wait)
            wait.done.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError
        ):
            if _peer_uid(writer.get_extra_info("socket")) in {0, os.geteuid(), self.slurm_uid}:
                line = await asyncio.wait_for(reader.readuntil(b"\n"), _REQUEST_TIMEOUT_S)
                await self._wait(_names(line), reader, writer)
                writer.write(b"\n")
                await writer.drain()
        writer.close()

    async def _wait(
        self, names: frozenset[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        now = self._clock()
        if self._boots.is_ready(names, now, self.max_age_s) or len(self._waits) >= MAX_WAITS:
            return
        self._boots.request(names, now)
        wait = _BootWait(names, now + self.timeout_s, asyncio.Event())
        self._waits.add(wait)
        self._changed.set()
        ended = asyncio.ensure_future(reader.read(1))  # the job was cancelled, or its program was killed
        released = asyncio.ensure_future(wait.done.wait())
        finished: set[asyncio.Future[Any]] = set()
        try:
            while not finished:
                writer.write(_ALIVE)
                finished, _ = await asyncio.wait(
                    (ended, released), timeout=_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            self._waits.discard(wait)
            ended.cancel()
            released.cancel()


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(credentials)[1])


def _names(line: bytes) -> frozenset[str]:
    """Return the nodes named in a request line `JOB NODES`, or nothing if the request is malformed."""
    try:
        job_id, hostlist = line.decode().split()
        return frozenset(expand_hostlist(hostlist)) if job_id else frozenset()
    except (UnicodeDecodeError, UsageError, ValueError):
        return frozenset()
