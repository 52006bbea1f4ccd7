"""The file slurm-energy.conf, which slurm.conf includes: it names the energy plugin only while it fits Slurm.

A daemon of Slurm that cannot load a plugin named in slurm.conf does not start. After an upgrade of Slurm the
plugin is of another release until it is built again. Therefore slurm.conf does not name the plugin, but
includes this file. `senergy build-plugins --enable` fills the file. `--check`, which runs before each start
of a daemon, empties it if the plugin does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.errors import ForbiddenError, UnavailableError
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.energy_plugin import ENERGY_PLUGIN, PLUGIN_TYPE
from slurm_energy.slurm.installation import Installation
from slurm_energy.slurm.plugin_version import plugin_release

INCLUDE_NAME: Final = "slurm-energy.conf"
_HEAD: Final = (
    "# Written by `senergy build-plugins --enable`, `--disable` and `--check`; slurm.conf includes it.\n"
)
_SUSPENDED: Final = "# Suspended by --check: "
_SETTING: Final = f"AcctGatherEnergyType={PLUGIN_TYPE}\n"


@dataclass(frozen=True, slots=True)
class PluginState:
    """Whether the installed energy plugin fits the installed Slurm, and what slurm.conf says.

    Attributes:
        plugin: path at which the plugin is, or would be installed.
        fault: why Slurm could not load the plugin; empty if it can.
        conf: path of slurm.conf.
        include: path of slurm-energy.conf.
        enabled: whether slurm-energy.conf names the plugin.
        included: whether slurm.conf includes slurm-energy.conf.
    """

    plugin: Path
    fault: str
    conf: Path
    include: Path
    enabled: bool
    included: bool


def plugin_state(slurm: Installation, conf: Path | None = None) -> PluginState:
    """Return the state of the energy plugin on this host. No daemon is asked.

    Args:
        slurm: the installation.
        conf: path of slurm.conf; None: where Slurm expects it.

    Raises:
        UnavailableError: slurm.conf, Slurm or the directory of its plugins cannot be found.
    """
    conf = conf or conf_files.locate_slurm_conf()
    if conf is None:
        raise UnavailableError("slurm.conf", "not found", "set SLURM_CONF")
    include = conf.with_name(INCLUDE_NAME)
    plugin = slurm.plugin_directory(run=None) / ENERGY_PLUGIN
    try:
        included = INCLUDE_NAME in _included_names(conf)
    except OSError as error:
        raise UnavailableError(str(conf), error.strerror or str(error)) from None
    return PluginState(plugin, _fault(plugin, slurm), conf, include, _names_plugin(include), included)


def enable(state: PluginState) -> None:
    """Name the plugin in slurm-energy.conf.

    Raises:
        UnavailableError: the plugin does not fit Slurm, or the file cannot be written.
        ForbiddenError: the caller may not write it.
    """
    if state.fault:
        raise UnavailableError(str(state.plugin), state.fault, "senergy build-plugins --enable")
    _write(state.include, _SETTING)


def disable(state: PluginState) -> None:
    """Remove the plugin from slurm-energy.conf. The file stays, because slurm.conf includes it.

    Raises:
        UnavailableError, ForbiddenError: the file cannot be written.
    """
    _write(state.include, "# The energy plugin is not in use.\n")


def suspend(state: PluginState) -> None:
    """Remove a plugin that does not fit from slurm-energy.conf, and record the fault there.

    Raises:
        UnavailableError, ForbiddenError: the file cannot be written.
    """
    _write(state.include, f"{_SUSPENDED}{state.plugin.name} {' '.join(state.fault.split())}\n")


def stale_reason(include: Path) -> str:
    """Return why `suspend` removed the plugin from slurm-energy.conf; empty if it did not."""
    try:
        text = include.read_text(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.startswith(_SUSPENDED)]
    return lines[-1].removeprefix(_SUSPENDED) if lines else ""


def _write(path: Path, text: str) -> None:
    try:
        atomic_file.write(path, (_HEAD + text).encode(), mode=0o644)
        path.chmod(0o644)  # all users' commands read it, and the umask may be strict
    except PermissionError:
        raise ForbiddenError(str(path), "cannot be written", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error)) from None


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


def _names_plugin(include: Path) -> bool:
    try:
        settings = conf_files.read_settings(include)
    except OSError:
        return False
    return PLUGIN_TYPE in ",".join(settings.get("acctgatherenergytype", [])[-1:]).split(",")


def _included_names(conf: Path) -> set[str]:
    lines = conf.read_text(errors="replace").splitlines()
    words = [line.split() for line in lines]
    return {Path(pair[1]).name for pair in words if len(pair) > 1 and pair[0].lower() == "include"}
