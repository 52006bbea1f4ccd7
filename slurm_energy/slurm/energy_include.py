"""The file slurm-energy.conf, which slurm.conf includes.

The file names the plugins of slurm-energy only while the plugins fit the installed Slurm.

A daemon of Slurm that cannot load the energy plugin named in slurm.conf does not start. After an upgrade of
Slurm, the plugins belong to another release until they are built again. Therefore slurm.conf does not name
the plugins, but includes this file. `senergy build-plugins --enable` fills the file. `--check`, which runs
before each start of a daemon, removes the plugins that do not fit.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.errors import ConfigError, ForbiddenError, UnavailableError
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.energy_plugin import ENERGY_PLUGIN, PLUGIN_TYPE
from slurm_energy.slurm.installation import Installation
from slurm_energy.slurm.plugin_build import PLUGIN as SITE_FACTOR_PLUGIN
from slurm_energy.slurm.plugin_release import plugin_release
from slurm_energy.trusted_files import resolve_link

INCLUDE_NAME: Final = "slurm-energy.conf"
_HEAD: Final = (
    "# Written by `senergy build-plugins --enable`, `--disable` and `--check`; slurm.conf includes it.\n"
)
_SUSPENDED: Final = "# Suspended by --check: "
_UNUSED: Final = "# No plugin is in use.\n"


class ExactPlugin(enum.Enum):
    """A plugin that Slurm loads only if it was built for exactly the same release.

    The value of a member is the name of the plugin in the options of `senergy build-plugins`.
    """

    ENERGY = "energy"
    SITE_FACTOR = "site-factor"

    @property
    def file_name(self) -> str:
        """Name of the plugin's file."""
        return {ExactPlugin.ENERGY: ENERGY_PLUGIN, ExactPlugin.SITE_FACTOR: SITE_FACTOR_PLUGIN}[self]

    @property
    def settings(self) -> dict[str, str]:
        """Settings of slurm.conf that load the plugin, as values by name.

        slurm.conf counts as using the plugin if it contains the first of these settings.
        """
        if self is ExactPlugin.ENERGY:
            return {"AcctGatherEnergyType": PLUGIN_TYPE}
        return {
            "PrioritySiteFactorPlugin": "site_factor/energy",
            "PrioritySiteFactorParameters": (
                "table=/run/senergyctld/priority.table,queue=/run/senergyctld/queue/queue.table"
            ),
        }

    def is_named(self, settings: Mapping[str, list[str]]) -> bool:
        """Return whether settings of a Slurm configuration file name this plugin.

        The settings have the form that `conf_files.read_settings` returns.
        """
        key, value = next(iter(self.settings.items()))
        return value in ",".join(settings.get(key.lower(), [])[-1:]).split(",")


@dataclass(frozen=True, slots=True)
class PluginState:
    """Whether an installed plugin of slurm-energy fits the installed Slurm, and whether it is in use.

    Attributes:
        kind: which plugin of slurm-energy.
        plugin: path at which the plugin is or would be installed.
        fault: why Slurm could not load the plugin; empty if Slurm could load the plugin.
        conf: path of slurm.conf.
        include: path of slurm-energy.conf.
        enabled: whether slurm-energy.conf names the plugin.
        suspended: why slurm-energy.conf no longer names the plugin; empty if the plugin was not suspended.
        included: whether slurm.conf includes slurm-energy.conf.
        needed: whether a Slurm daemon of this host loads plugins of this kind.
    """

    kind: ExactPlugin
    plugin: Path
    fault: str
    conf: Path
    include: Path
    enabled: bool
    suspended: str
    included: bool
    needed: bool


def plugin_state(
    slurm: Installation, conf: Path | None = None, kind: ExactPlugin = ExactPlugin.ENERGY
) -> PluginState:
    """Return the state of a plugin on this host. No daemon is queried.

    Args:
        slurm: the Slurm installation of this host.
        conf: path of slurm.conf; None means the path at which Slurm expects the file.
        kind: which plugin of slurm-energy.

    Raises:
        UnavailableError: slurm.conf, Slurm or the directory of its plugins cannot be found.
    """
    conf = conf or conf_files.locate_slurm_conf()
    if conf is None:
        raise UnavailableError("slurm.conf", "not found", "set SLURM_CONF")
    include = conf.with_name(INCLUDE_NAME)
    plugin = slurm.plugin_directory(run=None) / kind.file_name
    try:
        included = INCLUDE_NAME in _included_names(conf)
        settings = conf_files.read_settings(conf)
    except OSError as error:
        raise UnavailableError(str(conf), error.strerror or str(error)) from None
    return PluginState(
        kind,
        plugin,
        _fault(plugin, slurm),
        conf,
        include,
        kind in _named_plugins(include),
        stale_reason(include, kind),
        included,
        kind is ExactPlugin.ENERGY or _is_controller(settings),
    )


