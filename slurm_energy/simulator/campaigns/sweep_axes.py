"""Axes of a sweep: the scenario keys that vary, and the values of each key. The module does no I/O."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from typing import Any, Final

from slurm_energy.quantities import shown

MAX_VALUES: Final = 1000
"""Maximum number of values of a range. A longer range is a slip of the keyboard."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER}):({_NUMBER})")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """One axis of a sweep over the values of a scenario. The keys of one axis change together.

    Attributes:
        keys: keys of the scenario as `SECTION.KEY`; `model.KEY` means the key of every model.
        points: values of the keys at each point of the axis, one value per key.
    """

    keys: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]

    @property
    def title(self) -> str:
        """Return the keys of the axis as text, for headings."""
        return ", ".join(self.keys)


def axes_of_table(table: Mapping[str, Any]) -> tuple[SweepAxis, ...]:
    """Return the axes of the table `[sweep]`, in the order of its entries.

    Raises:
        ValueError: an entry is malformed. The message names its key.
    """
    axes = tuple(axis(name, values) for name, values in table.items())
    keys = [key for one in axes for key in one.keys]
    repeated = [key for key in keys if keys.count(key) > 1]
    if repeated:
        raise ValueError(f"{shown(repeated[0], 80)} occurs twice")
    return axes


def axis(name: str, values: Any) -> SweepAxis:
    """Return the axis of a sweep that one entry of `[sweep]` describes: the keys and their values.

    Args:
        name: one key, or several keys separated by commas, which change together.
        values: a list of values, or one range. A range is a text such as `"0.5:1.0:0.1"` and includes its
            end. Lists may contain ranges. With several keys, `values` has one list of values per point.

    Raises:
        ValueError: the entry is malformed. The message names its key.
    """
    keys = tuple(key.strip() for key in name.split(","))
    if not all(keys):
        raise ValueError(f"{shown(name, 80)}: a key is empty")
    listed = values if isinstance(values, list) else [values] if isinstance(values, str) else []
    if len(keys) > 1:
        if not listed or not all(isinstance(point, list) and len(point) == len(keys) for point in listed):
            raise ValueError(f"{shown(name, 80)} needs a list with {len(keys)} values per point")
        return SweepAxis(keys, tuple(tuple(point) for point in listed))
    points = [(value,) for item in listed for value in _expanded(keys[0], item)]
    if not points:
        raise ValueError(f"{shown(name, 80)} needs a list of values, or a range such as '0.5:1.0:0.1'")
    return SweepAxis(keys, tuple(points))


def axis_of_option(text: str) -> SweepAxis:
    """Return the axis of an option `KEY=VALUE,...`.

    Values are in TOML syntax. A word without quotation marks is read as a string. A text such as
    `0.5:1.0:0.1` is read as a range.

    Raises:
        ValueError: the text is malformed.
    """
    name, _, values = text.partition("=")
    items = [_value(item.strip()) for item in _split(values)]
    return axis(name, items)


def _split(text: str) -> list[str]:
    """Split a text at its commas, except at commas inside brackets or quotation marks."""
    items, depth, quote, begin = [], 0, "", 0
    for index, mark in enumerate(text):
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        elif mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif mark == "," and depth == 0:
            items.append(text[begin:index])
            begin = index + 1
    return [item for item in (*items, text[begin:]) if item.strip()]


def _value(text: str) -> Any:
    if _RANGE.fullmatch(text) or (_WORD.fullmatch(text) and text not in ("true", "false", "inf", "nan")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        raise ValueError(f"{shown(text)} is not a value in TOML syntax") from None


def _expanded(name: str, item: Any) -> Sequence[Any]:
    """Return the values that one entry in the list of a swept parameter stands for.

    An entry BEGIN:END:STEP is a range and stands for several values. Any other entry stands for itself.
    """
    match = _RANGE.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        return [item]
    try:
        begin, end, step = (Decimal(word) for word in match.groups())
        count = int((end - begin) / step) + 1 if step else 0
    except (DecimalException, OverflowError):
        count = 0
    if count < 1:
        raise ValueError(f"{shown(name, 80)}: the range {shown(item)} has no value: BEGIN:END:STEP")
    if count > MAX_VALUES:
        raise ValueError(
            f"{shown(name, 80)}: the range {shown(item)} has {count} values, at most {MAX_VALUES}"
        )
    whole = all(re.fullmatch(r"[-+]?\d+", word) for word in match.groups())
    numbers = [begin + index * step for index in range(count)]
    return [int(number) if whole else float(number) for number in numbers]
