"""Options with which Slurm's daemons run on this host.

The options are read from the processes and from environment files.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ENVIRONMENT_FILES: Final = ("etc/default/{}", "etc/sysconfig/{}")
_MAX_BYTES: Final = 1 << 16
_SLURM_USER: Final = "slurm"  # another SlurmUser may be a service account, whose processes prove nothing


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """Options of slurmctld or slurmd on this host.

    Attributes:
        program: path of the running program; None if the daemon does not run.
        conf: path of slurm.conf in an option or a variable; None if no option or variable names the file.
        conf_server: whether --conf-server is given, so that the daemon reads no local slurm.conf.
    """

    program: Path | None = None
    conf: Path | None = None
    conf_server: bool = False


def daemon_options(name: str, root: Path = Path("/")) -> DaemonOptions:
    """Return the options of a daemon.

    Args:
        name: `slurmctld` or `slurmd`.
        root: directory that contains etc and proc.
    """
    program, words, variables = None, list[str](), dict[str, str]()
    for pattern in _ENVIRONMENT_FILES:
        variables |= _environment_file(root / pattern.format(name))
    with contextlib.suppress(ValueError):
        words += shlex.split(variables.get(f"{name.upper()}_OPTIONS", ""))
    for process in _processes(name, root):
        with contextlib.suppress(OSError):
            program = (process / "exe").readlink()
        words += _strings(process / "cmdline")[1:]
        pairs = (text.partition("=")[::2] for text in _strings(process / "environ"))
        variables |= {key: value for key, value in pairs if key.startswith("SLURM_CONF")}
    conf = _option(words, "-f") or variables.get("SLURM_CONF", "")
    server = bool(_option(words, "--conf-server")) or bool(variables.get("SLURM_CONF_SERVER"))
    # slurmd sets SLURM_CONF to its cache after it fetched the files.
    path = Path(conf) if conf.startswith("/") else None
    return DaemonOptions(program, path, server)


def _option(words: list[str], name: str) -> str:
    """Return the value of an option.

    The value is the next word, or follows the name directly or after `=`.
    """
    value = ""
    for number, word in enumerate(words):
        if word == name:
            value = words[number + 1] if number + 1 < len(words) else ""
        elif word.startswith(f"{name}=") or (not name.startswith("--") and word.startswith(name)):
            value = word.removeprefix(name).removeprefix("=")
    return value


def _processes(name: str, root: Path) -> Iterator[Path]:
    """Yield the /proc directories of a program's processes.

    Only processes of root and of the user `slurm` are included.
    """
    for folder in sorted(root.glob("proc/[0-9]*")):
        with contextlib.suppress(OSError):
            # A user can choose the name, arguments and environment of a process, even of a set-uid program.
            is_named = (folder / "comm").read_text().strip() == name
            if is_named and all(map(_is_slurms, (folder.stat().st_uid, *_user_ids(folder)))):
                yield folder


def _user_ids(process: Path) -> list[int]:
    """Return the real, effective, saved and file-system user id of a process.

    The real user id of a set-uid program is the id of the user who started the program.

    Raises:
        OSError: the process has ended, or its ids cannot be found.
    """
    for line in (process / "status").read_text(errors="replace").splitlines():
        if line.startswith("Uid:"):
            return [int(word) for word in line.split()[1:]]
    raise ProcessLookupError(str(process))


def _is_slurms(uid: int) -> bool:
    """Return whether a user is trusted to name the slurm.conf that slurm-energy edits.

    A running process may name a slurm.conf in its command line. Root edits this file only if the owner of
    the process is root, the caller, or Slurm's user.
    """
    if uid in (0, os.geteuid()):
        return True
    with contextlib.suppress(KeyError):
        return uid == pwd.getpwnam(_SLURM_USER).pw_uid
    return False


def _strings(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="surrogateescape").rstrip("\0").split("\0")
    except OSError:
        return []


def _environment_file(path: Path) -> dict[str, str]:
    """Return the variables in an environment file of systemd or of an init script."""
    variables = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.isidentifier():
            with contextlib.suppress(ValueError):
                variables[name] = " ".join(shlex.split(value, comments=True))
    return variables
