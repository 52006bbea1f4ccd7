"""Conversion of texts and numbers to safe JSON for a Chrome trace.

All names come from users. Every text therefore passes through `json_text`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from slurm_energy.safe_text import escape_controls

MAX_TEXT: Final = 256
"""Maximum characters of a name or argument; longer text is cut."""
MAX_ARGS: Final = 16
_MARKUP = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def json_text(text: str) -> str:
    """Return a text as an ASCII JSON string without control, format and markup characters.

    Control and format characters, lone surrogates and direction marks become visible escapes, because they
    could hide or reorder text in a viewer. Markup characters become JSON escapes, so that the trace is inert
    inside a page.
    """
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
    literal = json.dumps(escape_controls(cut))
    for character, escape in _MARKUP.items():
        if character in literal:
            literal = literal.replace(character, escape)
    return literal


def json_args(args: Mapping[str, Any]) -> str:
    """Return the scalar arguments of an event as a JSON object. Other values and NaN are left out."""
    parts: list[str] = []
    for name, value in args.items():
        if len(parts) == MAX_ARGS:
            break
        if isinstance(value, str):
            parts.append(f"{json_text(name)}:{json_text(value)}")
        elif isinstance(value, bool):
            parts.append(f"{json_text(name)}:{'true' if value else 'false'}")
        elif is_finite(value):
            parts.append(f"{json_text(name)}:{value!r}")
    return "{" + ",".join(parts) + "}"


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number that a float can hold; False for booleans."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False
