"""Power limits and ranges predicted for a GPU with few measured steps.

For each GPU of the measured power-limit study and each number of rows, rows are drawn at random, and all
draws together contain every part of the study equally often (`balanced_draws`). `senergy calibrate` receives
the rows of a draw only, and the others are predicted. The prior of a GPU comes from other kinds
only: the A40 is predicted from the Quadro RTX 6000, and vice versa. For each configuration with at least
three withheld power limits, one limit is chosen for the energy-delay product (`senergy predict`, BEST edp).
Its loss is the excess over the measured best of the withheld limits. It is compared with the limit nearest to
a constant fraction of the design power, the one that is best on the other GPUs. Coverage is the share of
withheld rows inside the 90 % range.

`--data DIR` is the folder with summary_power_*.csv. `--study KIND FILE PRECISION` adds another GPU (KIND:
name or hardware file), which is predicted from all shipped calibrations. An interrupted run resumes from
`--state FILE`. Prints the table of docs/oracle.md and `CLAIM oracle_few_rows_... ratio=... target=...
holds=yes|no` lines.
"""

from __future__ import annotations

import argparse
import functools
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
SEED, DRAWS = 300, 10
HEADERS = (
    *("rows", "loss", "worst draw", "constant", "time in range", "power in range"),
    *("time error", "power error", "fit"),
)
MARGIN, LEAST_COVERED, MOST_COVERED = 0.01, 0.85, 0.95
Job = tuple["Study", int, int, int, int]
"""Study, number of rows, seed, number of the draw, number of draws."""


class Study(NamedTuple):
    """A GPU and the file with its measurements."""

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
        (study, size, arguments.seed, draw, arguments.draws if size else 1)
        for study in studies
        for size in arguments.sizes
        for draw in range(arguments.draws if size else 1)
    ]
    results = run(jobs, arguments.workers, arguments.state)
    claims = []
    print(f"{arguments.draws} balanced draws with seed {arguments.seed}\n")
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
    """Return the indices of the rows of each draw.

    The rows of all draws together are a systematic sample of the study, in the order of networks, batch sizes
    and power limits, and no row is used once more often than another. They are distributed to the draws at
    random. The mean over the draws then varies less from seed to seed than that of independent draws.

    Args:
        rows: rows of the study.
        size: number of rows per draw.
        draws: number of draws.
        seed: seed of the random numbers.
    """
    numbers = np.random.default_rng([seed, size])
    order = np.lexsort((column(rows, "cap_watts"), [row.batch for row in rows], [row.model for row in rows]))
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


def evaluate(study: Study, size: int, seed: int, draw: int, draws: int) -> dict[str, Any]:
    """Return losses, coverage and errors on the rows that a calibration with `size` rows does not contain."""
    hardware, rows = measurements(study)
    drawn = balanced_draws(rows, size, draws, seed)[draw]
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
    loss, constant = losses(oracle, hardware, withheld, prior.cap_share)
    return {"loss": loss, "constant": constant, "fit_s": fit_s, **covered(oracle, hardware, withheld)}


def losses(
    oracle: TrainingOracle, hardware: Hardware, rows: Sequence[Measurement], cap_share: float
) -> tuple[float, float]:
    """Return the mean loss of the chosen limits, and of a constant share of the design power."""
    chosen, constant = [], []
    for indices in configurations(rows).values():
        own = [rows[index] for index in indices]
        if len(own) < 3:
            continue
        caps, products = column(own, "cap_watts"), column(own, "step_s") ** 2 * column(own, "power_watts")
        first = own[0]
        profile = find_profile(first.model)
        found = sweep(oracle, profile, [hardware], [1.0], [first.batch], caps.tolist(), first.precision, 1e9)
        nearest = int(np.argmin(np.abs(caps - cap_share * hardware.tdp_watts)))
        chosen.append(products[found.best["edp"]] / products.min() - 1.0)
        constant.append(products[nearest] / products.min() - 1.0)
    return float(np.mean(chosen)), float(np.mean(constant))


def covered(oracle: TrainingOracle, hardware: Hardware, rows: Sequence[Measurement]) -> dict[str, float]:
    """Return the shares of rows inside their ranges, and mean absolute errors."""
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
    """Print the table of one GPU and return its claims."""
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
        cells = [mean["loss"], worst, mean["constant"], mean["time_covered"], mean["power_covered"]]
        cells += [mean["time_error"], mean["power_error"]]
        print(f"| {size} | {' | '.join(f'{cell:.1%}' for cell in cells)} | {mean['fit_s']:.1f} s |")
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
        rise = float(np.max(np.diff([means[size]["loss"] for size in sizes])))
        claims.append(claim(f"oracle_few_rows_largest_rise_{name}", rise, "<=0", rise <= 0.0))
    print()
    return claims


if __name__ == "__main__":
    sys.exit(main())
