"""Requests for the savings by deferral (delayed starts of jobs).

The CLI builds the requests and senergyctld parses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown, words

SAVINGS_PATH: Final = "/v1/deferral/savings"
_SECONDS: Final = re.compile(r"\d{1,11}", re.ASCII)
_LISTS: Final = ("account", "user", "partition")


@dataclass(frozen=True, slots=True)
class SavingsRequest:
    """Query of `GET /v1/deferral/savings`.

    Attributes:
        start, end: time window in Unix seconds. The jobs that ended in this window are counted.
        accounts, users, partitions: names that restrict the counted jobs; an empty list sets no restriction.
    """

    start: int
    end: int
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()

    def parameters(self) -> dict[str, str]:
        """Return the query parameters of the HTTP request."""
        lists = zip(_LISTS, (self.accounts, self.users, self.partitions), strict=True)
        values = {"start": str(self.start), "end": str(self.end)}
        return values | {key: ",".join(names) for key, names in lists if names}

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> SavingsRequest:
        """Parse the query parameters that `parameters` returned.

        Raises:
            UsageError: a parameter is unknown, malformed or missing.
        """
        refuse_unknown(query, ("start", "end", *_LISTS))
        edges = [query.get(key, "") for key in ("start", "end")]
        if not all(_SECONDS.fullmatch(text) for text in edges):
            raise UsageError("start, end", "are not Unix seconds")
        start, end = map(int, edges)
        if end <= start:
            raise UsageError("end", "is not after start")
        return cls(start, end, *(words(query, key) for key in _LISTS))
