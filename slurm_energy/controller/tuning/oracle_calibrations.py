"""Calibrations of the training model (oracle) that senergyctld uses.

Some calibrations are configured. senergyctld has refitted others from finished runs.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slurm_energy.config import Config
from slurm_energy.errors import EnergyError

if TYPE_CHECKING:
    from slurm_energy.oracle.site_files import SiteCalibrations

_FOLDER: Final = "calibrations"
_MAX_FILES: Final = 200

log = logging.getLogger(__name__)


def refit_folder(config: Config) -> Path:
    """Return the directory with the calibrations that senergyctld has improved from finished runs."""
    return config.controller.state_folder / _FOLDER


def refit_file(config: Config, kind: str) -> Path:
    """Return the path of the refitted calibration of a kind of GPU."""
    return refit_folder(config) / f"{kind}.toml"


def site_calibrations(config: Config) -> SiteCalibrations:
    """Register the site's hardware, and return the calibrations that the site uses.

    A calibration is either named in the configuration or was fitted again (refitted) to later runs. A
    refitted calibration is used only for a kind of GPU for which the configuration has no calibration. A
    refitted file that cannot be read is left out.

    Raises:
        ConfigError: a file named in section oracle is invalid.
        ImportError: numpy is missing.
    """
    from slurm_energy.oracle.calibration_files import load_calibration
    from slurm_energy.oracle.site_files import SiteCalibrations, use_site

    site = use_site(config.oracle.calibrations, config.oracle.hardware)
    refitted = {}
    for path in sorted(refit_folder(config).glob("*.toml"))[:_MAX_FILES]:
        try:
            calibration = load_calibration(path)
        except EnergyError as error:
            log.warning("refitted calibration not used: %s", error)
            continue
        if calibration.hardware == path.stem:
            refitted[calibration.hardware] = calibration
    return SiteCalibrations({**refitted, **site.own})
