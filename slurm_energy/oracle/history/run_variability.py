"""How far the next run of a key is from the one before, as learned from all keys of a level together."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

_KEPT: Final = 1000
_MOST_OF_ONE_USER: Final = _KEPT // 4
_ENOUGH: Final = 20
_FACTORS: Final = 9
_LARGEST: Final = math.log(1e6)
_AT_FIRST: Final = (0.2, 0.45, 0.75, 0.92, 1.0, 1.08, 1.3, 2.2, 5.0)


class RunVariability:
    """The newest ratios of a run's figure to that of the run before it with the same key.

    Attributes:
        factors: equally likely ratios in ascending order; a broad guess until enough were seen. They are
            renewed seldom. A change and its opposite count alike: after longer runs come shorter ones.
    """

    __slots__ = ("_counts", "_ratios", "_renew_at", "_seen", "_users", "factors")

    def __init__(self) -> None:
        self.factors: tuple[float, ...] = _AT_FIRST
        self._ratios: deque[float] = deque(maxlen=_KEPT)
        self._users: deque[str | None] = deque()
        self._counts: Counter[str | None] = Counter()
        self._seen, self._renew_at = 0, _ENOUGH

    def note(self, before: float, after: float, user: str | None = None) -> None:
        """Take note of a pair of runs; figures that are not above 0 say nothing.

        All users share the ratios. So a user who has a quarter of them adds no more while others have some.

        Args:
            before: figure of a run.
            after: that of the next one.
            user: owner of the latter.
        """
        own = self._counts[user]
        crowding = own >= _MOST_OF_ONE_USER and len(self._ratios) - own >= _ENOUGH
        if before <= 0 or after <= 0 or crowding:
            return
        ratio = math.log(after) - math.log(before)
        if len(self._ratios) == _KEPT:
            self._counts[self._users.popleft()] -= 1
        self._ratios.append(min(max(ratio, -_LARGEST), _LARGEST))
        self._users.append(user)
        self._counts[user] += 1
        self._seen += 1
        if self._seen >= self._renew_at:
            ordered = sorted((*self._ratios, *(-ratio for ratio in self._ratios)))
            places = (int((number + 0.5) / _FACTORS * len(ordered)) for number in range(_FACTORS))
            self.factors = tuple(math.exp(ordered[place]) for place in places)
            self._renew_at = self._seen + max(_ENOUGH, self._seen // 4)
