"""Locations of the installed files of slurm-energy on this host.

The files are the plugins for Slurm, the programs and the systemd units.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError

_LIBRARIES: Final = ("/usr/lib/slurm-energy", "/usr/local/lib/slurm-energy")
_UNIT_DIRECTORIES: Final = ("usr/lib/systemd/system", "lib/systemd/system")
LOCAL_UNITS: Final = Path("etc/systemd/system")


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Locations of the installed files of slurm-energy.

    Attributes:
        library: directory with `plugstack.d`, the plugins and the Lua modules.
        root: directory that contains etc and usr.
    """

    library: Path
    root: Path = Path("/")

    @property
    def plugstack_pattern(self) -> str:
        """Pattern of the files that plugstack.conf includes."""
        return f"{self.library}/plugstack.d/*.conf"

    @property
    def has_plugins(self) -> bool:
        """Whether the files of slurm-energy for Slurm's SPANK plugins are installed.

        These are files with lines for plugstack.conf, and the plugin energy.so, which accepts the energy
        flags of jobs.
        """
        return any((self.library / "plugstack.d").glob("*.conf")) and (self.library / "energy.so").exists()

    @property
    def has_check_module(self) -> bool:
        """Whether the Lua module with which job_submit.lua checks jobs is installed."""
        return (self.library / "senergy_submit.lua").exists()

    def packaged_unit(self, name: str) -> Path | None:
        """Return the path of a unit that a package installed; None if no package installed the unit."""
        paths = (self.root / directory / name for directory in _UNIT_DIRECTORIES)
        return next((path for path in paths if path.exists()), None)

    def program(self, name: str) -> Path:
        """Return the path of a program such as `senergyd`.

        Raises:
            UnavailableError: the program is not installed.
        """
        beside = Path(sys.executable).parent / name
        if beside.exists():
            return beside
        if found := shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"):
            return Path(found)
        role = "controller" if name == "senergyctld" else "node"
        raise UnavailableError(name, "not installed", f"install the package slurm-energy-{role}")


def own_files(library: Path | None = None, root: Path = Path("/")) -> OwnFiles:
    """Return the locations of the installed files of slurm-energy.

    Args:
        library: directory of the plugins. With None, the usual directories are searched in order, and the
            first existing one is used. If this Python module is installed in a usual directory, that
            directory is searched first.
        root: directory that contains etc and usr.
    """
    if library is not None:
        return OwnFiles(library.absolute(), root)
    candidates = [Path(one) for one in _LIBRARIES]
    if not Path(__file__).is_relative_to(candidates[0]):
        candidates.reverse()
    existing = [one for one in candidates if (one / "plugstack.d").is_dir() or (one / "energy.so").exists()]
    return OwnFiles((existing or candidates)[0], root)
