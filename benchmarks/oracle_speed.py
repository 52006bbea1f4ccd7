"""Benchmark of the speed of the predictor (oracle): predicting, tracing and calibrating.

There are three measurements:

- Predicting: 1,000,000 alternatives (possible settings of jobs) are predicted from stored
  profiles on one core. They cover six models on three kinds of GPU. The result is the CPU time of the
  best of five rounds.
- Tracing: an encoder of the size of BERT base is built and traced. The result is the best of
  three rounds. This measurement needs PyTorch and is skipped without it.
- Calibrating: the 28 parameters of the model are fitted to 1,000 synthetic measurements by the
  default search with two workers.

The benchmark prints one line `CLAIM name ratio=... target=... holds=yes|no` for each measurement. The
ratio is the measured value divided by the target.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import sys
import time

import numpy as np
from claims import Claim, at_least, at_most, publish

from slurm_energy.oracle.calibration.fit_problem import Problem, list_unknowns, start_vector
from slurm_energy.oracle.calibration.measurements import Measurement
from slurm_energy.oracle.calibration.search import SearchSettings, search
from slurm_energy.oracle.hardware import PRECISIONS, find_hardware
from slurm_energy.oracle.training.parameters import Theta, bounds_of
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle
from slurm_energy.oracle.workload import find_profile

MODELS = ("resnet50", "bert-base", "vgg16", "vit-b-16", "ncf", "unet")
KINDS = ("a100", "h100", "a40")
PREDICTIONS_PER_S, TRACE_S, CALIBRATION_S = 1e6, 5.0, 600.0
ROWS, UNKNOWNS = 1000, 28


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--skip-calibration", action="store_true", help="skip the search, which takes minutes"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    claims = [predictions()]
    claims += [tracing()] if importlib.util.find_spec("torch") else []
    claims += [] if arguments.skip_calibration else [calibration()]
    return publish(claims, arguments.json)


def predictions(count: int = 1_000_000) -> Claim:
    draw = np.random.default_rng(1)
    asked = TrainingAlternatives(
        profiles=tuple(map(find_profile, MODELS)),
        kinds=tuple(map(find_hardware, KINDS)),
        profile=draw.integers(0, len(MODELS), count),
        kind=draw.integers(0, len(KINDS), count),
        precision=np.full(count, PRECISIONS.index("tf32")),
        batch=draw.choice([32.0, 64.0, 128.0], count),
        gpus=draw.choice([1.0, 2.0, 4.0, 8.0], count),
        samples=np.full(count, 1e6),
        cap_watts=draw.choice([150.0, 200.0, 250.0, 300.0, np.inf], count),
        clock=np.ones(count),
        accumulation=np.ones(count),
    )
    oracle = TrainingOracle()
    rates = []
    for _ in range(5):
        began_s = time.process_time()
        oracle.predict_many(asked)
        rates.append(count / (time.process_time() - began_s))
    print(f"predictions: {max(rates):,.0f} a second on one core")
    return at_least("oracle_predictions", max(rates) / PREDICTIONS_PER_S, 1)


def tracing() -> Claim:
    import torch

    from slurm_energy.oracle.workload.tracing import ProfileLabels, profile_module

    seconds = []
    for _ in range(3):
        began_s = time.perf_counter()
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, device="meta")
        module = torch.nn.TransformerEncoder(layer, 12)
        profile_module(
            module, lambda batch: (torch.empty(batch, 384, 768, device="meta"),), ProfileLabels("encoder")
        )
        seconds.append(time.perf_counter() - began_s)
    print(f"tracing: {min(seconds):.2f} s")
    return at_most("oracle_tracing", min(seconds) / TRACE_S, 1)


def calibration() -> Claim:
    hardware = find_hardware("a40")
    grid = itertools.product(MODELS, (4.0, 8.0, 16.0, 32.0, 64.0), (1.0, 4.0), ("tf32", "bf16"), range(9))
    rows = [
        Measurement(model, batch, gpus, precision, "adamw", 100.0 + 25.0 * step, 1.0, 1.0)
        for model, batch, gpus, precision, step in itertools.islice(grid, ROWS)
    ]
    truth = Theta(beta_conv=0.4, kernel_s=1.2e-5, static_share=0.2, power_gemm=1.1, low_gemm=1.3)
    seconds, watts, _ = Problem(hardware, rows, truth, {}).predict([], np.zeros((1, 0)))
    rows = [
        dataclasses.replace(row, step_s=float(seconds[0, place]), power_watts=float(watts[0, place]))
        for place, row in enumerate(rows)
    ]
    problem = Problem(hardware, rows, Theta(), {})
    unknowns = list_unknowns(list(bounds_of(Theta))[:UNKNOWNS], [], [])
    began_s = time.perf_counter()
    vector = search(problem, unknowns, start_vector(unknowns, Theta(), {}), SearchSettings(workers=2))
    taken_s = time.perf_counter() - began_s
    time_error, power_error = (float(error[0]) for error in problem.errors(unknowns, vector[None]))
    print(f"calibration: {len(rows)} rows, {len(unknowns)} parameters: {taken_s:.0f} s,", end=" ")
    print(f"errors left: time {time_error:.2%}, power {power_error:.2%}")
    return at_most("oracle_calibration", taken_s / CALIBRATION_S, 1)


if __name__ == "__main__":
    sys.exit(main())
