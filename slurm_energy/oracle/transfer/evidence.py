"""Measurements on one kind of device beside what other kinds say: the fit, and its result as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.oracle.calibration.fit_problem import demands, devices
from slurm_energy.oracle.calibration.measurements import Measurement, column
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.training.timing import step_times
from slurm_energy.oracle.transfer.gaussian_process import Linearised, Places, Posterior, latent_covariance
from slurm_energy.oracle.transfer.latent_model import DEFAULTS, NEUTRAL, LatentModel
from slurm_energy.oracle.transfer.prior import LATENTS, LIMITS, MEASURED_ELSEWHERE, Array, Transfer

MAX_ROWS: Final = 1000
"""Most measurements that are used: time and memory grow with the third and second power."""
INNER: Final = LATENTS[1:]
"""Latent quantities that the model is not linear in."""
OTHER_WORKLOADS: Final = MEASURED_ELSEWHERE["demand"].device ** 2 / sum(
    deviation**2 for deviation in MEASURED_ELSEWHERE["demand"]
)
"""Weight of a measurement of another workload: the correlation of the power demand of two workloads."""
_ROUNDS: Final = 24
_MOVES: Final = {"demand": 0.2, "supply": 0.7, "idle": 0.3}
"""Largest change in one round."""
_SMALL: Final = 1e-3
COLUMNS: Final = (
    *("batch", "cap_share", "slowdown", "time_residual", "power_residual"),
    *("time_by_demand", "time_by_supply", "time_by_idle"),
    *("power_by_demand", "power_by_supply", "power_by_idle"),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a kind of device that was measured little or not at all.

    Attributes:
        prior: what other kinds say.
        models: profile of each measurement.
        columns: by name of `COLUMNS`, one value for each measurement. The slopes are those of the model near
            the latent quantities that suit the measurements best, so that no profile is needed to use them.
    """

    prior: Transfer
    models: tuple[str, ...] = ()
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def count(self, workload: str) -> int:
        """Return the number of measurements of a workload."""
        return self.models.count(workload)

    def effective_count(self, workload: str) -> float:
        """Return the number of measurements, those of other workloads by their `OTHER_WORKLOADS` weight."""
        own_count = self.count(workload)
        return own_count + OTHER_WORKLOADS * (len(self.models) - own_count)

    def posterior(self) -> Posterior | None:
        """Return the process given the measurements; None without any."""
        if not self.models:
            return None
        given = {name: np.asarray(self.columns[name], dtype=np.float64) for name in COLUMNS}
        slopes = {name: (given[f"time_by_{name}"], given[f"power_by_{name}"]) for name in INNER}
        count = len(self.models)
        slopes["time"] = (np.ones(count), np.zeros(count))
        at = Linearised(
            places(self.prior, self.models, given["batch"], given["cap_share"]), slopes, given["slowdown"]
        )
        residuals = np.stack((given["time_residual"], given["power_residual"]))
        return Posterior(at, residuals, self.prior.scores)


def places(prior: Transfer, models: Sequence[str], batch: Array, cap_share: Array) -> Places:
    """Return places of steps by profile, batch and power limit over design power."""
    known = np.array([model in prior.workloads for model in models])
    return Places(np.array(models), known, np.log2(batch), np.log(cap_share))


