"""Division of a common limit among users. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def fair_quota(counts: Iterable[int], total: int) -> int:
    """Return the number of items that each user may keep, so that all together keep at total `total`.

    It is the largest such number (max-min fairness): users with fewer items lose none.

    Args:
        counts: number of items of each user.
        total: limit on the items of all users, 0 or more.
    """
    rest = sorted(counts)
    left = total
    for position, count in enumerate(rest):
        users = len(rest) - position
        if count * users > left:
            return left // users
        left -= count
    return rest[-1] if rest else total
