"""Simulated output of Slurm's commands.

A test gives the rows. The output has the format that the code under test requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

RECORDED_DELIMITER = "<~x~>"


def recorded_rows(text: str, columns: int) -> list[list[str]]:
    """Split recorded output of a Slurm command into rows.

    In the recording, every field ends with `RECORDED_DELIMITER`. Each row has `columns` fields.
    """
    fields = text.split(RECORDED_DELIMITER)
    assert (len(fields) - 1) % columns == 0 and not fields[-1].strip()
    rows = [fields[at : at + columns] for at in range(0, len(fields) - 1, columns)]
    return [[row[0].removeprefix("\n"), *row[1:]] for row in rows]


def squeue_delimiter(argv: Sequence[str]) -> str:
    """Return the delimiter in a squeue command."""
    environment = argv.environment  # type: ignore[attr-defined]
    text = environment.get("SQUEUE_FORMAT") or environment["SQUEUE_FORMAT2"]
    found = set(re.findall(r"<[0-9a-f]{16}>", text))
    assert len(found) == 1 and not any(found.copy().pop() in word for word in argv)
    return found.pop()


def squeue_fields(argv: Sequence[str]) -> list[str]:
    """Return the fields in a squeue command: letters with %, or names."""
    environment = argv.environment  # type: ignore[attr-defined]
    if "SQUEUE_FORMAT" in environment:
        return [text or "" for text in environment["SQUEUE_FORMAT"].split(squeue_delimiter(argv))[:-1]]
    return [part.partition(":")[0] for part in environment["SQUEUE_FORMAT2"].split(",")]


def squeue_text(argv: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as text in the output format of squeue."""
    delimiter = squeue_delimiter(argv)
    return "".join("".join(field + delimiter for field in row) + "\n" for row in rows)


def fixed_width_text(argv: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as sacct and sacctmgr without -p: src/common/print_fields.c, print_fields_str()."""
    form = next(word for word in argv if "%-" in word)
    widths = [int(width) for width in re.findall(r"%-(\d+)", form)]
    output = b""
    for row in rows:
        assert len(row) == len(widths)
        for field, width in zip(row, widths, strict=True):
            value = field.encode("utf-8", "surrogatepass")
            if len(value) > width:
                value = value[: width - 1] + b"+"
            output += value.ljust(width) + b" "
        output += b"\n"
    return output.decode(argv.encoding)  # type: ignore[attr-defined]
