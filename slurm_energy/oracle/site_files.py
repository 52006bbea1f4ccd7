"""Hardware files and calibration files of a site, which extend and override those of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.errors import ConfigError, NotFoundError
from slurm_energy.oracle.calibration_files import load_calibration, shipped_calibration
from slurm_energy.oracle.hardware import Hardware, find_hardware, load_hardware, use_site_hardware
from slurm_energy.oracle.training.parameters import Calibration
from slurm_energy.quantities import shown


@dataclass(frozen=True, slots=True)
class SiteCalibrations:
    """Calibrations of a site by hardware name, with the shipped calibrations as the fallback."""

    own: Mapping[str, Calibration] = field(default_factory=dict)

    def of(self, hardware: str) -> Calibration:
        """Return the calibration of a kind of device: the site's calibration, or else the shipped one.

        Args:
            hardware: name of the hardware file.
        """
        own = self.own.get(hardware)
        return shipped_calibration(hardware) if own is None else own


def use_site(calibrations: Sequence[Path], hardware: Sequence[Path]) -> SiteCalibrations:
    """Load the site's calibration and hardware files and register the hardware.

    Afterwards `find_hardware` finds the kinds of device of these files. Kinds that an earlier call registered
    are removed.

    Args:
        calibrations: files in the configuration key `oracle.calibrations`.
        hardware: files in the configuration key `oracle.hardware`.

    Raises:
        ConfigError: as in `read_site`; the registered hardware is unchanged.
    """
    calibrations_by_kind, kinds = read_site(calibrations, hardware)
    use_site_hardware(kinds)
    return calibrations_by_kind


def read_site(
    calibrations: Sequence[Path], hardware: Sequence[Path]
) -> tuple[SiteCalibrations, list[Hardware]]:
    """Read the calibration and hardware files of a site.

    Raises:
        ConfigError: a file is invalid, two files describe the same kind, or a calibration is for an unknown
            kind.
    """
    kinds = [load_hardware(path) for path in hardware]
    names: dict[str, Path] = {}
    for kind, path in zip(kinds, hardware, strict=True):
        for name in (kind.name.lower(), *map(str.lower, kind.aliases)):
            if names.setdefault(name, path) != path:
                raise ConfigError(str(path), f"{names[name]} also names '{shown(name)}'", "remove one file")
    own = {kind.name for kind in kinds}
    calibration_of: dict[str, Calibration] = {}
    for path in calibrations:
        calibration = load_calibration(path)
        if calibration.hardware in calibration_of:
            why = f"is a second calibration of {shown(calibration.hardware)}"
            raise ConfigError(str(path), why, "remove one file")
        if calibration.hardware not in own:
            _check_shipped(path, calibration.hardware)
        calibration_of[calibration.hardware] = calibration
    return SiteCalibrations(calibration_of), kinds


def _check_shipped(path: Path, hardware: str) -> None:
    try:
        is_shipped = find_hardware(hardware).name == hardware
    except NotFoundError:
        is_shipped = False
    if not is_shipped:
        raise ConfigError(
            str(path), f"is for the unknown kind {shown(hardware)}", "name its file in oracle.hardware"
        )
