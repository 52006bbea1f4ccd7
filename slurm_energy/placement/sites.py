"""Data classes for the choice among clusters.

They describe the clusters, and jobs with predictions for each cluster. They contain data only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UsageError
from slurm_energy.signals import SignalColumns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_HOME = -1
"""Home of a job without a home: nothing is transferred, wherever the job runs."""


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with its electricity grid and its network.

    Attributes:
        name: Slurm's name of the cluster.
        signals: price and carbon intensity over time; None if unknown.
        pue: energy of the site divided by the energy of its computers.
        bandwidth_bytes_per_s: bytes per second between this cluster and other clusters. Infinity means that
            transfers take no time.
        transfer_kwh_per_gb: electricity of the network per GB (10^9 bytes) that this cluster sends or
            receives.
        latitude_degrees, longitude_degrees: geographic position, north and east positive; NaN if unknown.
    """

    name: str
    signals: SignalColumns | None = None
    pue: float = 1.0
    bandwidth_bytes_per_s: float = float("inf")
    transfer_kwh_per_gb: float = 0.0
    latitude_degrees: float = float("nan")
    longitude_degrees: float = float("nan")


@dataclass(frozen=True, slots=True)
class PlacementJobs:
    """n jobs with predictions for each of m clusters.

    Attributes:
        run_s: predicted run time in seconds, shape (n, m); NaN if the job cannot run on this cluster.
        watts: predicted mean power in watts, shape (n, m); NaN if unknown.
        wait_s: predicted time in the queue in seconds, shape (n, m). Both this wait and a transfer of data
            begin at the submission.
        home: index of the cluster at which the job's data are, shape (n,); `NO_HOME` if the job has no home.
        data_bytes: bytes that are transferred from the home if the job runs elsewhere, shape (n,).
    """

    run_s: Floats
    watts: Floats
    wait_s: Floats
    home: Ints
    data_bytes: Floats

    def __post_init__(self) -> None:
        n, m = self.run_s.shape
        if self.watts.shape != (n, m) or self.wait_s.shape != (n, m):
            raise UsageError("placement", "predictions need one row per job and one column per cluster")
        if self.home.shape != (n,) or self.data_bytes.shape != (n,):
            raise UsageError("placement", "home and data need one value per job")
        if n and (int(self.home.min()) < NO_HOME or int(self.home.max()) >= m):
            raise UsageError("placement", f"a home is not one of the {m} clusters")
