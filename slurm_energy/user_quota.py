"""Division of a limited number of items among users, so that no user can take all of it.

Every user gets the same maximum. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable


def fair_quota(counts: Iterable[int], total: int) -> int:
    """Return the maximum number of items per user, so that all users together keep at most `total` items.

    Users who have fewer items than the result keep all of their items. The result is the largest number for
    which the total is not exceeded (max-min fairness).

    Args:
        counts: number of items of each user.
        total: limit on the items of all users together, 0 or more.
    """
    rest = sorted(counts)
    left = total
    for position, count in enumerate(rest):
        users = len(rest) - position
        if count * users > left:
            return left // users
        left -= count
    return rest[-1] if rest else total
