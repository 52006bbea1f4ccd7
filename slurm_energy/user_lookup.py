"""Lookup of users and groups on this host.

Each function may query a directory service and therefore block.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable


def uid_of(name: str) -> int | None:
    """Return the uid of a user; None if this host does not know the name.

    Args:
        name: login name, or a uid as a decimal number. A decimal number is returned without a lookup.
    """
    if name.isdecimal() and len(name) <= 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def name_of(uid: int) -> str | None:
    """Return the login name of a uid; None if this host does not know the uid."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def gid_of(name: str) -> int | None:
    """Return the gid of a group name; None if this host does not know the name."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return None


def gids_of(uid: int) -> frozenset[int]:
    """Return the ids of all groups of a user, primary and supplementary.

    The result is empty if this host does not know the uid.
    """
    try:
        entry = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    except (KeyError, OverflowError, OSError):
        return frozenset()


def uids_of(names: Iterable[str]) -> frozenset[int]:
    """Return the uids of login names. Names that this host does not know are skipped."""
    return frozenset(uid for name in names if (uid := uid_of(name)) is not None)
