"""Files of sweep presets: shipped presets by name, presets of users by path."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion_or_list
from slurm_energy.tuning.sweep.preset import SweepPreset, parse_preset

_FOLDER: Final = Path(__file__).parent / "presets"


def preset_names() -> tuple[str, ...]:
    """Return the names of the shipped presets."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_preset(name: str) -> SweepPreset:
    """Return a preset.

    Args:
        name: name of a shipped preset, or a path that contains `/` or ends in `.toml`.

    Raises:
        NotFoundError: no preset has this name.
        UsageError: the file cannot be read or is invalid.
    """
    if "/" in name or name.endswith(".toml"):
        try:
            return parse_preset(Path(name).read_bytes(), name)
        except OSError as error:
            raise UsageError(name, error.strerror or str(error)) from None
    if name not in preset_names():
        todo = f"{suggestion_or_list(name, preset_names())}; a file of your own: its path"
        raise NotFoundError(f"--preset {shown(name)}", "no such preset", todo)
    return parse_preset((_FOLDER / f"{name}.toml").read_bytes(), name)
