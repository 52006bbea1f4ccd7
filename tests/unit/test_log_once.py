"""Tests of logs that do not repeat the same message.

A failure that repeats is logged once when it begins and once when it ends. An unexpected error is logged
only once.
"""

from __future__ import annotations

import logging

import pytest

from slurm_energy import log_once
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog

LOG = logging.getLogger("test")


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_repeated_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = RepeatedFailureLog(LOG, ignore_numbers=True)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            failures.report("slurm", "away")
        failures.report("slurm", "still away, differently")
        failures.clear("slurm")
        failures.clear("slurm")
        failures.report("slurm", "away")
    assert messages(caplog) == [
        "slurm: away",
        "slurm: still away, differently",
        "slurm: works again",
        "slurm: away",
    ]


def test_subjects_are_independent_and_keep_their_level(caplog: pytest.LogCaptureFixture) -> None:
    failures = RepeatedFailureLog(LOG)
    with caplog.at_level(logging.INFO):
        failures.report("spool", "full", logging.ERROR)
        failures.report("disk", "full")
        failures.clear("disk", "has space again")
        failures.report("spool", "full", logging.ERROR)
    assert messages(caplog) == ["spool: full", "disk: full", "disk: has space again"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING, logging.INFO]


@pytest.mark.parametrize(("ignore_numbers", "count"), [(True, 2), (False, 3)])
def test_numbers_in_reasons_count_unless_ignored(
    caplog: pytest.LogCaptureFixture, ignore_numbers: bool, count: int
) -> None:
    failures = RepeatedFailureLog(LOG, ignore_numbers=ignore_numbers)
    for jobs in (3, 17):
        failures.report("priority", f"{jobs} jobs keep their old place, job {jobs}: denied")
    failures.report("priority", "other")
    assert len(caplog.records) == count
    assert caplog.records[0].getMessage().startswith("priority: 3 jobs")


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_an_unexpected_error_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    errors = UnexpectedErrorLog(LOG)
    for text in "abc":  # the same line of code
        errors.report(raised(text), "sampling failed", "sampling")
    errors.report(raised("d"), "delivery failed", "delivery")
    assert messages(caplog) == ["sampling failed", "delivery failed"]
    assert caplog.records[0].exc_info is not None


def test_the_number_of_unexpected_errors_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    errors = UnexpectedErrorLog(LOG)
    for number in range(2 * log_once._MAX_ERROR_KINDS):
        errors.report(raised("x"), "failed", str(number))
    assert len(caplog.records) == log_once._MAX_ERROR_KINDS
