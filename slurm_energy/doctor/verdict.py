"""The verdict of one check of `senergy doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """A check's verdict: `absent` is a lack that is no fault; `degraded` and `failed` need somebody."""

    OK = "ok"
    ABSENT = "absent"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was checked.
        state: the verdict.
        found: what there is.
        cost: what its lack costs in accuracy or control; empty if nothing.
        fix: a command or line to write; empty if there is nothing to do.
    """

    name: str
    state: State
    found: str
    cost: str = ""
    fix: str = ""
