"""Output of Slurm's commands as rows of fields that no job name can forge.

Job names, comments and account names may hold blanks, `=`, `|` and newlines. Two formats keep them apart:
`squeue_command` separates fields by a delimiter that is drawn for each call, and `FixedWidth` gives each
field a fixed number of bytes. No other module splits text with user-chosen parts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import BYTE_PER_CHARACTER, Command, Runner

NO_VALUES: Final = frozenset(("", "(null)", "N/A", "None", "NONE"))
"""Texts by which squeue says that a job has no such value."""


def new_delimiter() -> str:
    """Return a delimiter that nobody can have written into a name before this call."""
    return f"<{secrets.token_hex(8)}>"


def squeue_command(options: Sequence[str], fields: Sequence[str], delimiter: str) -> Command:
    """Return a squeue command that prints `delimiter` after each field.

    The format goes through the environment, which other users cannot read. On the command line, which all
    users of the host see, a job could be given a name with the delimiter while squeue runs.

    Args:
        options: options other than the format.
        fields: names of --Format, or letters of --format (`%A`); empty: a column that is always empty.
        delimiter: see `new_delimiter`.
    """
    if any(field.startswith("%") for field in fields):
        return Command(["squeue", *options], SQUEUE_FORMAT="".join(field + delimiter for field in fields))
    # A suffix without a width leaves the text as long as it is.
    return Command(["squeue", *options], SQUEUE_FORMAT2=",".join(f"{name}:{delimiter}" for name in fields))


def parse_rows(output: str, delimiter: str, columns: int, what: str = "Slurm") -> Iterator[list[str]]:
    """Split output in which every field ends with `delimiter` and every row with a newline after that.

    Newlines inside a field survive.

    Raises:
        UnavailableError: the last row is torn; the message begins with `what`.
    """
    fields = output.split(delimiter)
    if (len(fields) - 1) % columns or fields[-1].strip():
        raise UnavailableError(what, "its answer is not a whole number of rows")
    for first in range(0, len(fields) - 1, columns):
        yield [fields[first].removeprefix("\n"), *fields[first + 1 : first + columns]]


def squeue_rows(options: Sequence[str], fields: Sequence[str], run: Runner) -> Iterator[list[str]]:
    """Run squeue and return its rows.

    Raises:
        UnavailableError: slurmctld does not answer, or the answer is torn.
    """
    delimiter = new_delimiter()
    output = run(squeue_command(options, fields, delimiter))
    return parse_rows(output, delimiter, len(fields), "squeue")


@dataclass(frozen=True, slots=True)
class FixedWidth:
    """Records of sacct and sacctmgr, which print a field of n bytes, a blank, and a newline at the end.

    sacctmgr has no delimiter but `|`, and sacct takes one on the command line only, which all users see.

    Attributes:
        widths: bytes by field name. slurmdbd stores names of up to 255 bytes (tinytext).
    """

    widths: dict[str, int]

    @property
    def format(self) -> str:
        """The value of `format=`; negative widths align left."""
        return ",".join(f"{name}%-{width}" for name, width in self.widths.items())

    def command(self, argv: Sequence[str]) -> Command:
        """Return the command; its output is decoded byte by byte, for `rows`."""
        return Command(argv, encoding=BYTE_PER_CHARACTER)

    def rows(self, output: str, what: str) -> Iterator[list[str]]:
        """Split the output of `command`.

        Raises:
            UnavailableError: not a whole number of records; the message begins with `what`.
        """
        size = sum(self.widths.values()) + len(self.widths) + 1
        if len(output) % size:
            raise UnavailableError(what, "its answer is not a whole number of rows")
        for start in range(0, len(output), size):
            yield self._record(output[start : start + size], what)

    def _record(self, record: str, what: str) -> list[str]:
        fields, at = [], 0
        for width in self.widths.values():
            text = record[at : at + width].encode(BYTE_PER_CHARACTER)
            fields.append(text.decode("utf-8", "replace").rstrip(" "))
            at += width + 1
            if record[at - 1] != " ":
                raise UnavailableError(what, "its columns do not have the widths that were asked for")
        if record[at] != "\n":
            raise UnavailableError(what, "its columns do not have the widths that were asked for")
        return fields
