"""Task that fetches carbon intensities and prices from providers and stores them.

After a failure it pauses. No other module fetches these values. A value that was fetched once stays
in the database, even if the provider later states another value.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm_energy.accounting import grid_values
from slurm_energy.accounting.grid_values import SeriesKey
from slurm_energy.config import Config
from slurm_energy.controller.grid.grid_http import FetchError, fetch_body
from slurm_energy.controller.grid.settings import GridSettings, carbon_settings, price_settings
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import ConfigError, EnergyError
from slurm_energy.grid.providers.base import (
    FetchRequest,
    GridProvider,
    ProviderResponseError,
    SeriesQuery,
)
from slurm_energy.grid.series import Sample
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.trusted_files import read_trusted

OVERLAP_S: Final = 6 * 3600.0
"""Time before the newest value that is fetched again, because providers correct recent values."""
MAX_REQUESTS_PER_ROUND: Final = 40
FIRST_BACK_OFF_S: Final = 60.0
MAX_BACK_OFF_S: Final = 6 * 3600.0
REJECTED_PAUSE_S: Final = 3600.0
MIN_MANUAL_PAUSE_S: Final = 30.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_TICK_S: Final = 1.0
_COVERED_SHARE: Final = 0.5
_MAX_TOKEN_LENGTH: Final = 4096

FetchBody = Callable[[FetchRequest, str, str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class FetchedSeries:
    """A series of carbon intensities or prices to fetch, as configured.

    Attributes:
        key: identity of the series in the database.
        provider: provider from which the series is fetched.
        base_url: base URL without a slash at the end.
        token_file: path of a file with a token or password; None means that the provider needs no token.
        user: user name for providers with a login.
        refresh_s: seconds between two queries.
        backfill_s: age in seconds up to which missing past values are fetched.
    """

    key: SeriesKey
    provider: GridProvider
    base_url: str
    token_file: Path | None
    user: str
    refresh_s: float
    backfill_s: float

    @property
    def subject(self) -> str:
        """Text for messages that names the quantity, the provider and the zone of the series."""
        return f"{self.key.quantity}: {self.key.provider} {self.key.zone}"


@dataclass(slots=True)
class FetchState:
    """State of fetching one series.

    Attributes:
        due_s: monotonic time of the next query.
        failures: number of failures in a row.
        fetched: Unix time of the last successful query; None means that no query has succeeded since the
            start.
        error: error of the last query; an empty value means that the last query succeeded, or there was no
            query yet.
        newest_end: end of the newest stored value in Unix time; None means unknown.
        scanned_from_s: Unix time from which missing values have been fetched since the start.
        busy: held while the series is fetched.
    """

    due_s: float = -math.inf
    failures: int = 0
    fetched: float | None = None
    error: str = ""
    newest_end: float | None = None
    scanned_from_s: float = math.inf
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


def configured_series(config: Config) -> list[FetchedSeries]:
    """Return the configured series of carbon intensity and price that must be fetched.

    The series of the site's own zone come before those of other zones.
    """
    return _series_of(carbon_settings(config)) + _series_of(price_settings(config))


class GridFetcher:
    """Fetcher of all configured series. A separate task fetches each series, so that none delays another.

    Args:
        config: returns the configuration.
        store: the database.
        failures: log of failures; a repeated failure is logged once.
        fetch: obtains the body of a response.
        clock: returns Unix time.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        failures: RepeatedFailureLog,
        fetch: FetchBody = fetch_body,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._store, self._failures = config, store, failures
        self._fetch, self._clock = fetch, clock
        self._states: dict[SeriesKey, FetchState] = {}
        self._tasks: dict[FetchedSeries, asyncio.Task[None]] = {}
        self._manual_s = -math.inf

    async def loop(self) -> None:
        """Fetch all series periodically until cancelled."""
        try:
            while True:
                self._start_due()
                await asyncio.sleep(_TICK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def fetch_all(self) -> list[dict[str, Any]]:
        """Fetch all series of carbon intensity and price now, and return the state of each series.

        Nothing is fetched if the last call was less than `MIN_MANUAL_PAUSE_S` seconds ago.
        """
        now_s = time.monotonic()
        if now_s - self._manual_s >= MIN_MANUAL_PAUSE_S:
            self._manual_s = now_s
            await asyncio.gather(*(self.fetch(series) for series in configured_series(self._config())))
        return self.status()

    async def fetch(self, series: FetchedSeries) -> None:
        """Fetch the missing values of a series, and fetch the values of the last hours again.

        Log a failure.
        """
        state = self._states.setdefault(series.key, FetchState())
        if state.busy.locked():
            return
        async with state.busy:
            try:
                count = await self._fetch_missing(series, state)
            except EnergyError as error:
                self._note_failure(series, state, error)
                return
            state.failures, state.fetched = 0, self._clock()
            state.due_s = time.monotonic() + series.refresh_s
            state.error = "" if count else "the provider has no values for the last hours"
            if count:
                self._failures.clear(series.subject)
            else:
                self._failures.report(series.subject, state.error)

    async def drop_old(self) -> None:
        """Delete values older than the configured maximum age.

        Raises:
            UnavailableError: the database refused.
        """
        config = self._config()
        for quantity, days in (("carbon", config.carbon.keep_days), ("price", config.price.keep_days)):
            await self._store.write(grid_values.drop_before, quantity, self._clock() - days * _DAY_S)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each configured series."""
        rows = []
        for series in configured_series(self._config()):
            state = self._states.get(series.key, FetchState())
            rows.append(
                {
                    "quantity": series.key.quantity,
                    "provider": series.key.provider,
                    "zone": series.key.zone,
                    "fetched": state.fetched,
                    "newest_end": state.newest_end,
                    "failures": state.failures,
                    "error": state.error or None,
                }
            )
        return rows

    def _start_due(self) -> None:
        self._tasks = {series: task for series, task in self._tasks.items() if not task.done()}
        wanted = configured_series(self._config())
        for series in [series for series in self._tasks if series not in wanted]:
            self._tasks.pop(series).cancel()
        for series in wanted:
            state = self._states.setdefault(series.key, FetchState())
            if series not in self._tasks and time.monotonic() >= state.due_s:
                self._tasks[series] = asyncio.create_task(self.fetch(series))

    async def _fetch_missing(self, series: FetchedSeries, state: FetchState) -> int:
        """Fetch and store recent values of a series, then some missing older values.

        Return the number of recent values.

        Raises:
            EnergyError: a request for recent values, or the database, failed.
        """
        now = self._clock()
        stored = await self._store.read(grid_values.newest_end, series.key)
        state.newest_end = stored
        secret = await asyncio.to_thread(_read_secret, series)
        token = await self._login(series, secret) if series.provider.has_login else secret
        end_s = math.ceil((now + series.provider.ahead_s) / _HOUR_S) * _HOUR_S
        first_s = _first_recent_s(series, stored, now)
        windows = _windows(first_s, end_s, series.provider.max_window_s)[-MAX_REQUESTS_PER_ROUND:]
        count = 0
        for window in windows:
            count += await self._fetch_window(series, state, token, window)
        try:
            await self._fetch_older(series, state, token, windows[0][0])
        except FetchError as error:
            # Some plans of providers have recent values only. Older ones are not tried again.
            state.scanned_from_s = -math.inf
            self._failures.report(f"{series.subject}, older values", str(error))
        return count

    async def _fetch_older(
        self, series: FetchedSeries, state: FetchState, token: str, recent_s: float
    ) -> None:
        """Fetch older values for times that have few or no stored values.

        Recent values, from `recent_s` on, are fetched elsewhere. This method goes back in time until
        `backfill_s` seconds before now.
        """
        oldest_s = math.floor((self._clock() - series.backfill_s) / _HOUR_S) * _HOUR_S
        until_s = min(recent_s, state.scanned_from_s)
        requests = 0
        while until_s > oldest_s and requests < MAX_REQUESTS_PER_ROUND:
            start_s = max(oldest_s, until_s - series.provider.max_window_s)
            samples = await self._store.read(grid_values.read_samples, series.key, start_s, until_s)
            known_s = sum(min(end, until_s) - max(start, start_s) for start, end, _ in samples)
            if known_s < _COVERED_SHARE * (until_s - start_s):
                await self._fetch_window(series, state, token, (start_s, until_s))
                requests += 1
            until_s = state.scanned_from_s = start_s

    async def _fetch_window(
        self, series: FetchedSeries, state: FetchState, token: str, window: tuple[float, float]
    ) -> int:
        """Fetch the values of a series between two times from its provider, and store them.

        Return the number of stored values.
        """
        query = SeriesQuery(series.key.zone, *window, series.base_url, _currency(series))
        now = self._clock()
        body = await self._fetch(series.provider.request(query, token, now), series.subject, token)
        try:
            samples = await asyncio.to_thread(series.provider.samples, body, query)
        except ProviderResponseError as error:
            why = ": ".join(filter(None, (error.why, error.todo)))
            # A provider may repeat the request in its error text.
            raise FetchError(series.subject, why.replace(token, "***") if token else why) from None
        return await self._save(series, state, _within(samples, *window), now)

    async def _login(self, series: FetchedSeries, secret: str) -> str:
        request = series.provider.login_request(series.base_url, series.user, secret)
        return series.provider.login_token(await self._fetch(request, series.subject, secret))

    async def _save(self, series: FetchedSeries, state: FetchState, samples: list[Sample], now: float) -> int:
        if samples:
            await self._store.write(grid_values.save_samples, series.key, samples, now)
            newest = max(end for _, end, _ in samples)
            state.newest_end = max(newest, state.newest_end or newest)
        return len(samples)

    def _note_failure(self, series: FetchedSeries, state: FetchState, error: EnergyError) -> None:
        state.failures += 1
        state.error = str(error)
        pause_s = min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(state.failures - 1, 16))
        if isinstance(error, FetchError):
            pause_s = max(pause_s, error.retry_after_s or 0.0, REJECTED_PAUSE_S if error.rejected else 0.0)
        state.due_s = time.monotonic() + pause_s
        self._failures.report(series.subject, str(error))


def _series_of(settings: GridSettings) -> list[FetchedSeries]:
    provider = settings.provider
    if provider is None:
        return []
    zones = dict.fromkeys([settings.zone, *settings.other_zones])
    return [
        FetchedSeries(
            settings.key(zone),
            provider,
            settings.base_url,
            settings.token_file,
            settings.user,
            settings.refresh_s,
            settings.backfill_s,
        )
        for zone in zones
    ]


def _first_recent_s(series: FetchedSeries, newest_end: float | None, now: float) -> float:
    """Return the time from which the recent values of a series must be fetched.

    The time is shortly before the end of the newest value in the database. If the database has no value, the
    time is a day ago.
    """
    first = now - min(series.backfill_s, _DAY_S)
    if newest_end is not None:
        first = max(now - series.backfill_s, min(newest_end, now) - OVERLAP_S)
    return math.floor(min(first, now - _HOUR_S) / _HOUR_S) * _HOUR_S


def _windows(start_s: float, end_s: float, length_s: float) -> list[tuple[float, float]]:
    """Split a time range into consecutive ranges of at most `length_s` seconds."""
    windows = []
    while start_s < end_s:
        until_s = min(end_s, start_s + length_s)
        windows.append((start_s, until_s))
        start_s = until_s
    return windows


def _currency(series: FetchedSeries) -> str:
    return series.key.unit.partition("/")[0]


def _within(samples: list[Sample], start_s: float, end_s: float) -> list[Sample]:
    """Return the samples of a provider's response that are in or near the requested time span.

    Samples from one day before the start to the end are kept. All other samples are dropped, so that a
    response cannot fill the database.
    """
    return [sample for sample in samples if sample[0] < end_s and sample[1] > start_s - _DAY_S]


def _read_secret(series: FetchedSeries) -> str:
    """Return the first line of a provider's token file, or an empty text if the provider needs no token.

    Raises:
        ConfigError: the file cannot be read, is readable by others, or has no token.
    """
    if series.token_file is None:
        return ""
    try:
        data = read_trusted(series.token_file, secret=True)
    except OSError as error:
        raise ConfigError(str(series.token_file), error.strerror or str(error)) from None
    line = data.splitlines()[0].strip() if data.strip() else b""
    if not line or not line.isascii() or len(line) > _MAX_TOKEN_LENGTH or not line.decode().isprintable():
        raise ConfigError(str(series.token_file), "has no token in its first line")
    return line.decode()
