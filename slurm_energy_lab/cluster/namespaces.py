"""Mount, PID and host-name namespaces of the lab, created by direct system calls.

The module builds the file system of an emulated node from an emulator's file tree. It starts no process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from slurm_energy.errors import UnavailableError

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_PIDS = 0x00020000, 0x04000000, 0x20000000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _MOVE, _RECURSIVE, _PRIVATE = 32, 4096, 8192, 16384, 1 << 18
_DETACH = 2

REPLACED = (
    "sys/devices/system/cpu",
    "sys/devices/system/node",
    "proc/cpuinfo",
    "proc/stat",
    "proc/uptime",
)
"""Paths that a node takes completely from its emulator."""
ADDED = ("sys/cray", "sys/firmware/dmi", "sys/fs/resctrl")
"""Directories that exist only in the emulator, mounted into directories of the host."""
MIXED = ("sys/class", "sys/devices/virtual", "sys/fs/cgroup")
"""Directories of the host in which individual entries come from the emulator."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse", "pts", "shm", "mqueue")
"""Entries of the host's /dev that a node keeps. All others would be the host's hardware."""
_HOST_VIEW = ".host"
"""Entry of a rebuilt directory that shows the host's directory as it is."""
GRES_DIRECTORY = "gres"
"""Directory in a node's /dev with a device file per GPU, for gres.conf: Slurm refuses plain files."""
_GPU = re.compile(r"nvidia\d+")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, what: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def unshare() -> None:
    """Enter new Linux namespaces for mounts, the host name and processes.

    The new PID namespace applies to the caller's children. Mounts become private to the new mount namespace.

    Raises:
        UnavailableError: the kernel or the container does not allow new namespaces.
    """
    try:
        _call("unshare", "unshare", _NEW_MOUNTS | _NEW_HOST_NAME | _NEW_PIDS)
        mount("none", Path("/"), flags=_RECURSIVE | _PRIVATE)
    except OSError as error:
        todo = "run on a machine or in a container with CAP_SYS_ADMIN"
        raise UnavailableError("new namespaces", error.strerror or "", todo) from None


def mount(source: str | Path, target: Path, kind: str = "none", flags: int = 0, data: str = "") -> None:
    """Mount a file system with the system call `mount`.

    If the call fails, an OSError names the target.
    """
    raw = (str(source).encode(), str(target).encode(), kind.encode(), flags, data.encode() or None)
    _call("mount", str(target), *raw[:3], ctypes.c_ulong(flags), raw[4])


def bind(source: Path, target: Path) -> None:
    """Bind-mount `source`, with all mounts below it, at `target`."""
    mount(source, target, flags=_BIND | _RECURSIVE)


def detach(target: Path) -> None:
    """Detach the topmost mount at `target`, even if the mount is busy.

    A missing mount is no error.
    """
    _libc.umount2(str(target).encode(), _DETACH)


def set_host_name(name: str) -> None:
    """Set the host name of the caller's namespace."""
    raw = name.encode()
    _call("sethostname", name, raw, len(raw))


def mount_proc() -> None:
    """Mount a file system /proc that shows only the processes in the caller's PID namespace."""
    mount("proc", Path("/proc"), "proc", _NO_SUID | _NO_DEV | _NO_EXEC)


def enter_lab(binds: Mapping[Path, Path], stage: Path) -> None:
    """Build the file system of the lab's daemons: a /proc of their namespace, and the mounts in `binds`."""
    mount_proc()
    _bind_all(binds, stage)


