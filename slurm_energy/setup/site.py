"""The Slurm cluster as seen from this host: files, controllers, plugins and settings.

This module changes nothing.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, UsageError
from slurm_energy.setup.conf_text import conf_lines
from slurm_energy.setup.daemon_options import DaemonOptions, daemon_options
from slurm_energy.setup.fetched_settings import fetched_settings
from slurm_energy.setup.site_file import ENCODING
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.slurm.installation import Installation, find

_CACHE: Final = "conf-cache"
FETCHED_CONF: Final = Path("/run/slurm/conf/slurm.conf")
_CONTROLLER: Final = re.compile(r"^\s*([^\s(]+)\s*(?:\(\s*([^)\s]+)\s*\))?\s*$")
_BUILT_IN_PATH: Final = re.compile(rb"(/[\w./+-]{1,200}/slurm\.conf)\0")
_PREFIXES: Final = (
    "opt/slurm",
    "opt/slurm/current",
    "opt/slurm-*",
    "opt/slurm/*",
    "usr/local",
    "usr/local/slurm",
    "cm/shared/apps/slurm/current",
)
_MAX_INCLUDES: Final = 64


@dataclass(frozen=True, slots=True)
class Controller:
    """A host of slurmctld that slurm.conf names.

    Attributes:
        host: name of the host.
        address: address of the host; the host name if slurm.conf gives no address.
    """

    host: str
    address: str


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """The Slurm cluster of this host.

    Attributes:
        conf: slurm.conf; on a configless host the copy that slurmd or sackd fetched.
        settings: values by key in lower case, see `conf_files.read_settings`.
        is_configless_client: this host fetches slurm.conf from slurmctld, so that the local copy must not be
            edited.
        serves_configless: slurmctld sends slurm.conf and other files to hosts that request them.
        installation: installed programs of Slurm; None means that Slurm was not found.
        names: names of this host.
    """

    conf: Path
    settings: Mapping[str, list[str]]
    is_configless_client: bool
    serves_configless: bool
    installation: Installation | None
    names: frozenset[str]

    def value(self, key: str, default: str = "") -> str:
        """Return the last value of a key in slurm.conf."""
        return self.settings.get(key.lower(), [default])[-1]

    def items(self, key: str) -> list[str]:
        """Return the items of a comma-separated value in lower case."""
        return conf_files.items(self.settings, key.lower())

    @property
    def cluster_name(self) -> str:
        """ClusterName in lower case, as Slurm uses it."""
        return self.value("clustername").lower()

    @property
    def controllers(self) -> list[Controller]:
        """Hosts of slurmctld; the first is the primary controller."""
        lines = self.settings.get("slurmctldhost", [])
        matches = [match for line in lines if (match := _CONTROLLER.match(line))]
        if matches:
            return [Controller(match[1], match[2] or match[1]) for match in matches]
        hosts = zip(("controlmachine", "backupcontroller"), ("controladdr", "backupaddr"), strict=True)
        return [
            Controller(self.value(name), self.value(address) or self.value(name))
            for name, address in hosts
            if self.value(name)
        ]

    @property
    def is_controller(self) -> bool:
        """Whether slurmctld runs, or may run, on this host."""
        return any(one.host in self.names for one in self.controllers)

    @property
    def slurm_user(self) -> str:
        """User of slurmctld; Slurm's default is root."""
        return self.value("slurmuser", "root").partition("(")[0]

    @property
    def node_names(self) -> list[str]:
        """Names of the Slurm nodes on this host. A host that runs several slurmd has several nodes."""
        found: list[str] = []
        for line in self.settings.get("nodename", []):
            nodes, *rest = line.split()
            words = {key.lower(): value for key, _, value in (word.partition("=") for word in rest)}
            found += _nodes_on(self.names, nodes, words.get("nodehostname", nodes))
        return found

    @property
    def runs_prolog_at_allocation(self) -> bool:
        """Whether slurm.conf makes Slurm run the prolog on every node when a job is allocated.

        The key PrologFlags decides this.
        """
        return conf_files.runs_prolog_at_allocation(self.settings)

    @property
    def plugstack(self) -> Path:
        """Path of plugstack.conf."""
        named = self.value("plugstackconfig")
        return Path(named) if named else self.conf.with_name("plugstack.conf")

    @property
    def job_submit_script(self) -> Path:
        """Path of job_submit.lua. slurmctld expects this script in the directory of slurm.conf."""
        return self.conf.with_name("job_submit.lua")

    @property
    def uses_job_submit_lua(self) -> bool:
        """Whether slurmctld runs job_submit.lua."""
        return conf_files.uses_job_submit_lua(self.settings)

    @property
    def has_usual_conf(self) -> bool:
        """Whether Slurm's commands find slurm.conf without an option or environment variable."""
        if self.is_configless_client:
            return True
        usual = _built_in_paths(self.installation) if self.installation else []
        bin_directory = f"{self.installation.prefix}/bin" if self.installation else "/usr/bin"
        return self.conf in usual or self.conf == conf_files.locate_slurm_conf({"PATH": bin_directory})

    @property
    def plugin_directory(self) -> Path | None:
        """Directory of Slurm's own plugins; None if the directory cannot be found."""
        try:
            return self.installation.plugin_directory(run=None) if self.installation else None
        except EnergyError:
            return None


