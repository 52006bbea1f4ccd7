"""Division of a limit on all users' items into an equal maximum per user. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def fair_quota(counts: Iterable[int], total: int) -> int:
    """Return the maximum number of items that each user may keep, so that all users keep at most `total`.

    The result is the largest such number (max-min fairness). Users who have fewer items lose none.

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
