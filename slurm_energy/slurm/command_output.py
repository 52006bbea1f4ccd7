"""Parsers of the output of Slurm's commands. No job name can forge a field of the parsed output.

Job names, comments and account names may contain blanks, `=`, `|` and newlines. Two formats separate the
fields reliably. `squeue_command` makes squeue print a delimiter that is random for each call. `FixedWidth`
gives each field a fixed number of bytes. No other module splits text that contains user-chosen parts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import BYTE_PER_CHARACTER, Command, Runner

NO_VALUES: Final = frozenset(("", "(null)", "N/A", "None", "NONE"))
"""Texts that squeue prints for a missing value."""


def new_delimiter() -> str:
    """Return a random delimiter. No job name that was chosen before this call can contain this delimiter."""
    return f"<{secrets.token_hex(8)}>"


def squeue_command(options: Sequence[str], fields: Sequence[str], delimiter: str) -> Command:
    """Return a squeue command that prints `delimiter` after each field.

    The format is passed in the environment, which other users cannot read. Users can read the command line.
    If the delimiter were in the command line, a user could put the delimiter into a job name while squeue
    runs.

    Args:
        options: options other than the format.
        fields: field names of --Format, or letters of --format (`%A`); an empty name yields an empty column.
        delimiter: text from `new_delimiter`.
    """
    if any(field.startswith("%") for field in fields):
        return Command(["squeue", *options], SQUEUE_FORMAT="".join(field + delimiter for field in fields))
    # A suffix without a width does not cut the text.
    return Command(["squeue", *options], SQUEUE_FORMAT2=",".join(f"{name}:{delimiter}" for name in fields))


def parse_rows(output: str, delimiter: str, columns: int, what: str = "Slurm") -> Iterator[list[str]]:
    """Split output that has `delimiter` after every field and a newline after every row.

    Newlines inside a field are preserved.

    Args:
        output: output of a command.
        delimiter: text from `new_delimiter`.
        columns: number of fields in a row.
        what: name of the program, for the error.

    Raises:
        UnavailableError: the last row is incomplete.
    """
    fields = output.split(delimiter)
    if (len(fields) - 1) % columns or fields[-1].strip():
        raise UnavailableError(what, "its output is not a whole number of rows")
    for first in range(0, len(fields) - 1, columns):
        yield [fields[first].removeprefix("\n"), *fields[first + 1 : first + columns]]


def squeue_rows(options: Sequence[str], fields: Sequence[str], run: Runner) -> Iterator[list[str]]:
    """Run squeue and return its rows, each a list with the text of each field.

    Args:
        options: options other than the format.
        fields: field names of --Format, or letters of --format (`%A`).
        run: function that executes a command and returns the output of the command.

    Raises:
        UnavailableError: slurmctld does not answer, or the output is incomplete.
    """
    delimiter = new_delimiter()
    output = run(squeue_command(options, fields, delimiter))
    return parse_rows(output, delimiter, len(fields), "squeue")


@dataclass(frozen=True, slots=True)
class FixedWidth:
    """Output format of sacct and sacctmgr in which each field has a fixed width.

    A blank follows each field, and a newline each row. sacctmgr has no delimiter other than `|`. sacct takes
    a delimiter only on the command line, which is visible to all users.

    Attributes:
        widths: width in bytes by field name. slurmdbd stores names of up to 255 bytes (tinytext).
    """

    widths: dict[str, int]

    @property
    def format(self) -> str:
        """Value of the command option `format=` that requests these columns.

        Each width is negative, which aligns the text of the column to the left.
        """
        return ",".join(f"{name}%-{width}" for name, width in self.widths.items())

    def command(self, argv: Sequence[str]) -> Command:
        """Return a command whose output is decoded to one character per byte, as `rows` requires."""
        return Command(argv, encoding=BYTE_PER_CHARACTER)

    def rows(self, output: str, what: str) -> Iterator[list[str]]:
        """Split the output of a command into rows with fields of fixed width.

        The command must come from the method `command`. Each row is a list with the text of each field.

        Args:
            output: output of the command.
            what: name of the program, for the error.

        Raises:
            UnavailableError: the output is not a whole number of rows of the requested widths.
        """
        size = sum(self.widths.values()) + len(self.widths) + 1
        if len(output) % size:
            raise UnavailableError(what, "its output is not a whole number of rows")
        for start in range(0, len(output), size):
            yield self._record(output[start : start + size], what)

    def _record(self, record: str, what: str) -> list[str]:
        fields, at = [], 0
        for width in self.widths.values():
            text = record[at : at + width].encode(BYTE_PER_CHARACTER)
            fields.append(text.decode("utf-8", "replace").rstrip(" "))
            at += width + 1
            if record[at - 1] != " ":
                raise UnavailableError(what, "its columns do not have the requested widths")
        if record[at] != "\n":
            raise UnavailableError(what, "its columns do not have the requested widths")
        return fields
