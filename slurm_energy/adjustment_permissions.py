"""Permissions for adjustments: the changes of a program's values that are allowed.

A user or a site allows some kinds of adjustments, each with a range of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.adjustment import KINDS, AdjustmentKind, kind_named
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

MAX_TEXT: Final = 400
DEFAULT_SLOWDOWN_PERCENT: Final = 3
_SLOWDOWN: Final = "slowdown"
_MAX_SLOWDOWN_PERCENT: Final = 100
_RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?", re.ASCII)

ValueRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AdjustmentPermissions:
    """What a user or site permits the diagnosis to change for the next run of a program.

    Attributes:
        ranges: lowest and highest permitted value by kind of adjustment; a kind that is absent is not
            permitted.
        slowdown_percent: an adjustment that saves energy is kept only if the time per unit of progress
            increases by at most this percentage.
    """

    ranges: Mapping[AdjustmentKind, ValueRange] = field(default_factory=dict)
    slowdown_percent: int = DEFAULT_SLOWDOWN_PERCENT

    @classmethod
    def parse(cls, text: str) -> AdjustmentPermissions:
        """Return the permissions in a text such as `workers=0..16,pin-memory,slowdown=5`.

        A name without a range permits every value of its kind. `slowdown` is in percent, 3 by default.

        Raises:
            UsageError: an item is malformed, unknown, given twice, or beyond the limits of its kind.
        """
        if len(text) > MAX_TEXT:
            raise UsageError("permissions", f"longer than {MAX_TEXT} characters")
        ranges: dict[AdjustmentKind, ValueRange] = {}
        slowdown: int | None = None
        for item in text.split(",") if text.strip() else ():
            name, separator, value = item.strip().partition("=")
            if name == _SLOWDOWN:
                if slowdown is not None:
                    raise UsageError(f"permissions: {_SLOWDOWN}", "given twice")
                slowdown = _slowdown(value)
                continue
            kind = kind_named(name)
            if kind in ranges:
                raise UsageError(f"permissions: {name}", "given twice")
            ranges[kind] = _range(kind, value) if separator else _limits(kind)
        return cls(ranges, DEFAULT_SLOWDOWN_PERCENT if slowdown is None else slowdown)

    @classmethod
    def everything(cls) -> AdjustmentPermissions:
        """Return permissions that allow every value of every kind of adjustment."""
        return cls({kind: _limits(kind) for kind in AdjustmentKind})

    @property
    def text(self) -> str:
        """The permissions as text that `parse` reads."""
        items = [
            kind.value if (low, high) == _limits(kind) else f"{kind.value}={low}..{high}"
            for kind, (low, high) in self.ranges.items()
        ]
        if self.slowdown_percent != DEFAULT_SLOWDOWN_PERCENT:
            items.append(f"{_SLOWDOWN}={self.slowdown_percent}")
        return ",".join(items)

    def within(self, limits: AdjustmentPermissions) -> AdjustmentPermissions:
        """Return these permissions, restricted to what other permissions also allow.

        A kind of adjustment keeps those values that both permissions allow. A kind without such a value is
        left out. A kind that `limits` does not name is not restricted.

        Args:
            limits: the other permissions.
        """
        ranges = {}
        for kind, (low, high) in self.ranges.items():
            low_limit, high_limit = limits.ranges.get(kind, (low, high))
            if max(low, low_limit) <= min(high, high_limit):
                ranges[kind] = max(low, low_limit), min(high, high_limit)
        return AdjustmentPermissions(ranges, self.slowdown_percent)

    def only(self, kinds: Iterable[AdjustmentKind]) -> AdjustmentPermissions:
        """Return these permissions reduced to the given kinds of adjustment."""
        wanted = frozenset(kinds)
        kept = {kind: values for kind, values in self.ranges.items() if kind in wanted}
        return AdjustmentPermissions(kept, self.slowdown_percent)

    def permits(self, kind: AdjustmentKind, value: float) -> bool:
        """Return whether the user permits that an adjustment sets this value.

        Args:
            kind: kind of the adjustment. If the user has permitted no range of values for this kind, the
                result is False.
            value: the value to set.
        """
        low, high = self.ranges.get(kind, (1, 0))
        return low <= value <= high


def _limits(kind: AdjustmentKind) -> ValueRange:
    return int(KINDS[kind].minimum), int(KINDS[kind].maximum)


def _range(kind: AdjustmentKind, text: str) -> ValueRange:
    match = _RANGE.fullmatch(text)
    if match is None:
        todo = f"write {kind.value}=LOW..HIGH, or {kind.value}"
        raise UsageError(f"permissions: {kind.value}='{shown(text[:40])}'", "not a range", todo)
    low, high = int(match[1]), int(match[2] or match[1])
    minimum, maximum = _limits(kind)
    if not minimum <= low <= high <= maximum:
        raise UsageError(f"permissions: {kind.value}={text}", f"not within {minimum}..{maximum}")
    return low, high


def _slowdown(text: str) -> int:
    match = _RANGE.fullmatch(text)
    if match is None or match[2] is not None or int(match[1]) > _MAX_SLOWDOWN_PERCENT:
        todo = f"write a whole number of percent, at most {_MAX_SLOWDOWN_PERCENT}"
        raise UsageError(f"permissions: {_SLOWDOWN}='{shown(text[:40])}'", "not a percentage", todo)
    return int(match[1])
