"""Reading of Slurm's configuration files on this host for `senergy doctor`.

No command is run and no daemon is contacted.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from slurm_energy.doctor.findings import FileFault, FileUse, SlurmFileFindings
from slurm_energy.doctor.slurm_energy_settings import energy_settings
from slurm_energy.errors import UsageError
from slurm_energy.installed_package import package_prefix
from slurm_energy.policies.policy_copy import copy_path, read_copy
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.energy_include import INCLUDE_NAME, ExactPlugin, stale_reason
from slurm_energy.slurm.energy_plugin import ENERGY_PLUGIN
from slurm_energy.slurm.hostlist import node_position
from slurm_energy.slurm.plugin_files import (
    FLAGS_PLUGIN,
    HOOKS_PLUGIN,
    Settings,
    in_one_of,
    is_own_program,
    line_of,
    own_program,
    plugin_directories,
    programs,
)
from slurm_energy.slurm.plugin_release import installed_release, plugin_release
from slurm_energy.slurm.release import Release
from slurm_energy.user_lookup import uid_of

CHECK_MODULE: Final = "senergy_submit"
POLICY_FILE: Final = "/run/senergyctld/policies"
AGENT_SOCKET: Final = "/run/senergy/agent.sock"
"""Paths that energy.so uses if it has no arguments, see spank/energy.c."""
TRUSTED_UIDS: Final = {0}
"""Permitted owners of files that slurmd and slurmctld execute with their own rights."""

_MODULE_FOLDER: Final = re.compile(r"[\"']([^\"';]+)/\?\.lua")
_LARGEST_SCRIPT_BYTES: Final = 1 << 20
_REBUILD: Final = {
    FileUse.SITE_FACTOR: "senergy build-plugins --enable --only site-factor, see docs/priority-plugin.md",
    FileUse.ENERGY_PLUGIN: "senergy build-plugins --enable, see docs/slurm-energy-plugin.md",
}


def inspect_slurm_files(conf: Path | None, names: Iterable[str] | None = None) -> SlurmFileFindings:
    """Return those settings and faults in Slurm's configuration files that concern slurm-energy.

    Args:
        conf: path of slurm.conf; None if there is no slurm.conf.
        names: names of this host; None means to read them from the system.
    """
    if conf is None:
        return SlurmFileFindings()
    try:
        settings = conf_files.read_settings(conf)
    except OSError as error:
        return SlurmFileFindings(str(conf), error.strerror or str(error))
    called = set(names) if names is not None else _own_names()
    lines = conf_files.plugstack_lines(conf, settings)
    flags, hooks = (line_of(lines, name) for name in (FLAGS_PLUGIN, HOOKS_PLUGIN))
    prologs, epilogs = (programs(conf, settings, key) for key in ("prolog", "epilog"))
    directories = plugin_directories(settings)
    release = installed_release(directories)
    script, script_faults = _job_submit(conf, settings)
    policies, policies_fault = _policy_file(flags.arguments) if flags else ("", "")
    faults = [*_program_faults(prologs, FileUse.PROLOG), *_program_faults(epilogs, FileUse.EPILOG)]
    for line in lines:
        faults += _plugin_faults(line, directories, release)
    faults += _site_factor_faults(conf, settings, directories, release)
    energy = energy_settings(conf, settings)
    if energy.ours:
        faults += _exact_plugin_faults(ENERGY_PLUGIN, FileUse.ENERGY_PLUGIN, directories, release)
    return SlurmFileFindings(
        conf=str(conf),
        prolog=own_program(prologs),
        epilog=own_program(epilogs),
        prolog_at_alloc=conf_files.runs_prolog_at_allocation(settings),
        faults=(*faults, *script_faults),
        spank=flags.plugin if flags else "",
        spank_required=any(line.required for line in (flags, hooks) if line),
        hooks=hooks.plugin if hooks else "",
        policy_file=policies,
        policy_file_fault=policies_fault,
        job_submit=script,
        release=str(release or ""),
        is_compute_node=_is_compute_node(settings, called),
        is_controller=_is_controller(settings, called),
        energy=energy,
    )


def _policy_file(arguments: Iterable[str]) -> tuple[str, str]:
    """Return the path of the policy file that Slurm's plugin energy.so uses or expects on this host.

    The second value is the reason why energy.so uses no policy file; empty if it uses one.

    Args:
        arguments: arguments of energy.so in plugstack.conf.
    """
    values = dict(argument.partition("=")[::2] for argument in arguments)
    own = Path(values.get("policy_file") or POLICY_FILE)
    copy = copy_path(Path(values.get("socket") or AGENT_SOCKET))
    if own.exists():
        return str(own), ""
    if (stored := read_copy(copy)) is None:
        return str(own), f"is missing, and there is no copy {copy}"
    return str(copy), "" if stored.is_fresh(time.time()) else "is out of date"


def _own_names() -> set[str]:
    name = socket.gethostname()
    return {name, name.partition(".")[0], os.environ.get("SLURMD_NODENAME", name)}


def _is_controller(settings: Settings, names: set[str]) -> bool:
    hosts = [*settings.get("slurmctldhost", []), *settings.get("controlmachine", [])]
    return not names.isdisjoint(host.partition("(")[0].strip() for host in hosts)


def _is_compute_node(settings: Settings, names: set[str]) -> bool | None:
    """Return whether slurm.conf lists a node with one of `names`.

    The result is None (unknown) if this host is no controller and nodes may join the cluster without a line
    in slurm.conf.
    """
    for line in settings.get("nodename", []):
        nodes, *rest = line.split()
        words = [word.partition("=")[::2] for word in rest]
        hosts = next((value for key, value in words if key.lower() == "nodehostname"), nodes)
        if any(_is_in(name, listed) for name in names for listed in (nodes, hosts)):
            return True
    unlisted = "nodename" not in settings or "maxnodecount" in settings or "nodeset" in settings
    return None if unlisted and not _is_controller(settings, names) else False


def _is_in(name: str, hosts: str) -> bool:
    try:
        return node_position(name, hosts) is not None
    except UsageError:
        return False


def _program_faults(files: Iterable[Path], use: FileUse) -> Iterator[FileFault]:
    for program in files:
        yield from _file_faults(program, use, executable=True, ours=is_own_program(program))


def _plugin_faults(
    line: conf_files.PlugstackLine, directories: Iterable[Path], release: Release | None
) -> Iterator[FileFault]:
    path = Path(line.plugin)
    ours = path.name in (FLAGS_PLUGIN, HOOKS_PLUGIN)
    if not path.is_absolute():
        path = in_one_of(directories, path)
    if not ours and not (line.required and path.is_absolute()):
        return
    use = FileUse.REQUIRED_PLUGIN if line.required else FileUse.OPTIONAL_PLUGIN
    faults = list(_file_faults(path, use, executable=False, ours=ours))
    yield from faults
    built = None if faults or not ours else plugin_release(path)
    if built and release and built[:2] != release[:2]:
        why = f"was built for Slurm {built.series}, installed is {release.series}"
        todo = "build it on a host with this Slurm: make build install-hooks"
        if package_prefix() is not None:
            todo = "senergy build-plugins --update"
        yield FileFault(str(path), why, todo, use)


def _site_factor_faults(
    conf: Path, settings: Settings, directories: Iterable[Path], release: Release | None
) -> Iterator[FileFault]:
    """Yield the faults of the site factor plugin, which must be built for exactly the installed Slurm."""
    include = conf.with_name(INCLUDE_NAME)
    if reason := stale_reason(include, ExactPlugin.SITE_FACTOR):
        yield FileFault(str(include), reason, _REBUILD[FileUse.SITE_FACTOR], FileUse.SITE_FACTOR)
    if "site_factor/energy" not in settings.get("prioritysitefactorplugin", [])[-1:]:
        return
    yield from _exact_plugin_faults("site_factor_energy.so", FileUse.SITE_FACTOR, directories, release)


def _exact_plugin_faults(
    name: str, use: FileUse, directories: Iterable[Path], release: Release | None
) -> Iterator[FileFault]:
    """Yield the faults of a plugin that must be built for exactly the installed Slurm.

    Args:
        name: file name of the plugin.
        use: how Slurm uses the plugin.
        directories: directories that may hold Slurm's plugins.
        release: release of the installed Slurm; None if unknown.
    """
    path = in_one_of(directories, Path(name))
    faults = list(_file_faults(path, use, executable=False, ours=True))
    yield from faults
    built = None if faults else plugin_release(path)
    if built and release and built != release:
        why = f"was built for Slurm {built}, installed is {release}"
        yield FileFault(str(path), why, _REBUILD[use], use)


def _file_faults(
    path: Path, use: FileUse, *, executable: bool, ours: bool, owner: int | None = None
) -> Iterator[FileFault]:
    """Yield the faults of a file that Slurm executes or loads.

    Args:
        path: path of the file.
        use: how Slurm uses the file.
        executable: whether the file must be executable.
        ours: whether the file belongs to slurm-energy, so that owner and mode are also checked.
        owner: uid of a user who may own the file, in addition to `TRUSTED_UIDS`; None means no such user.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        yield FileFault(str(path), "is missing", "install it, or remove the line that names it", use)
        return
    except OSError as error:
        yield FileFault(str(path), error.strerror or str(error), "run this as root", use)
        return
    if not stat.S_ISREG(status.st_mode):
        yield FileFault(str(path), "is not a file", "install it, or remove the line that names it", use)
    elif executable and not status.st_mode & 0o111:
        yield FileFault(str(path), "is not executable", f"chmod 0755 {path}", use)
    elif ours and status.st_uid not in (*TRUSTED_UIDS, owner):
        yield FileFault(str(path), f"belongs to uid {status.st_uid}", f"chown root {path}", use)
    elif ours and status.st_mode & 0o022:
        yield FileFault(
            str(path),
            f"other users may write it (mode {status.st_mode & 0o7777:04o})",
            f"chmod go-w {path}",
            use,
        )


