"""Signals in CSV files of the site, read again when a file changes. It needs numpy."""

from __future__ import annotations

from pathlib import Path

from slurm_energy.config.deferral_section import SignalsConfig
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.signals import SignalName
from slurm_energy.signals.csv_files import read_signal
from slurm_energy.signals.signal_series import SignalSeries
from slurm_energy.trusted_files import read_trusted


def configured_files(settings: SignalsConfig) -> dict[SignalName, Path]:
    """Return the configured file of each signal."""
    files = {SignalName.RENEWABLE: settings.renewable_file, SignalName.OUTSIDE: settings.outside_file}
    return {name: path for name, path in files.items() if path is not None}


class SignalFiles:
    """Cache of the series in files. All calls are made from one thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[SignalName, Path], tuple[tuple[int, ...], SignalSeries]] = {}

    def read(self, settings: SignalsConfig) -> dict[SignalName, SignalSeries]:
        """Return the series of all configured files. A file that became unreadable keeps its last values.

        Raises:
            UnavailableError: a file cannot be read, and was never read before.
        """
        return {name: self._series(name, path) for name, path in configured_files(settings).items()}

    def _series(self, name: SignalName, path: Path) -> SignalSeries:
        known = self._known.get((name, path))
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if known is not None and known[0] == stamp:
                return known[1]
            lines = read_trusted(path).decode("utf-8-sig").splitlines(True)
            series = read_signal(lines, str(path), name)
        except (OSError, UnicodeDecodeError, EnergyError) as error:
            if known is not None:
                return known[1]
            why = getattr(error, "strerror", None) or str(error)
            raise UnavailableError(f"{name} file {path}", why) from None
        self._known[name, path] = (stamp, series)
        return series
