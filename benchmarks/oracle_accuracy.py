"""Benchmark of the accuracy of predicted training steps.

The predictions are compared with the measurements of the power-limit study (A40, Quadro RTX
6000). There are four kinds of prediction:

- `fitted`: the shipped calibration predicts the measurements to which it was fitted.
- `cap`, `batch`: all measurements at one power limit or with one batch size are left out. The
  calibration is fitted to the other measurements, starting from the shipped calibration. Then it
  predicts the measurements that were left out.
- `network`: all measurements of one network are left out. The calibration is fitted to the
  others, starting from the defaults. Then it predicts the network as if the network had never been
  measured.

The benchmark also chooses the power limit with the lowest predicted energy-delay product, and
compares it with the best measured limit. This is done for each combination of network, batch and
optimizer in the study. For `cap`, the limit is chosen among all limits, including the limit that was
left out. The limits are left out in turn, and the mean over them is reported. `--data DIR` is the
folder with summary_power_*.csv.

The program prints a `CLAIM oracle_... ratio=... target=... holds=yes|no` line for each target.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.oracle.calibration.evaluation import errors, predict_rows
from slurm_energy.oracle.calibration.fit_problem import combined
from slurm_energy.oracle.calibration.fitting import HeldOutPredictions, leave_out
from slurm_energy.oracle.calibration.measurements import Measurement, column, read_measurements
from slurm_energy.oracle.calibration.search import SearchSettings
from slurm_energy.oracle.calibration_files import shipped_calibration
from slurm_energy.oracle.hardware import Hardware, find_hardware
from slurm_energy.oracle.selection import (
    CASES,
    UNSEEN_POWER_DEVIATION,
    expected_objective,
    select_alternative,
)
from slurm_energy.oracle.training.parameters import Calibration

DATA = Path(__file__).resolve().parents[1].parent / "shared/data/power-limits"
DEVICES = {"a40": "tf32", "rtx6000": "fp32"}
"""Kinds of GPU of the study and the precision of its runs: PyTorch 1.x used TF32 if there was a unit."""
QUICK = SearchSettings(generations=0, polish=120, kicks=0)
FROM_NOTHING = SearchSettings(generations=400, population=200, polish=150, kicks=0)
FOLDS: dict[str, Callable[[Measurement], Any]] = {
    "cap": lambda row: row.cap_watts,
    "batch": lambda row: row.batch,
    "network": lambda row: row.model,
}
TARGETS = {"fitted": 0.042, "cap": 0.05, "batch": 0.10}
HIT_TARGET, LOSS_TARGET = 0.85, 0.025
FLAT_SLOWDOWN = 1.1
"""Maximum ratio of the time at the lowest limit to the median time in a row whose limits do not bind."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the study")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--only", nargs="*", choices=list(FOLDS), default=list(FOLDS), help="folds to evaluate"
    )
    parser.add_argument("--json", metavar="FILE", help="also write claims and tables")
    arguments = parser.parse_args()
    jobs = [(device, what, arguments.data) for what in ("fitted", *arguments.only) for device in DEVICES]
    with ProcessPoolExecutor(arguments.workers) as pool:
        results = dict(
            zip([job[:2] for job in jobs], pool.map(evaluate, *zip(*jobs, strict=True)), strict=True)
        )
    claims = [claim for (device, what), result in results.items() for claim in report(device, what, result)]
    for claim in claims:
        print("CLAIM {claim} ratio={ratio:.4f} target={target} holds={holds}".format(**claim))
    if arguments.json:
        tables = {"/".join(key): result for key, result in results.items()}
        Path(arguments.json).write_text(json.dumps({"claims": claims, "tables": tables}, indent=1) + "\n")
    return 0


def evaluate(device: str, what: str, data: Path) -> dict[str, Any]:
    """Evaluate one kind of prediction on one kind of GPU.

    The result contains the errors of the predicted time and power, and a comparison of the power limits
    (caps) that are chosen from the predictions with the best measured limits.
    """
    rows = read_measurements(data / f"summary_power_{device}.csv", DEVICES[device])
    hardware = find_hardware(device)
    shipped = shipped_calibration(hardware.name)
    if what == "fitted":
        held = HeldOutPredictions(rows, *predict_rows(hardware, rows, shipped), {None: shipped})
    elif what == "network":
        held = leave_out(hardware, rows, FOLDS[what], FROM_NOTHING, forget_workload=True)
    else:
        held = leave_out(hardware, rows, FOLDS[what], QUICK, start=shipped)
    time_error, power_error = held.errors()
    return {
        "time": time_error,
        "power": power_error,
        "combined": float(combined(np.array(time_error), np.array(power_error))),
        "by_fold": by_fold(held, FOLDS.get(what, FOLDS["network"])),
        "ratios": ratios(held),
        "choice": compare_choices(rows, selected_limits(hardware, held, what)),
    }


