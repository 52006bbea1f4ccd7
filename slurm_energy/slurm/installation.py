"""The Slurm installation of this host: prefix, daemon and plugin directory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.release import Release, parse_release

_SBIN: Final = "/usr/sbin:/usr/local/sbin"
_CLIENTS: Final = ("scontrol", "srun")
_DAEMONS: Final = ("slurmctld", "slurmd")
_PROBE: Final = "priority_multifactor.so"
_PLUGIN_DIR: Final = re.compile(r"^PluginDir\s*=\s*(\S+)", re.MULTILINE)
_BELOW_PREFIX: Final = ("lib/slurm", "lib64/slurm", "lib/*/slurm", "lib/*/slurm-wlm", "lib/slurm-wlm")


@dataclass(frozen=True, slots=True)
class Installation:
    """A Slurm installation, in /usr or under another prefix.

    Attributes:
        prefix: directory with `bin` and `sbin`.
        daemon: path of the program slurmctld; on a host without slurmctld, path of slurmd.
    """

    prefix: Path
    daemon: Path

    @property
    def is_packaged(self) -> bool:
        """Whether the prefix is /usr. This prefix contains only packages of the distribution."""
        return self.prefix == Path("/usr")

    def release(self, run: Runner = run_command) -> Release:
        """Return the release of the daemon's program. Neither a running daemon nor slurm.conf is needed.

        Raises:
            UnavailableError: the program cannot be executed with `-V`, or prints no version.
        """
        return parse_release(run([str(self.daemon), "-V"]), f"{self.daemon} -V")

    def plugin_directory(self, run: Runner | None = run_command) -> Path:
        """Return the directory with Slurm's own plugins.

        Candidates are, in this order, PluginDir of slurm.conf, the usual directories below the prefix and
        PluginDir of the running slurmctld. If slurmctld is down, the query for the last candidate lasts until
        scontrol gives up.

        Args:
            run: function that executes a command and returns the output; None means not to query slurmctld.

        Raises:
            UnavailableError: no candidate contains Slurm's plugins.
        """
        for directory in self._plugin_directories(run):
            if (directory / _PROBE).exists():
                return directory
        why = f"not found in PluginDir of slurm.conf, nor below {self.prefix}"
        raise UnavailableError(_PROBE, why, "name its directory in PluginDir")

    def _plugin_directories(self, run: Runner | None) -> Iterator[Path]:
        search = f"{self.prefix}/bin:{self.prefix}/sbin"
        conf = conf_files.locate_slurm_conf({**os.environ, "PATH": search})
        try:
            named = conf_files.read_settings(conf).get("plugindir", []) if conf else []
        except OSError:
            named = []
        yield from _paths(named[-1] if named else "")
        yield from plugin_directories_below(self.prefix)
        scontrol = self.prefix / "bin/scontrol"
        if run and scontrol.exists():
            try:
                match = _PLUGIN_DIR.search(run([str(scontrol), "show", "config"]))
            except UnavailableError:
                return
            yield from _paths(match[1] if match else "")


def find(prefix: Path | None = None, environment: Mapping[str, str] = os.environ) -> Installation:
    """Return the Slurm installation of this host.

    Args:
        prefix: prefix of the installation; None means the prefix of scontrol or srun on PATH, else the prefix
            of slurmctld or slurmd.
        environment: environment variables with PATH.

    Raises:
        UsageError: the given prefix has neither slurmctld nor slurmd.
        UnavailableError: this host has neither slurmctld nor slurmd.
    """
    if prefix is not None:
        return _below(prefix)
    path = environment.get("PATH", "")
    for client in _CLIENTS:
        if program := shutil.which(client, path=path):
            own_prefix = Path(program).resolve().parent.parent
            for daemon in _DAEMONS:
                if (own_prefix / "sbin" / daemon).exists():
                    return Installation(own_prefix, own_prefix / "sbin" / daemon)
    for daemon in _DAEMONS:
        if program := shutil.which(daemon, path=f"{path}:{_SBIN}"):
            return Installation(Path(program).resolve().parent.parent, Path(program))
    todo = "build on a host that runs slurmctld or slurmd, or give --slurm-prefix DIR"
    raise UnavailableError("slurmctld, slurmd", "not found", todo)


def plugin_directories_below(prefix: Path) -> list[Path]:
    """Return the directories below a prefix that may hold the plugins of Slurm."""
    return [directory for pattern in _BELOW_PREFIX for directory in sorted(prefix.glob(pattern))]


def _below(prefix: Path) -> Installation:
    prefix = prefix.absolute()
    for daemon in _DAEMONS:
        for folder in ("sbin", "bin"):
            if (program := prefix / folder / daemon).exists():
                return Installation(prefix, program)
    raise UsageError(
        f"--slurm-prefix {prefix}", "no sbin/slurmctld or sbin/slurmd there", "name the prefix of Slurm"
    )


def _paths(text: str) -> list[Path]:
    """Return the directories in PluginDir, a list separated by colons."""
    return [Path(part) for part in text.split(":") if part.startswith("/")]
