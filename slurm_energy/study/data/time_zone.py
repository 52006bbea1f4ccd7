"""Look-up of the time zone of a study by the name of the zone."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo


def time_zone(name: str) -> tzinfo:
    """Return a time zone; an empty name is UTC, which needs no time zone database.

    Raises:
        ValueError: the system does not know the time zone.
    """
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("is not a time zone such as Europe/Paris") from None
