"""The verdict of one check of `senergy doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """A check's verdict: `absent` is a lack that is no fault; `degraded` and `failed` need somebody."""

    OK = "ok"
    ABSENT = "absent"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report.

    Attributes:
        name: what was checked.
        state: the verdict.
        finding: what there is.
        cost: what its lack costs in accuracy or control; empty if nothing.
        fix: a command or line to write; empty if there is nothing to do.
    """

    name: str
    state: CheckState
    finding: str
    cost: str = ""
    fix: str = ""
