"""How far the next run of a key is from the one before, as learned from all keys of a level together."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_KEPT: Final = 1000
_ENOUGH: Final = 20
_FACTORS: Final = 9
_LARGEST: Final = math.log(1e6)
_AT_FIRST: Final = (0.2, 0.45, 0.75, 0.92, 1.0, 1.08, 1.3, 2.2, 5.0)


class Surprise:
    """The newest ratios of a run's figure to that of the run before it with the same key.

    Attributes:
        factors: equally likely ratios in ascending order; a broad guess until enough were seen. They are
            renewed seldom. A change and its opposite count alike: after longer runs come shorter ones.
    """

    __slots__ = ("_ratios", "_renew_at", "_seen", "factors")

    def __init__(self) -> None:
        self.factors: tuple[float, ...] = _AT_FIRST
        self._ratios: deque[float] = deque(maxlen=_KEPT)
        self._seen, self._renew_at = 0, _ENOUGH

    def note(self, before: float, after: float) -> None:
        """Take note of a pair of runs; figures that are not above 0 say nothing."""
        if before <= 0 or after <= 0:
            return
        ratio = math.log(after) - math.log(before)
        self._ratios.append(min(max(ratio, -_LARGEST), _LARGEST))
        self._seen += 1
        if self._seen >= self._renew_at:
            ordered = sorted((*self._ratios, *(-ratio for ratio in self._ratios)))
            places = (int((number + 0.5) / _FACTORS * len(ordered)) for number in range(_FACTORS))
            self.factors = tuple(math.exp(ordered[place]) for place in places)
            self._renew_at = self._seen + max(_ENOUGH, self._seen // 4)