def enter_node(tree: Path, binds: Mapping[Path, Path], stage: Path) -> None:
    """Build the file system of a node.

    Args:
        tree: mount point of the emulator's file tree, with paths relative to `/`.
        binds: further mounts {target: source}. A target need not exist on this machine.
        stage: empty directory in which this function assembles directories to mount.
    """
    mount_proc()
    own = {Path("/") / name: tree / name for name in ADDED if (tree / name).is_dir()}
    binds = {**binds, **own}
    for name in REPLACED:
        if (tree / name).exists():
            bind(tree / name, Path("/") / name)
    for name in filter(lambda name: (Path("/") / name).is_dir(), MIXED):
        target, emulated = Path("/") / name, _entries(tree / name)
        host_entries = {entry: source for entry, source in _entries(target).items() if entry not in emulated}
        _assemble(stage, target, host_entries | emulated, _READ_ONLY)
    _assemble(stage, Path("/dev"), _devices(tree / "dev"))
    run = Path("/run")
    _assemble(stage, run, {"systemd/resolve": run / "systemd" / "resolve"})
    (run / "lock").mkdir()
    (run / "lock").chmod(0o1777)
    _bind_all(binds, stage)


def _bind_all(binds: Mapping[Path, Path], stage: Path) -> None:
    """Apply all bind mounts, which build the file system of an emulated node.

    Sometimes the target of a mount does not exist on the host, or it is a file on the host. In these cases
    the parent directory of the target is first covered by a rebuilt copy of this directory.

    Files of the host are never used as mount points. A mount on a file of the host would be lost when the
    host renames another file over this file, as ldconfig does with /etc/ld.so.cache: Linux then removes all
    mounts on the replaced file, in all namespaces.
    """
    rebuilt = {target.parent for target in binds if not target.is_dir()}
    for directory in rebuilt:
        added = {target.name: source for target, source in binds.items() if target.parent == directory}
        _rebuild(stage, directory, added)
    for target, source in binds.items():
        if target.parent not in rebuilt:
            bind(source, target)


def _rebuild(stage: Path, directory: Path, added: Mapping[str, Path]) -> None:
    """Replace the view of a host directory by a copy that also has the entries `added`.

    The copy is mounted over the directory. Files of the host become symbolic links into the
    original directory, so that later changes on the host are visible.
    """
    entries = {name: path for name, path in _entries(directory).items() if name not in added}
    files = {name for name, path in entries.items() if _is_plain(path)}
    links = {name: Path(_HOST_VIEW) / name for name in files}
    shown = {**{name: path for name, path in entries.items() if name not in files}, **added}
    if links:
        shown[_HOST_VIEW] = directory
    _assemble(stage, directory, shown, links=links)


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:  # removed in the meantime
        return False


def _devices(emulated: Path) -> dict[str, Path]:
    dev, null = Path("/dev"), Path("/dev/null")
    links = {name: path for name, path in _entries(dev).items() if path.is_symlink()}
    own = _entries(emulated)
    gres = {f"{GRES_DIRECTORY}/{name}": null for name in own if _GPU.fullmatch(name)}
    return {name: dev / name for name in DEVICES} | links | own | gres


def _entries(directory: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(directory.iterdir())} if directory.is_dir() else {}


def _assemble(
    stage: Path,
    target: Path,
    entries: Mapping[str, Path],
    final_flags: int = 0,
    links: Mapping[str, Path] | None = None,
) -> None:
    """Replace a directory by a new one that consists of bind mounts and symbolic links.

    The new directory is built in `stage` and then mounted over `target`. It is not built in `target`,
    because the sources of its mounts may be below `target`.
    """
    mount("tmpfs", stage, "tmpfs", _NO_SUID, "mode=755,size=1m")
    for name, source in entries.items():
        _show(source, stage / name)
    for name, destination in (links or {}).items():
        (stage / name).symlink_to(destination)
    mount(stage, target, flags=_MOVE)
    if final_flags:
        mount("none", target, flags=_REMOUNT | _BIND | final_flags)


def _show(source: Path, target: Path) -> None:
    """Show a file or directory of the host inside a directory for a node's file system.

    The directory is being assembled; it becomes part of the file system of an emulated node. `target`
    becomes visible with the content of `source`. A source that no longer exists is skipped, for example the
    cgroup of another lab.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = source.lstat().st_mode
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(mode):
            target.symlink_to(source.readlink())
            return
        if stat.S_ISDIR(mode):
            target.mkdir()
        else:
            target.touch()
        bind(source, target)
