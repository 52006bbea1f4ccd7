"""How a bound on all users together is shared among them. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def fair_quota(counts: Iterable[int], most: int) -> int:
    """Return how many items each user may keep so that all together keep at most `most`.

    It is the largest such number (max-min fairness): users below it lose nothing, whatever the others have.

    Args:
        counts: items of each user.
        most: bound on all of them, 0 or more.
    """
    rest = sorted(counts)
    left = most
    for place, count in enumerate(rest):
        users = len(rest) - place
        if count * users > left:
            return left // users
        left -= count
    return rest[-1] if rest else most
