"""Reads slurm.conf and plugstack.conf as files: prolog, epilog, SPANK plugins. Asks no daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PLACES = (
    Path("/etc/slurm/slurm.conf"),
    Path("/etc/slurm-llnl/slurm.conf"),
    Path("/run/slurm/conf/slurm.conf"),  # configless nodes
    Path("/usr/local/etc/slurm.conf"),
)
_PAIR = re.compile(r"^\s*([A-Za-z_]+)\s*=\s*(.*?)\s*$")
_MOST_INCLUDES = 16


@dataclass(frozen=True, slots=True)
class SpankLine:
    """A line of plugstack.conf.

    Attributes:
        required: jobs fail where the plugin is missing.
        plugin: its file as written; a bare name is looked up in PluginDir.
        arguments: what follows, `key=value` words.
    """

    required: bool
    plugin: str
    arguments: tuple[str, ...]


def locate(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return slurm.conf: $SLURM_CONF, else the first usual place where there is one."""
    if named := environment.get("SLURM_CONF"):
        return Path(named)
    return next((path for path in _PLACES if path.exists()), None)


def settings(path: Path) -> dict[str, list[str]]:
    """Return the lines `Key=Value` of slurm.conf and of what it includes, keys in lower case.

    Node and partition lines are kept whole under their first key.

    Raises:
        OSError: the file itself cannot be read.
    """
    found: dict[str, list[str]] = {}
    for line in _lines(path):
        if match := _PAIR.match(line):
            found.setdefault(match[1].lower(), []).append(match[2].strip('"'))
    return found


def spank_lines(slurm_conf: Path, found: Mapping[str, list[str]]) -> list[SpankLine]:
    """Return the plugins of plugstack.conf: of the one that slurm.conf names, else beside slurm.conf."""
    named = found.get("plugstackconfig")
    path = Path(named[-1]) if named else slurm_conf.with_name("plugstack.conf")
    try:
        lines = _lines(path)
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [
        SpankLine(parts[0].lower() == "required", parts[1], tuple(parts[2:]))
        for parts in words
        if len(parts) > 1 and parts[0].lower() in ("required", "optional")
    ]


def _lines(path: Path) -> list[str]:
    """Return the lines of a file without comments; includes, globs too, are put in their place."""
    lines, left = [], _MOST_INCLUDES
    waiting = [(path.parent, line) for line in _text(path)]
    while waiting:
        folder, line = waiting.pop(0)
        words = line.split()
        if len(words) > 1 and words[0].lower() == "include":
            if left == 0:
                continue
            left -= 1
            pattern = " ".join(words[1:])
            here = Path(pattern)
            files = (
                sorted(here.parent.glob(here.name)) if here.is_absolute() else sorted(folder.glob(pattern))
            )
            inner = [(file.parent, text) for file in files if file.is_file() for text in _readable(file)]
            waiting = inner + waiting
        elif line.strip():
            lines.append(line)
    return lines


def _readable(path: Path) -> list[str]:
    try:
        return _text(path)
    except OSError:
        return []


def _text(path: Path) -> list[str]:
    return [line.partition("#")[0] for line in path.read_text(errors="replace").splitlines()]
