"""Rate limit for requests to the agent, with a token bucket for each user.

The module contains only arithmetic.
"""

from __future__ import annotations

_MAX_USERS = 1000


class UserTokenBuckets:
    """A token bucket for each user.

    Args:
        per_s: tokens that each bucket receives per second.
        burst: capacity of a bucket in tokens.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left: dict[int, tuple[float, float]] = {}

    def try_take(self, uid: int, now: float) -> bool:
        """Take a token from a user's bucket.

        Return False if the bucket is empty.

        Args:
            uid: uid of the user.
            now: seconds of a clock that does not jump.
        """
        tokens = self._tokens(uid, now)
        granted = tokens >= 1
        self._left[uid] = (tokens - granted, now)
        return granted

    def reserve(self, uid: int, now: float, count: int = 1) -> float:
        """Take tokens from a user's bucket and return after how many seconds these tokens may be used.

        If the bucket has too few tokens, future tokens of the bucket are reserved. The result is then the
        time until the bucket has received these tokens. Otherwise the result is 0.

        Args:
            uid: uid of the user.
            now: seconds of a clock that does not jump.
            count: number of tokens.
        """
        tokens = self._tokens(uid, now) - count
        self._left[uid] = (tokens, now)
        return max(0.0, -tokens / self._per_s)

    def _tokens(self, uid: int, now: float) -> float:
        """Remove a user's bucket from the table and return its tokens at time `now`.

        If the table of buckets is full, the least recently used bucket is removed too, so that the caller can
        add a bucket.
        """
        tokens, since = self._left.pop(uid, (self._burst, now))
        if len(self._left) >= _MAX_USERS:
            del self._left[next(iter(self._left))]  # the bucket used longest ago
        return min(self._burst, tokens + max(0.0, now - since) * self._per_s)
