"""Parser of the lines of slurm.conf; it keeps the position of each line in the text.

Continuation lines are joined and comments are removed as Slurm's parser does it. All functions are pure.
Source: src/common/parse_config.c of Slurm (_get_next_line, _strip_comments, _strip_continuation).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMMENT: Final = re.compile(r"^((?:[^\\#]|\\.)*)#.*$", re.DOTALL)
_PAIR: Final = re.compile(
    r"\s*(?P<key>[\w.]+)\s*[-*+/]?=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<value>\S+))(?=\s|$)(?P<rest>.*)$",
    re.ASCII | re.DOTALL,
)
_SPACES: Final = " \t\r\n\v\f"


@dataclass(frozen=True, slots=True)
class ConfLine:
    """A line of slurm.conf after joining continuation lines.

    Attributes:
        start: offset of the line in the text.
        end: offset of the first character after the line and its line break.
        text: the line without comment, continuation marks and escapes.
        comment: the comment at the end, with its `#`; empty if the line has no comment.
    """

    start: int
    end: int
    text: str
    comment: str = ""

    @property
    def pair(self) -> tuple[str, str] | None:
        """Key in lower case and its value if the line consists of exactly one pair; None otherwise."""
        match = _PAIR.match(self.text)
        if match is None or match["rest"].strip(_SPACES):
            return None
        value = match["quoted"] if match["quoted"] is not None else match["value"]
        return match["key"].lower(), value

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of the line, each with the key in lower case and its value."""
        pairs, rest = [], self.text
        while match := _PAIR.match(rest):
            value = match["quoted"] if match["quoted"] is not None else match["value"]
            pairs.append((match["key"].lower(), value))
            rest = match["rest"]
        return pairs

    @property
    def included(self) -> str:
        """Name of the file that an Include line of slurm.conf names; empty for any other line."""
        words = self.text.split(None, 2)
        return words[1] if len(words) > 1 and words[0].lower() == "include" else ""


def conf_lines(text: str) -> Iterator[ConfLine]:
    """Yield the lines of a configuration file of Slurm."""
    parts: list[str] = []
    start, at = 0, 0
    for raw in raw_lines(text):
        at += len(raw)
        match = _COMMENT.match(raw)
        line = match[1] if match else raw
        stripped = line.rstrip(_SPACES)
        if _is_continued(stripped):
            parts.append(stripped[:-1])
            continue
        comment = raw[len(line) :].rstrip("\r\n") if match else ""
        yield ConfLine(start, at, _unescaped("".join(parts) + line), comment)
        parts, start = [], at
    if parts:
        yield ConfLine(start, at, _unescaped("".join(parts)))


def ends_continued(text: str) -> bool:
    """Return whether the last line of a text ends with a continuation mark.

    A line that is appended to a text of this kind would become part of its last line.
    """
    lines = list(raw_lines(text))
    if not lines:
        return False
    match = _COMMENT.match(lines[-1])
    return _is_continued((match[1] if match else lines[-1]).rstrip(_SPACES))


def line_break(text: str) -> str:
    r"""Return the line break of a text: `\r\n` if most lines end with these characters, else `\n`."""
    return "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"


def raw_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text with their line breaks. Only a line feed ends a line."""
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(line: str) -> str:
    return re.sub(r"\\(.?)", r"\1", line, flags=re.DOTALL)
