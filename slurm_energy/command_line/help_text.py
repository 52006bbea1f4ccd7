"""Layout of the texts below the options of a help page. All functions are pure.

A text is parsed into paragraphs and rows. Rows are indented by two blanks. A row contains a term,
such as a command, then at least two blanks, then the explanation of the term. If the first line of a
paragraph begins with `label: `, each further line that begins in this form starts a new paragraph.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_ROW_INDENT: Final = "  "
_DEEP_INDENT: Final = 10
"""Blanks before the continuation of an explanation. A row is indented by less."""
_LABEL: Final = re.compile(r"[A-Za-z][\w -]{0,24}: +\S")
_GAP: Final = re.compile(r"(?<=\S)(?: {2,})(?=\S)")
_SHELL_WORD: Final = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\\.|[^\s'\"\\]|['\"])+")
_MAX_TERM: Final = 36
_MIN_EXPLANATION: Final = 28


@dataclass(frozen=True)
class HelpRow:
    """A term and its explanation, which may be empty."""

    term: str
    explanation: str = ""


@dataclass(frozen=True)
class HelpBlock:
    """One block of a help text: a paragraph, a list of entries (rows), or a paragraph with a list.

    Attributes:
        text: the paragraph. It ends with `:` if it is the title of the rows.
        rows: the rows; empty if there is only a paragraph.
        lines: the lines of the block as written in the help text.
    """

    text: str
    rows: tuple[HelpRow, ...]
    lines: tuple[str, ...]

    @property
    def is_examples(self) -> bool:
        """Whether the rows of this block of a help page are example commands."""
        return self.text.startswith("examples")


def blocks(text: str) -> list[list[HelpBlock]]:
    """Split a help text into groups at its empty lines.

    Return each group as a list of blocks. A block is a paragraph, a list of entries, or a paragraph with a
    list.
    """
    groups: list[list[HelpBlock]] = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        if part.strip():
            groups.append([_block(lines) for lines in _split(part.splitlines())])
    return groups


def _split(lines: Sequence[str]) -> Iterator[list[str]]:
    """Split the lines of a help group into blocks, and yield the lines of each block."""
    current: list[str] = []
    in_rows = False
    for line in lines:
        is_row = line.startswith(_ROW_INDENT)
        is_label = current and _LABEL.match(current[0]) and _LABEL.match(line)
        if current and not is_row and (in_rows or is_label):
            yield current
            current = []
        current.append(line)
        in_rows = is_row
    if current:
        yield current


def _block(lines: list[str]) -> HelpBlock:
    text = " ".join(line.strip() for line in lines if not line.startswith(_ROW_INDENT))
    rows: list[HelpRow] = []
    for line in (line for line in lines if line.startswith(_ROW_INDENT)):
        indent = len(line) - len(line.lstrip())
        if rows and indent >= _DEEP_INDENT:
            rows[-1] = HelpRow(rows[-1].term, f"{rows[-1].explanation} {line.strip()}".strip())
            continue
        term, *explanation = _GAP.split(line.strip(), maxsplit=1)
        rows.append(HelpRow(term, " ".join(" ".join(explanation).split())))
    return HelpBlock(text, tuple(rows), tuple(line.rstrip() for line in lines))


def render(text: str, width: int) -> str:
    """Return a help text wrapped to a width in columns. Lines that already fit are not changed."""
    return "\n\n".join(
        "\n".join(line for block in group for line in render_block(block, width)) for group in blocks(text)
    )


def render_block(block: HelpBlock, width: int) -> Iterator[str]:
    """Yield the output lines of one block of a help text, wrapped to a width in columns.

    A block is a paragraph, a list of entries (rows), or a paragraph with a list below it.
    """
    if all(len(line) <= width for line in block.lines):
        yield from block.lines
        return
    if block.text:
        yield from wrap(block.text, width, hanging=_hanging(block.text))
    yield from render_rows(block.rows, width, commands=block.is_examples)


def _hanging(text: str) -> str:
    """Return the indent of all lines of a paragraph except the first.

    If the paragraph begins with a short label, the indent consists of two blanks. Otherwise it is empty.
    """
    return "  " if _LABEL.match(text) else ""


def render_rows(rows: Sequence[HelpRow], width: int, *, commands: bool) -> Iterator[str]:
    """Format a list of terms and explanations for a help page in two columns; yield the lines.

    Args:
        rows: terms with their explanations.
        width: width of the terminal in columns.
        commands: whether the terms are shell commands. Long commands continue on the next line after a
            backslash.
    """
    short = [len(row.term) for row in rows if row.explanation and len(row.term) <= _MAX_TERM]
    column = min(max(short, default=0), max(8, width - _MIN_EXPLANATION - 4)) + 4
    for row in rows:
        fits = len(row.term) + 4 <= column or len(row.term) + len(row.explanation) + 4 <= width
        if row.explanation and fits:
            first = f"  {row.term}".ljust(column)
            if not first.endswith("  "):
                first += "  "
            yield from wrap(row.explanation, width, first=first, hanging=" " * min(column, len(first)))
            continue
        yield from _term_lines(row.term, width, commands=commands)
        if row.explanation:
            yield from wrap(row.explanation, width, first=" " * 8, hanging=" " * 8)


def _term_lines(term: str, width: int, *, commands: bool) -> Iterator[str]:
    if len(term) + 2 <= width:
        yield f"  {term}"
        return
    if not commands:
        yield from wrap(term, width, first="  ", hanging="      ")
        return
    yield from shell_lines(term, width)


def shell_lines(command: str, width: int) -> Iterator[str]:
    """Yield a shell command on lines of at most `width` columns; all but the last end with a backslash."""
    line = " "
    for word in _SHELL_WORD.findall(command):
        if line.strip() and len(line) + 1 + len(word) > width - 2:
            yield f"{line} \\"
            line = "     "
        line += f" {word}"
    yield line


def wrap(text: str, width: int, *, first: str = "", hanging: str = "") -> list[str]:
    """Return a paragraph in lines of at most `width` columns. Lines do not break at a hyphen."""
    return textwrap.wrap(
        text,
        max(width, len(hanging) + 12),
        initial_indent=first,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
