"""Comparison of simulations with the numbers that the thesis prints.

The thesis does not state all values that a simulation needs. The benchmark therefore simulates several sets
of assumptions about these values. Each set is called a point. The module also states, for each printed
number, whether the simulations agree with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from slurm_energy.simulator.campaigns.run_result import RunResult
from slurm_energy.simulator.scenario import Scenario

POLICIES = ("pollux", "zeus", "aurachronos")
THESIS_SEEDS = 10
_FP32_EPOCHS = 8.206
"""Epochs of ViT-B in FP32 that take 7.5 min on 8 A100 by the oracle; see README.md."""


@dataclass(frozen=True)
class ThesisPoint:
    """One set of assumptions for a simulation: one point on a curve in a figure of the thesis.

    Attributes:
        figure: name of the figure to which the point belongs.
        label: label of the point's curve.
        x: position on the figure's axis.
        precision: number format in which the jobs with the network ViT-B train: `fp32` or `tf32`. The format
            also selects the length of these jobs. With `tf32`, a job trains for the 50 epochs that the thesis
            states. With `fp32`, 50 epochs would take longer than the thesis states, so a job trains for 8.206
            epochs.
        length: factor for the length of all jobs.
        speedup: speed-up per doubling of GPUs; 0 means that the predictor (oracle) supplies it.
        communication: power of a communicating GPU as a share of its power at work.
        age_weight: weight W_age of the age in the score, per second.
        arrivals_per_s: rate of arrivals.
    """

    figure: str
    label: str
    x: float
    precision: str = "fp32"
    length: float = 1.0
    speedup: float = 0.0
    communication: float = 0.45
    age_weight: float = 1.0
    arrivals_per_s: float = 0.005

    def scenario(self, base: Scenario, seeds: int) -> Scenario:
        """Return the simulation scenario under the assumptions of this point of the sweep."""
        models = []
        for model in base.models:
            if model.name == "ViT-B":
                epochs = 50.0 if self.precision == "tf32" else _FP32_EPOCHS
                model = replace(model, precision=self.precision, epochs=epochs)
            models.append(replace(model, epochs=model.epochs * self.length))
        workload = replace(
            base.workload,
            speedup_per_doubling=self.speedup,
            communication_power=self.communication,
            arrivals_per_s=self.arrivals_per_s,
        )
        schedule = replace(base.schedule, policies=list(POLICIES), seeds=seeds, age_weight=self.age_weight)
        # The text distinguishes the cached results of the points.
        text = f"{base.text}\n{self}"
        return replace(base, models=tuple(models), workload=workload, schedule=schedule, text=text, sweep=())


def points() -> list[ThesisPoint]:
    """Return all combinations of parameters that the benchmark simulates.

    They are the points of the parameter sweeps in the figures of the thesis, ordered by figure.
    """
    return [*_lengths(), *_speedups(), *_ages(), *_loads()]


def _lengths() -> Iterator[ThesisPoint]:
    for precision, name in (("fp32", "ViT-B FP32, 8.2 epochs"), ("tf32", "ViT-B TF32, 50 epochs")):
        for length in (1.0, 1.25, 1.5, 2.0, 3.0):
            yield ThesisPoint("length", name, length, precision=precision, length=length)


def _speedups() -> Iterator[ThesisPoint]:
    for share, name in ((1.0, "communicating GPU: full power"), (0.45, "45 %"), (0.2, "20 %")):
        for speedup in (1.5, 1.55, 1.6, 1.7, 1.8, 1.9, 2.0):
            yield ThesisPoint(
                "speedup", name, speedup, precision="tf32", speedup=speedup, communication=share
            )


def _ages() -> Iterator[ThesisPoint]:
    for speedup, name in ((0.0, "oracle's scaling"), (1.6, "1.6 per doubling")):
        for weight in (0.01, 0.1, 1.0, 10.0):
            yield ThesisPoint("age", name, weight, precision="tf32", speedup=speedup, age_weight=weight)


def _loads() -> Iterator[ThesisPoint]:
    for length, name in ((1.0, "length x1"), (2.0, "length x2")):
        for rate in (0.0015, 0.003, 0.004, 0.005, 0.006):
            yield ThesisPoint("load", name, rate, precision="tf32", length=length, arrivals_per_s=rate)


@dataclass(frozen=True)
class PrintedQuantity:
    """A quantity whose value is printed in the thesis.

    Attributes:
        name: name and unit.
        thesis: printed value.
        reading: uncertainty of the printed value: half a unit of its last digit. If the thesis prints a
            range, it is half of the range.
    """

    name: str
    thesis: float
    reading: float


QUANTITIES = (
    PrintedQuantity("pollux, jobs/h", 10.9, 0.05),
    PrintedQuantity("zeus, jobs/h", 11.0, 0.05),
    PrintedQuantity("pollux, kWh", 57.0, 0.5),
    PrintedQuantity("zeus, kWh", 51.0, 0.5),
    PrintedQuantity("zeus against pollux, energy %", -10.5, 0.5),
    PrintedQuantity("pollux, missed %", 15.0, 0.5),
    PrintedQuantity("zeus, missed %", 9.0, 0.5),
    PrintedQuantity("aurachronos, missed %", 0.5, 0.5),
    PrintedQuantity("aurachronos, jobs/h", 8.8, 0.05),
    PrintedQuantity("pollux, utilisation %", 85.0, 5.0),
)


def values(results: Sequence[RunResult]) -> dict[str, list[float]]:
    """Return the values of each quantity that the benchmark reports, one value per seed."""
    by = {(result.policy, result.seed): result.summary for result in results}
    seeds = sorted({result.seed for result in results})

    def column(policy: str, name: str, factor: float = 1.0) -> list[float]:
        return [factor * float(by[policy, seed].get(name) or 0.0) for seed in seeds]

    pollux, zeus = column("pollux", "energy_kwh"), column("zeus", "energy_kwh")
    return {
        "pollux, jobs/h": column("pollux", "jobs_per_hour"),
        "zeus, jobs/h": column("zeus", "jobs_per_hour"),
        "pollux, kWh": pollux,
        "zeus, kWh": zeus,
        "zeus against pollux, energy %": [100 * (z / p - 1) for z, p in zip(zeus, pollux, strict=True)],
        "pollux, missed %": column("pollux", "deadline_miss_rate", 100.0),
        "zeus, missed %": column("zeus", "deadline_miss_rate", 100.0),
        "aurachronos, missed %": column("aurachronos", "deadline_miss_rate", 100.0),
        "aurachronos, jobs/h": column("aurachronos", "jobs_per_hour"),
        "pollux, utilisation %": column("pollux", "utilisation", 100.0),
    }


@dataclass(frozen=True)
class QuantityVerdict:
    """Comparison of a simulated quantity with the value that the thesis states.

    The quantity was simulated under one set of assumptions.

    Attributes:
        mean: mean over the seeds.
        half_width: half of the 95 % confidence interval of the mean.
        band: largest difference from the thesis' value that random variation and the rounding of this value
            explain.
        agrees: `yes`: the difference is within the band; `no`: the difference is larger; `undecided`: the
            difference is within the band, but the band is wider than half of the thesis' value, so that the
            agreement is weak evidence.
    """

    mean: float
    half_width: float
    band: float
    agrees: str


def verdict(quantity: PrintedQuantity, sample: Sequence[float]) -> QuantityVerdict:
    """Decide whether simulated results agree with a value that the thesis prints.

    The printed value is a mean of ten runs. The sample agrees if its mean differs by at most the band. The
    band is the precision of the printed value plus the 95 % interval of the difference of two means. The
    standard deviation of the thesis' runs is assumed to equal the standard deviation of the sample.
    """
    mean = statistics.fmean(sample)
    deviation = statistics.stdev(sample) if len(sample) > 1 else 0.0
    half_width = 1.96 * deviation / sqrt(len(sample))
    band = quantity.reading + 1.96 * deviation * sqrt(1 / THESIS_SEEDS + 1 / len(sample))
    narrow = band <= max(quantity.reading, abs(quantity.thesis) / 2)
    agrees = "no" if abs(mean - quantity.thesis) > band else "yes" if narrow else "undecided"
    return QuantityVerdict(mean, half_width, band, agrees)


def verdicts(sample: Mapping[str, Sequence[float]]) -> dict[str, QuantityVerdict]:
    """Return, for each figure that the thesis prints, whether a simulation confirms it.

    Args:
        sample: results of the simulation with several seeds, by name of the figure.
    """
    return {quantity.name: verdict(quantity, sample[quantity.name]) for quantity in QUANTITIES}


def as_object(point: ThesisPoint, sample: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a point of the thesis with its simulated results as an object for JSON."""
    return {
        **{name: getattr(point, name) for name in ("figure", "label", "x", "precision", "length", "speedup")},
        "communication": point.communication,
        "age_weight": point.age_weight,
        "arrivals_per_s": point.arrivals_per_s,
        "quantities": {
            name: {"mean": v.mean, "half_width": v.half_width, "band": v.band, "agrees": v.agrees}
            for name, v in verdicts(sample).items()
        },
    }
