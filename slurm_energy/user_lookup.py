"""Lookup of users and groups on this host. Every function may query a directory service and block."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable


def uid_of(name: str) -> int | None:
    """Return the uid for a login name or number; None: this host does not know the name."""
    if name.isdecimal() and len(name) <= 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def name_of(uid: int) -> str | None:
    """Return the login name of a uid; None: this host does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def gid_of(name: str) -> int | None:
    """Return the gid of a group name; None: this host does not know it."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return None


def gids_of(uid: int) -> frozenset[int]:
    """Return the primary and supplementary groups of a user; none if this host does not know the uid."""
    try:
        entry = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    except (KeyError, OverflowError, OSError):
        return frozenset()


def uids_of(names: Iterable[str]) -> frozenset[int]:
    """Return the uids for all names that this host knows."""
    return frozenset(uid for name in names if (uid := uid_of(name)) is not None)
