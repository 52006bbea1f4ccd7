"""State of Slurm's daemons on this host.

The module also lets Slurm's own programs check Slurm's files.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.setup.services import Execute
from slurm_energy.setup.site import SlurmSite
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.command import Command, CommandRunner, Runner

_TIMEOUT_S: Final = 20.0
_PAIR: Final = re.compile(r"^(JobSubmitPlugins|PrologFlags)\s*=\s*(.*?)\s*$", re.MULTILINE)
_LUA_COMPILERS: Final = ("luac", "luac5.4", "luac5.3", "luac5.1")


class RunningSettings:
    """Settings in use by the running slurmctld.

    Args:
        output: output of `scontrol show config`.
    """

    def __init__(self, output: str) -> None:
        self._settings = {match[1].lower(): [match[2]] for match in _PAIR.finditer(output)}

    @property
    def runs_prolog_at_allocation(self) -> bool:
        """Whether prologs run on every node when a job is allocated."""
        return conf_files.runs_prolog_at_allocation(self._settings)

    @property
    def uses_job_submit_lua(self) -> bool:
        """Whether slurmctld runs the script job_submit.lua."""
        return conf_files.uses_job_submit_lua(self._settings)


def runs_prolog_at_allocation(conf: Path) -> bool:
    """Return whether the current slurm.conf makes prologs run on every node when a job is allocated."""
    try:
        return conf_files.runs_prolog_at_allocation(conf_files.read_settings(conf))
    except OSError:
        return False


def uses_job_submit_lua(conf: Path) -> bool:
    """Return whether the current slurm.conf makes slurmctld run the script job_submit.lua."""
    try:
        return conf_files.uses_job_submit_lua(conf_files.read_settings(conf))
    except OSError:
        return False


def running_settings(site: SlurmSite, run: Runner | None = None) -> RunningSettings | None:
    """Return the settings of the running slurmctld, read with one command.

    Return None if slurmctld does not answer.
    """
    command = Command([program(site, "scontrol"), "show", "config"], SLURM_CONF=str(site.conf))
    try:
        return RunningSettings((run or CommandRunner(_TIMEOUT_S))(command))
    except UnavailableError:
        return None


def program(site: SlurmSite, name: str) -> str:
    """Return the path of a client command of Slurm.

    Return the bare name of the command if the installation of Slurm is unknown.
    """
    path = site.installation.prefix / "bin" / name if site.installation else None
    return str(path) if path and path.exists() else name


def conf_fault(site: SlurmSite, run: Runner | None = None) -> str:
    """Return why Slurm cannot read its configuration; empty if Slurm can read it. No daemon is queried."""
    command = Command([program(site, "sinfo"), "-V"], SLURM_CONF=str(site.conf))
    try:
        (run or CommandRunner(_TIMEOUT_S))(command)
    except UnavailableError as error:
        return error.why or str(error)
    return ""


def lua_fault(text: bytes, run: Execute) -> str:
    """Return the syntax error in a Lua script.

    The text is empty if the script is correct, or if no Lua compiler is installed.
    """
    compiler = next((path for name in _LUA_COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="senergy-setup.") as folder:
        script = Path(folder) / "job_submit.lua"
        script.write_bytes(text)
        result = run([compiler, "-p", str(script)])
    return "" if result.status == 0 else result.output.strip().replace(f"{folder}/", "")


def started_before(pid: int, paths: Iterable[Path], root: Path = Path("/")) -> bool:
    """Return whether a process started before one of the files was last changed.

    Args:
        pid: process id; 0 means no process.
        paths: the files; absent files do not count.
        root: directory that contains proc.
    """
    started = _start_time(pid, root)
    if started is None:
        return False
    for path in paths:
        try:
            if path.stat().st_ctime > started:
                return True
        except OSError:
            continue
    return False


def _start_time(pid: int, root: Path) -> float | None:
    """Return the Unix time in seconds at which a process started; None if the process does not exist."""
    try:
        fields = (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = re.search(r"^btime (\d+)$", (root / "proc/stat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(boot[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK") if boot else None
