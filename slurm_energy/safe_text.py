"""Escaping of user-chosen text for terminals, tables and spreadsheets.

All functions are pure.
"""

from __future__ import annotations

import unicodedata
from typing import Any

_FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula. Some editions of spreadsheets also interpret the full-width forms."""
_IGNORED_STARTS = ("\t", "\r", "\n")
"""Characters that a spreadsheet removes before it searches for a formula."""


def escape_controls(text: str) -> str:
    """Escape the control and format characters in a text, because they could control a terminal.

    User-chosen text, such as the name of a job, could otherwise move the cursor or reverse the line.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def encodable(text: str, encoding: str | None) -> str:
    """Return the text with `?` in place of each character that the encoding cannot represent.

    An encoding of None means ASCII.
    """
    encoding = encoding or "ascii"
    return text.encode(encoding, "replace").decode(encoding)


def is_storable(text: str) -> bool:
    """Return whether databases can store a text: UTF-8 can represent it, and it contains no NUL.

    Command lines and JSON may contain lone surrogates, which UTF-8 cannot represent.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def display_width(text: str) -> int:
    """Return how many columns a text takes on a terminal.

    East Asian wide characters take two columns. Combining marks take no column.
    """
    if text.isascii():
        return len(text)
    return sum(_columns_of_one(character) for character in text)


def _columns_of_one(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def escape_csv(value: Any) -> Any:
    """Return a value for a CSV file in a form that no spreadsheet executes.

    A single quote is put before text that a spreadsheet would interpret as a formula. Other text, numbers and
    None are returned unchanged. Source: OWASP, "CSV Injection".
    """
    if not isinstance(value, str):
        return value
    executed = value.startswith(_IGNORED_STARTS) or value.lstrip().startswith(_FORMULA_STARTS)
    return f"'{value}" if executed else value


def escape_csv_reversibly(text: str) -> str:
    """Return a text in the form of `escape_csv`, from which `unescape_csv` recovers it.

    A text that already has single quotes before a formula also gets a single quote.
    """
    return f"'{text}" if _is_quoted_formula(text) else text


def unescape_csv(text: str) -> str:
    """Return a text of a CSV file without the quote that `escape_csv` has put before it."""
    return text[1:] if text.startswith("'") and _is_quoted_formula(text) else text


def _is_quoted_formula(text: str) -> bool:
    inner = text.lstrip("'")
    return bool(escape_csv(inner) != inner)
