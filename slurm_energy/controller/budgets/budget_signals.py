"""Reading of signals: power limits of budgets that are stated outside of slurm-energy.

A grid operator or a battery controller writes the limit to a file or serves it at a URL. This module
performs the I/O only. Other modules interpret the texts and decide when a signal counts as lost.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog

MAX_SIGNAL_BYTES: Final = 4096
HTTP_TIMEOUT_S: Final = 5.0
_FILE_TIMEOUT_S: Final = 5.0
_TICK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class SignalLocation:
    """File or URL from which the signal of a budget is read.

    Attributes:
        location: absolute path, or http(s) URL.
        interval_s: seconds between two readings.
    """

    location: str
    interval_s: float

    @property
    def is_url(self) -> bool:
        """Whether the signal is read through HTTP."""
        return not self.location.startswith("/")


@dataclass(frozen=True, slots=True)
class SignalText:
    """The text that was last read from a signal. A signal states the limit of a power budget.

    Attributes:
        text: content of the file or of the response.
        unix_s: time at which the file was written or the URL answered, in Unix seconds.
    """

    text: str
    unix_s: float


class SignalReader:
    """Reader of the signals of all power budgets.

    A signal is a file or URL with the limit of a budget. If a signal cannot be read, the reader keeps the
    text that it read last. Each signal is read by a separate task, so that a slow signal does not delay
    other signals.

    Args:
        failures: log of failures; a repeated failure is logged once.
        on_change: called when the text of a signal has changed.
        fetch: reads a URL. Tests replace this function.
    """

    def __init__(
        self,
        failures: RepeatedFailureLog,
        on_change: Callable[[], None] = lambda: None,
        fetch: Callable[[str], Awaitable[bytes]] | None = None,
    ) -> None:
        self._failures, self._on_change = failures, on_change
        self._fetch = fetch or fetch_url
        self._locations: dict[str, SignalLocation] = {}
        self._texts: dict[str, SignalText] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(4, "budget-signal")

    def follow(self, locations: Mapping[str, SignalLocation]) -> None:
        """Set where the reader finds the signals of the budgets: one location per budget.

        If the location of a signal has changed, the last text read for this signal is discarded.

        Args:
            locations: location of the signal by name of the budget.
        """
        changed = {name for name in self._locations if self._locations[name] != locations.get(name)}
        for name in changed:
            self._texts.pop(name, None)
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()
        self._locations = dict(locations)

    @property
    def texts(self) -> Mapping[str, SignalText]:
        """The last text of each signal that has been read, by name of the budget.

        A signal states the limit of a power budget. It is a file or URL outside slurm-energy.
        """
        return self._texts

    async def loop(self) -> None:
        """Read the signals periodically until cancelled."""
        try:
            while True:
                for name, location in self._locations.items():
                    task = self._tasks.get(name)
                    if task is None or task.done():
                        self._tasks[name] = asyncio.create_task(self._follow_one(name, location))
                await asyncio.sleep(_TICK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def close(self) -> None:
        """End the threads that read files, without waiting for them."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read_all(self, names: Iterable[str] | None = None) -> None:
        """Read the signals in `names` once; None means all."""
        chosen = self._locations if names is None else {n: self._locations[n] for n in names}
        await asyncio.gather(*(self._read_one(name, location) for name, location in chosen.items()))

    async def _follow_one(self, name: str, location: SignalLocation) -> None:
        while self._locations.get(name) == location:
            await self._read_one(name, location)
            await asyncio.sleep(location.interval_s)

    async def _read_one(self, name: str, location: SignalLocation) -> None:
        subject = f"signal of budget '{name}'"
        try:
            read = await self._read(location)
        except EnergyError as error:
            self._failures.report(subject, str(error))
            return
        self._failures.clear(subject)
        if self._locations.get(name) != location:
            return
        before = self._texts.get(name)
        self._texts[name] = read
        if before is None or before.text != read.text:
            self._on_change()

    async def _read(self, location: SignalLocation) -> SignalText:
        if location.is_url:
            return SignalText(_decoded(await self._fetch(location.location)), time.time())
        call = asyncio.get_running_loop().run_in_executor(
            self._threads, read_signal_file, Path(location.location)
        )
        try:
            async with asyncio.timeout(_FILE_TIMEOUT_S):
                return await call
        except TimeoutError:
            raise UnavailableError(location.location, f"not read within {_FILE_TIMEOUT_S:g} s") from None


def read_signal_file(path: Path) -> SignalText:
    """Return the text of a file from which the limit of a power budget is computed (signal file).

    Any user may own the file, but the file must not be writable by all users. A modification time in the
    future counts as now.

    Raises:
        UnavailableError: the file is missing, too long, not a regular file, or writable by all users.
    """
    try:
        # A FIFO must not block the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnavailableError(str(path), "is not a regular file")
        if status.st_mode & stat.S_IWOTH:
            raise UnavailableError(str(path), "all users can write it", f"chmod o-w {path}")
        data = os.read(descriptor, MAX_SIGNAL_BYTES + 1)
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error)) from None
    finally:
        os.close(descriptor)
    return SignalText(_decoded(data), min(status.st_mtime, time.time()))


async def fetch_url(url: str) -> bytes:
    """Return the body of a successful response to a GET request, which contains a budget's limit.

    At most `MAX_SIGNAL_BYTES` + 1 bytes are returned.

    Certificates are verified. Redirects are refused, so that only the configured server determines the
    limit.

    Raises:
        UnavailableError: the server does not answer, or answers with a status other than 200.
    """
    timeout = aiohttp.ClientTimeout(total=HTTP_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response,
        ):
            if response.status != 200:
                raise UnavailableError(url, f"HTTP status {response.status}")
            data = b""
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > MAX_SIGNAL_BYTES:
                    break
            return data
    except TimeoutError:
        raise UnavailableError(url, f"no answer within {HTTP_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise UnavailableError(url, str(error) or type(error).__name__) from None


def _decoded(data: bytes) -> str:
    if len(data) > MAX_SIGNAL_BYTES:
        raise UnavailableError("signal", f"longer than {MAX_SIGNAL_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UnavailableError("signal", "is not text") from None
