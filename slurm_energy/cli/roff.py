"""Elements of man pages in the macros of man(7), which groff and mandoc format.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from slurm_energy.command_line.help_text import HelpBlock, HelpRow, blocks, shell_lines

_SPECIAL: Final = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
    '"': r"\(dq",
}
_EXAMPLE_COLUMNS: Final = 70


def escape(text: str) -> str:
    """Return a line of text in which groff finds no request (command) and no escape sequence."""
    characters = (_SPECIAL.get(c, c if c.isascii() else f"\\[u{ord(c):04X}]") for c in text)
    escaped = "".join(characters)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def bold(text: str) -> str:
    """Return the text in bold."""
    return rf"\fB{escape(text)}\fR"


def italic(text: str) -> str:
    """Return the text in italics."""
    return rf"\fI{escape(text)}\fR"


def title(name: str, section: int, date: str, release: str, manual: str) -> str:
    """Return the first line of a manual page, which contains its title."""
    return f'.TH {escape(name.upper())} {section} {date} "{escape(release)}" "{escape(manual)}"'


def section(name: str) -> str:
    """Return the heading of a section in the source of a manual page."""
    return f'.SH "{escape(name.upper())}"'


def subsection(name: str) -> str:
    """Return the heading of a subsection."""
    return f'.SS "{escape(name)}"'


def paragraph(text: str) -> Iterator[str]:
    """Yield the lines that write a paragraph of text in the man page format (roff)."""
    yield ".PP"
    yield escape(text)


def tagged(tag: str, explanation: str) -> Iterator[str]:
    """Yield the lines of a man page for a term, such as an option, and its explanation.

    The term is the argument `tag`. It already contains its font macros. The explanation is escaped.
    """
    yield ".TP"
    yield tag
    yield escape(explanation) if explanation else r"\&"


def example(row: HelpRow) -> Iterator[str]:
    """Yield an example for a manual page: the explanation, and below it the command."""
    if row.explanation:
        yield from paragraph(f"{row.explanation[:1].upper()}{row.explanation[1:]}:")
    yield from verbatim(line.strip() for line in shell_lines(row.term, _EXAMPLE_COLUMNS))


def without_empty_breaks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a manual page without line breaks before and after headings.

    mandoc would warn about such breaks, because they have no effect.
    """
    pending = ""
    after_heading = False
    for line in lines:
        is_heading = line.startswith((".SH", ".SS"))
        if pending and not is_heading:
            yield pending
        pending = ""
        if line == ".br":
            pending = line
        elif not (line == ".PP" and after_heading):
            yield line
        after_heading = is_heading


def verbatim(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of a man page that keep their line breaks and blanks."""
    yield from (".PP", ".RS 4", ".nf")
    yield from (escape(line) or r"\&" for line in lines)
    yield from (".fi", ".RE")


def body(text: str) -> tuple[list[str], list[str]]:
    """Return two parts of a manual page: the lines of its description, and those of its examples.

    The parts come from the text that follows the options of a help page.
    """
    described: list[str] = []
    examples: list[str] = []
    for group in blocks(text):
        for block in group:
            if block.is_examples:
                examples += [line for row in block.rows for line in example(row)]
            elif not block.text.startswith("exit codes:"):
                described += _description(block)
    return described, examples


def _description(block: HelpBlock) -> Iterator[str]:
    if block.text:
        yield from paragraph(block.text)
    for row in block.rows:
        yield from tagged(bold(row.term), row.explanation)
