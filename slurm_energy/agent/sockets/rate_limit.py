"""How often each user may make the agent do something: a bucket of tokens per uid. Pure arithmetic."""

from __future__ import annotations

_MAX_USERS = 1000


class UserTokenBuckets:
    """Tokens that refill with time.

    Args:
        per_s: tokens per second.
        burst: most that a user can save up.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left: dict[int, tuple[float, float]] = {}

    def try_take(self, uid: int, now: float) -> bool:
        """Take a token of a user's; False if none is left.

        Args:
            uid: the user.
            now: seconds of a clock that does not jump.
        """
        tokens = self._tokens(uid, now)
        granted = tokens >= 1
        self._left[uid] = (tokens - granted, now)
        return granted

    def reserve(self, uid: int, now: float) -> float:
        """Take a token of a user's, of the future if none is left; return the seconds until it is due.

        Args:
            uid: the user.
            now: seconds of a clock that does not jump.
        """
        tokens = self._tokens(uid, now) - 1
        self._left[uid] = (tokens, now)
        return max(0.0, -tokens / self._per_s)

    def _tokens(self, uid: int, now: float) -> float:
        """Return a user's tokens, taken out of the table, in which there is room for them afterwards."""
        tokens, since = self._left.pop(uid, (self._burst, now))
        if len(self._left) >= _MAX_USERS:
            del self._left[next(iter(self._left))]  # who asked longest ago
        return min(self._burst, tokens + max(0.0, now - since) * self._per_s)
