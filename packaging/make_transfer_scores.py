r"""Compute time_scores and power_scores of [transfer] in a shipped calibration.

A score is the absolute error of the logarithm of a prediction over its predicted standard deviation
(`oracle/transfer/ranges.py`). Every kind of device among the shipped one and the references is predicted from
every other one, without its own measurements. Each pair has the same weight. No other shipped kind is used,
so that one shipped GPU can be predicted from the other without information on itself.

    make_transfer_scores.py --kind a40 summary_power_a40.csv tf32 \
        --reference v100.toml summary_power_v100.csv fp32 --reference p100.toml summary_power_p100.csv fp32 \
        --without-power p100-pcie

The V100 and the P100 are in the Zeus (NSDI 2023) power-limit study. Their hardware files describe PCIe cards.
"""

from __future__ import annotations

import argparse
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.oracle.calibration.identification import learn_transfer
from slurm_energy.oracle.calibration.measurements import Measurement, column, read_measurements
from slurm_energy.oracle.hardware import Hardware, find_hardware
from slurm_energy.oracle.training.parameters import Calibration
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle
from slurm_energy.oracle.transfer.evidence import Evidence
from slurm_energy.oracle.transfer.prior import Transfer
from slurm_energy.oracle.transfer.ranges import NORMAL_SCORES, SCORE_LEVELS, prior_half_width
from slurm_energy.oracle.workload import find_profile

Array = NDArray[np.float64]


class Kind(NamedTuple):
    """A kind of device with measurements, and what they teach about other kinds of device."""

    hardware: Hardware
    rows: list[Measurement]
    transfer: Transfer


def main() -> None:
    arguments = parsed()
    kinds = [measured(*entry) for entry in (arguments.kind, *arguments.reference)]
    times, powers = [], []
    for source, target in permutations(kinds, 2):
        time, power = scores(source, target)
        times.append(time)
        if target.hardware.name not in arguments.without_power:
            powers.append(power)
    for name, pairs in (("time_scores", times), ("power_scores", powers)):
        values = quantiles(pairs)
        print(f"{name} = [{', '.join(f'{value:.3f}' for value in values)}]")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    entry = ("KIND", "FILE", "PRECISION")
    parser.add_argument("--kind", nargs=3, required=True, metavar=entry, help="the shipped kind")
    parser.add_argument("--reference", nargs=3, action="append", default=[], metavar=entry)
    parser.add_argument(
        "--without-power", action="append", default=[], metavar="KIND", help="leave out power of this kind"
    )
    return parser.parse_args()


def measured(kind: str, path: str, precision: str) -> Kind:
    hardware, rows = find_hardware(kind), read_measurements(Path(path), precision)
    return Kind(hardware, rows, learn_transfer(hardware, rows))


def scores(source: Kind, target: Kind) -> Array:
    """Return the scores of predictions for one kind of device from measurements of another kind.

    A score is the absolute error of the logarithm of a prediction, divided by its predicted standard
    deviation.

    Args:
        source: kind of device whose measurements are used for the predictions.
        target: kind of device for which time and power are predicted.

    Returns:
        Scores of time and of power of the n measurements of `target`, shape (2, n).
    """
    prior = Transfer(source.transfer.sources, source.transfer.cap_share, source.transfer.workloads)
    calibration = Calibration(target.hardware.name, evidence=Evidence(prior))
    oracle = TrainingOracle(lambda name: calibration, looping=True)
    found = oracle.predict_many(
        TrainingAlternatives.of(
            (find_profile(row.model), target.hardware, row.precision, row.batch, row.gpus, 1e9, row.cap_watts)
            for row in target.rows
        )
    )
    deviations = np.log(found.spread[:, [1, 3]]).T / prior_half_width(NORMAL_SCORES)
    step_s, power_watts = column(target.rows, "step_s"), column(target.rows, "power_watts")
    errors = np.log(np.stack((step_s / found.step_s, power_watts / found.power_watts)))
    return np.asarray(np.abs(errors) / deviations)


def quantiles(pairs: list[Array]) -> Array:
    """Return the quantiles at `SCORE_LEVELS` of all scores together.

    A score is the scaled error of a prediction for one kind of device from another kind. Each such pair
    of kinds has the same weight, even if the pairs have different numbers of scores.

    Args:
        pairs: scores of each pair of kinds.
    """
    values = np.concatenate(pairs)
    weights = np.concatenate([np.full(len(pair), 1.0 / len(pair)) for pair in pairs])
    order = np.argsort(values)
    levels = (np.cumsum(weights[order]) - weights[order] / 2.0) / weights.sum()
    return np.asarray(np.interp(SCORE_LEVELS, levels, values[order]))


if __name__ == "__main__":
    main()
