"""Rows of Slurm's accounting, selected and ordered by one sacct command.

sacct writes rows without any quoting. This module runs sacct with a random delimiter, so that no name chosen
before the call can move a value into another field. The delimiter is visible in the list of processes while
sacct runs (about 10 ms). Therefore the number of fields is checked as well.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Command, CommandFailedError, CommandRunner, Runner
from slurm_energy.slurm.command_output import new_delimiter, parse_rows
from slurm_energy.slurm.release import Release, parse_release

TIMEOUT_S: Final = 120.0
IDENTITY_FIELDS: Final = (
    *("JobIDRaw", "Cluster", "DBIndex", "Submit", "Start", "End", "State"),
    *("Account", "UID", "NodeList"),
)
"""Fields by which a row is joined with energy records; every row contains them."""
_JOB_ID: Final = re.compile(r"\d{1,10}(\.\S{1,64})?", re.ASCII)
_DEFAULT_BITSTR_LEN: Final = "64"
_NOT_IN_USE: Final = ("accounting storage is disabled", "configuration source", "no such file or directory")
_NO_CONTACT: Final = (
    *("problem talking to the database", "connection refused", "unable to contact", "timed out"),
    *("slurm_persist_conn_open", "unable to initialize storage plugin", "unspecified error"),
)
_NO_PARSER: Final = ("openapi", "json", "serializer", "data_parser")
_TIME: Final = re.compile(r"\((\d{9,11})\)", re.ASCII)


class NoAccountingError(UnavailableError):
    """Slurm's accounting cannot be used from this host.

    The host has no sacct or no slurm.conf, or the cluster has no slurmdbd.
    """


class NoDataParserError(UnavailableError):
    """sacct cannot print JSON, because Slurm's plugin for JSON is not installed."""


def read_sacct_release(run: Runner | None = None) -> Release:
    """Return the release of the installed sacct. No daemon is queried.

    Raises:
        NoAccountingError: sacct is not installed.
        UnavailableError: the output has no version.
    """
    run = run or CommandRunner(TIMEOUT_S)
    try:
        return parse_release(run(["sacct", "-V"]), "sacct -V")
    except CommandFailedError as error:
        raise NoAccountingError("sacct", error.why) from None
    except UnavailableError as error:
        if error.why == "not found":
            raise NoAccountingError("sacct", error.why, error.todo) from None
        raise


def read_rows(
    options: Sequence[str], fields: Sequence[str], run: Runner | None = None
) -> list[dict[str, str]]:
    """Run sacct and return its rows in the order in which sacct prints them.

    Times are Unix seconds, or a word such as `Unknown`.

    Args:
        options: options that select rows, each one argument (`--jobs=12`).
        fields: names of sacct's fields; `IDENTITY_FIELDS` are added.
        run: function that executes a command and returns the output of the command.

    Raises:
        NoAccountingError: Slurm's accounting is not in use here.
        UsageError: sacct refused an option.
        UnavailableError: slurmdbd does not answer, or the output is damaged.
    """
    names = list(dict.fromkeys((*fields, *IDENTITY_FIELDS)))
    delimiter = new_delimiter()
    argv = ["sacct", "-n", "-p", f"--delimiter={delimiter}", f"--format={','.join(names)}", *options]
    output = _run(argv, run)
    rows = [
        dict(zip(names, values, strict=True)) for values in parse_rows(output, delimiter, len(names), "sacct")
    ]
    for row in rows:
        if not (_JOB_ID.fullmatch(row["JobIDRaw"]) and row["DBIndex"].isdecimal()):
            raise UnavailableError("sacct", f"'{shown(row['JobIDRaw'])}' is not a job id")
    return rows


def read_document(options: Sequence[str], parser: str = "", run: Runner | None = None) -> dict[str, Any]:
    """Run `sacct --json` and return its document.

    Args:
        options: options that select rows, each one argument.
        parser: value of --json, such as `v0.0.42`; an empty value means sacct's default.
        run: function that executes a command and returns the output of the command.

    Raises:
        NoAccountingError: Slurm's accounting is not in use here.
        NoDataParserError: sacct lacks the plugin that writes JSON.
        UsageError: sacct refused an option.
        UnavailableError: slurmdbd does not answer, or the output is not a JSON object with jobs.
    """
    # sacct 22.05 writes the times of the window in this format and reads them again.
    environment = {"SLURM_TIME_FORMAT": "standard"}
    output = _run(["sacct", f"--json={parser}" if parser else "--json", *options], run, environment)
    try:
        document = json.loads(output)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
        raise UnavailableError("sacct --json", _first_error(document))
    return document


def _first_error(document: Any) -> str:
    errors = document.get("errors") if isinstance(document, dict) else None
    first = errors[0] if isinstance(errors, list) and errors else None
    text = first.get("description") if isinstance(first, dict) else None
    return shown(str(text), 200) if text else "its output is not a JSON object with jobs"


def _run(argv: Sequence[str], run: Runner | None, environment: Mapping[str, str] | None = None) -> str:
    environment = {
        "SLURM_BITSTR_LEN": os.environ.get("SLURM_BITSTR_LEN") or _DEFAULT_BITSTR_LEN,
        **(environment or {}),
    }
    # The runner removes the variables SACCT_* from the environment; two of them select rows.
    more = [f"--{word}" for word in ("local", "federation") if f"SACCT_{word.upper()}" in os.environ]
    run = run or CommandRunner(TIMEOUT_S)
    try:
        return run(Command([*argv, *more], **environment))
    except CommandFailedError as error:
        raise _explained(error.messages) from None
    except UnavailableError as error:
        if error.why == "not found":
            raise NoAccountingError("sacct", error.why, error.todo) from None
        raise


def _explained(messages: Sequence[str]) -> UnavailableError | UsageError:
    """Return the error for the lines that a failed sacct printed to standard error."""
    lines = [re.sub(r"^(error|fatal): ", "", line) for line in messages]
    text = " ".join(lines).lower()
    if any(words in text for words in _NOT_IN_USE):
        return NoAccountingError("sacct", lines[-1])
    if "plugin" in text and any(words in text for words in _NO_PARSER):
        return NoDataParserError("sacct --json", lines[-1])
    if not lines or any(words in text for words in _NO_CONTACT):
        return UnavailableError("sacct", lines[-1] if lines else "failed", "is slurmdbd up?")
    return UsageError("sacct", shown(_TIME.sub(_local_time, "; ".join(lines)), 400))


def _local_time(match: re.Match[str]) -> str:
    """Convert a time in Unix seconds in a message of sacct to local time."""
    return f"({datetime.fromtimestamp(int(match[1])).isoformat()})"


def seconds_of(cells: Mapping[str, str], name: str) -> float | None:
    """Return a time or duration from a row of sacct's output, in seconds.

    Return None if sacct prints a word such as `Unknown`, or nothing.
    """
    text = cells.get(name, "")
    return float(text) if text.isdecimal() else None
