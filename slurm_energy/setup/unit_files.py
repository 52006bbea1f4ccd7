"""Changes by which `senergy setup` installs the systemd units of the daemons.

A unit that a package installed is extended by a drop-in. Other units are rendered from templates.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from slurm_energy.config.loader import DEFAULT_PATH
from slurm_energy.errors import ConfigError
from slurm_energy.setup.changes import FileChange
from slurm_energy.setup.own_files import LOCAL_UNITS, OwnFiles
from slurm_energy.setup.site import SlurmSite
from slurm_energy.setup.site_file import read_site_file
from slurm_energy.templates import find, render

POLICY_TIMER: Final = "senergy-policies.timer"
"""Timer that copies the policy file to a login node."""
_POLICY_SERVICE: Final = "senergy-policies.service"
_DEFAULT_USER: Final = "slurm"
_TEMPLATES: Final = Path("/etc/slurm/energy-templates")
_COMMENT: Final = re.compile(r"^[ \t]*[#;].*\n?", re.MULTILINE)
_SETTING: Final = re.compile(r"^[ \t]*(ExecStart|Environment)[ \t]*=[ \t]*(.*)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^[ \t]*(Condition\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_PATH: Final = r"""(?:"([^"]+)|'([^']+)|([^\s"']+))"""
_CONFIG_OPTION: Final = re.compile(rf"""(?:^|[\s"'])--config(?:=|["']?\s+){_PATH}""")
_CONFIG_VARIABLE: Final = re.compile(rf"""(?:^|[\s"'])SENERGY_CONFIG={_PATH}""")


def unit_changes(name: str, site: SlurmSite, own: OwnFiles, user: str, config: Path) -> list[FileChange]:
    """Return the changes that create or extend the unit of a daemon.

    A unit that a package installed is not changed. Values that differ from those in the unit are
    written to a drop-in. A unit in /etc/systemd/system that the site wrote is not changed either.

    Args:
        name: `senergyd` or `senergyctld`.
        site: the Slurm cluster of this host.
        own: locations of the installed files of slurm-energy.
        user: user that senergyctld runs as.
        config: path of energy.toml.

    Raises:
        ConfigError: the unit of a package or of the site reads or requires another file than `config`.
    """
    if name == "senergyctld" and not site.has_usual_conf:
        return [*_unit(name, site, own, user, config), *_environment(site, own)]
    return _unit(name, site, own, user, config)


def _environment(site: SlurmSite, own: OwnFiles) -> list[FileChange]:
    """Return the change that gives senergyctld the path of slurm.conf.

    The change is needed only if the commands of senergyctld would not find the file.
    """
    file = read_site_file(own.root / "etc/default/senergyctld")
    if file.data is not None:
        return []
    text = f"# slurm-energy setup\nSLURM_CONF={site.conf}\n"
    return [FileChange(file, text.encode(), reason="names slurm.conf to senergyctld")]


def _unit(name: str, site: SlurmSite, own: OwnFiles, user: str, config: Path) -> list[FileChange]:
    local = own.root / LOCAL_UNITS / f"{name}.service"
    _check_installed_unit(f"{name}.service", own, config)
    prefix = str(site.installation.prefix) if site.installation else "/usr"
    settings: dict[str, str] = {}
    if name == "senergyctld":
        settings = {"user": user} | ({"slurm_prefix": prefix} if prefix != "/usr" else {})
    if own.packaged_unit(f"{name}.service") is None:
        if local.exists():
            return []
        settings |= _paths(own.program(name), config)
        text = render(find(f"{name}.service", _TEMPLATES), settings, lambda raw: None)
        unit = FileChange(read_site_file(local), text.encode(), reason=f"unit of {name}")
        return [unit, *_drop_in(name, _node_name(name, site), own)]
    lines = _node_name(name, site)
    if settings.get("user", _DEFAULT_USER) != _DEFAULT_USER:
        lines.append(f"User={settings['user']}")
    if "slurm_prefix" in settings:
        lines.append(f"Environment=PATH={prefix}/bin:{prefix}/sbin:/usr/local/bin:/usr/bin:/bin")
    return _drop_in(name, lines, own)


def _paths(program: Path, config: Path) -> dict[str, str]:
    """Return the values of the path variables in the template of a unit.

    The path of energy.toml is left out if it is the default, because a template of the site may have no
    variable for it.
    """
    paths = {"bin": str(program.parent)}
    return paths if config == DEFAULT_PATH else paths | {"config": str(config.absolute())}


def _check_installed_unit(unit: str, own: OwnFiles, config: Path) -> None:
    """Raise an error if an installed unit reads or requires another configuration file than `config`.

    systemd skips a unit silently if its condition names a file that does not exist. Setup does not change an
    installed unit. The site can name the file in a unit or a drop-in of its own.
    """
    local = own.root / LOCAL_UNITS / unit
    path = local if local.exists() else own.packaged_unit(unit)
    if path is None:
        return
    files = (path, *sorted(local.with_name(f"{unit}.d").glob("*.conf")))
    text = "\n".join(read_site_file(one).text for one in files)
    file = _config_path(text)
    if Path(file) == config.absolute():
        _check_condition(text, unit, own.root, config)
        return
    if config == DEFAULT_PATH:
        raise ConfigError(str(config), f"{path} reads {file}", f"use --config {file}")
    todo = f"use {DEFAULT_PATH}, or first name the file in the lines of a drop-in: systemctl edit {unit}"
    raise ConfigError(str(config), f"{path} does not read this file", todo)


def _check_condition(text: str, unit: str, root: Path, config: Path) -> None:
    """Raise an error if systemd would skip a unit because it requires another energy.toml than `config`.

    Other conditions are not checked. For example, a site may start the daemon only on nodes with some device,
    or only after the mount of a file system that is absent during setup.

    Args:
        text: text of the unit, followed by that of its drop-ins in the order of their names.
        unit: name of the unit.
        root: directory that contains etc and usr.
        config: path of energy.toml.
    """
    required: list[str] = []
    for name, value in _CONDITION.findall(_COMMENT.sub("", text)):
        if not value:  # an empty value removes all earlier conditions
            required = []
        elif name == "ConditionPathExists" and _names_config(value):
            required.append(value)
    for path in required:
        if Path(path) != config.absolute() and not (root / path.removeprefix("/")).exists():
            why = f"{unit} starts only if {path} exists"
            todo = f"replace its ConditionPathExists in the section Unit of a drop-in: systemctl edit {unit}"
            raise ConfigError(str(config), why, todo)


def _names_config(value: str) -> bool:
    """Return whether the value of a condition is the plain path of a configuration file.

    A path with `%` contains specifiers, which only systemd can expand. A path after `!` must not exist, and a
    path after `|` is only one of several alternatives.
    """
    return value.startswith("/") and "%" not in value and Path(value).suffix == DEFAULT_PATH.suffix


def _config_path(text: str) -> str:
    """Return the path of energy.toml that a service reads.

    As in systemd, a later line overrides an earlier one. The option of the command overrides the variable
    SENERGY_CONFIG. A service that names no file reads the default path.

    Args:
        text: text of the unit, followed by that of its drop-ins in the order of their names.
    """
    text = _COMMENT.sub("", text).replace("\\\n", " ")
    command, variable = "", str(DEFAULT_PATH)
    for name, value in _SETTING.findall(text):
        if name == "ExecStart":
            command = value or command
        elif not value:  # an empty line removes the variables of the lines before
            variable = str(DEFAULT_PATH)
        else:
            variable = _last_path(_CONFIG_VARIABLE, value) or variable
    return _last_path(_CONFIG_OPTION, command) or variable


def _last_path(pattern: re.Pattern[str], text: str) -> str:
    """Return the path in the last match of a pattern; empty if there is none."""
    return "".join(pattern.findall(text)[-1]) if pattern.search(text) else ""


def _node_name(name: str, site: SlurmSite) -> list[str]:
    """Return the line that sets the name of the node for senergyd.

    The line is needed if Slurm's name is not the host name.

    If the host has several nodes, senergyd learns their names from the hooks.
    """
    nodes = site.node_names
    if name != "senergyd" or len(nodes) != 1 or nodes[0] in site.names:
        return []
    return [f"Environment=SLURMD_NODENAME={nodes[0]}"]


def _drop_in(name: str, lines: list[str], own: OwnFiles) -> list[FileChange]:
    """Return the change that creates a systemd drop-in file for the unit `name`.

    The file contains `lines` in the section Service. The result is an empty list if there are no lines or if
    the file already exists.
    """
    file = read_site_file(own.root / LOCAL_UNITS / f"{name}.service.d" / "senergy-setup.conf")
    if not lines or file.data is not None:
        return []
    text = "\n".join(["# slurm-energy setup", "[Service]", *lines, ""])
    return [FileChange(file, text.encode(), reason=f"values of this site for {name}")]


def policy_copy_changes(own: OwnFiles, config: Path) -> list[FileChange]:
    """Return the file changes that let a login node copy the policy file periodically.

    The changes install a systemd timer and the service that it starts. A unit that is already installed
    is not changed.

    Args:
        own: locations of the installed files of slurm-energy.
        config: path of energy.toml.

    Raises:
        ConfigError: the service of a package or of the site reads another file than `config`.
    """
    _check_installed_unit(_POLICY_SERVICE, own, config)
    changes = []
    for name in (_POLICY_SERVICE, POLICY_TIMER):
        local = own.root / LOCAL_UNITS / name
        if own.packaged_unit(name) is not None or local.exists():
            continue
        values = _paths(own.program("senergy"), config) if name == _POLICY_SERVICE else {}
        text = render(find(name, _TEMPLATES), values, lambda raw: None)
        changes.append(FileChange(read_site_file(local), text.encode(), reason="copy of the policy file"))
    return changes