def assess(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> Evidence:
    """Return what measurements make of a prior.

    Gauss-Newton steps towards the likeliest latent quantities (extended Kalman filter, iterated), each of
    limited length and then shorter.

    Args:
        hardware: the kind of device.
        rows: measurements on it; at most `MAX_ROWS`, evenly chosen, are used.
        prior: what other kinds say.
    """
    rows = _thinned(rows)
    if not rows:
        return Evidence(prior)
    response, at = _response(hardware, rows), _places(hardware, rows, prior)
    observed = np.log(np.stack((column(rows, "step_s"), column(rows, "power_watts"))))
    means = {name: _means(prior, rows, name) for name in LATENTS}
    latents = {name: means[name].copy() for name in INNER}
    covariances = latent_covariance(at, at)
    for number in range(_ROUNDS):
        posterior = Posterior(*_linearise(response, at, observed, means, latents))
        share = 1.0 if number < 4 else 0.5 if number < 12 else 0.25
        largest = 0.0
        following = {}
        for name in INNER:
            best = means[name] + posterior.latent_mean(covariances[name], name)
            move = share * np.clip(best - latents[name], -_MOVES[name], _MOVES[name])
            following[name] = np.clip(latents[name] + move, *LIMITS[name])
            largest = max(largest, float(np.abs(following[name] - latents[name]).max()))
        latents = following
        if largest < _SMALL:
            break
    linear, residuals = _linearise(response, at, observed, means, latents)
    return _evidence(prior, rows, hardware, linear, residuals)


def latent_values(
    hardware: Hardware, rows: Sequence[Measurement], evidence: Evidence, name: str
) -> tuple[Array, Array]:
    """Return the likeliest latent quantity of each row, and its standard deviation."""
    at, posterior = _places(hardware, rows, evidence.prior), evidence.posterior()
    own = latent_covariance(at, at)[name].diagonal()
    mean = _means(evidence.prior, rows, name)
    if posterior is None:
        return mean, np.sqrt(own)
    between = latent_covariance(at, posterior.at.places)[name]
    lost = np.square(posterior.latent_root(between, name)).sum(axis=0)
    return mean + posterior.latent_mean(between, name), np.sqrt(np.maximum(0.0, own - lost))


def _linearise(
    response: LatentModel, at: Places, observed: Array, means: Mapping[str, Array], latents: dict[str, Array]
) -> tuple[Linearised, Array]:
    """Return the model near latent quantities, and observed less expected logarithms."""
    seconds, watts, slowdown = response.logarithms(**latents)
    slopes = response.slopes(latents)
    expected = np.stack((seconds + means["time"], watts))
    for name in INNER:
        expected = expected + np.stack(slopes[name]) * (means[name] - latents[name])
    return Linearised(at, slopes, slowdown), observed - expected


def _evidence(
    prior: Transfer, rows: Sequence[Measurement], hardware: Hardware, at: Linearised, residuals: Array
) -> Evidence:
    columns = {
        "batch": column(rows, "batch"),
        "cap_share": _cap_shares(hardware, rows),
        "slowdown": at.slowdown,
        "time_residual": residuals[0],
        "power_residual": residuals[1],
    }
    for name in INNER:
        columns[f"time_by_{name}"], columns[f"power_by_{name}"] = at.slopes[name]
    return Evidence(
        prior,
        tuple(row.model for row in rows),
        {name: tuple(values.tolist()) for name, values in columns.items()},
    )


def _response(hardware: Hardware, rows: Sequence[Measurement]) -> LatentModel:
    function = SATURATIONS["sigmoid"]
    times = step_times(
        demands(rows), devices(hardware, rows), DEFAULTS, NEUTRAL, function, column(rows, "gpus")
    )
    return LatentModel(times, hardware.tdp_watts, column(rows, "cap_watts"))


def _places(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> Places:
    return places(prior, [row.model for row in rows], column(rows, "batch"), _cap_shares(hardware, rows))


def _cap_shares(hardware: Hardware, rows: Sequence[Measurement]) -> Array:
    return np.minimum(column(rows, "cap_watts"), hardware.tdp_watts) / hardware.tdp_watts


def _means(prior: Transfer, rows: Sequence[Measurement], name: str) -> Array:
    found = [prior.mean(name, row.model, np.array([row.batch]))[0] for row in rows]
    return np.array(found)


def _thinned(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    if len(rows) <= MAX_ROWS:
        return rows
    return [rows[place] for place in np.linspace(0, len(rows) - 1, MAX_ROWS).astype(int)]
