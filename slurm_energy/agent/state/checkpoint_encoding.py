"""JSON encoding of checkpoints that is fast even when the data are large.

Data that grow with every job are encoded once and not again in each checkpoint.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

_TOKEN: Final = secrets.token_hex(16)
"""Text that no string in a checkpoint contains."""


class EncodedValue:
    """A value that does not change, stored as its JSON text.

    Args:
        value: a value that JSON can hold.
    """

    __slots__ = ("json_text",)

    def __init__(self, value: Any) -> None:
        self.json_text = json.dumps(value)


class EncodedList:
    """A growing list that is stored as its JSON text."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = ""

    def append(self, item: Any) -> None:
        """Add an item that JSON can hold."""
        text = json.dumps(item)
        self._text = f"{self._text}, {text}" if self._text else text

    @property
    def json_text(self) -> str:
        """The list as JSON."""
        return f"[{self._text}]"


def encode(data: dict[str, Any]) -> bytes:
    """Convert the data of a checkpoint to JSON.

    The data may contain parts that are already JSON text: objects of the classes `EncodedList` and
    `EncodedValue`.
    """
    lists: list[EncodedList | EncodedValue] = []

    def placeholder(value: Any) -> str:
        if not isinstance(value, EncodedList | EncodedValue):
            raise TypeError(f"{type(value).__name__} cannot be stored")
        lists.append(value)
        return f"{_TOKEN}{len(lists) - 1}"

    text = json.dumps(data, default=placeholder)
    for number, encoded in enumerate(lists):
        text = text.replace(f'"{_TOKEN}{number}"', encoded.json_text)
    return text.encode()
