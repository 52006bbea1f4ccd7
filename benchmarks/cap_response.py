"""Benchmark of the conversion of a run's time and power to another power cap.

The measurements are those of the power-limit study (A40, Quadro RTX 6000). For each network, batch
and optimizer, the time and the power at several caps were measured. The measurement at the highest
cap is converted to all lower caps, and the measurement at the lowest cap to all higher caps. There
are three kinds of conversion:

- `unchanged` assumes that the cap changes neither time nor watts.
- `shipped` uses the constants in `slurm_energy.oracle.history.cap_response`. They were
  chosen on both GPUs, so the test data are not independent (in-sample).
- `fitted to the other GPU` uses constants that the same search chose on the other GPU. Here
  the test data are independent (held-out).

The error of time is the mean of |log(predicted time / measured time)|. The error of watts is the mean
absolute relative error. `--data DIR` is the folder with summary_power_*.csv.

The benchmark prints `CLAIM cap_response_time_*`: the held-out error of time divided by the error of
`unchanged`, and `CLAIM cap_response_watts_*`: the same ratio for watts.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from claims import at_most, publish

from slurm_energy.oracle.hardware import find_hardware
from slurm_energy.oracle.history.cap_response import RESPONSE, CapResponse, convert_part

DATA = Path(__file__).resolve().parents[1].parent / "shared/data/power-limits"
GPUS = {"a40": "a40", "rtx6000": "quadro-rtx-6000"}
GRID = tuple(
    CapResponse(static / 20, exponent / 4, compute / 10)
    for static, exponent, compute in itertools.product(range(10), range(4, 13), range(4, 11))
)


class Pair(NamedTuple):
    """Two measurements of one program configuration, each under another power cap.

    The second measurement is compared with its prediction from the first measurement.

    Attributes:
        watts: measured watts of the first measurement.
        before: cap of the first measurement.
        after: cap of the second measurement.
        time_ratio: time of the second measurement, divided by the time of the first measurement.
        measured_watts: measured watts of the second measurement.
    """

    watts: float
    before: float
    after: float
    time_ratio: float
    measured_watts: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the study")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        sys.exit(f"{arguments.data}: no such folder: name the folder of the study with --data")
    lower = {gpu: pairs(arguments.data, gpu, from_highest=True) for gpu in GPUS}
    higher = {gpu: pairs(arguments.data, gpu, from_highest=False) for gpu in GPUS}
    tdp = {gpu: find_hardware(kind).tdp_watts for gpu, kind in GPUS.items()}
    fitted = {gpu: fit(lower[gpu], tdp[gpu]) for gpu in GPUS}
    pooled = fit([*lower["a40"], *lower["rtx6000"]], math.inf)
    print(f"shipped constants {shown(RESPONSE)}, best on both GPUs {shown(pooled)}")
    claims = []
    for direction, judged in (("from the highest limit down", lower), ("from the lowest limit up", higher)):
        print(f"\n{direction}\n{'GPU':<9}{'constants':<52}{'rows':>5}{'time':>8}{'watts':>8}")
        for gpu, other in (("a40", "rtx6000"), ("rtx6000", "a40")):
            rows = judged[gpu]
            before = unchanged(rows)
            own = errors(rows, RESPONSE, tdp[gpu])
            held = errors(rows, fitted[other], tdp[gpu])
            line(gpu, "unchanged", rows, before)
            line(gpu, "shipped, in-sample", rows, own)
            line(gpu, f"fitted to {other} {shown(fitted[other])}, held-out", rows, held)
            if judged is lower:
                claims.append(at_most(f"cap_response_time_{gpu}", held[0] / before[0], 0.85))
                claims.append(at_most(f"cap_response_watts_{gpu}", held[1] / before[1], 0.3))
    print()
    return publish(claims, arguments.json)


def pairs(folder: Path, gpu: str, *, from_highest: bool) -> list[Pair]:
    """Return pairs of measurements of one GPU: one to predict from, and one to predict.

    For each program, all measurements are predicted from the measurement at the highest or at the lowest
    power limit.

    Args:
        folder: folder of the measurements.
        gpu: name of the GPU.
        from_highest: whether the highest limit is the one to predict from; otherwise the lowest.
    """
    groups: dict[tuple[str, ...], dict[float, tuple[float, float]]] = defaultdict(dict)
    with (folder / f"summary_power_{gpu}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in ("dataset", "network", "batch_size", "optimizer"))
            figures = float(row["time_per_epoch"]), float(row["average_power"])
            groups[key][float(row["power_limit"])] = figures
    result = []
    for rows in groups.values():
        measured = max(rows) if from_highest else min(rows)
        seconds, watts = rows[measured]
        for cap in sorted(rows.keys() - {measured}):
            result.append(Pair(watts, measured, cap, rows[cap][0] / seconds, rows[cap][1]))
    return result


def errors(rows: Sequence[Pair], response: CapResponse, tdp_watts: float) -> tuple[float, float]:
    """Return the mean prediction error of the time and that of the power, as fractions."""
    predicted = [convert_part(row.watts, row.before, row.after, tdp_watts, response) for row in rows]
    return (
        fmean(abs(math.log(one[1] / row.time_ratio)) for one, row in zip(predicted, rows, strict=True)),
        fmean(abs(one[0] / row.measured_watts - 1) for one, row in zip(predicted, rows, strict=True)),
    )


def unchanged(rows: Sequence[Pair]) -> tuple[float, float]:
    """Return the mean errors of the assumption that a power cap changes neither time nor power.

    This trivial prediction is a baseline for other predictions. The first value is the error of the time,
    the second value is the error of the watts.
    """
    return (
        fmean(abs(math.log(row.time_ratio)) for row in rows),
        fmean(abs(row.watts / row.measured_watts - 1) for row in rows),
    )


def fit(rows: Sequence[Pair], tdp_watts: float) -> CapResponse:
    """Return the parameters of the model of power caps with the minimum error of time.

    The parameters are chosen from the values in `GRID`.
    """
    return min(GRID, key=lambda response: errors(rows, response, tdp_watts)[0])


def line(gpu: str, name: str, rows: Sequence[Pair], error: tuple[float, float]) -> None:
    print(f"{gpu:<9}{name:<52}{len(rows):>5}{error[0]:>8.1%}{error[1]:>8.1%}")


def shown(response: CapResponse) -> str:
    return f"({response.static_share:g}, {response.clock_exponent:g}, {response.compute_share:g})"


if __name__ == "__main__":
    sys.exit(main())
