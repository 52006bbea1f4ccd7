"""`senergy --version`: releases of slurm-energy, its SPANK plugin, Slurm and Python. No command is run."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.quantities import shown

_LIBRARIES: Final = ("/usr/lib/slurm-energy", "/usr/local/lib/slurm-energy")


def print_version(arguments: Sequence[str]) -> int:
    """Print one line per component, or with --json an object.

    Raises:
        UsageError: there are other arguments.
    """
    if surplus := [word for word in arguments if word != "--json"]:
        raise UsageError("senergy --version", f"unexpected argument '{shown(surplus[0])}'", "known: --json")
    versions = _versions()
    if arguments:
        emit_json(versions)
        return EXIT_OK
    plugin = versions["spank_plugin"]
    emit(
        [
            f"senergy {versions['senergy']}",
            f"SPANK plugin: {_described(plugin) if plugin else 'not installed'}",
            f"Slurm: {versions['slurm'] or 'not installed'}",
            f"Python: {versions['python']}",
        ]
    )
    return EXIT_OK


def _versions() -> dict[str, Any]:
    from slurm_energy.slurm import conf_files
    from slurm_energy.slurm.plugin_files import FLAGS_PLUGIN, find_slurm_files, read_plugin

    files = find_slurm_files(conf_files.locate_slurm_conf())
    installed = (Path(library) / FLAGS_PLUGIN for library in _LIBRARIES)
    plugin = files.flags or next((read_plugin(path) for path in installed if path.exists()), None)
    return {
        "senergy": __version__,
        "spank_plugin": None
        if plugin is None
        else {
            "path": str(plugin.path),
            "slurm_series": plugin.release.series if plugin.release else None,
            "in_plugstack": files.flags is not None,
        },
        "slurm": str(files.release) if files.release else None,
        "python": platform.python_version(),
    }


def _described(plugin: dict[str, Any]) -> str:
    series = f"for Slurm {plugin['slurm_series']}" if plugin["slurm_series"] else "missing or unreadable"
    configured = "" if plugin["in_plugstack"] else ", not in plugstack.conf"
    return f"{series}{configured} ({plugin['path']})"
