"""Interface of a provider of carbon intensities or prices.

The module also contains functions to parse responses that several providers use.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode

from slurm_energy.errors import UnavailableError
from slurm_energy.grid.csv_series import parse_time
from slurm_energy.grid.series import Sample
from slurm_energy.grid.units import GridQuantity, check_value
from slurm_energy.quantities import is_number, shown

MAX_SAMPLES: Final = 100_000
"""Maximum number of samples in a response."""
_MIN_LENGTH_S: Final = 1.0
_MAX_LENGTH_S: Final = 370 * 86400.0


class ProviderResponseError(UnavailableError):
    """The response of a provider contradicts the provider's documentation."""


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """Part of a series of carbon intensities or prices that must be fetched from a provider.

    Attributes:
        zone: zone in the provider's notation.
        start_s: start in Unix time, a full minute.
        end_s: end in Unix time, a full minute.
        base_url: base URL without a slash at the end.
        currency: currency that prices must have.
    """

    zone: str
    start_s: float
    end_s: float
    base_url: str
    currency: str = "EUR"


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A GET request. `url` and `headers` may contain the token and must not be logged.

    Attributes:
        url: the URL with its query.
        headers: HTTP headers beyond the default headers.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class GridProvider(ABC):
    """A provider of carbon intensities or prices.

    Attributes:
        quantity: quantity that the provider supplies.
        name: name of the provider in the configuration.
        detail: further facts about the values, see `SeriesSource.detail`.
        default_url: base URL, if the configuration has none.
        default_zone: zone, if the configuration has none; empty if a zone is required.
        max_window_s: longest span of one request.
        ahead_s: seconds into the future for which the provider has final values, such as day-ahead prices.
        has_login: whether a request needs the token that `login_request` obtains.
    """

    quantity: ClassVar[GridQuantity]
    name: ClassVar[str]
    detail: ClassVar[str] = ""
    default_url: ClassVar[str]
    default_zone: ClassVar[str] = ""
    max_window_s: ClassVar[float]
    ahead_s: ClassVar[float] = 0.0
    has_login: ClassVar[bool] = False

    def login_request(self, base_url: str, user: str, password: str) -> FetchRequest:
        """Return the request that obtains a token, for providers with `has_login`."""
        raise NotImplementedError

    def login_token(self, body: bytes) -> str:
        """Return the token in the response to `login_request`.

        Raises:
            ProviderResponseError: the response contains no token.
        """
        raise NotImplementedError

    @abstractmethod
    def request(self, query: SeriesQuery, token: str, now_s: float) -> FetchRequest:
        """Return the HTTP request for a part of a series of carbon intensities or prices.

        Args:
            query: part of the series, at most `max_window_s` long.
            token: token of the site; empty if the provider needs none.
            now_s: current Unix time.
        """

    @abstractmethod
    def samples(self, body: bytes, query: SeriesQuery) -> list[Sample]:
        """Return the samples in a provider's response, converted to the units of slurm-energy.

        The result is empty if the provider has no values for the queried part of the series.

        Raises:
            ProviderResponseError: the response is malformed, or its values are implausible.
        """


def json_object(body: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object of a response.

    Raises:
        ProviderResponseError: the response is not a JSON object.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ProviderResponseError(name, "the response is not JSON") from None
    if not isinstance(value, dict):
        raise ProviderResponseError(name, "the response is not a JSON object")
    return value


def json_rows(value: Mapping[str, Any], key: str, name: str) -> list[Mapping[str, Any]]:
    """Return the list of objects under a key of a response.

    Raises:
        ProviderResponseError: the list is missing or too long.
    """
    rows = value.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProviderResponseError(name, f"the response has no list of objects '{key}'")
    if len(rows) > MAX_SAMPLES:
        raise ProviderResponseError(name, f"the response has more than {MAX_SAMPLES} values")
    return rows


def time_of(row: Mapping[str, Any], key: str, name: str) -> float:
    """Return the Unix time of an ISO 8601 text in a row.

    Raises:
        ProviderResponseError: the row lacks the time.
    """
    text = row.get(key)
    try:
        if not isinstance(text, str) or len(text) > 40:
            raise ValueError(text)
        return parse_time(text)
    except (ValueError, OverflowError):
        raise ProviderResponseError(name, f"'{key}' is not a time: {shown(repr(text), 60)}") from None


def number_of(row: Mapping[str, Any], key: str, name: str) -> float | None:
    """Return a field of a row as a number; None if the field is null.

    Raises:
        ProviderResponseError: the row lacks the key, or the value is not a number.
    """
    if key not in row:
        raise ProviderResponseError(name, f"a row has no '{key}'")
    value = row[key]
    if value is None:
        return None
    if not is_number(value) or not math.isfinite(value):
        raise ProviderResponseError(name, f"'{key}' is not a number: {shown(repr(value), 60)}")
    return float(value)


def checked(samples: Iterable[Sample], provider: GridProvider) -> list[Sample]:
    """Return the samples, sorted by start, after a check of their times and values.

    Raises:
        ProviderResponseError: a time or value is implausible.
    """
    result = sorted(samples)
    for start, end, value in result:
        problem = check_value(provider.quantity, value)
        if problem:
            raise ProviderResponseError(provider.name, f"{value:g} {problem}")
        if not _MIN_LENGTH_S <= end - start <= _MAX_LENGTH_S:
            raise ProviderResponseError(provider.name, f"a value holds for {end - start:g} s")
    return result


def step_ends(points: Sequence[tuple[float, float]], step_s: float) -> list[Sample]:
    """Convert pairs of start time and value to samples, which also have an end.

    Each sample lasts `step_s` seconds. The pairs may have any order.
    """
    return [(time_s, time_s + step_s, value) for time_s, value in points]


def minute_text(time_s: float) -> str:
    """Format a Unix time as UTC text with minutes, such as `2026-01-31T08:30Z`."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def second_text(time_s: float) -> str:
    """Return a time as `2026-01-31T08:30:00Z`."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_query(url: str, parameters: Mapping[str, str]) -> str:
    """Return a URL with query parameters, percent-encoded."""
    return f"{url}?{urlencode(parameters, quote_via=quote)}"
