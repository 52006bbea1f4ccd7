"""Lookup tables for fast predictions of many configurations of one workload on a kind of device.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from slurm_energy.oracle.training.timing import StepTimes
from slurm_energy.oracle.transfer.evidence import NONLINEAR_LATENTS, Evidence, steps_at
from slurm_energy.oracle.transfer.gaussian_process import (
    Linearised,
    Posterior,
    StepPositions,
    latent_covariance,
    variance,
)
from slurm_energy.oracle.transfer.latent_model import LatentModel
from slurm_energy.oracle.transfer.prior import (
    LIMITS,
    MEASURED_ELSEWHERE,
    NEVER_MEASURED,
    POWER_NOISE,
    TIME_NOISE,
    Array,
)
from slurm_energy.oracle.transfer.ranges import prior_half_width

_BATCHES: Final = np.arange(0.0, 17.0)
_CAP_SHARES: Final = np.linspace(0.2, 1.0, 17)
_UNCERTAIN_LATENTS: Final = ("demand", "supply")
"""Latent quantities that decide the choice between power limits."""


@dataclass(frozen=True, slots=True)
class LookupTable:
    """Table of predicted time and power of one workload on one kind of device.

    The table covers B batch sizes and C power limits. Latent quantities are properties of the workload and
    device that are estimated, not measured (`prior.LATENTS`).

    Attributes:
        batches: logarithms to base 2 of the batch sizes, in rising order, shape (B,).
        caps: logarithms of the power limits as shares of the design power, in rising order, shape (C,).
        latents: most likely values of the latent quantities demand, supply and idle, shape (B, 3).
        root: lower triangular root of the covariance of demand and supply, shape (B, 2, 2).
        offsets: terms added to the logarithms of time and power that the model computes from these latent
            quantities, shape (2, B, C).
        widths: half widths of the 90 % ranges of the logarithms of time and power, shape (2, B, C). A half
            width is the distance from the mean to the 5 or 95 % quantile.
    """

    batches: Array
    caps: Array
    latents: Array
    root: Array
    offsets: Array
    widths: Array

    def latents_at(self, batch: Array, deviation: tuple[float, float]) -> tuple[Array, Array, Array]:
        """Return the estimated properties (latent quantities) of a device at n batch sizes.

        The properties are demand, supply and idle, shape (n,) each.

        Args:
            batch: samples per device and pass, shape (n,).
            deviation: assumed errors of the estimates, in standard deviations. The two numbers are
                multiplied by the columns of the covariance's root `root`. The result is added to demand and
                supply.
        """
        row = np.log2(batch)
        demand, supply, idle = (np.interp(row, self.batches, values) for values in self.latents.T)
        if deviation != (0.0, 0.0):
            moves = self.root @ np.asarray(deviation)
            demand = demand + np.interp(row, self.batches, moves[:, 0])
            supply = supply + np.interp(row, self.batches, moves[:, 1])
        return np.clip(demand, *LIMITS["demand"]), np.clip(supply, *LIMITS["supply"]), idle

    def offsets_at(self, batch: Array, cap_share: Array) -> Array:
        """Return corrections of the predicted time and power, interpolated in the lookup table.

        Row 0 of the result is added to the logarithm of the time that the model predicts. Row 1 is added to
        the logarithm of the power. The result has shape (2, n).

        Args:
            batch: samples per device and pass, shape (n,).
            cap_share: power limits as shares of the design power, shape (n,).
        """
        return self._interpolated(self.offsets, batch, cap_share)

    def widths_at(self, batch: Array, cap_share: Array) -> Array:
        """Return half the width of the 90 % ranges of predicted time and power, shape (2, n).

        The widths refer to the natural logarithms of time and of power.

        Args:
            batch: samples per device and pass, shape (n,).
            cap_share: power limits as shares of the design power, shape (n,).
        """
        return self._interpolated(self.widths, batch, cap_share)

    def _interpolated(self, values: Array, batch: Array, cap_share: Array) -> Array:
        row = np.interp(np.log2(batch), self.batches, np.arange(len(self.batches)))
        column = np.interp(np.log(cap_share), self.caps, np.arange(len(self.caps)))
        lower_row = np.minimum(row.astype(np.int64), len(self.batches) - 2)
        left = np.minimum(column.astype(np.int64), len(self.caps) - 2)
        down, over = row - lower_row, column - left
        top = values[:, lower_row, left] * (1 - over) + values[:, lower_row, left + 1] * over
        bottom = values[:, lower_row + 1, left] * (1 - over) + values[:, lower_row + 1, left + 1] * over
        return np.asarray(top * (1 - down) + bottom * down)


def tabulate(
    workload: str,
    tdp_watts: float,
    step_times: Callable[[Array], StepTimes],
    evidence: Evidence,
    posterior: Posterior | None,
) -> LookupTable:
    """Compute the lookup table of one workload on one kind of device, for fast predictions.

    Args:
        workload: profile name.
        tdp_watts: design power of the device.
        step_times: function that maps batch sizes to the times of the parts of a training step, on one
            device at the maximum clock.
        evidence: measurements on the kind of device.
        posterior: result of `evidence.posterior()`, which is slow to compute; None without measurements.
    """
    own_batches = [
        batch
        for model, batch in zip(evidence.models, evidence.columns.get("batch", ()), strict=False)
        if model == workload
    ]
    batches = np.unique(np.concatenate((_BATCHES, np.log2(np.asarray(own_batches, dtype=np.float64)))))
    latents, root = _latents(workload, batches, evidence, posterior)
    row = np.repeat(np.arange(len(batches)), len(_CAP_SHARES))
    column = np.tile(_CAP_SHARES, len(batches))
    batch = 2.0 ** batches[row]
    response = LatentModel(step_times(batch), tdp_watts, column * tdp_watts)
    at = _step_positions(workload, batch, column, evidence)
    current = dict(zip(NONLINEAR_LATENTS, latents[row].T, strict=True))
    _, _, slowdown = response.logarithms(**current)
    linear = Linearised(at, response.slopes(current), slowdown)
    offsets, spread = np.zeros((2, len(batch))), variance(linear)
    offsets[0] = evidence.prior.mean("time", workload, batch)
    quantiles = np.array([[prior_half_width(scores)] for scores in evidence.prior.scores])
    if posterior is not None:
        mean, explained = posterior.predict(linear)
        offsets, spread, quantiles = offsets + mean, spread - explained, posterior.quantiles
        for name in NONLINEAR_LATENTS:
            shifted = current[name] - evidence.prior.mean(name, workload, batch)
            offsets = offsets - np.stack(linear.slopes[name]) * shifted
    noise = np.square([[TIME_NOISE], [POWER_NOISE]])
    widths = quantiles * np.sqrt(np.maximum(0.0, spread) + noise)
    shape = (2, len(batches), len(_CAP_SHARES))
    return LookupTable(
        batches, np.log(_CAP_SHARES), latents, root, offsets.reshape(shape), widths.reshape(shape)
    )


def _latents(
    workload: str, batches: Array, evidence: Evidence, posterior: Posterior | None
) -> tuple[Array, Array]:
    """Return the estimated latent quantities of a workload at B batch sizes, and their uncertainty.

    A latent quantity is a property of the workload on the device that is estimated, not measured. The three
    quantities are called demand, supply and idle.

    Returns:
        Most likely values of demand, supply and idle, shape (B, 3), and the Cholesky factor (lower
        triangular) of the covariance of demand and supply, shape (B, 2, 2).
    """
    at = _step_positions(workload, 2.0**batches, np.ones(len(batches)), evidence)
    values = {name: evidence.prior.mean(name, workload, 2.0**batches) for name in NONLINEAR_LATENTS}
    spread = np.zeros((len(batches), 2, 2))
    for index, name in enumerate(_UNCERTAIN_LATENTS):
        deviations = (MEASURED_ELSEWHERE if at.measured_elsewhere.all() else NEVER_MEASURED)[name]
        spread[:, index, index] = np.square(deviations).sum()
    if posterior is not None:
        between = latent_covariance(at, posterior.at.positions)
        for name in NONLINEAR_LATENTS:
            shifted = values[name] + posterior.latent_mean(between[name], name)
            values[name] = np.clip(shifted, *LIMITS[name])
        roots = [posterior.latent_root(between[name], name) for name in _UNCERTAIN_LATENTS]
        spread -= np.einsum("iob,job->bij", np.stack(roots), np.stack(roots))
    return np.stack([values[name] for name in NONLINEAR_LATENTS], axis=1), _root(spread)


def _root(spread: Array) -> Array:
    """Return the Cholesky factor (lower triangular) of each of B covariances, shape (B, 2, 2).

    Negative variances, which rounding may cause, count as 0.
    """
    root = np.zeros_like(spread)
    first = np.sqrt(np.maximum(0.0, spread[:, 0, 0]))
    shared = np.where(first > 0.0, spread[:, 1, 0] / np.where(first > 0.0, first, 1.0), 0.0)
    root[:, 0, 0], root[:, 1, 0] = first, shared
    root[:, 1, 1] = np.sqrt(np.maximum(0.0, spread[:, 1, 1] - shared**2))
    return root


def _step_positions(workload: str, batch: Array, cap_share: Array, evidence: Evidence) -> StepPositions:
    one = steps_at(evidence.prior, [workload], np.ones(1), np.ones(1))
    return replace(
        one,
        workload=np.repeat(one.workload, len(batch)),
        measured_elsewhere=np.repeat(one.measured_elsewhere, len(batch)),
        batch=np.log2(batch),
        cap=np.log(cap_share),
    )


def cap_shares(cap_watts: Any, tdp_watts: float) -> Array:
    """Return power limits as shares of the design power. Limits above the design power count as 1."""
    return np.asarray(np.minimum(cap_watts, tdp_watts) / tdp_watts)