def enable(state: PluginState) -> None:
    """Enable a plugin of slurm-energy in Slurm.

    The function writes the settings that name the plugin to the file slurm-energy.conf.

    Raises:
        UnavailableError: the plugin does not fit Slurm, or the file cannot be written.
        ForbiddenError: the caller may not write the file.
    """
    if state.fault:
        raise UnavailableError(
            str(state.plugin), state.fault, f"senergy build-plugins {_enabling(state.kind)}"
        )
    _write(state, "".join(f"{key}={value}\n" for key, value in state.kind.settings.items()))


def disable(state: PluginState) -> None:
    """Remove the settings of the plugin from slurm-energy.conf.

    The file itself is kept, because slurm.conf includes this file.

    Raises:
        UnavailableError, ForbiddenError: the file cannot be written.
    """
    _write(state, "")


def suspend(state: PluginState) -> None:
    """Disable a plugin that does not fit the installed Slurm.

    The settings of the plugin are removed from slurm-energy.conf. The reason and the name of this host are
    written there instead, because all hosts of the cluster may share the file.

    Raises:
        UnavailableError, ForbiddenError: the file cannot be written.
    """
    reason = f"{' '.join(state.fault.split())} (on {socket.gethostname()})"
    _write(state, f"{_SUSPENDED}{state.plugin.name} {reason}\n")


def stale_reason(include: Path, kind: ExactPlugin = ExactPlugin.ENERGY) -> str:
    """Return why `suspend` removed a plugin from slurm-energy.conf; empty if the plugin was not removed."""
    start = f"{_SUSPENDED}{kind.file_name} "
    lines = [line for line in _text(include).splitlines() if line.startswith(start)]
    return lines[-1].removeprefix(_SUSPENDED) if lines else ""


def _enabling(kind: ExactPlugin) -> str:
    return "--enable" if kind is ExactPlugin.ENERGY else f"--enable --only {kind.value}"


def _write(state: PluginState, own_lines: str) -> None:
    """Write slurm-energy.conf with new lines for one of Slurm's two plugins that use the file.

    The lines for the other plugin are kept.
    """
    named = _named_plugins(state.include)
    lines = [own_lines]
    for kind in ExactPlugin:
        if kind is state.kind:
            continue
        if kind in named:
            lines.append("".join(f"{key}={value}\n" for key, value in kind.settings.items()))
        elif reason := stale_reason(state.include, kind):
            lines.append(f"{_SUSPENDED}{reason}\n")
    text = "".join(lines) or _UNUSED
    file = _linked_file(state.include)
    try:
        atomic_file.write(file, (_HEAD + text).encode(), mode=0o644)
        file.chmod(0o644)  # the commands of all users read the file, and the umask may be strict
    except PermissionError:
        raise ForbiddenError(str(state.include), "cannot be written", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(state.include), error.strerror or str(error)) from None


def _linked_file(path: Path) -> Path:
    """Return the file that a symbolic link names, so that a write keeps the link.

    Return the path itself if other users could exchange the link or its target, or if the target cannot be
    written. A write then replaces the link, so that Slurm never loads a plugin that does not fit.
    """
    try:
        file = resolve_link(path)
    except (ConfigError, OSError, RuntimeError):  # RuntimeError: links that form a loop
        return path
    return file if os.access(file.parent, os.W_OK) else path


def _text(path: Path) -> str:
    try:
        return conf_files.contents(path).decode(errors="replace")
    except OSError:
        return ""


def _fault(plugin: Path, slurm: Installation) -> str:
    try:
        built = plugin_release(plugin)
    except FileNotFoundError:
        return "is not installed"
    except OSError as error:
        return error.strerror or str(error)
    if built == (release := slurm.release()):
        return ""
    return f"was built for Slurm {built}, installed is {release}" if built else "is not a plugin of Slurm"


def _named_plugins(include: Path) -> set[ExactPlugin]:
    try:
        settings = conf_files.read_settings(include)
    except OSError:
        return set()
    return {kind for kind in ExactPlugin if kind.is_named(settings)}


def _included_names(conf: Path) -> set[str]:
    lines = conf_files.contents(conf).decode(errors="replace").splitlines()
    words = [line.split() for line in lines]
    return {Path(pair[1]).name for pair in words if len(pair) > 1 and pair[0].lower() == "include"}


def _is_controller(settings: Mapping[str, list[str]]) -> bool:
    name = socket.gethostname()
    hosts = [*settings.get("slurmctldhost", []), *settings.get("controlmachine", [])]
    return not {name, name.partition(".")[0]}.isdisjoint(host.partition("(")[0].strip() for host in hosts)
