"""The result of one check of `senergy doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """State of a check.

    `absent` means that something is missing that this host need not have. `degraded` and `failed` require
    action.
    """

    OK = "ok"
    ABSENT = "absent"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check, which is one line of the report.

    Attributes:
        name: name of the check.
        state: state of the check.
        finding: what the inspection found.
        cost: effect of the fault on accuracy or control; empty if there is none.
        fix: a command to run or a line to write; empty if there is nothing to do.
    """

    name: str
    state: CheckState
    finding: str
    cost: str = ""
    fix: str = ""
