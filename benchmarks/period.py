"""Benchmark of period detection on random power series.

For each family of series it reports the fraction of series with a detected period, the worst error, and the
wrong periods. A detected period is wrong if it differs from the true step by 5 % or more, or if the series
has no single period.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
from claims import Claim, at_most, publish
from power_series import FITTED, HELD_OUT, Family, PowerSeries, sample

from slurm_energy.tuning.progress.period import detect_period

MOST_ERROR = 0.05
MOST_WRONG = 0.001
MOST_WRONG_REGULAR = 0.0
"""Regular sampling cannot exclude aliases of steps without any jitter. No period is therefore accepted."""


def judge(series: PowerSeries) -> tuple[float | None, str]:
    """Detect the period of a test series of power whose true period is known.

    Return the relative error of the detected period, and a reason. The error is infinite if a period was
    detected although the series has none. If no period was detected, the error is None and the second
    element of the result is the reason. Otherwise the second element is empty.
    """
    detection = detect_period(series.times_s, series.watts)
    if detection.period is None:
        return None, detection.reason
    return series.error_of(detection.period.seconds), ""


def row(name: str, held_out: bool, family: Family, count: int, seed: int, **sampling: Any) -> dict[str, Any]:
    """Return the benchmark result for one family of random power series.

    The result states how often a period was detected, and which detected periods are wrong.
    """
    errors, reasons, wrong = [], Counter[str](), []
    for index in range(count):
        rng = np.random.default_rng([seed, index, hash_of(name), int(sampling["hertz"])])
        error, reason = judge(sample(rng, family, **sampling))
        if error is None:
            reasons[reason] += 1
        else:
            errors.append(error)
            if error >= MOST_ERROR:
                wrong.append(index)
    right = [error for error in errors if error < MOST_ERROR]
    return {
        "family": name,
        "held_out": held_out,
        **sampling,
        "series": count,
        "detected": len(errors) / count,
        "none": 1 - len(errors) / count,
        "worst_right": max(right, default=None),
        "wrong": wrong,
        "reasons": dict(reasons),
    }


def hash_of(name: str) -> int:
    """Return a number that depends only on the name. It serves as a seed of random numbers."""
    return int.from_bytes(name.encode()[:7], "little")


def milliseconds() -> float:
    """Return the CPU time of one period detection in milliseconds.

    The result is the median over 50 power series of 60 s with 10 samples per second.
    """
    rng = np.random.default_rng(1)
    series = [sample(rng, FITTED["plain"], 10.0, regular=False) for _ in range(50)]
    spent = []
    for one in series:
        start = time.process_time()
        detect_period(one.times_s[:600], one.watts[:600])
        spent.append(time.process_time() - start)
    return 1e3 * float(np.median(spent))


def main() -> int:
    """Evaluate the period detection on all families of random power series.

    The function prints one row of results per family and way of sampling. It returns the exit status, which
    states whether all targets of the benchmark are met.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100, help="series per row (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fitted", action="store_true", help="only the families that fixed the constants")
    parser.add_argument("--verbose", action="store_true", help="print why no period was accepted")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    families = [(name, False, family) for name, family in FITTED.items()]
    if not args.fitted:
        families += [(name, True, family) for name, family in HELD_OUT.items()]
    rows = []
    print(f"{'family':<18} {'Hz':>4} {'sampling':<9} {'detected':>8} {'none':>6} {'worst':>7} {'wrong':>5}")
    for hertz in (1.0, 10.0):
        for regular in (True, False):
            for name, held_out, family in families:
                for short in (False, True) if name in ("plain", "slow_sensor") else (False,):
                    sampling = {"hertz": hertz, "regular": regular, "short": short}
                    found = row(name, held_out, family, args.series, args.seed, **sampling)
                    rows.append(found)
                    show(found, args.verbose)
    spent_ms = milliseconds()
    claims = [
        share_of_wrong(
            "all families, irregular sampling", [row for row in rows if not row["regular"]], MOST_WRONG
        ),
        share_of_wrong(
            "all families, regular sampling", [row for row in rows if row["regular"]], MOST_WRONG_REGULAR
        ),
        share_of_wrong(
            "held-out families, irregular sampling",
            [row for row in rows if row["held_out"] and not row["regular"]],
            MOST_WRONG,
        ),
        at_most("period/milliseconds of a detection on 60 s at 10 Hz", spent_ms, 5),
    ]
    claims[0]["rows"] = rows
    return publish(claims, args.json)


def share_of_wrong(name: str, rows: list[dict[str, Any]], most: float) -> Claim:
    """Return the benchmark's claim that few periods of synthetic programs are detected wrongly.

    A claim is a result that is compared with a target. The result is the number of wrong periods per
    series. The target is at most `most`.

    Args:
        name: name of the group of series, for the name of the claim.
        rows: results of the benchmark.
        most: the target.
    """
    series, wrong = sum(row["series"] for row in rows), sum(len(row["wrong"]) for row in rows)
    return {**at_most(f"period/wrong periods, {name}", wrong / max(1, series), most), "series": series}


def show(found: dict[str, Any], verbose: bool) -> None:
    """Print the results of one family of power series as one line of the benchmark's table."""
    name = found["family"] + ("/short" if found["short"] else "") + ("*" if found["held_out"] else "")
    worst = "-" if found["worst_right"] is None else f"{found['worst_right']:.2%}"
    sampling = "regular" if found["regular"] else "irregular"
    print(
        f"{name:<18} {found['hertz']:>4g} {sampling:<9} {found['detected']:>8.0%} {found['none']:>6.0%} "
        f"{worst:>7} {len(found['wrong']):>5}",
        flush=True,
    )
    if verbose:
        print("    ", found["reasons"], "wrong:", found["wrong"][:12])


if __name__ == "__main__":
    sys.exit(main())
