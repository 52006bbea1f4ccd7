"""Search for the files of slurm-energy that Slurm uses on this host.

The files are named in slurm.conf and plugstack.conf. The module only reads files; it runs no command.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm import conf_files, installation
from slurm_energy.slurm.plugin_release import installed_release, plugin_release
from slurm_energy.slurm.release import Release

FLAGS_PLUGIN: Final = "energy.so"
HOOKS_PLUGIN: Final = "energy_hooks.so"

Settings = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A SPANK plugin of slurm-energy that plugstack.conf names.

    Attributes:
        path: path of the plugin.
        release: Slurm release for which the plugin was built; None means that the file is missing or is no
            plugin.
    """

    path: Path
    release: Release | None


@dataclass(frozen=True, slots=True)
class SlurmFiles:
    """Files of slurm-energy that the configuration of Slurm on this host names.

    Attributes:
        conf: path of slurm.conf; None means that this host has no slurm.conf, or the file cannot be read.
        release: installed Slurm release; None means unknown.
        flags: SPANK plugin energy.so; None means that plugstack.conf does not name this plugin.
        hooks: SPANK plugin energy_hooks.so; None means that plugstack.conf does not name this plugin.
        prolog: program of slurm-energy that `Prolog=` names; an empty value means none.
    """

    conf: Path | None = None
    release: Release | None = None
    flags: PluginFile | None = None
    hooks: PluginFile | None = None
    prolog: str = ""


def find_slurm_files(conf: Path | None) -> SlurmFiles:
    """Return the files of slurm-energy that slurm.conf and plugstack.conf name.

    Args:
        conf: path of slurm.conf; None means that there is no slurm.conf. The Slurm release may be known
            nevertheless.
    """
    settings: Settings = {}
    if conf is not None:
        try:
            settings = conf_files.read_settings(conf)
        except OSError:
            conf = None
    directories = plugin_directories(settings)
    release = installed_release(directories)
    if conf is None:
        return SlurmFiles(None, release)
    lines = conf_files.plugstack_lines(conf, settings)
    flags, hooks = (_plugin_file(lines, name, directories) for name in (FLAGS_PLUGIN, HOOKS_PLUGIN))
    return SlurmFiles(conf, release, flags, hooks, own_program(programs(conf, settings, "prolog")))


def _plugin_file(
    lines: Iterable[conf_files.PlugstackLine], name: str, directories: Iterable[Path]
) -> PluginFile | None:
    line = line_of(lines, name)
    if line is None:
        return None
    path = Path(line.plugin)
    if not path.is_absolute():
        path = in_one_of(directories, path)
    return read_plugin(path)


def read_plugin(path: Path) -> PluginFile:
    """Return a plugin with the Slurm release for which the plugin was built."""
    try:
        return PluginFile(path, plugin_release(path))
    except OSError:
        return PluginFile(path, None)


def programs(conf: Path, settings: Settings, key: str) -> list[Path]:
    """Return the paths of the programs that a key of slurm.conf names, such as `prolog`.

    A pattern without a match is returned unchanged, so that it counts as a missing file.
    """
    files: list[Path] = []
    for value in settings.get(key, []):
        path = conf.parent / value  # Slurm sends a name without a directory to configless nodes
        files += sorted(path.parent.glob(path.name)) or [path]
    return files


def plugin_directories(settings: Settings) -> list[Path]:
    """Return the existing directories that may hold Slurm's plugins.

    The candidates are PluginDir, the directories beside Slurm's commands, and the usual paths.
    """
    named = [Path(part) for value in settings.get("plugindir", []) for part in value.split(":") if part]
    if program := shutil.which("scontrol"):
        prefix = Path(program).resolve().parent.parent
        named += installation.plugin_directories_below(prefix)
    with contextlib.suppress(UnavailableError):
        named.append(installation.find().plugin_directory(run=None))
    return [directory for directory in named if directory.is_dir()]


def line_of(lines: Iterable[conf_files.PlugstackLine], name: str) -> conf_files.PlugstackLine | None:
    """Return the line of plugstack.conf that names the plugin file `name`; None if there is no such line."""
    return next((line for line in lines if Path(line.plugin).name == name), None)


def own_program(files: Iterable[Path]) -> str:
    """Return the path of the first program that calls slurm-energy; an empty text if no program does."""
    return next((str(program) for program in files if is_own_program(program)), "")


def is_own_program(program: Path) -> bool:
    """Return whether a prolog or epilog belongs to slurm-energy or calls slurm-energy."""
    if any(word in f"{program.parent.name}/{program.name}" for word in ("senergy", "slurm-energy")):
        return True
    try:
        return b"senergy" in program.read_bytes()
    except OSError:
        return False


def in_one_of(directories: Iterable[Path], name: Path) -> Path:
    """Return the path of a file in the first directory that contains the file.

    If no directory contains the file, return the bare name.
    """
    paths = (directory / name for directory in directories)
    return next((path for path in paths if path.exists()), name)
