"""The oracle of a site: its own kinds of device and calibrations, beside those of the package."""

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
    """Calibrations by name of the kind of device; those that come with the package where a site has none."""

    own: Mapping[str, Calibration] = field(default_factory=dict)

    def of(self, hardware: str) -> Calibration:
        """Return the calibration of a kind of device."""
        own = self.own.get(hardware)
        return shipped_calibration(hardware) if own is None else own


def use_site(calibrations: Sequence[Path], hardware: Sequence[Path]) -> SiteCalibrations:
    """Take over the files that the configuration names (`oracle.calibrations`, `oracle.hardware`).

    From now on `find_hardware` knows the kinds in the hardware files, and those of an earlier call no more.

    Raises:
        ConfigError: as `read_site`; nothing is taken over then.
    """
    calibrations_by_kind, kinds = read_site(calibrations, hardware)
    use_site_hardware(kinds)
    return calibrations_by_kind


def read_site(
    calibrations: Sequence[Path], hardware: Sequence[Path]
) -> tuple[SiteCalibrations, list[Hardware]]:
    """Read the files of a site.

    Raises:
        ConfigError: a file is not in order, two are of the same kind, or a calibration is of an unknown kind.
    """
    kinds = [load_hardware(path) for path in hardware]
    names: dict[str, Path] = {}
    for kind, path in zip(kinds, hardware, strict=True):
        for name in (kind.name.lower(), *map(str.lower, kind.aliases)):
            if names.setdefault(name, path) != path:
                raise ConfigError(str(path), f"{names[name]} names '{shown(name)}' too", "leave one out")
    own = {kind.name for kind in kinds}
    calibration_of: dict[str, Calibration] = {}
    for path in calibrations:
        calibration = load_calibration(path)
        if calibration.hardware in calibration_of:
            why = f"is the second calibration of {shown(calibration.hardware)}"
            raise ConfigError(str(path), why, "leave one out")
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
            str(path), f"is of {shown(hardware)}, no known kind", "name its file in oracle.hardware"
        )
