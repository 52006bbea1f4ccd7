"""Parser of slurm.conf and plugstack.conf. The parser only reads files and queries no daemon."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_USUAL_PATHS = (
    Path("/etc/slurm/slurm.conf"),
    Path("/etc/slurm-llnl/slurm.conf"),
    Path("/run/slurm/conf/slurm.conf"),  # configless nodes
    Path("/usr/local/etc/slurm.conf"),
)
# Slurm's own pattern, keyvalue_pattern in src/common/parse_config.c.
_PAIR: Final = re.compile(
    r"\s*(?P<key>[\w.]+)\s*[-*+/]?=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<value>\S+))(?=\s|$)"
)
_WHOLE_LINES: Final = frozenset(
    ("nodename", "nodeset", "partitionname", "downnodes", "frontendname", "switchname")
)
"""Keys that begin a line about nodes or partitions. All other keys of such a line are not global settings."""
_COMMENT: Final = re.compile(r"^((?:[^\\#]|\\.)*)#.*$")
_CONTINUED: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_ALLOC_FLAGS: Final = frozenset(("alloc", "contain", "x11", "nohold", "runinjob", "forcerequeueonfail"))
"""PrologFlags that run the prolog at allocation: Alloc, and those that imply it."""
_MAX_INCLUDES: Final = 64
_MAX_BYTES: Final = 16 * 1024 * 1024
_CLUSTER_NAME: Final = re.compile(r"^\s*clustername\s*=\s*\"?(\S+?)\"?(?:\s|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlugstackLine:
    """A line of plugstack.conf.

    Attributes:
        required: whether the line is marked `required`, so that jobs fail if the plugin is missing.
        plugin: path of the plugin as written; a bare name is relative to PluginDir.
        arguments: arguments of the plugin, which are words of the form `key=value`.
    """

    required: bool
    plugin: str
    arguments: tuple[str, ...]


def locate_slurm_conf(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of slurm.conf; None means that the file is in none of the usual places.

    The places are searched in the order of Slurm: $SLURM_CONF; the path that was set when the commands were
    built, which is `etc` below a prefix such as /opt/slurm; the cache of configless nodes.

    Args:
        environment: environment variables with PATH and, if set, SLURM_CONF.
    """
    if named := environment.get("SLURM_CONF"):
        return Path(named)
    program = shutil.which("scontrol", path=environment.get("PATH"))
    prefix = Path(program).resolve().parent.parent if program else Path("/usr")
    built_in = () if prefix == Path("/usr") else (prefix / "etc/slurm.conf", prefix / "etc/slurm/slurm.conf")
    return next((path for path in (*built_in, *_USUAL_PATHS) if path.exists()), None)


def read_settings(path: Path, *, strict: bool = False) -> dict[str, list[str]]:
    """Return the values of all keys in slurm.conf and the files that it includes, by key in lower case.

    A key may have several values; Slurm uses the last one. The value of a line about nodes or partitions is
    the whole line; its key is the first key of the line, such as `nodename`.

    Args:
        path: path of slurm.conf.
        strict: raise an error if an included file cannot be read, instead of skipping that file.

    Raises:
        OSError: slurm.conf cannot be read; with `strict`, also if an included file cannot be read.
    """
    settings: dict[str, list[str]] = {}
    for line in _lines(path, path.parent, strict=strict):
        for key, value in _pairs(line):
            settings.setdefault(key, []).append(value)
    return settings


def line_pairs(line: str) -> list[tuple[str, str]]:
    """Return the pairs of lower-case key and value in a line of a configuration file, in their order."""
    pairs: list[tuple[str, str]] = []
    at = 0
    while match := _PAIR.match(line, at):
        pairs.append((match["key"].lower(), match["quoted"] or match["value"] or ""))
        at = match.end()
    return pairs


