"""Build and installation of Slurm's plugin acct_gather_energy/senergy.

The plugin reports measured energy to Slurm.

Slurm's public headers are enough for the build. Slurm's daemons load the plugin only if it was built for
exactly their release.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.errors import EnergyError, ForbiddenError, UnavailableError
from slurm_energy.slurm.build_tools import OUTPUT_TODO, require_writable, run_tool
from slurm_energy.slurm.installation import Installation
from slurm_energy.slurm.plugin_release import plugin_release

ENERGY_PLUGIN: Final = "acct_gather_energy_senergy.so"
PLUGIN_TYPE: Final = "acct_gather_energy/senergy"
Say = Callable[[str], None]


def build_energy_plugin(
    plugins: Path, output: Path, slurm: Installation, say: Say = lambda text: None
) -> Path:
    """Build the plugin for the installed Slurm and return its path.

    Args:
        plugins: directory with the plugin's sources.
        output: directory for the plugin.
        slurm: installation to build for.
        say: function that receives a line of text before each step that takes time.

    Raises:
        UnavailableError: Slurm or the compiler is missing.
        ForbiddenError: the caller may not write to `output`.
        EnergyError: the compiler failed, or the headers are of another release.
    """
    release = slurm.release()
    for tool in ("make", "gcc"):
        if not shutil.which(tool):
            raise UnavailableError(tool, "not found", f"apt-get install {tool}")
    require_writable(output, OUTPUT_TODO)
    output.mkdir(parents=True, exist_ok=True)
    say(f"Building {ENERGY_PLUGIN} for Slurm {release}")
    with tempfile.TemporaryDirectory(prefix=".build-", dir=output) as folder:
        command = ["make", "--no-print-directory", "energy", f"OUTPUT={folder}"]
        run_tool([*command, f"SLURM_PREFIX={slurm.prefix}"], plugins, ENERGY_PLUGIN, EnergyError)
        built = Path(folder) / ENERGY_PLUGIN
        if (headers := plugin_release(built)) != release:
            todo = f"install the headers of Slurm {release} (libslurm-dev, slurm-devel)"
            raise EnergyError(f"{slurm.prefix}/include/slurm", f"is Slurm {headers}, not {release}", todo)
        return built.replace(output / ENERGY_PLUGIN)


def install_plugin(plugin: Path, target: Path) -> None:
    """Install a built plugin beside Slurm's own plugins.

    A daemon that starts during the installation finds the old or the new file, but never an incomplete file.

    Args:
        plugin: path of the built plugin.
        target: path of the installed plugin.

    Raises:
        UnavailableError: the file cannot be written.
        ForbiddenError: the caller may not write there.
    """
    try:
        atomic_file.write(target, plugin.read_bytes(), mode=0o755)
        target.chmod(0o755)  # slurmctld runs as another user, and the umask may be strict
    except PermissionError:
        raise ForbiddenError(str(target), "cannot be written", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(target), error.strerror or str(error)) from None


def remove_plugin(target: Path) -> None:
    """Delete an installed plugin. Processes that have loaded the plugin continue to use it.

    Raises:
        UnavailableError: the file cannot be deleted.
        ForbiddenError: the caller may not delete it.
    """
    try:
        target.unlink(missing_ok=True)
    except PermissionError:
        raise ForbiddenError(str(target), "cannot be deleted", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(target), error.strerror or str(error)) from None
