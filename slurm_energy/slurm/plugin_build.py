"""Build of the Slurm plugin site_factor/energy.

This plugin must be compiled with the source of slurmctld's exact release.

The build finds or downloads the source, configures it and runs `make` in plugins/.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import slurm_energy
from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.installed_package import package_prefix
from slurm_energy.slurm import debian_source, installation
from slurm_energy.slurm.build_tools import OUTPUT_TODO, require_writable, run_tool
from slurm_energy.slurm.installation import Installation
from slurm_energy.slurm.release import Release

PLUGIN: Final = "site_factor_energy.so"
PARTS_KEY: Final = "SENERGY_PARTS_DIR"
"""Environment variable with the directory that contains `plugins/`, `spank/` and `prolog_epilog/`."""
_META: Final = re.compile(r"^\s*(Major|Minor|Micro):\s*(\d+)\s*$", re.MULTILINE)
_BUILT_FOR: Final = re.compile(rb"slurm-energy for Slurm (\d+)\.(\d+)\.(\d+)")
Say = Callable[[str], None]


def plugin_sources() -> Path:
    """Return the directory `plugins/` that contains the sources of the plugins.

    The directory belongs to $SENERGY_PARTS_DIR, to the package slurm-energy-plugins, or to the source
    checkout.

    Raises:
        UnavailableError: the directory does not exist.
    """
    base = parts_directory()
    if not (base / "plugins" / "Makefile").is_file():
        todo = f"name the checkout in ${PARTS_KEY}"
        if package_prefix() is not None:
            todo = "install the package slurm-energy-plugins"
        raise UnavailableError(f"{base}/plugins", "no sources of the plugins", todo)
    return base / "plugins"


def parts_directory() -> Path:
    """Return the directory of `plugins/`, `spank/` and `prolog_epilog/`. The directory need not exist."""
    if named := os.environ.get(PARTS_KEY):
        return Path(named)
    prefix = package_prefix()
    return prefix / "source" if prefix else Path(slurm_energy.__file__).parent.parent


def source_release(source: Path) -> Release:
    """Return the release of a Slurm source tree.

    Args:
        source: directory of the source tree.

    Raises:
        UsageError: the directory is not a source tree of Slurm.
    """
    try:
        text = (source / "META").read_text(errors="replace")
    except OSError as error:
        raise UsageError(
            f"{source}/META", error.strerror or str(error), "name a source tree of Slurm"
        ) from None
    numbers = dict(_META.findall(text))
    if set(numbers) != {"Major", "Minor", "Micro"}:
        raise UsageError(f"{source}/META", "names no release", "name a source tree of Slurm")
    return Release(int(numbers["Major"]), int(numbers["Minor"]), int(numbers["Micro"]))


def built_release(plugin: Path) -> Release | None:
    """Return the Slurm release for which a plugin of slurm-energy was built.

    Args:
        plugin: path of the plugin.

    Returns:
        The release; None means that the file is missing or is not a plugin of slurm-energy.
    """
    try:
        match = _BUILT_FOR.search(plugin.read_bytes())
    except OSError:
        return None
    return Release(*(int(part) for part in match.groups())) if match else None


def build(
    output: Path | None = None,
    source: Path | None = None,
    cache: Path | None = None,
    say: Say = lambda text: None,
    slurm: Installation | None = None,
) -> tuple[Path, Release]:
    """Build the plugin for an installed slurmctld.

    Args:
        output: directory for the plugin; None means plugins/.
        source: source tree of Slurm, configured or not; None means that the source is downloaded with apt.
        cache: directory for downloaded sources; None means build/ next to plugins/.
        say: function that receives a line of text before each step that takes time.
        slurm: installation to build for; None means the installation of this host.

    Returns:
        Path of the plugin, and the release for which it was built.

    Raises:
        UsageError: `source` has another release than slurmctld, or is not a source tree of Slurm.
        UnavailableError: slurmctld, the source or the compiler is missing.
        ForbiddenError: the caller may not write to `output` or `cache`.
        EnergyError: the compiler failed.
    """
    plugins, slurm = plugin_sources(), slurm or installation.find()
    release = slurm.release()
    for tool in ("make", "gcc"):
        if not shutil.which(tool):
            raise UnavailableError(tool, "not found", f"apt-get install {tool}")
    target = (output or plugins).resolve()
    require_writable(target, OUTPUT_TODO)
    tree = (
        source.resolve()
        if source
        else _source_tree(cache or plugins.parent / "build" / "slurm-source", slurm, release, say)
    )
    if (tree_release := source_release(tree)) != release:
        raise UsageError(
            f"{tree} is Slurm {tree_release}",
            f"{slurm.daemon} is {release}",
            "Slurm loads plugins of its own release only",
        )
    if not (tree / "config.h").exists():
        say(f"Configuring Slurm {release} (about 15 s; nothing of it is compiled)")
        _configure(tree)
    target.mkdir(parents=True, exist_ok=True)
    say(f"Building {PLUGIN} for Slurm {release}")
    return _compile(plugins, tree, target, release), release


def ensure_built(say: Say = lambda text: None) -> Path:
    """Return the path of the plugin in plugins/.

    The plugin is built first if there is none, if it is older than its sources, or if it was built for a
    release other than that of slurmctld.

    Args:
        say: function that receives a line of text before each step that takes time.

    Raises:
        UnavailableError: slurmctld, the source or the compiler is missing.
        EnergyError: the compiler failed.
    """
    plugins = plugin_sources()
    plugin = plugins / PLUGIN
    if built_release(plugin) == installation.find().release():
        newest = max(path.stat().st_mtime for path in plugins.glob("*.[ch]"))
        if plugin.stat().st_mtime >= newest:
            return plugin
    return build(say=say)[0]


def _source_tree(cache: Path, slurm: Installation, release: Release, say: Say) -> Path:
    """Return the source tree of the installed slurmctld from the cache.

    The source tree is downloaded if the cache does not contain it.

    Args:
        cache: directory for downloaded sources.
        slurm: the Slurm installation of this host.
        release: release of slurmctld.
        say: function that receives a line of text before the download.
    """
    if not slurm.is_packaged:
        why = f"{slurm.daemon} is not from a package of the distribution"
        raise UnavailableError(f"source of Slurm {release}", why, "give --slurm-source DIR")
    name, version = debian_source.source_package()
    folder = cache / f"{name}_{version.replace(':', '_')}"
    tree = folder / "tree"
    if (tree / "config.h").exists():
        return tree
    require_writable(folder, "run it as root, or name other directories with --output and --cache")
    say(f"Fetching the source of {name} {version}, as slurmctld is {release}")
    return debian_source.download(folder, name, version)


def _compile(plugins: Path, tree: Path, target: Path, release: Release) -> Path:
    """Compile the plugin in a temporary directory, then replace the old plugin in `target`.

    slurmctld does not start while the plugin is missing.

    Args:
        plugins: directory with the plugin's sources.
        tree: configured source tree of Slurm.
        target: directory for the plugin.
        release: release for which the plugin must have been built.

    Returns:
        Path of the plugin.
    """
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target) as folder:
        command = ["make", "--no-print-directory", "site-factor", f"SLURM_SRC={tree}", f"OUTPUT={folder}"]
        run_tool(command, plugins, PLUGIN, EnergyError)
        built = Path(folder) / PLUGIN
        if built_release(built) != release:
            raise EnergyError(str(target / PLUGIN), f"was not built for Slurm {release}")
        return built.replace(target / PLUGIN)


def _configure(tree: Path) -> None:
    try:
        run_tool(
            ["./configure", "--without-munge", "--disable-dependency-tracking"], tree, "configure of Slurm"
        )
    except UnavailableError:
        (tree / "config.h").unlink(missing_ok=True)
        raise
