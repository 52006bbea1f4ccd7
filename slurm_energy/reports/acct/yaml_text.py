"""Writer of YAML block documents for plain data: dicts, lists, strings, numbers, booleans and None.

Strings are written in double quotes. All characters other than printable ASCII are escaped, so that no text
can be read as another type, or control a terminal. The output is valid in YAML 1.1 and 1.2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n"])
"""Words that YAML 1.1 reads as other types than text, in any case of letters."""
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def yaml_lines(value: Any) -> Iterator[str]:
    """Yield the lines of a YAML document that represents a value.

    Floats that are not finite become null. Keys of mappings are converted to text.
    """
    yield "---"
    yield from _block(value, "")


def _block(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{indent}{_key(key)}:", item, indent + "  ")
    elif isinstance(value, (list, tuple)) and value:
        for item in value:
            yield from _item(item, indent)
    else:
        yield indent + _scalar(value)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, (Mapping, list, tuple)) and value:
        yield head
        yield from _block(value, indent)
    else:
        yield f"{head} {_scalar(value)}"


def _item(value: Any, indent: str) -> Iterator[str]:
    """Yield the lines of one item of a list. The first line starts with a dash."""
    for number, line in enumerate(_block(value, indent + "  ")):
        yield f"{indent}- {line[len(indent) + 2 :]}" if number == 0 else line


def _key(key: Any) -> str:
    text = str(key)
    return text if _PLAIN_KEY.fullmatch(text) and text.lower() not in _WORDS else _quoted(text)


def _scalar(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return "{}"
    return "[]" if isinstance(value, (list, tuple)) else _quoted(str(value))


def _number(value: float) -> str:
    """Return a float in a form that YAML 1.1 reads as a number: with a decimal point and an exponent sign."""
    text = repr(float(value))
    mantissa, exponent_mark, exponent = text.partition("e")
    if exponent_mark:
        point = "" if "." in mantissa else ".0"
        return f"{mantissa}{point}e{exponent if exponent.startswith('-') else '+' + exponent.lstrip('+')}"
    return text


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"  # half of a surrogate pair is not text
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
