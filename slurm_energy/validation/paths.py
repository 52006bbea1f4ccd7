"""Checks of the files and directories that the configuration names.

The checks are made on the hosts that use these files and directories.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_energy.config import ControllerConfig
from slurm_energy.config.database_location import DatabaseLocation
from slurm_energy.config.findings import Finding
from slurm_energy.config.schema import TemplatesConfig
from slurm_energy.errors import ConfigError
from slurm_energy.trusted_files import check_folder, read_trusted
from slurm_energy.validation.check_context import CheckContext
from slurm_energy.validation.controller_address import not_a_controller
from slurm_energy.validation.database_server import check_database_server

_CONTROLLER_FILES: Final = (
    ("controller", "database"),
    ("controller", "policy_file"),
    ("priority", "table"),
    ("priority", "queue_table"),
)
_MADE_BY_UNIT: Final = ControllerConfig().state_folder


def check_controller(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about the files of senergyctld.

    There is a finding if two files have the same path, or if a directory cannot be used.
    """
    yield from _check_distinct(context)
    reason = not_a_controller(context)
    if reason:
        yield context.unchecked("controller", "database", reason, "run this on the controller")
        return
    yield from _as_readable(context, "controller", "database", _check_database(context))
    files = [("controller", "policy_file", context.config.controller.policy_file)]
    if context.config.priority.mode == "plugin":
        files.append(("priority", "table", context.config.priority.table))
    for section, key, path in files:
        yield from _as_readable(context, section, key, _check_written_file(context, section, key, path))
    yield from _as_readable(context, "templates", "folder", _check_templates(context))
    for key in ("token_file", "tls_key"):
        yield from _as_readable(context, "metrics", key, _check_metrics_secret(context, key))


