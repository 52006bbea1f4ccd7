"""Variation of run time and power between successive runs of similar jobs.

Runs are similar if they have the same similarity key, which contains some of the jobs' attributes.
The level of a key states which attributes it contains. The variation is learned for each level from
all keys of this level together.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

_MAX_RATIOS: Final = 1000
_MAX_RATIOS_PER_USER: Final = _MAX_RATIOS // 4
_MIN_RATIOS: Final = 20
_FACTORS: Final = 9
_MAX_LOG_RATIO: Final = math.log(1e6)
_INITIAL_FACTORS: Final = (0.2, 0.45, 0.75, 0.92, 1.0, 1.08, 1.3, 2.2, 5.0)


class RunVariability:
    """Distribution of the changes between successive runs of similar jobs.

    A change is a ratio: the value of a run divided by the value of the preceding run. The value is the
    run time in seconds or the power in watts. The distribution is learned from the newest `_MAX_RATIOS`
    ratios. There is one distribution for each level of similarity between jobs.

    Attributes:
        factors: equally likely ratios in ascending order. A ratio and its inverse are assumed equally
            likely. Until `_MIN_RATIOS` ratios are recorded, a broad distribution is assumed. Afterwards,
            `factors` is recomputed whenever the number of recorded ratios has grown by a quarter.
    """

    __slots__ = ("_added", "_counts", "_ratios", "_renew_at", "_users", "factors")

    def __init__(self) -> None:
        self.factors: tuple[float, ...] = _INITIAL_FACTORS
        self._ratios: deque[float] = deque(maxlen=_MAX_RATIOS)
        self._users: deque[str | None] = deque()
        self._counts: Counter[str | None] = Counter()
        self._added, self._renew_at = 0, _MIN_RATIOS

    def add(self, before: float, after: float, user: str | None = None) -> None:
        """Record how much a value differs between two successive runs of a program, as a ratio.

        Values that are not above 0 are ignored. The ratios of all users form one distribution. One user may
        contribute at most a quarter of the maximum number of ratios. Further ratios of this user are
        ignored, provided that the other users have at least `_MIN_RATIOS`.

        Args:
            before: value of a run, in seconds, share of the time limit, or watts.
            after: value of the next run in the same unit.
            user: owner of the next run; None means unknown.
        """
        own_count = self._counts[user]
        over_quota = own_count >= _MAX_RATIOS_PER_USER and len(self._ratios) - own_count >= _MIN_RATIOS
        if before <= 0 or after <= 0 or over_quota:
            return
        ratio = math.log(after) - math.log(before)
        if len(self._ratios) == _MAX_RATIOS:
            self._counts[self._users.popleft()] -= 1
        self._ratios.append(min(max(ratio, -_MAX_LOG_RATIO), _MAX_LOG_RATIO))
        self._users.append(user)
        self._counts[user] += 1
        self._added += 1
        if self._added >= self._renew_at:
            ordered = sorted((*self._ratios, *(-ratio for ratio in self._ratios)))
            indices = (int((number + 0.5) / _FACTORS * len(ordered)) for number in range(_FACTORS))
            self.factors = tuple(math.exp(ordered[index]) for index in indices)
            self._renew_at = self._added + max(_MIN_RATIOS, self._added // 4)
