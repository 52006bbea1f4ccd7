"""The release of slurm-energy for which a configuration file was written (`cluster.release`)."""

from __future__ import annotations

import re
from typing import Any

from slurm_energy import __version__

_RELEASE = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})?")


def check_release(value: str) -> str | None:
    """Check the number of a release, such as `0.2`; an empty text is valid. Return None, or the fault."""
    return None if not value or _RELEASE.fullmatch(value) else "must be a release such as 0.2"


def newer_release(data: dict[str, Any]) -> str:
    """Return the release that a configuration file names, if it is newer than the installed release.

    The key is `cluster.release`. If its release is not newer, the result is an empty text.
    """
    cluster = data.get("cluster")
    release = cluster.get("release") if isinstance(cluster, dict) else None
    match = _RELEASE.fullmatch(release) if isinstance(release, str) else None
    own = _RELEASE.fullmatch(__version__)
    is_newer = match is not None and own is not None and _minor(match) > _minor(own)
    return str(release) if is_newer else ""


def _minor(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])
