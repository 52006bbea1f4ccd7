"""The package of the distribution from which this copy of slurm-energy was installed.

The packages install all files below one prefix, /usr/lib/slurm-energy, and mark the prefix with the file
`package.toml`. A checkout and an installation with pip have no such file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

MARKER: Final = "package.toml"
_PACKAGE_OF_EXTRA: Final = {
    "amd": "slurm-energy-node",
    "bmc": "slurm-energy-lab",
    "lab": "slurm-energy-lab",
    "mariadb": "slurm-energy-controller",
    "postgresql": "slurm-energy-controller",
    "metrics": "slurm-energy",
    "trace": "",
}
"""Package with the requirements of an extra; empty if no package has them.

All other extras need slurm-energy-analysis.
"""


def package_prefix() -> Path | None:
    """Return the prefix directory under which slurm-energy's packages are installed.

    None means that slurm-energy was installed in another way.
    """
    prefix = Path(__file__).resolve().parents[2]
    return prefix if (prefix / MARKER).is_file() else None


def install_instruction(extra: str) -> str | None:
    """Return an instruction to install the package with the Python modules that an extra requires.

    The instruction names no command, because the packages are in no archive of the distribution: a site
    installs them from files, or from an archive of its own.

    Args:
        extra: name of the extra in setup.cfg.

    Returns:
        The instruction; None means that slurm-energy was not installed from packages, or no package has the
        required modules.
    """
    package = _PACKAGE_OF_EXTRA.get(extra, "slurm-energy-analysis")
    return f"install the package {package}" if package_prefix() is not None and package else None