def check_node(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about the files of senergyd on this host.

    Nothing is yielded if a daemon is about to start, because senergyd checks each file on opening.
    """
    if context.role is not None:
        return
    agent, bmc = context.config.agent, context.config.node_power
    yield from _as_readable(context, "agent", "socket", _check_socket(context))
    for key, folder in (("state_dir", agent.state_dir), ("socket", agent.socket.parent)):
        yield from _as_readable(context, "agent", key, _check_agent_folder(context, key, folder))
    for key, path, secret in (
        ("bmc_password_file", bmc.bmc_password_file, True),
        ("bmc_certificates", bmc.bmc_certificates, False),
    ):
        if bmc.bmc and path is not None:
            findings = _check_file(context, key, path if secret else path.resolve(), secret=secret)
            yield from _as_readable(context, "node_power", key, findings)


def _as_readable(
    context: CheckContext, section: str, key: str, findings: Iterator[Finding]
) -> Iterator[Finding]:
    """Yield the findings of a check.

    If the check raises an OSError, yield a finding that the check was skipped.
    """
    try:
        yield from findings
    except OSError as error:
        why = f"{error.filename}: {error.strerror or error}"
        yield context.unchecked(section, key, why, "run this as root")


def _check_written_file(context: CheckContext, section: str, key: str, path: Path) -> Iterator[Finding]:
    """Yield findings about a file that senergyctld writes, and about the directory of the file.

    senergyctld creates a missing directory for the file; the parent of that directory must exist.
    """
    if path.is_dir():
        yield context.error(section, key, f"{path} is a directory", "name a file in it")
    elif path.parent.is_dir():
        yield from _check_folder(context, section, key, path.parent)
    elif not path.parent.parent.is_dir():
        yield _missing(context, section, key, path.parent.parent)


def _check_metrics_secret(context: CheckContext, key: str) -> Iterator[Finding]:
    """Yield a finding if root owns a secret that senergyctld must read although it does not run as root."""
    path: Path | None = getattr(context.config.metrics, key)
    users = _daemon_uids(context)
    if context.role is not None or path is None or not context.config.metrics.controller_listen:
        return
    if path.exists() and path.stat().st_uid == 0 and users and 0 not in users:
        why = f"{path} belongs to root, and senergyctld, which does not run as root, cannot read it"
        yield context.warning("metrics", key, why, "give it to the user of senergyctld, see docs/metrics.md")


def _check_templates(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about the directory of the site's templates; the default directory need not exist."""
    folder = context.config.templates.folder
    if context.role is not None or folder == TemplatesConfig().folder:
        return
    if folder.is_dir():
        try:
            check_folder(folder)
        except ConfigError as error:
            why = f"other users could exchange files in {error.what}: {error.why}"
            yield context.warning("templates", "folder", why, error.todo)
    else:
        fault = "is not a directory" if folder.exists() else "does not exist on this host"
        yield context.warning(
            "templates", "folder", f"{folder} {fault}", "no template of the site is offered"
        )


def _check_socket(context: CheckContext) -> Iterator[Finding]:
    agent = context.config.agent
    if agent.socket == agent.state_dir or agent.socket.is_dir():
        yield context.error("agent", "socket", f"{agent.socket} is a directory", "name a socket in it")


def _check_agent_folder(context: CheckContext, key: str, folder: Path) -> Iterator[Finding]:
    if folder.is_dir():
        yield from _check_folder(context, "agent", key, folder)
    elif folder.exists():
        yield context.error("agent", key, f"{folder} is not a directory")


def _check_distinct(context: CheckContext) -> Iterator[Finding]:
    first: dict[Path, str] = {}
    for section, key in _CONTROLLER_FILES:
        path = getattr(getattr(context.config, section), key)
        path = path.path if isinstance(path, DatabaseLocation) else path
        if path is None:
            continue
        if path in first:
            yield context.error(section, key, f"'{path}' is {first[path]} too", "name another file")
        first.setdefault(path, f"{section}.{key}")


def _check_database(context: CheckContext) -> Iterator[Finding]:
    settings = context.config.controller
    path = settings.database.path
    if path is None:
        yield from check_database_server(context, _daemon_uids(context))
    elif path.is_dir():
        yield context.error("controller", "database", f"{path} is a directory", "name a file in it")
    elif settings.database_password_file is not None:
        why = "has no effect: controller.database is a SQLite file"
        yield context.warning("controller", "database_password_file", why)
    key = "database" if path is not None and settings.state_dir is None else "state_dir"
    folders = [(key, settings.state_folder)]
    if path is not None and settings.state_dir is not None:
        folders.append(("database", path.parent))
    for key, folder in folders:
        yield from _check_state_folder(context, key, folder)


def _check_state_folder(context: CheckContext, key: str, folder: Path) -> Iterator[Finding]:
    if folder.is_dir():
        yield from _check_folder(context, "controller", key, folder, refused_by_daemon=False)
    elif folder == _MADE_BY_UNIT and context.role is None:
        why = f"{folder} does not exist; senergyctld.service creates it at start"
        yield context.unchecked("controller", key, why)
    else:
        yield _missing(context, "controller", key, folder)


def _missing(context: CheckContext, section: str, key: str, folder: Path) -> Finding:
    return context.error(
        section,
        key,
        f"directory {folder} does not exist",
        f"create it: install -d -m 0750 {folder}",
        unavailable=True,
    )


def _check_folder(
    context: CheckContext, section: str, key: str, folder: Path, *, refused_by_daemon: bool = True
) -> Iterator[Finding]:
    """Yield a finding if users other than root and the daemon could replace files in a directory.

    Args:
        context: configuration and host.
        section: section of the key that names the directory.
        key: key that names the directory, or a file in the directory.
        folder: the directory, which exists.
        refused_by_daemon: whether the daemon refuses a directory that others may write to. If True, the
            finding is an error. If False, the finding is an error only if every user may write to the
            directory.
    """
    try:
        check_folder(folder, also=_daemon_uids(context))
    except ConfigError as error:
        why = f"other users could exchange files in {error.what}: {error.why}"
        severe = refused_by_daemon or folder.stat().st_mode & stat.S_IWOTH
        yield (context.error if severe else context.warning)(section, key, why, error.todo)


def _check_file(context: CheckContext, key: str, path: Path, *, secret: bool) -> Iterator[Finding]:
    try:
        read_trusted(path, secret=secret)
    except ConfigError as error:
        yield context.error("node_power", key, f"{error.what} {error.why}", error.todo)
    except FileNotFoundError:
        why = f"{path} does not exist on this host; every compute node needs it"
        yield context.warning("node_power", key, why)


def _daemon_uids(context: CheckContext) -> frozenset[int]:
    """Return the uids under which senergyctld may run: those of SlurmUser and of the user `slurm`.

    Files of these users are trusted, in addition to files of the user of this process. The result is
    empty if a daemon starts as a user other than root. In all other cases the uids are returned, because
    root may run the check for the service (`senergyctld --check`). If the daemon really runs as root, it
    rejects a directory of these users later, when it writes to the directory.
    """
    if context.role is not None and os.geteuid() != 0:
        return frozenset()
    uids = set()
    for name in {context.host.slurm.last("SlurmUser") or "root", "slurm"}:
        try:
            uids.add(pwd.getpwnam(name.partition("(")[0]).pw_uid)
        except (KeyError, ValueError):
            continue
    return frozenset(uids)
