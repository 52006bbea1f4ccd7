"""Check of section `oracle` of the configuration: the files that the predictor (oracle) reads.

These are calibration files and hardware files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slurm_energy.config.findings import Finding
from slurm_energy.errors import ConfigError, install_extra
from slurm_energy.validation.check_context import CheckContext, DaemonRole

_KEYS: Final = ("calibrations", "hardware")


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the calibration and hardware files of the predictor (oracle).

    Yield findings if files do not exist, are invalid, or do not match each other.
    """
    settings = context.config.oracle
    files = [(key, path) for key in _KEYS for path in getattr(settings, key)]
    if not files:
        return
    try:
        from slurm_energy.oracle.calibration_files import load_calibration
        from slurm_energy.oracle.hardware import load_hardware
        from slurm_energy.oracle.site_files import read_site
    except ImportError as error:
        why = f"{error.name or error} is not installed"
        yield context.unchecked("oracle", files[0][0], why, install_extra("predict"))
        return
    valid = True
    for key, path in files:
        if not path.exists() and context.role is not DaemonRole.CONTROLLER:
            valid = False
            why = f"{path} does not exist on this host; the controller needs it"
            yield context.warning("oracle", key, why)
            continue
        try:
            load_calibration(path) if key == "calibrations" else load_hardware(path)
        except ConfigError as error:
            valid = False
            yield context.error("oracle", key, f"{error.what}: {error.why}", error.todo)
    if valid:
        try:
            read_site(settings.calibrations, settings.hardware)
        except ConfigError as error:
            key = "hardware" if error.what in map(str, settings.hardware) else "calibrations"
            yield context.error("oracle", key, f"{error.what}: {error.why}", error.todo)
