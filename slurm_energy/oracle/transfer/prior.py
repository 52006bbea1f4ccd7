"""Prior knowledge about a kind of device: expected values and variances of its time and power.

The knowledge is derived from measurements of other kinds of device. The module contains plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.oracle.transfer.ranges import NORMAL_SCORES

Array = NDArray[np.float64]


class Deviations(NamedTuple):
    """Standard deviations that describe how far a quantity differs from the model's default.

    The deviation of the quantity is the sum of a part that depends on the device, one that depends on the
    workload, and one that depends on the batch size.

    Attributes:
        device: standard deviation between devices.
        workload: standard deviation between workloads.
        batch: standard deviation between the batch sizes of one workload.
    """

    device: float
    workload: float
    batch: float


LATENTS: Final = ("time", "demand", "supply", "idle")
"""Quantities that may differ from the default model, all as logarithms. They are: the ratio measured /
predicted time; the power demand of the working device without a limit; the ratio of the host's to the
device's seconds per step; the power while waiting.
"""
MEASURED_ELSEWHERE: Final = {
    "time": Deviations(0.25, 0.27, 0.20),
    "demand": Deviations(0.04, 0.08, 0.05),
    "supply": Deviations(0.35, 0.75, 0.35),
    "idle": Deviations(0.30, 0.0, 0.0),
}
"""Deviations of workloads that were measured on other kinds of device."""
NEVER_MEASURED: Final = MEASURED_ELSEWHERE | {
    "time": Deviations(0.25, 0.60, 0.20),
    "supply": Deviations(0.35, 1.30, 0.35),
}
"""Deviations of workloads that were never measured."""
DEMAND_MEAN, IDLE_MEAN = 0.0, -0.3
TYPICAL_SUPPLY: Final = float(np.log(0.15))
"""Supply (ratio of the host's to the device's seconds, as a logarithm) of workloads that were never measured.
"""
LIMITS: Final = {"demand": (-1.2, 1.2), "supply": (-5.0, 3.0), "idle": (-1.5, 0.8)}
BATCH_RANGE, CAP_RANGE = 2.5, 0.5
"""Length scales: doublings of the batch, and distance of the logarithm of the power limit."""
TIME_SLOPE, POWER_SLOPE = Deviations(0.045, 0.09, 0.0), Deviations(0.06, 0.06, 0.0)
"""Deviations of the exponent of the clock, which sets the slowdown of a throttled device."""
TIME_ROUGHNESS, POWER_ROUGHNESS = 0.045, 0.03
TIME_NOISE, POWER_NOISE = 0.03, 0.016
"""Model error that varies with batch and limit, and noise of a single measurement."""


@dataclass(frozen=True, slots=True)
class WorkloadOffsets:
    """Differences between the measured values of one workload and the default training model.

    The differences were measured on other kinds of device.

    Attributes:
        batches: samples per device and step, in rising order.
        time: logarithm of the ratio measured / predicted seconds at each batch size.
        supply: logarithm of the ratio of the host's seconds to the device's seconds at each batch size.
    """

    batches: Sequence[float]
    time: Sequence[float]
    supply: Sequence[float]

    def at(self, quantity: str, batch: Array) -> Array:
        """Return how far a workload deviates from the default training model at given batch sizes.

        The deviation (offset) `time` is the logarithm of the measured seconds divided by the predicted
        seconds. The offset `supply` is the logarithm of the host's seconds divided by the device's seconds.
        Beyond the measured batch sizes an offset is constant.

        Args:
            quantity: `time` or `supply`.
            batch: samples per device and step; the result has the shape of this array.
        """
        values: Sequence[float] = getattr(self, quantity)
        return np.asarray(np.interp(np.log2(batch), np.log2(self.batches), values))


@dataclass(frozen=True, slots=True)
class Transfer:
    """Expectations about a kind of device that come from measurements on other kinds of device.

    Attributes:
        sources: names of the measured kinds.
        cap_share: power limit with the least mean energy-delay product, as a share of the design power.
        workloads: differences from the default training model, by profile name of the workload. A workload
            without an entry is expected to follow the default model.
        time_scores: quantiles (`ranges.SCORE_LEVELS`) of the errors of times predicted from other kinds of
            device, in units of the predicted standard deviation.
        power_scores: quantiles of the errors of powers predicted from other kinds of device, in units of the
            predicted standard deviation.
    """

    sources: tuple[str, ...] = ()
    cap_share: float = 0.62
    workloads: Mapping[str, WorkloadOffsets] = field(default_factory=dict)
    time_scores: Sequence[float] = NORMAL_SCORES
    power_scores: Sequence[float] = NORMAL_SCORES

    @property
    def scores(self) -> tuple[Sequence[float], Sequence[float]]:
        """`time_scores` and `power_scores` as a tuple."""
        return self.time_scores, self.power_scores

    def mean(self, latent: str, workload: str, batch: Array) -> Array:
        """Return the expected value of a latent quantity at each batch size of one workload, shape (n,).

        A latent quantity is a property of a device that is estimated, because it cannot be measured
        directly.

        Args:
            latent: one of `LATENTS`; the values are logarithms.
            workload: profile name.
            batch: samples per device and step, shape (n,).
        """
        if latent in ("time", "supply"):
            known_offsets = self.workloads.get(workload)
            usual = 0.0 if latent == "time" else TYPICAL_SUPPLY
            return np.full(len(batch), usual) if known_offsets is None else known_offsets.at(latent, batch)
        return np.full(len(batch), DEMAND_MEAN if latent == "demand" else IDLE_MEAN)


NO_TRANSFER: Final = Transfer()


def combined(transfers: Sequence[Transfer]) -> Transfer:
    """Combine what was measured on several kinds of GPU into expectations for another kind.

    The numbers are means over the measured kinds. Each workload is averaged over the kinds on which it was
    measured. The result is `NO_TRANSFER` if `transfers` is empty.
    """
    if not transfers:
        return NO_TRANSFER
    time_scores, power_scores = (
        tuple(np.mean([transfer.scores[index] for transfer in transfers], axis=0).tolist())
        for index in (0, 1)
    )
    workloads = {}
    for name in sorted({name for transfer in transfers for name in transfer.workloads}):
        known_offsets = [transfer.workloads[name] for transfer in transfers if name in transfer.workloads]
        batches = np.unique([batch for offsets in known_offsets for batch in offsets.batches])
        time, supply = (
            np.mean([offsets.at(quantity, batches) for offsets in known_offsets], axis=0).tolist()
            for quantity in ("time", "supply")
        )
        workloads[name] = WorkloadOffsets(tuple(batches.tolist()), tuple(time), tuple(supply))
    return Transfer(
        sources=tuple(source for transfer in transfers for source in transfer.sources),
        cap_share=float(np.mean([transfer.cap_share for transfer in transfers])),
        workloads=workloads,
        time_scores=time_scores,
        power_scores=power_scores,
    )
