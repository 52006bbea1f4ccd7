"""What is asked of an oracle and what it answers, the same for every source.

Plain data and the order of falling back; no source's arithmetic and nothing that needs numpy may come in.
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
    """Where a prediction comes from, best known first."""

    HISTORY = "history"
    MODEL = "model"
    NAMEPLATE = "nameplate"


@dataclass(frozen=True, slots=True)
class Estimate:
    """One quantity that is not known yet.

    Attributes:
        mean: expected value.
        low: 5 % of outcomes are below.
        high: 5 % of outcomes are above.
    """

    mean: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (
            math.isfinite(self.high) and 0 <= self.low <= self.high and self.low <= self.mean <= self.high
        ):
            raise ValueError(f"no estimate: {self.low} <= {self.mean} <= {self.high} does not hold")

    @classmethod
    def within(cls, mean: float, share: float) -> Estimate:
        """Return `mean` with a range of `share` (0.1: 10 %) to both sides."""
        return cls(mean, mean * max(0.0, 1 - share), mean * (1 + share))

    def to_json(self) -> dict[str, float]:
        """Return plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """What is known of a job before it runs. None: not known.

    Attributes:
        user: owner's login name.
        account: account that pays.
        partition: where it is to run.
        name: job name.
        fingerprint: digest of the script and its arguments.
        nodes: whole number of nodes.
        cpus: CPUs of all nodes together.
        gpus: GPUs of all nodes together.
        gpu_kind: name of a hardware file, e.g. `a100-sxm4-40gb`.
        time_limit_s: seconds that the user asked for.
        policy: energy policy.
        cap_watts: limit per node in watts.
        gpu_cap_watts: limit per GPU in watts.
        model: workload profile (`--energy-model`), e.g. `resnet50`.
        batch: samples per GPU and step.
        precision: `fp32`, `tf32`, `bf16` or `fp16`.
        samples: training samples that the job works through.
        tag: `--energy-tag`.
        submitted_unix_s: when the question is asked; None: now.
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
    """A prediction for one job.

    Attributes:
        duration_s: seconds from start to end.
        power_watts: mean watts of all that is counted (see `basis`).
        energy_joules: joules over the duration. Not the product of the two means where they go together.
        source: which kind of oracle answered.
        basis: one line for people: what the figures rest on.
        age_s: how long ago the newest fact behind it was learned; None: it does not age.
        observations: number of measurements behind it; None: not counted.
        notes: warnings, e.g. that the batch may not fit the GPU's memory.
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
        """Energy-delay product of the means, joule seconds."""
        return self.energy_joules.mean * self.duration_s.mean

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
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
        """Read the output of `to_json`.

        Raises:
            ValueError: not such data.
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
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no answer: {error}") from None


class Oracle(Protocol):
    """Anything that predicts a job."""

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Return the prediction, or None where this oracle knows nothing of such a job."""
        ...


class FallbackOracle:
    """Asks oracles in order and takes the first answer."""

    def __init__(self, oracles: Iterable[Oracle]) -> None:
        self._oracles = tuple(oracles)

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Return the first answer, or None if nobody knows."""
        for oracle in self._oracles:
            prediction = oracle.predict(request)
            if prediction is not None:
                return prediction
        return None

    def require(self, request: PredictionRequest) -> Prediction:
        """Return the first answer.

        Raises:
            NotFoundError: nobody knows.
        """
        prediction = self.predict(request)
        if prediction is None:
            raise NotFoundError(
                "prediction", "no source knows this job", "give a time limit, --model or history"
            )
        return prediction
