"""Selection of the SPANK plugins that fit the release series of the installed Slurm.

Slurm loads a SPANK plugin only if it was built for the same release series (22.05, 23.11, ...). The packages
contain the plugins for several series. Links such as /usr/lib/slurm-energy/energy.so point to the plugins of
one series.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import ForbiddenError, UnavailableError
from slurm_energy.slurm.build_tools import require_writable, run_tool
from slurm_energy.slurm.installation import plugin_directories_below
from slurm_energy.slurm.plugin_release import installed_release
from slurm_energy.slurm.release import Release

SPANK_PLUGINS: Final = ("energy.so", "energy_hooks.so")
BUILD_DIRECTORY: Final = Path("/var/lib/slurm-energy/plugins")
"""Directory of the plugins that were built on this host, in `slurm-<series>`."""


@dataclass(frozen=True, slots=True)
class SpankSelection:
    """Result of a selection of SPANK plugins.

    Attributes:
        series: release series of the installed Slurm.
        directory: directory of the selected plugins; None means that there are no plugins for this series.
        changed: whether a link was changed.
    """

    series: str
    directory: Path | None
    changed: bool


def slurm_release(prefix: Path | None = None) -> Release | None:
    """Return the release of the installed Slurm, read from its plugins; None means that there is no Slurm.

    No program is run, because login nodes have neither slurmctld nor slurmd.

    Args:
        prefix: prefix of Slurm; None means the prefix of srun or scontrol on PATH, else /usr.
    """
    if prefix is None:
        programs = [shutil.which(name) for name in ("scontrol", "srun", "slurmd", "slurmctld")]
        found = next((program for program in programs if program), "/usr/bin/scontrol")
        prefix = Path(found).resolve().parent.parent
    return installed_release(plugin_directories_below(prefix))


def select(library: Path, release: Release, built: Path = BUILD_DIRECTORY) -> SpankSelection:
    """Make the links of a package point to the plugins for a given release of Slurm.

    Plugins are built for a series of releases. If there are no plugins for the series of the release, the
    links do not change. Slurm then skips the plugins, because their lines in plugstack.conf are
    `optional`. Links of plugins that are not installed, such as energy_hooks.so on a login node, are left
    out.

    Args:
        library: directory of the links, /usr/lib/slurm-energy.
        release: release of the installed Slurm.
        built: directory of the plugins that were built on this host.

    Raises:
        ForbiddenError: the caller may not write the links.
        UnavailableError: the links cannot be written.
    """
    series = release.series
    names = [name for name in SPANK_PLUGINS if (library / name).is_symlink()]
    directory = _directory((library, built), series, names)
    if directory is None:
        return SpankSelection(series, None, False)
    changed = False
    for name in names:
        target = directory / name
        text = str(target.relative_to(library)) if target.is_relative_to(library) else str(target)
        changed |= _replace_link(library / name, text)
    return SpankSelection(series, directory, changed)


def build(source: Path, release: Release, prefix: Path, built: Path = BUILD_DIRECTORY) -> Path:
    """Build the SPANK plugins for the release series of the installed Slurm.

    Return the directory of the built plugins.

    Args:
        source: directory of the sources, `spank/`.
        release: release of the installed Slurm.
        prefix: prefix of Slurm, whose headers are used.
        built: directory of the plugins that are built on this host.

    Raises:
        UnavailableError: the compiler, make or the headers are missing, or the compiler failed.
        ForbiddenError: the caller may not write to `built`.
    """
    for tool in ("make", "gcc"):
        if not shutil.which(tool):
            raise UnavailableError(tool, "not found", f"install {tool}")
    require_writable(built)
    series = release.series
    built.mkdir(parents=True, exist_ok=True)
    headers = built / f"headers-{series}"
    command = ["make", "--no-print-directory", "series", f"SERIES={series}", f"OUTPUT={built}"]
    run_tool([*command, f"HEADERS_FILE={headers}", f"SLURM_PREFIX={prefix}"], source, "energy.so")
    return built / f"slurm-{series}"


def _directory(parents: Iterable[Path], series: str, names: list[str]) -> Path | None:
    directories = (parent / f"slurm-{series}" for parent in parents)
    return next((one for one in directories if all((one / name).is_file() for name in names)), None)


def _replace_link(link: Path, target: str) -> bool:
    """Make a link point to `target`, in one atomic step.

    Return whether the link pointed to another file before.
    """
    try:
        if link.readlink() == Path(target):
            return False
        temporary = link.with_name(f".{link.name}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
    except PermissionError:
        raise ForbiddenError(str(link), "cannot be written", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(link), error.strerror or str(error)) from None
    return True
