"""The result of one check of `senergy doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """State of a check: `absent` is a lack without a fault; `degraded` and `failed` need action."""

    OK = "ok"
    ABSENT = "absent"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report.

    Attributes:
        name: name of the check.
        state: its state.
        finding: the observation.
        cost: cost of the fault in accuracy or control; empty if none.
        fix: a command to run or a line to write; empty if there is nothing to do.
    """

    name: str
    state: CheckState
    finding: str
    cost: str = ""
    fix: str = ""
