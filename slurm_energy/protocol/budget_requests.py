"""Requests about power budgets, which the CLI builds and senergyctld parses.

The module `protocol.budget_responses` defines the responses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown, switch
from slurm_energy.quantities import is_number, shown

STATUS_PATH: Final = "/v1/budget"
SET_PATH: Final = "/v1/budget/set"
HISTORY_PATH: Final = "/v1/budget/history"
EXPLAIN_PATH: Final = "/v1/budget/explain"

DEFAULT_PLAN_HOURS: Final = 24.0
MAX_PLAN_HOURS: Final = 366 * 24.0
DEFAULT_POINTS: Final = 600
MAX_POINTS: Final = 5000
MIN_SET_WATTS: Final = 1.0
MAX_SET_WATTS: Final = 2e9
_MAX_UNIX_S: Final = 1e11
_MAX_TEXT: Final = 200
_JOB_ID = re.compile(r"\d{1,10}(?:_\d{1,10})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Query of `GET /v1/budget`.

    Attributes:
        plan_hours: number of hours, from now on. Changes of the limits that will occur in these hours are
            returned.
        nodes: whether to return the power of each node.
        jobs: whether to return the power of each running job.
    """

    plan_hours: float = DEFAULT_PLAN_HOURS
    nodes: bool = False
    jobs: bool = False

    def parameters(self) -> dict[str, str]:
        """Return the query parameters."""
        return {
            "plan_hours": f"{self.plan_hours:.6g}",
            "nodes": str(int(self.nodes)),
            "jobs": str(int(self.jobs)),
        }

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> StatusQuery:
        """Parse the query parameters that `parameters` returned. Each of them may be missing.

        Raises:
            UsageError: a parameter is unknown or malformed.
        """
        refuse_unknown(query, cls.__slots__)
        hours = _number(query, "plan_hours", 0.0, MAX_PLAN_HOURS, DEFAULT_PLAN_HOURS)
        return cls(hours, switch(query, "nodes"), switch(query, "jobs"))


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Query of `GET /v1/budget/history`, the power under budgets over time.

    Attributes:
        begin_unix_s, end_unix_s: time range; the end is not included.
        budget: name of the budget; None for all budgets.
        points: maximum number of time spans per budget in the response.
    """

    begin_unix_s: float
    end_unix_s: float
    budget: str | None = None
    points: int = DEFAULT_POINTS

    def parameters(self) -> dict[str, str]:
        """Return the query parameters; `budget` is left out if it is None."""
        texts = {
            "begin_unix_s": f"{self.begin_unix_s:.3f}",
            "end_unix_s": f"{self.end_unix_s:.3f}",
            "points": str(self.points),
        }
        return texts if self.budget is None else {**texts, "budget": self.budget}

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> HistoryQuery:
        """Build the query for the history of power budgets from the query parameters of an HTTP request.

        Raises:
            UsageError: a parameter is unknown, missing or malformed, or the range is empty.
        """
        refuse_unknown(query, cls.__slots__)
        begin = _number(query, "begin_unix_s", 0.0, _MAX_UNIX_S)
        end = _number(query, "end_unix_s", 0.0, _MAX_UNIX_S)
        if end <= begin:
            raise UsageError("end_unix_s", "must be after begin_unix_s")
        points = int(_number(query, "points", 1, MAX_POINTS, DEFAULT_POINTS))
        return cls(begin, end, query.get("budget") or None, points)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Request to change the limit of a power budget: body of `POST /v1/budget/set`.

    The request sets a limit while senergyctld runs (live limit), or returns to the configured limit.

    Attributes:
        budget: name of the budget.
        watts: the live limit; None to return to the configured limit.
        until_unix_s: end of the live limit; None if it applies until the next change.
        reason: text of the administrator for the audit trail; may be empty.
    """

    budget: str
    watts: float | None
    until_unix_s: float | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the request as a dict for the JSON body."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LimitChange:
        """Parse the body of a request that sets the limit of a power budget.

        Raises:
            UsageError: a key is unknown, missing or malformed. A limit must be from 1 W to 2 GW.
        """
        for key in body:
            if key not in cls.__slots__:
                raise UsageError(f"unknown key '{shown(str(key))}'")
        if "watts" not in body:
            raise UsageError("watts", "is missing", "null returns to the configured limit")
        budget, watts, until = body.get("budget"), body["watts"], body.get("until_unix_s")
        reason = body.get("reason", "")
        if not (isinstance(budget, str) and budget):
            raise UsageError("budget", "must be the name of a budget")
        if watts is not None and not (is_number(watts) and MIN_SET_WATTS <= watts <= MAX_SET_WATTS):
            raise UsageError("watts", f"must be a number from {MIN_SET_WATTS:g} to {MAX_SET_WATTS:g}")
        if until is not None and not (is_number(until) and 0 < until < _MAX_UNIX_S):
            raise UsageError("until_unix_s", "must be a time in Unix seconds")
        if not (isinstance(reason, str) and len(reason) <= _MAX_TEXT and reason.isprintable()):
            raise UsageError("reason", f"must be one line of at most {_MAX_TEXT} characters")
        return cls(
            budget, None if watts is None else float(watts), None if until is None else float(until), reason
        )


def explain_job_id(query: Mapping[str, str]) -> str:
    """Return the parameter `job_id` of `GET /v1/budget/explain`: a job id, or `ARRAY_TASK` such as `12_3`.

    Raises:
        UsageError: the parameter is missing or malformed, or another parameter is present.
    """
    refuse_unknown(query, ("job_id",))
    text = query.get("job_id", "")
    if not _JOB_ID.fullmatch(text):
        raise UsageError(f"job_id: '{shown(text)}' is not a job id", todo="write it as 123 or 123_4")
    return text


def _number(
    query: Mapping[str, str], key: str, low: float, high: float, default: float | None = None
) -> float:
    text = query.get(key)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise UsageError(f"{key}: '{shown(text or '')}' is not a number from {low:g} to {high:g}")
    return value