def read_site(
    slurm_prefix: Path | None = None,
    slurm_conf: Path | None = None,
    root: Path = Path("/"),
    names: frozenset[str] | None = None,
) -> SlurmSite:
    """Return the Slurm cluster of this host.

    Args:
        slurm_prefix: prefix of Slurm; None means to search for it.
        slurm_conf: path of slurm.conf; None means to search for it.
        root: directory that contains etc, proc and opt.
        names: names of this host; None means to read them from the system.

    Raises:
        UsageError: `slurm_prefix` contains no Slurm.
        NotFoundError: there is no slurm.conf.
        UnavailableError: slurm.conf, or a file that it includes, cannot be read.
    """
    daemons = [daemon_options(name, root) for name in ("slurmctld", "slurmd", "sackd")]
    installation = _installation(slurm_prefix, daemons, root)
    conf = slurm_conf or _locate(installation, daemons, root)
    names = _own_names() if names is None else names
    fetched = fetched_settings(installation) if conf is None and installation is not None else {}
    if fetched:
        return SlurmSite(FETCHED_CONF, fetched, True, True, installation, names)
    if conf is None:
        todo = "install Slurm and start slurmd or slurmctld first, or name the file with --slurm-conf"
        raise NotFoundError("slurm.conf", "not found", todo)
    try:
        settings = conf_files.read_settings(conf, strict=True)
    except OSError as error:
        raise UnavailableError(
            str(error.filename or conf), error.strerror or str(error), "run this command as root"
        ) from None
    parameters = ",".join(settings.get("slurmctldparameters", [])).lower().split(",")
    site = SlurmSite(conf, settings, False, "enable_configless" in parameters, installation, names)
    is_cache = _CACHE in conf.resolve().parts or conf.is_relative_to(FETCHED_CONF.parent)
    is_client = is_cache or (any(one.conf_server for one in daemons[1:]) and not site.is_controller)
    return SlurmSite(conf, settings, is_client, site.serves_configless, installation, names)


def file_that_sets(key: str, conf: Path, cluster: str) -> Path:
    """Return the file with the line that sets a key last: slurm.conf or a file that it includes.

    Slurm reads an included file at the Include line, so that a later line of slurm.conf has precedence. The
    result is slurm.conf if no line sets the key.

    Args:
        key: the key.
        conf: path of slurm.conf.
        cluster: ClusterName, which replaces `%c` in names of included files.
    """
    last, includes_left = conf, _MAX_INCLUDES

    def visit(path: Path) -> None:
        nonlocal last, includes_left
        try:
            text = conf_files.contents(path).decode(ENCODING)
        except OSError:
            return
        for line in conf_lines(text):
            if line.included and includes_left:
                includes_left -= 1
                name = line.included.replace("%c", cluster.lower())
                visit(conf_files.included_path(name, path.parent, conf.parent))
            elif key.lower() in dict(line.pairs):
                last = path

    visit(conf)
    return last


def _installation(prefix: Path | None, daemons: Iterable[DaemonOptions], root: Path) -> Installation | None:
    if prefix is not None:
        return find(prefix)
    try:
        return find(environment={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin")})
    except UnavailableError:
        pass
    running = [one.program.parent.parent for one in daemons if one.program is not None]
    usual = [path for pattern in _PREFIXES for path in sorted(root.glob(pattern))]
    for candidate in (*running, *usual):
        try:
            return find(candidate)
        except UsageError:
            continue
    return None


def _locate(installation: Installation | None, daemons: Iterable[DaemonOptions], root: Path) -> Path | None:
    """Find the slurm.conf that Slurm's programs on this host read, and return its path.

    The result is None if no slurm.conf is found.
    """
    if named := os.environ.get("SLURM_CONF"):
        return Path(named)
    candidates = [one.conf for one in daemons if one.conf is not None]
    if installation is not None:
        candidates += _built_in_paths(installation)
        candidates += [installation.prefix / "etc/slurm.conf", installation.prefix / "etc/slurm/slurm.conf"]
    candidates += [root / "etc/slurm/slurm.conf", root / "run/slurm/conf/slurm.conf"]
    existing = next((path for path in candidates if path.is_file()), None)
    return existing or conf_files.locate_slurm_conf()


def _built_in_paths(installation: Installation) -> list[Path]:
    """Return the path of slurm.conf that was compiled into Slurm's library, as a list.

    The list is empty if the path cannot be found.
    """
    try:
        library = installation.plugin_directory(run=None) / "libslurmfull.so"
        found = _BUILT_IN_PATH.findall(library.read_bytes())
    except (EnergyError, OSError):
        return []
    return [Path(path.decode()) for path in dict.fromkeys(found) if not path.startswith(b"/run/")]


def _own_names() -> frozenset[str]:
    name = socket.gethostname()
    return frozenset((name, name.partition(".")[0], "localhost"))


def _nodes_on(names: frozenset[str], node_list: str, host_list: str) -> list[str]:
    """Return the names of the nodes in a NodeName line of slurm.conf that match one of `names`.

    A node matches if `names` contains its NodeName or its NodeHostname.
    """
    try:
        nodes, hosts = expand_hostlist(node_list, "NodeName"), expand_hostlist(host_list, "NodeHostname")
    except UsageError:
        return []
    if len(hosts) == 1:
        hosts = hosts * len(nodes)
    return [node for node, host in zip(nodes, hosts, strict=False) if not names.isdisjoint((node, host))]