def by_fold(held: HeldOutPredictions, fold: Callable[[Measurement], Any]) -> dict[str, tuple[float, float]]:
    """Return the errors of predicted time and predicted power for each fold.

    A fold is a set of measurements that were withheld together, for example those of one network. The
    other measurements served to predict the withheld ones.
    """
    result = {}
    for name in sorted({fold(row) for row in held.rows}):
        indices = [index for index, row in enumerate(held.rows) if fold(row) == name]
        own = [held.rows[index] for index in indices]
        result[str(name)] = errors(own, held.seconds[indices], held.watts[indices])
    return result


def ratios(held: HeldOutPredictions) -> list[float]:
    """Return quantiles of how much measured values differ from predicted values.

    The result has four numbers: the 5 % and the 95 % quantile of measured / predicted time, then the same
    quantiles of measured / predicted power.
    """
    time = column(held.rows, "step_s") / held.seconds
    power = column(held.rows, "power_watts") / held.watts
    return [float(value) for ratio in (time, power) for value in np.quantile(ratio, (0.05, 0.95))]


def groups(rows: Sequence[Measurement]) -> list[Any]:
    """Group measurements that differ only in their power limit.

    Return the indices of each group's measurements in rising order of the limit. Groups with fewer than
    three limits are left out.
    """
    result: dict[tuple[Any, ...], list[int]] = {}
    for index in np.argsort(column(rows, "cap_watts"), kind="stable"):
        result.setdefault(rows[index].row, []).append(int(index))
    return [np.array(indices) for indices in result.values() if len(indices) > 2]


def selected_limits(
    hardware: Hardware, held: HeldOutPredictions, what: str
) -> dict[tuple[Any, ...], list[int]]:
    """Return, for each row of the study, the power limits that are chosen from the predictions.

    A row of the study is one configuration, for example of network and batch size. Several calibrations may
    predict the same row. The result has the index of one power limit for each of them.
    """
    result: dict[tuple[Any, ...], list[int]] = {}
    for fold_value, calibration in held.calibrations.items():
        for indices in groups(held.rows):
            own = [held.rows[index] for index in indices]
            if what not in ("batch", "network") or FOLDS[what](own[0]) == fold_value:
                result.setdefault(own[0].row, []).append(select_limit(hardware, own, calibration))
    return result


def select_limit(hardware: Hardware, own: Sequence[Measurement], calibration: Calibration) -> int:
    """Return the index of the power limit with the least expected energy-delay product.

    The expected product is computed as in the function `oracle.configuration_sweep.sweep`.
    """
    residuals = calibration.residuals.get((own[0].model, own[0].precision))
    support = np.zeros(len(own)) if residuals is None else residuals.support(column(own, "batch"))
    deviation_of_power = 0.0 if own[0].model in calibration.workloads else UNSEEN_POWER_DEVIATION
    products = []
    for deviation, _ in CASES:
        power_factor = float(np.exp(deviation * deviation_of_power))
        shifted = [dataclasses.replace(row, cap_watts=row.cap_watts / power_factor) for row in own]
        seconds, watts = predict_rows(hardware, shifted, calibration)
        products.append(seconds**2 * watts * power_factor)
    return select_alternative(expected_objective(products), support)


def compare_choices(
    study: Sequence[Measurement], oracle: dict[tuple[Any, ...], list[int]]
) -> dict[str, list[float]]:
    """Compare several methods that choose a power limit, on the measurements of a study.

    A row is a set of measured configurations that differ only in their power limit. For each method, the
    result has three numbers: the fraction of choices within one step (25 W) of the best limit, the mean
    loss compared with the best limit, and the number of rows.
    """
    caps = column(study, "cap_watts")
    measured = column(study, "step_s") ** 2 * column(study, "power_watts")
    rows = groups(study)
    limited = [indices for indices in rows if not flat(study, indices)]
    unlimited = [indices for indices in rows if flat(study, indices)]

    def own(indices: Any) -> list[int]:
        return oracle[study[indices[0]].row]

    table = {
        "oracle": score(rows, caps, measured, own),
        "oracle, rows with a binding limit": score(limited, caps, measured, own),
        "oracle, rows without a binding limit": score(unlimited, caps, measured, own),
        "no limit": score(rows, caps, measured, lambda indices: [len(indices) - 1]),
        "any limit, rows without a binding limit": score(
            unlimited, caps, measured, lambda indices: list(range(len(indices)))
        ),
        "hindsight, lowest limit where none binds": score(
            rows,
            caps,
            measured,
            lambda indices: [0 if flat(study, indices) else int(np.argmin(measured[indices]))],
        ),
    }
    single = {cap: score(rows, caps, measured, nearest(caps, cap)) for cap in sorted(set(caps))}
    best = max(single, key=lambda cap: (single[cap][0], -single[cap][1]))
    return table | {f"always {best:g} W": single[best]}


