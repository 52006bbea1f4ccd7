"""Reader of signals, such as prices, from CSV files of the site.

A file is read again when it has changed. The module needs numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from slurm_energy.config.deferral_section import SignalsConfig
from slurm_energy.controller.changed_files import ChangedFiles
from slurm_energy.signals import SignalName
from slurm_energy.signals.csv_files import read_signal
from slurm_energy.signals.signal_series import SignalSeries


def configured_files(settings: SignalsConfig) -> dict[SignalName, Path]:
    """Return the file from which each signal is read, if the configuration names one."""
    files = {SignalName.RENEWABLE: settings.renewable_file, SignalName.OUTSIDE: settings.outside_file}
    return {name: path for name, path in files.items() if path is not None}


class SignalFiles:
    """Cache of time series of signals (such as the outside temperature) from CSV files.

    All calls are made from one thread.
    """

    def __init__(self) -> None:
        self._files: ChangedFiles[SignalSeries] = ChangedFiles()

    def read(self, settings: SignalsConfig) -> dict[SignalName, SignalSeries]:
        """Return the time series of all configured files. An unreadable file keeps its last series.

        Raises:
            UnavailableError: a file cannot be read, and was never read before.
        """
        return {name: self._series(name, path) for name, path in configured_files(settings).items()}

    def _series(self, name: SignalName, path: Path) -> SignalSeries:
        return self._files.read((name, path), path, f"{name} file", partial(_parse, path, name))


def _parse(path: Path, name: SignalName, lines: Sequence[str]) -> SignalSeries:
    return read_signal(lines, str(path), name)
