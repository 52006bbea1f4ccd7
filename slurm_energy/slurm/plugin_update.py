"""Update of the plugins of this host to the installed Slurm.

The update runs after each installation or upgrade of Slurm or slurm-energy.

The package slurm-energy-plugins runs the update whenever Slurm's plugins or headers change, and at boot.
Nothing is downloaded. A plugin that cannot be built is taken out of use, so that Slurm starts without the
plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.installed_package import package_prefix
from slurm_energy.slurm import energy_include, energy_plugin, installation, plugin_build, spank_selection
from slurm_energy.slurm.energy_include import ExactPlugin, PluginState
from slurm_energy.slurm.installation import Installation
from slurm_energy.slurm.release import Release

SOURCE_DIRECTORIES: Final = (Path("/usr/src"), spank_selection.BUILD_DIRECTORY.parent / "source")
"""Directories that may contain the source of Slurm, as `slurm-<release>` or `slurm-wlm-<release>`."""
Say = Callable[[str], None]


def default_output(release: Release) -> Path:
    """Return the default directory in which plugins for a release of Slurm are built."""
    if package_prefix() is None:
        return plugin_build.plugin_sources()
    return spank_selection.BUILD_DIRECTORY / str(release)


def update_spank(prefix: Path | None, say: Say) -> None:
    """Select the installed SPANK plugins that fit the installed Slurm.

    Slurm loads the SPANK plugins of slurm-energy through links, for example /usr/lib/slurm-energy/energy.so.
    To select plugins, this function makes the links point to them.

    The packages of slurm-energy contain plugins for several release series of Slurm. If the packages contain
    no plugins for the installed series, the plugins are built. If slurm-energy was not installed from
    packages, nothing is done.

    Args:
        prefix: prefix of Slurm; None means the prefix of srun on PATH.
        say: function that receives a line of text about each change.

    Raises:
        UnavailableError: there are no plugins for this release series of Slurm.
        ForbiddenError: the caller may not change the links to the plugins.
    """
    library, release = package_prefix(), spank_selection.slurm_release(prefix)
    if library is None:
        return
    if release is None:
        say("No Slurm on this host: nothing to select")
        return
    selection = spank_selection.select(library, release)
    if selection.directory is None:
        try:
            sources = plugin_build.plugin_sources().with_name("spank")
            spank_selection.build(sources, release, prefix or installation.find().prefix)
        except EnergyError as error:
            what = f"energy.so for Slurm {selection.series}"
            why = f"sbatch and srun do not know the options --energy-*: {error}"
            raise UnavailableError(what, why) from None
        selection = spank_selection.select(library, release)
    if selection.changed:
        say(f"Selected the plugins in {selection.directory}")


def update_exact(
    slurm: Installation, conf: Path | None, source: Path | None, say: Say
) -> Iterator[EnergyError]:
    """Rebuild Slurm plugins of slurm-energy that do not fit the installed Slurm. Yield the errors.

    Only plugins in use are rebuilt. A plugin is in use if slurm-energy.conf names it. A plugin is also in
    use if `--check` removed it from slurm-energy.conf because it does not fit the installed Slurm.

    Args:
        slurm: the Slurm installation of this host.
        conf: path of slurm.conf; None means the path at which Slurm expects the file.
        source: source tree of Slurm; None means to search a source tree in `SOURCE_DIRECTORIES`.
        say: function that receives a line of text before each step that takes time.
    """
    for kind in ExactPlugin:
        try:
            state = energy_include.plugin_state(slurm, conf, kind)
        except UnavailableError:
            return  # without slurm.conf no plugin is in use
        if not state.needed or not (state.enabled or state.suspended):
            continue
        try:
            if state.fault:
                plugin = build_exact(kind, slurm, source or find_source(slurm.release(), kind), say)
                energy_plugin.install_plugin(plugin, state.plugin)
            energy_include.enable(energy_include.plugin_state(slurm, conf, kind))
        except EnergyError as error:
            what = f"{kind.file_name} for Slurm {slurm.release()}"
            yield error if error.what == what else UnavailableError(what, f"not built: {error}")
            yield from _suspend(state)


def build_exact(kind: ExactPlugin, slurm: Installation, source: Path | None, say: Say) -> Path:
    """Build a plugin for exactly the installed Slurm and return its path.

    Args:
        kind: which plugin of slurm-energy to build.
        slurm: the Slurm installation of this host.
        source: source tree of Slurm, for the site factor; None means that it is downloaded.
        say: function that receives a line of text before each step that takes time.

    Raises:
        EnergyError: the plugin cannot be built.
    """
    output = default_output(slurm.release())
    if kind is ExactPlugin.ENERGY:
        return energy_plugin.build_energy_plugin(plugin_build.plugin_sources(), output, slurm, say)
    cache = SOURCE_DIRECTORIES[-1] if package_prefix() else None
    return plugin_build.build(output, source, cache, say, slurm)[0]


def find_source(release: Release, kind: ExactPlugin) -> Path | None:
    """Return the source tree of a release of Slurm on this host.

    Return None if the plugin is built without a source tree.

    Raises:
        UnavailableError: this host has no source of the release.
    """
    if kind is ExactPlugin.ENERGY:
        return None
    for parent in SOURCE_DIRECTORIES:
        for path in sorted(parent.glob("slurm*")):
            for tree in (path, path / "tree"):
                if (tree / "META").is_file() and plugin_build.source_release(tree) == release:
                    return tree
    what = f"{kind.file_name} for Slurm {release}"
    why = f"no source of Slurm {release} in {SOURCE_DIRECTORIES[0]}/slurm-{release}"
    raise UnavailableError(what, why, "senergy build-plugins --enable --only site-factor downloads it")


def _suspend(state: PluginState) -> Iterator[EnergyError]:
    if state.enabled and state.fault:
        try:
            energy_include.suspend(state)
        except EnergyError as error:
            yield error