def _job_submit(conf: Path, settings: Settings) -> tuple[str, list[FileFault]]:
    """Return the path of job_submit.lua and its faults.

    The path is an empty text if slurm.conf does not use the script, or if the script does not load
    senergy_submit.lua. slurmctld runs the script as SlurmUser, so that this user may own it.
    """
    if not conf_files.uses_job_submit_lua(settings):
        return "", []
    script = conf.with_name("job_submit.lua")
    try:
        text = script.read_bytes()[:_LARGEST_SCRIPT_BYTES].decode(errors="replace")
    except OSError:
        text = ""
    code = "\n".join(line.partition("--")[0] for line in text.splitlines())
    ours = CHECK_MODULE in code
    slurm_user = uid_of(settings.get("slurmuser", ["root"])[-1].partition("(")[0])
    faults = list(_file_faults(script, FileUse.JOB_SUBMIT, executable=False, ours=ours, owner=slurm_user))
    if not ours:
        return "", faults
    if "pcall" not in code:
        todo = "load it as the job_submit.lua of slurm-energy does, with pcall"
        faults.append(FileFault(str(script), f"loads {CHECK_MODULE} without pcall", todo, FileUse.JOB_SUBMIT))
    if match := _MODULE_FOLDER.search(code):
        module = Path(match[1]) / f"{CHECK_MODULE}.lua"
        faults += _file_faults(module, FileUse.CHECK_MODULE, executable=False, ours=True)
    return str(script), faults
