"""Interface of the predictors of jobs (oracles): request, prediction, and order of predictors.

This module holds plain data only and does not need numpy. The arithmetic of each source of predictions is in
other modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from slurm_energy.errors import NotFoundError

LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.95


class PredictionSource(StrEnum):
    """Source of a prediction. The sources are ordered from the most to the least specific."""

    HISTORY = "history"
    MODEL = "model"
    NAMEPLATE = "nameplate"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of one quantity with its 90 % range, in the unit of the quantity.

    Attributes:
        mean: expected value.
        low: 5 % quantile.
        high: 95 % quantile.
    """

    mean: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (
            math.isfinite(self.high) and 0 <= self.low <= self.high and self.low <= self.mean <= self.high
        ):
            raise ValueError(f"invalid estimate: {self.low} <= {self.mean} <= {self.high} does not hold")

    @classmethod
    def within(cls, mean: float, share: float) -> Estimate:
        """Return an estimate whose range is from `mean` * (1 - share) to `mean` * (1 + share).

        The lower end is at least 0.
        """
        return cls(mean, mean * max(0.0, 1 - share), mean * (1 + share))

    def to_json(self) -> dict[str, float]:
        """Return the estimated value (mean and range) as a dict that JSON can hold."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """Attributes of a job before it runs. None means unknown.

    Attributes:
        user: login name of the owner.
        account: Slurm account that is charged.
        partition: requested partition.
        name: job name.
        fingerprint: digest of the batch script and its arguments.
        nodes: number of nodes.
        cpus: CPUs on all nodes together.
        gpus: GPUs on all nodes together.
        gpu_kind: name of a hardware file, e.g. `a100-sxm4-40gb`.
        time_limit_s: requested time limit in seconds.
        policy: name of the requested energy policy.
        cap_watts: power cap per node in watts.
        gpu_cap_watts: power cap per GPU in watts.
        model: workload profile (`--energy-model`), e.g. `resnet50`.
        batch: samples per GPU and step.
        precision: `fp32`, `tf32`, `bf16` or `fp16`.
        samples: training samples that the job processes in total.
        tag: value of `--energy-tag`.
        submitted_unix_s: time for which the prediction is made, in Unix seconds; None means now.
    """

    user: str | None = None
    account: str | None = None
    partition: str | None = None
    name: str | None = None
    fingerprint: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None
    time_limit_s: float | None = None
    policy: str | None = None
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    model: str | None = None
    batch: int | None = None
    precision: str | None = None
    samples: float | None = None
    tag: str | None = None
    submitted_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of the run time, power and energy of one job.

    Attributes:
        duration_s: seconds from start to end.
        power_watts: mean watts of all components that `basis` names.
        energy_joules: joules over the run. If time and power are correlated, the mean energy differs from
            the product of mean time and mean power.
        source: method of the prediction, for example history or model.
        basis: one line for users about the data on which the prediction is based.
        age_s: seconds since the newest measurement that the prediction uses; None if the age does not matter
            for this source.
        observations: number of measurements that the prediction uses; None means not counted.
        notes: warnings, e.g. that the batch may exceed the GPU's memory.
    """

    duration_s: Estimate
    power_watts: Estimate
    energy_joules: Estimate
    source: PredictionSource
    basis: str
    age_s: float | None = None
    observations: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def edp_js(self) -> float:
        """Energy-delay product in joule seconds, from the means of energy and duration."""
        return self.energy_joules.mean * self.duration_s.mean

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as a dict that JSON can hold."""
        return {
            "duration_s": self.duration_s.to_json(),
            "power_watts": self.power_watts.to_json(),
            "energy_joules": self.energy_joules.to_json(),
            "source": str(self.source),
            "basis": self.basis,
            "age_s": self.age_s,
            "observations": self.observations,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Any) -> Prediction:
        """Convert the output of `to_json` back to a prediction.

        Raises:
            ValueError: `data` is not an output of `to_json`.
        """
        try:
            estimates = {
                name: Estimate(*(float(data[name][key]) for key in ("mean", "low", "high")))
                for name in ("duration_s", "power_watts", "energy_joules")
            }
            return cls(
                **estimates,
                source=PredictionSource(data["source"]),
                basis=str(data["basis"]),
                age_s=None if data["age_s"] is None else float(data["age_s"]),
                observations=None if data["observations"] is None else int(data["observations"]),
                notes=tuple(map(str, data["notes"])),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a prediction: {error}") from None


class Oracle(Protocol):
    """Interface of all objects that predict jobs (oracles)."""

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Return the prediction for a job, or None if this predictor (oracle) cannot predict it."""
        ...


class FallbackOracle:
    """Predictor (oracle) that asks other predictors in order, until one can predict the job."""

    def __init__(self, oracles: Iterable[Oracle]) -> None:
        self._oracles = tuple(oracles)

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Return the prediction of the first predictor (oracle) that can predict the job.

        Return None if none of the predictors can.
        """
        for oracle in self._oracles:
            prediction = oracle.predict(request)
            if prediction is not None:
                return prediction
        return None

    def require(self, request: PredictionRequest) -> Prediction:
        """Return the prediction of the first predictor (oracle) that can predict the job.

        Raises:
            NotFoundError: no oracle can predict the job.
        """
        prediction = self.predict(request)
        if prediction is None:
            raise NotFoundError(
                "prediction", "no source can predict this job", "give a time limit, --model or history"
            )
        return prediction
