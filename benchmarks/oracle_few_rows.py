"""Benchmark of predicted power limits for a GPU of which only few training steps are measured.

The benchmark uses the measured power-limit study. The data of the study are rows, and each row is one
measurement. The benchmark repeats the following for each GPU of the study and for several numbers of
rows. It draws this number of rows at random. Over all draws, each row is drawn about equally often
(`balanced_draws`). `senergy calibrate` receives only the drawn rows. All other rows are withheld, and
are predicted. The prior of a GPU comes only from other kinds of GPU: the A40 is predicted from the
Quadro RTX 6000, and vice versa.

For each configuration with at least three withheld power limits, `senergy predict` chooses the limit
with the lowest predicted energy-delay product (BEST edp). The loss of the chosen limit is the excess
of its measured energy-delay product over that of the best withheld limit. The benchmark compares this
loss with the loss of a constant limit. The constant limit is the limit nearest to the fraction of the
design power that is best on the other GPUs.

The withheld rows differ between draws, so the losses of two draws are not compared directly. Instead,
the benchmark predicts the same withheld rows a second time, without any measurement of the GPU. It
states the difference between the two losses: the loss with the drawn rows minus the loss without any
measurement. The difference has a 95 % interval over the draws. Coverage is the share of withheld rows
inside the 90 % range, with its standard deviation over the draws.

`--data DIR` is the folder with summary_power_*.csv. `--study KIND FILE PRECISION` adds another GPU,
which is predicted from all shipped calibrations. KIND is a name or a hardware file. An interrupted
run resumes from `--state FILE`. The benchmark prints the table of docs/oracle.md and lines of the
form `CLAIM oracle_few_rows_... ratio=... target=... holds=yes|no`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

for library in ("OPENBLAS", "MKL", "OMP"):  # threads only slow down operations on such small matrices
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from claims import Claim, claim, publish  # noqa: E402
from scipy.stats import t as student  # noqa: E402

from slurm_energy.oracle.calibration.fitting import fit  # noqa: E402
from slurm_energy.oracle.calibration.identification import configurations  # noqa: E402
from slurm_energy.oracle.calibration.measurements import (  # noqa: E402
    Measurement,
    column,
    read_measurements,
)
from slurm_energy.oracle.calibration.search import SearchSettings  # noqa: E402
from slurm_energy.oracle.calibration_files import shipped_prior  # noqa: E402
from slurm_energy.oracle.configuration_sweep import sweep  # noqa: E402
from slurm_energy.oracle.hardware import Hardware, find_hardware  # noqa: E402
from slurm_energy.oracle.training.parameters import Calibration  # noqa: E402
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle  # noqa: E402
from slurm_energy.oracle.transfer.evidence import Evidence  # noqa: E402
from slurm_energy.oracle.workload import find_profile  # noqa: E402

DATA = Path(__file__).resolve().parents[1].parent / "shared/data/power-limits"
DEVICES = {"a40": "tf32", "rtx6000": "fp32"}
SIZES = (0, 4, 6, 12, 24, 96)
SEED, DRAWS = 8000, 40
HEADERS = (
    *("rows", "loss", "change", "worst draw", "constant", "time in range", "power in range"),
    *("time error", "power error", "fit"),
)
MARGIN, LEAST_COVERED, MOST_COVERED = 0.01, 0.85, 0.95
Job = tuple["Study", int, int, int, int]
"""Study, number of rows, seed, number of the draw, number of balanced draws (0: independent draws)."""


class Study(NamedTuple):
    """Measurements of one GPU: kind of GPU, path of the file, and precision of the matrix products."""

    kind: str
    path: str
    precision: str


def main() -> int:
    arguments = parsed()
    studies = [
        Study(kind, str(arguments.data / f"summary_power_{kind}.csv"), precision)
        for kind, precision in DEVICES.items()
    ]
    studies = [*([] if arguments.only_studies else studies), *(Study(*entry) for entry in arguments.study)]
    jobs = [
        (study, size, arguments.seed, draw, 0 if arguments.independent else arguments.draws if size else 1)
        for study in studies
        for size in arguments.sizes
        for draw in range(arguments.draws if size else 1)
    ]
    results = run(jobs, arguments.workers, arguments.state)
    claims = []
    manner = "independent" if arguments.independent else "balanced"
    print(f"{arguments.draws} {manner} draws with seed {arguments.seed}\n")
    for study in studies:
        own = {
            size: [results[key(*job)] for job in jobs if job[:2] == (study, size)] for size in arguments.sizes
        }
        claims += report(study, own)
    return publish(claims, arguments.json)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the study")
    parser.add_argument(
        "--study", nargs=3, action="append", default=[], metavar=("KIND", "FILE", "PRECISION")
    )
    parser.add_argument("--only-studies", action="store_true", help="only the GPUs of --study")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of rows")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"random draws of each (default {DRAWS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the draws (default {SEED})")
    parser.add_argument("--independent", action="store_true", help="draw rows independently in each draw")
    parser.add_argument("--state", type=Path, help="store results in FILE and resume from it")
    parser.add_argument("--json", metavar="FILE", help="also write the claims")
    return parser.parse_args()


def key(study: Study, *draw: int) -> str:
    return json.dumps([*study, *draw])


def run(jobs: Sequence[Job], workers: int, state: Path | None) -> dict[str, dict[str, Any]]:
    """Return the result of each job; results in the state file are not computed again."""
    results: dict[str, dict[str, Any]] = {}
    if state is not None and state.exists():
        for line in state.read_text().splitlines():
            entry = json.loads(line)
            results[entry["job"]] = entry["result"]
    left = [job for job in jobs if key(*job) not in results]
    began_s = time.monotonic()
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(evaluate, *job): job for job in left}
        for done, future in enumerate(as_completed(futures), 1):
            name = key(*futures[future])
            results[name] = future.result()
            if state is not None:
                with state.open("a") as stream:
                    stream.write(json.dumps({"job": name, "result": results[name]}) + "\n")
            left_s = (time.monotonic() - began_s) / done * (len(left) - done)
            print(f"\r{done}/{len(left)} fits, {left_s:.0f} s left  ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


@functools.cache
def measurements(study: Study) -> tuple[Hardware, list[Measurement]]:
    return find_hardware(study.kind), read_measurements(Path(study.path), study.precision)


def balanced_draws(rows: Sequence[Measurement], size: int, draws: int, seed: int) -> list[set[int]]:
    """Draw several sets of measurements from a study, and use all measurements equally often.

    Return the indices of the measurements (rows) of each draw. The numbers of uses of two rows differ by at
    most 1. The rows that are used once more are spread evenly over the study, which is sorted by network,
    batch size and power limit. The rows are distributed to the draws at random. The mean over balanced draws
    varies less from seed to seed than the mean over independent draws.

    Args:
        rows: rows of the study.
        size: number of rows per draw.
        draws: number of draws.
        seed: seed of the random numbers.
    """
    numbers = np.random.default_rng([seed, size])
    models = np.array([row.model for row in rows])
    order = np.lexsort((column(rows, "cap_watts"), column(rows, "batch"), models))
    uses, rest = divmod(size * draws, len(rows))
    times = np.full(len(rows), uses)
    times[order[((np.arange(rest) + numbers.random()) * len(rows) / max(rest, 1)).astype(int)]] += 1
    found: list[set[int]] = [set() for _ in range(draws)]
    shuffled = numbers.permutation(len(rows))
    for row in shuffled[np.argsort(-times[shuffled], kind="stable")].tolist():
        emptiest = sorted(range(draws), key=lambda draw: (len(found[draw]), numbers.random()))
        for draw in emptiest[: times[row]]:
            found[draw].add(row)
    return found


def independent_draw(rows: Sequence[Measurement], size: int, seed: int) -> set[int]:
    """Return the indices of `size` randomly chosen measurements.

    The choice depends only on the arguments, not on earlier calls of the function.
    """
    numbers = np.random.default_rng([seed, size])
    return set(numbers.choice(len(rows), size, replace=False).tolist())


def evaluate(study: Study, size: int, seed: int, draw: int, draws: int) -> dict[str, Any]:
    """Calibrate the predictor with some measurements, and test it with all other measurements.

    Args:
        study: measurements on one kind of GPU.
        size: number of measurements for the calibration.
        seed: seed of the random choice of the measurements.
        draw: number of this choice.
        draws: number of choices that together use all measurements equally often; 0 means that the
            choices are independent.

    Returns:
        The loss of energy-delay product by predicted power limits, the coverage of the predicted ranges,
        the errors of time and power, and the duration of the calibration.
    """
    hardware, rows = measurements(study)
    drawn = (
        balanced_draws(rows, size, draws, seed)[draw] if draws else independent_draw(rows, size, seed + draw)
    )
    given = [rows[index] for index in sorted(drawn)]
    withheld = [row for index, row in enumerate(rows) if index not in drawn]
    prior, began_s = shipped_prior(hardware.name), time.monotonic()
    calibration = (
        fit(hardware, given, SearchSettings(), prior=prior).calibration
        if given
        else Calibration(hardware.name, evidence=Evidence(prior))
    )
    fit_s = time.monotonic() - began_s
    oracle = TrainingOracle(lambda name: calibration, looping=True)
    results = losses(oracle, hardware, withheld, prior.cap_share)
    return {**results, "fit_s": fit_s, **covered(oracle, hardware, withheld)}


def losses(
    oracle: TrainingOracle, hardware: Hardware, rows: Sequence[Measurement], cap_share: float
) -> dict[str, float]:
    """Return how much energy-delay product is lost by predicted power limits.

    A loss is relative to the best measured limit, as the mean over the configurations. The result has three
    values. `loss` is for the limits that the predictor (oracle) chooses. `constant` is for a constant limit
    of `cap_share` times the design power. `change` is `loss` minus the loss of the limits that the oracle
    chooses without measurements of this GPU.
    """
    chosen, constant, changes = [], [], []
    for indices in configurations(rows).values():
        own = [rows[index] for index in indices]
        if len(own) < 3:
            continue
        caps, products = column(own, "cap_watts"), column(own, "step_s") ** 2 * column(own, "power_watts")
        first = own[0]
        profile = find_profile(first.model)
        settings = ([hardware], [1.0], [first.batch], caps.tolist(), first.precision, 1e9)
        best, unmeasured = (
            sweep(source, profile, *settings).best["edp"] for source in (oracle, oracle.prior)
        )
        nearest = int(np.argmin(np.abs(caps - cap_share * hardware.tdp_watts)))
        chosen.append(products[best] / products.min() - 1.0)
        changes.append((products[best] - products[unmeasured]) / products.min())
        constant.append(products[nearest] / products.min() - 1.0)
    means = {"loss": chosen, "change": changes, "constant": constant}
    return {name: float(np.mean(values)) for name, values in means.items()}


def covered(oracle: TrainingOracle, hardware: Hardware, rows: Sequence[Measurement]) -> dict[str, float]:
    """Return how accurately the predictor (oracle) predicts measured training steps (`rows`).

    The result has four numbers: for the time and for the power, the fraction of rows within the predicted
    range and the mean absolute relative error.
    """
    asked = TrainingAlternatives.of(
        (find_profile(row.model), hardware, row.precision, row.batch, row.gpus, 1e9, row.cap_watts)
        for row in rows
    )
    found = oracle.predict_many(asked)
    time_ratio = column(rows, "step_s") / found.step_s
    power_ratio = column(rows, "power_watts") / found.power_watts
    low_time, high_time, low_power, high_power = found.spread.T
    return {
        "time_covered": float(np.mean((low_time <= time_ratio) & (time_ratio <= high_time))),
        "power_covered": float(np.mean((low_power <= power_ratio) & (power_ratio <= high_power))),
        "time_error": float(np.mean(np.abs(1.0 / time_ratio - 1.0))),
        "power_error": float(np.mean(np.abs(1.0 / power_ratio - 1.0))),
    }


def report(study: Study, results: dict[int, list[dict[str, Any]]]) -> list[Claim]:
    """Print the benchmark's results for one GPU as a table, and return the checks of its targets."""
    hardware, rows = measurements(study)
    prior = shipped_prior(hardware.name)
    print(f"{hardware.description}, {len(rows)} rows, prior from {', '.join(prior.sources)}")
    print(f"(constant: {prior.cap_share:.1%} of the design power)\n")
    print(f"| {' | '.join(HEADERS)} |")
    print("|---" * len(HEADERS) + "|")
    claims, name = [], Path(study.kind).stem
    means = {}
    for size, draws in results.items():
        mean = means[size] = {field: float(np.mean([draw[field] for draw in draws])) for field in draws[0]}
        worst = max(draw["loss"] for draw in draws)
        in_range = [
            f"{mean[field]:.1%} ± {np.std([draw[field] for draw in draws]):.1%}"
            for field in ("time_covered", "power_covered")
        ]
        cells = [f"{value:.1%}" for value in (worst, mean["constant"])] + in_range
        cells += [f"{mean[field]:.1%}" for field in ("time_error", "power_error")]
        change = f"{mean['change']:+.2%} ± {half_interval(draws):.2%}"
        print(f"| {size} | {mean['loss']:.1%} | {change} | {' | '.join(cells)} | {mean['fit_s']:.1f} s |")
        limit = mean["constant"] + MARGIN
        claims.append(
            claim(
                f"oracle_few_rows_loss_{name}_{size}", mean["loss"], f"<={limit:.4f}", mean["loss"] <= limit
            )
        )
        excess = max(draw["loss"] - draw["constant"] for draw in draws)
        claims.append(claim(f"oracle_few_rows_excess_{name}_{size}", excess, f"<={MARGIN}", excess <= MARGIN))
        for field in ("time_covered", "power_covered"):
            holds = LEAST_COVERED <= round(mean[field], 3) <= MOST_COVERED
            claims.append(claim(f"oracle_few_rows_{field}_{name}_{size}", mean[field], "0.85..0.95", holds))
    sizes = sorted(means)
    falls = means[sizes[-1]]["loss"] / means[sizes[0]]["loss"]
    claims.append(claim(f"oracle_few_rows_falls_{name}", falls, "<1", falls < 1.0))
    if len(sizes) > 1:
        claims += rises(name, {size: results[size] for size in sizes})
    print()
    return claims