def read_pairs(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs of each line of another configuration file of Slurm, such as gres.conf.

    Lines without a pair are left out.

    Raises:
        OSError: the file, or a file that it includes, cannot be read.
    """
    return (pairs for line in _lines(path, path.parent, strict=True) if (pairs := line_pairs(line)))


def _pairs(line: str) -> list[tuple[str, str]]:
    """Return the pairs of lower-case key and value in a line of slurm.conf."""
    match = _PAIR.match(line)
    if match and (key := match["key"].lower()) in _WHOLE_LINES:
        return [(key, line[match.start("value") :].strip() if match["value"] else match["quoted"])]
    return line_pairs(line)


def items(settings: Mapping[str, list[str]], key: str) -> list[str]:
    """Return the items of a comma-separated value in lower case.

    Args:
        settings: result of `read_settings`. If a key has several values, the last one counts, as in Slurm.
        key: key in lower case.
    """
    values = settings.get(key, [""])
    return [item.strip().lower() for item in values[-1].split(",") if item.strip()]


def runs_prolog_at_allocation(settings: Mapping[str, list[str]]) -> bool:
    """Return whether Slurm runs the prolog on every node when a job is allocated.

    The key PrologFlags decides this.

    Args:
        settings: result of `read_settings`.
    """
    return not _ALLOC_FLAGS.isdisjoint(items(settings, "prologflags"))


def uses_job_submit_lua(settings: Mapping[str, list[str]]) -> bool:
    """Return whether slurmctld runs the script job_submit.lua.

    Args:
        settings: result of `read_settings`.
    """
    return not {"lua", "job_submit/lua"}.isdisjoint(items(settings, "jobsubmitplugins"))


def plugstack_lines(slurm_conf: Path, settings: Mapping[str, list[str]]) -> list[PlugstackLine]:
    """Return the plugin lines of plugstack.conf; empty if that file cannot be read.

    Args:
        slurm_conf: path of slurm.conf. plugstack.conf is in the same directory unless `PlugStackConfig` names
            another path.
        settings: result of `read_settings`.
    """
    named = settings.get("plugstackconfig")
    path = Path(named[-1]) if named else slurm_conf.with_name("plugstack.conf")
    try:
        lines = _lines(path)
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [
        PlugstackLine(parts[0].lower() == "required", parts[1], tuple(parts[2:]))
        for parts in words
        if len(parts) > 1 and parts[0].lower() in ("required", "optional")
    ]


def included_path(name: str, folder: Path, conf_folder: Path) -> Path:
    """Return the path of the file that an Include line names.

    The line is in slurm.conf or gres.conf, or in a file that one of them includes. A relative name refers to
    the directory of the file with the Include line in Slurm 22.05, and to the directory of slurm.conf from
    Slurm 23.02 on. The result is the first of these paths that exists.

    Args:
        name: path in the Include line.
        folder: directory of the file that contains the Include line.
        conf_folder: directory of slurm.conf.
    """
    path = folder / name
    return path if os.path.lexists(path) else conf_folder / name


def _lines(path: Path, conf_folder: Path | None = None, *, strict: bool = False) -> list[str]:
    """Return the lines of a configuration file without comments; included files replace Include lines.

    Args:
        path: path of the file.
        conf_folder: directory of slurm.conf, for slurm.conf and gres.conf; see `included_path`. None: in
            plugstack.conf, relative names refer to the directory of the file with the Include line.
        strict: raise an error if an included file cannot be read, instead of skipping that file.
    """
    lines, includes_left, cluster = list[str](), _MAX_INCLUDES, ""
    waiting = deque((path.parent, line) for line in _text(path))
    while waiting:
        folder, line = waiting.popleft()
        words = line.split()
        if len(words) > 1 and words[0].lower() == "include":
            if includes_left == 0:
                if strict:
                    raise OSError(0, f"more than {_MAX_INCLUDES} included files", str(path))
                continue
            includes_left -= 1
            name = " ".join(words[1:]).replace("%c", cluster)
            files = _included(included_path(name, folder, conf_folder or folder), strict=strict)
            included = [(file.parent, text) for file in files for text in _readable(file, strict)]
            waiting.extendleft(reversed(included))
        elif line.strip():
            if match := _CLUSTER_NAME.match(line):
                cluster = match[1].lower()
            lines.append(line)
    return lines


def _included(path: Path, *, strict: bool) -> list[Path]:
    """Return the files that an Include line names.

    Args:
        path: path that the Include line names; plugstack.conf may give a glob pattern.
        strict: if no file matches, return the path, so that the caller fails to read this file.
    """
    files = [file for file in sorted(path.parent.glob(path.name)) if file.is_file()]
    return [path] if strict and not files else files


def _readable(path: Path, strict: bool) -> list[str]:
    try:
        return _text(path)
    except OSError:
        if strict:
            raise
        return []


def _text(path: Path) -> list[str]:
    r"""Return the lines of a file as Slurm reads them.

    Comments are removed, continued lines are joined, and `\x` becomes `x`.
    """
    text = contents(path).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines, begun = list[str](), ""
    for raw in text.split("\n"):
        line = (_COMMENT.sub(r"\1", raw) if "#" in raw else raw).rstrip()
        if line.endswith("\\") and _CONTINUED.search(line):
            begun += line[:-1]
            continue
        line = begun + line
        lines.append(re.sub(r"\\(.)", r"\1", line) if "\\" in line else line)
        begun = ""
    return [*lines, begun] if begun else lines


def contents(path: Path) -> bytes:
    """Return the contents of a regular file. A FIFO is not waited for.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is longer than `_MAX_BYTES`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(_MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"is longer than {_MAX_BYTES} bytes", str(path))
    return data
