"""The result of one check of `senergy doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """State of a check.

    `absent` means that the host lacks an optional part. `degraded` and `failed` require action.
    """

    OK = "ok"
    ABSENT = "absent"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. The report shows each result in one line.

    Attributes:
        name: name of the check.
        state: state of the check.
        finding: result of the inspection, as text.
        cost: effect of the fault on accuracy or control; empty if there is no fault.
        fix: a command to run or a line to write; empty if there is nothing to do.
    """

    name: str
    state: CheckState
    finding: str
    cost: str = ""
    fix: str = ""