def rises(name: str, results: dict[int, list[dict[str, Any]]]) -> list[Claim]:
    """Test whether predictions for a GPU get worse when more measurements of the GPU are known.

    A row is one measurement of the GPU. The loss is the error of a prediction that knows a given number
    of rows. Each case in which the loss rises with the number of rows is printed. Two results (claims)
    are returned. The first result states the largest rise of the loss. For the second result, each rise
    has a 95 % interval. The result states the largest lower end of these intervals. This value is
    positive only if a rise is too large to be explained by the random draws.

    Args:
        name: name of the GPU.
        results: results of the draws by number of rows, in rising order.
    """
    sizes = list(results)
    steps, lower_ends = [], []
    for fewer, more in itertools.pairwise(sizes):
        step = float(np.mean(changes_of(results[more])) - np.mean(changes_of(results[fewer])))
        width = float(np.hypot(half_interval(results[more]), half_interval(results[fewer])))
        steps.append(step)
        lower_ends.append(step - width)
        if step > 0.0:
            print(f"{name}: from {fewer} to {more} rows the loss rises by {step:.2%} ± {width:.2%}")
    worst, certain = max(steps), max(lower_ends)
    return [
        claim(f"oracle_few_rows_largest_rise_{name}", worst, "<=0", worst <= 0.0),
        claim(f"oracle_few_rows_rise_beyond_chance_{name}", certain, "<=0", certain <= 0.0),
    ]


def changes_of(draws: Sequence[dict[str, Any]]) -> list[float]:
    """Return how the measurements of the GPU change the loss, for each random draw of measurements.

    The loss is the loss of the power limit that is chosen from predictions. The change is the loss of
    predictions with the drawn measurements minus the loss of predictions without any measurement of the GPU.
    """
    return [draw["change"] for draw in draws]


def half_interval(draws: Sequence[dict[str, Any]]) -> float:
    """Return half the width of the 95 % confidence interval of the mean change of the loss.

    Each random draw yields one change. The result is 0 for a single draw.
    """
    changes = changes_of(draws)
    if len(changes) < 2:
        return 0.0
    return float(student.ppf(0.975, len(changes) - 1) * np.std(changes, ddof=1) / len(changes) ** 0.5)


if __name__ == "__main__":
    sys.exit(main())