def nearest(caps: Any, cap: float) -> Callable[[Any], list[int]]:
    """Return a function that chooses, among the measured power limits, the one nearest to `cap`."""
    return lambda indices: [int(np.argmin(np.abs(caps[indices] - cap)))]


def flat(rows: Sequence[Measurement], indices: Any) -> bool:
    """Return whether a workload runs nearly as fast at the lowest power limit as at other limits.

    The slowdown is then smaller than the noise of the measurement.

    Args:
        rows: all measurements of training steps.
        indices: indices of the measurements of the workload, the lowest power limit first.
    """
    times = [rows[index].step_s for index in indices]
    return times[0] < FLAT_SLOWDOWN * float(np.median(times))


def score(rows: list[Any], caps: Any, measured: Any, choose: Callable[[Any], list[int]]) -> list[float]:
    """Return how good the power limits are that `choose` selects.

    A row is a set of measured configurations that differ only in their power limit. For each row, the
    limit with the best measured value is known. The result has three numbers:

    1. The fraction of selected limits within one step (25 W) of the best limit.
    2. The mean relative loss of the selected limits compared with the best limits.
    3. The number of rows.

    If several limits are selected for one row, their values are averaged.
    """
    hits, losses = [], []
    for indices in rows:
        best, own = int(np.argmin(measured[indices])), choose(indices)
        hits.append(np.mean(np.abs(caps[indices][own] - caps[indices][best]) <= 25))
        losses.append(np.mean(measured[indices][own]) / measured[indices][best] - 1)
    return [float(np.mean(hits)), float(np.mean(losses)), len(rows)]


def report(device: str, what: str, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Print the accuracy of predictions on one kind of device.

    Return the results as claims, which are compared with targets.
    """
    figures = "time {time:.2%}, power {power:.2%}, combined {combined:.2%}".format(**result)
    print(f"{device}, {what}: {figures}")
    for name, (time_error, power_error) in result["by_fold"].items():
        print(f"    {name:<18} time {time_error:7.2%}  power {power_error:7.2%}")
    low, high, power_low, power_high = result["ratios"]
    print(
        f"    measured / predicted: time {low:.3f} to {high:.3f}, power {power_low:.3f} to {power_high:.3f}"
    )
    for name, (hit, loss, rows) in result["choice"].items():
        print(f"    {name:<48} within 25 W {hit:6.1%}  loses {loss:6.2%}  of {rows:.0f} rows")
    claims = []
    if what in TARGETS:
        claims.append(
            claim(f"oracle_{what}_{device}", result["combined"], f"<={TARGETS[what]}", TARGETS[what])
        )
    oracle = result["choice"]["oracle"]
    if what == "fitted":
        claims.append(claim(f"oracle_cap_hits_{device}", -oracle[0], f">={HIT_TARGET}", -HIT_TARGET))
        claims.append(claim(f"oracle_cap_loss_{device}", oracle[1], f"<={LOSS_TARGET}", LOSS_TARGET))
    if what == "network":
        single = next(value for name, value in result["choice"].items() if name.startswith("always"))
        claims.append(claim(f"oracle_unseen_hits_{device}", -oracle[0], f">{single[0]:.3f}", -single[0]))
        claims.append(claim(f"oracle_unseen_loss_{device}", oracle[1], f"<{single[1]:.4f}", single[1]))
    return claims


def claim(name: str, value: float, target: str, limit: float) -> dict[str, Any]:
    """Return one claim of the benchmark: a measured value with its target.

    The claim holds if `value` is at most `limit`. If the measured value should be high, the caller passes
    both numbers with a negative sign.

    Args:
        name: name of the claim.
        value: measured value.
        target: target as text.
        limit: the target as a number.
    """
    return {"claim": name, "ratio": abs(value), "target": target, "holds": "yes" if value <= limit else "no"}


if __name__ == "__main__":
    sys.exit(main())
