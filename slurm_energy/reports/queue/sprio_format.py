"""Parser of the notation in which Slurm's sprio names columns.

A format such as `%.15i %9r %Y` uses one letter per column. A sort list consists of single letters. The
letters for Slurm's own priority factors are not supported, because the scheduling policy of slurm-energy
determines the order of the queue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.acct.fields import Field, Row
from slurm_energy.reports.table import MAX_WIDTH, Column

COLUMNS: Final = {
    "i": "JOBID",
    "N": "NICE",
    "r": "PARTITION",
    "S": "SITE",
    "u": "USER",
    "y": "NORMPRIO",
    "Y": "PRIORITY",
}
"""Our column for a letter of sprio. Source: sprio(1) of Slurm 22.05, --format."""
_FACTORS: Final = {
    "a": "age",
    "b": "association",
    "c": "cluster",
    "f": "fair-share",
    "j": "job size",
    "p": "partition",
    "q": "QOS",
    "t": "TRES",
}
_ITEM: Final = re.compile(r"%(?P<right>\.)?(?P<width>\d{1,5})?(?P<letter>[A-Za-z])", re.ASCII)


def parse(fields: Sequence[Field[Row]], text: str, flag: str, listing: str) -> list[Column[Row]]:
    """Return the table columns that an output format such as `%.15i %9r %Y` describes.

    As in sprio, a dot right-justifies a column. A column without a width is as wide as its text.

    Args:
        fields: columns that the command can show.
        text: format in the notation of sprio.
        flag: option that contained the text, for the error message.
        listing: command that lists all columns, for the error message.

    Raises:
        UsageError: the format contains a letter that stands for no column of this command, or the text is
            not a format.
    """
    columns: list[Column[Row]] = []
    for item in re.split(r"[\s,|]+", text.strip()):
        rest = item
        while match := _ITEM.match(rest):
            field = field_of_letter(fields, match["letter"], f"{flag}: '%{match['letter']}'", listing)
            width = int(match["width"] or 0)
            if match["width"] and not 0 < width <= MAX_WIDTH:
                raise UsageError(f"{flag}: bad width in '{shown(item)}'", todo=f"use 1 to {MAX_WIDTH}")
            columns.append(Column(field, width, left=not match["right"], fixed=True))
            rest = rest[match.end() :]
        if rest:
            todo = f"write %.15i, or {fields[0].name}%15; {listing}"
            raise UsageError(f"{flag}: '{shown(rest)}' is not a field", todo=todo)
    return columns


def is_letter(name: str) -> bool:
    """Return whether a name has the form of a sprio field: a single letter."""
    return name in COLUMNS or (len(name) == 1 and name.lower() in _FACTORS)


def field_of_letter(
    fields: Sequence[Field[Row]], letter: str, message_start: str, listing: str
) -> Field[Row]:
    """Return the column for a letter of sprio.

    Args:
        fields: columns that the command can show.
        letter: letter of sprio that names a field.
        message_start: start of the error message, which names the option.
        listing: command that lists all columns, for the error message.

    Raises:
        UsageError: the letter has no column here.
    """
    if letter in COLUMNS:
        return next(field for field in fields if field.name == COLUMNS[letter])
    factor = _FACTORS.get(letter.lower())
    reason = f"Slurm's {factor} factor has no column here" if factor else "sprio has no such letter"
    raise UsageError(message_start, reason, listing)
