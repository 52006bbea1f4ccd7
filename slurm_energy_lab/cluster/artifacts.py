"""Search for the compiled and installed parts of slurm-energy that a lab runs.

A lab is a Slurm cluster of emulated nodes. The parts are C libraries, hooks and daemons. The module
also determines whether the packages that a lab needs are installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.errors import ForbiddenError, UnavailableError, install_extra
from slurm_energy.installed_package import package_prefix
from slurm_energy.slurm.plugin_build import PARTS_KEY, parts_directory

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "sacctmgr": "slurm-client",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "fusermount3": "fuse3",
    "gcc": "gcc libc6-dev",
    "nsenter": "util-linux",
}
_SPANK_HEADER = Path("include/slurm/spank.h")


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Compiled and installed parts of slurm-energy that a lab runs. A part that is not built is None.

    Attributes:
        spank: path of the SPANK plugin.
        prolog: path of the prolog hook.
        epilog: path of the epilog hook.
        submit_module: directory that contains senergy_submit.lua.
        agent: command that starts senergyd.
        controller: command that starts senergyctld.
        absent: names of the parts that are not built, for display.
    """

    spank: Path | None = None
    prolog: Path | None = None
    epilog: Path | None = None
    submit_module: Path | None = None
    agent: tuple[str, ...] | None = None
    controller: tuple[str, ...] | None = None
    absent: tuple[str, ...] = ()


def find_artifacts() -> Artifacts:
    """Return the SPANK plugin, hooks, job_submit module and daemons for a lab.

    The files are taken from $SENERGY_PARTS_DIR, installed packages, or the source checkout.
    """
    installed = None if os.environ.get(PARTS_KEY) else package_prefix()
    base = installed or parts_directory()
    hooks = installed or base / "prolog_epilog"
    files = {
        "spank": (installed or base / "spank") / "energy.so",
        "prolog": hooks / "prolog",
        "epilog": hooks / "epilog",
        "job_submit module": hooks / "senergy_submit.lua",
    }
    existing_files = {name: path for name, path in files.items() if path.exists()}
    daemons = {"agent": _daemon("agent", "senergyd"), "controller": _daemon("controller", "senergyctld")}
    absent = [str(path.relative_to(base)) for name, path in files.items() if name not in existing_files]
    absent += [f"the {name}" for name, command in daemons.items() if not command]
    return Artifacts(
        spank=existing_files.get("spank"),
        prolog=existing_files.get("prolog"),
        epilog=existing_files.get("epilog"),
        submit_module=hooks if "job_submit module" in existing_files else None,
        agent=daemons["agent"],
        controller=daemons["controller"],
        absent=tuple(absent),
    )


def _daemon(package: str, script: str) -> tuple[str, ...] | None:
    """Return the command of an installed daemon; None if the daemon is not installed.

    The command is the script in the directory of the running Python interpreter.
    """
    command = Path(sys.executable).with_name(script)
    try:
        module_spec = importlib.util.find_spec(f"slurm_energy.{package}.main")
    except ModuleNotFoundError:
        module_spec = None
    return (str(command),) if module_spec and command.exists() else None


def missing_packages(search: str | None = None) -> list[str]:
    """Return the missing Debian packages that a lab (cluster of emulated nodes) needs.

    Args:
        search: directories in which the packages' programs are searched, separated by colons; None for
            $PATH and the system's directories.
    """
    search = search or f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    missing = {package for program, package in _PROGRAMS.items() if not shutil.which(program, path=search)}
    controller = shutil.which("slurmctld", path=search)
    prefix = Path(controller).resolve().parent.parent if controller else Path("/usr")
    if not (prefix / _SPANK_HEADER).exists():
        missing.add("libslurm-dev")
    return sorted({name for package in missing for name in package.split()})


def require_machine() -> None:
    """Check that this machine can run a lab (emulated power hardware and a real Slurm cluster).

    Raises:
        ForbiddenError: the caller is not root.
        UnavailableError: packages, the Python module mfusepy or /dev/fuse are missing.
    """
    if os.geteuid() != 0:
        raise ForbiddenError(
            "senergy lab", "namespaces, FUSE and Slurm daemons need root", "run it with sudo"
        )
    if missing := missing_packages():
        names = " ".join(missing)
        command = f"apt-get install --no-install-recommends {names}"
        raise UnavailableError(f"missing packages {names}", todo=command)
    if not importlib.util.find_spec("mfusepy"):
        raise UnavailableError("Python module mfusepy is missing", todo=install_extra("lab"))
    if not Path("/dev/fuse").exists():
        raise UnavailableError(
            "/dev/fuse", "this kernel or container has no FUSE", "load the module: modprobe fuse"
        )
