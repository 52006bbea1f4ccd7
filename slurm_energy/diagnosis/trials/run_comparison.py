"""Comparison of the time and energy of two groups of runs, per unit of progress.

The unit is a sample if all runs report samples. It is a step if all runs report steps of the same size.
Otherwise it is a whole run. If all runs report how long they waited for CPUs that other work on the nodes
used, the time and energy of these waits are left out. The noise is estimated from the same runs, but is never
taken to be below an assumed minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from slurm_energy.adjustment import Adjustment, AdjustmentKind
from slurm_energy.diagnosis.trials.run_figures import RunFigures

ASSUMED_NOISE: Final = 0.02
"""Relative standard deviation of time and energy between runs, assumed before it can be measured."""
_CONTENTION_NOISE: Final = 0.1
"""Additional noise of a run that other work delays all the time. The delay is known only approximately."""
_CONTENTION_BIAS: Final = 0.5
"""Assumed error of the difference that corrections for delays make between the groups, as a fraction of it.

Unlike noise, this error does not shrink with the number of runs: an adjustment may change how much of the
waiting is counted as a delay by other work.
"""
_MIN_OWN: Final = 0.05
"""Minimum fraction of the time and energy of a run that remains after subtracting the delay by other work."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Differences between runs with and without adjustments.

    Each difference is the mean logarithm of the values with the adjustments minus that of the values without
    them, and the standard error of this difference.

    Attributes:
        unit: unit of progress: `sample`, `step` or `run`.
        time: difference of the times per unit.
        energy: difference of the energies per unit; None if it is unknown.
    """

    unit: str
    time: tuple[float, float]
    energy: tuple[float, float] | None


def compare_runs(
    adjustments: Sequence[Adjustment], before: Sequence[RunFigures], after: Sequence[RunFigures]
) -> RunComparison:
    """Compare the time and energy of runs without and with adjustments.

    Args:
        adjustments: the changed values.
        before: at least one run without the adjustments.
        after: at least one run with the adjustments.
    """
    unit, amounts_before, amounts_after = _units(adjustments, before, after)
    noise = _assumed_noise((*before, *after))
    own_before, own_after = _without_contention(before, after)
    bias = _CONTENTION_BIAS * abs(_mean_correction(before, own_before) - _mean_correction(after, own_after))
    times = _log_ratio(
        [run.elapsed_s / amount for run, amount in zip(own_before, amounts_before, strict=True)],
        [run.elapsed_s / amount for run, amount in zip(own_after, amounts_after, strict=True)],
        noise,
        bias,
    )
    energies = _energy_log_ratio(own_before, amounts_before, own_after, amounts_after, noise, bias)
    return RunComparison(unit, times, energies)


def _assumed_noise(runs: Sequence[RunFigures]) -> float:
    """Return the noise that is assumed between runs, as a relative standard deviation.

    The noise is higher if other work on the nodes delayed the runs.
    """
    shares = [min(1.0, (run.contended_s or 0.0) / run.elapsed_s) for run in runs if run.elapsed_s > 0]
    contention = math.fsum(shares) / len(shares) if shares else 0.0
    return ASSUMED_NOISE + _CONTENTION_NOISE * contention


def _without_contention(
    before: Sequence[RunFigures], after: Sequence[RunFigures]
) -> tuple[Sequence[RunFigures], Sequence[RunFigures]]:
    """Return the runs without the delays that other work on the same nodes caused.

    The delay of each run is subtracted from its time. If the energy of the delay is known for all runs, it
    is subtracted from the energy of each run. If the delay of any run is unknown, all runs are returned
    unchanged.
    """
    if any(run.contended_s is None for run in (*before, *after)):
        return before, after
    with_energy = all(run.contended_joules is not None for run in (*before, *after))
    first, last = ([_undelayed(run, with_energy=with_energy) for run in runs] for runs in (before, after))
    return first, last


def _mean_correction(runs: Sequence[RunFigures], corrected: Sequence[RunFigures]) -> float:
    """Return how much shorter the runs are without delays by other work, as a mean logarithm.

    The value of a run is log(duration without the delays / measured duration), which is at most 0. The result
    is the mean over the runs.

    Args:
        runs: the runs as measured.
        corrected: the same runs without delays by other work on the nodes.
    """
    logs = [
        math.log(own.elapsed_s / run.elapsed_s) if run.elapsed_s > 0 else 0.0
        for run, own in zip(runs, corrected, strict=True)
    ]
    return math.fsum(logs) / len(logs)


def _undelayed(run: RunFigures, *, with_energy: bool) -> RunFigures:
    elapsed_s = max(_MIN_OWN * run.elapsed_s, run.elapsed_s - (run.contended_s or 0.0))
    joules = run.energy_joules
    if joules is not None and with_energy:
        joules = max(_MIN_OWN * joules, joules - (run.contended_joules or 0.0))
    return replace(run, elapsed_s=elapsed_s, energy_joules=joules)


def _units(
    adjustments: Sequence[Adjustment], before: Sequence[RunFigures], after: Sequence[RunFigures]
) -> tuple[str, list[float], list[float]]:
    """Return the unit in which the progress of runs is compared, and the units of each run.

    The unit is, for example, `sample`. It is `run` if the runs do not report comparable progress.
    """
    runs = (*before, *after)
    amounts: list[float] = [1.0] * len(runs)
    unit = "run"
    samples = [run.samples for run in runs if run.samples]
    steps = [run.steps for run in runs if run.steps]
    same_steps = not any(adjustment.kind is AdjustmentKind.BATCH_SIZE for adjustment in adjustments)
    if len(samples) == len(runs):
        unit, amounts = "sample", samples
    elif len(steps) == len(runs) and same_steps and len({run.ranks for run in runs}) == 1:
        unit, amounts = "step", steps
    return unit, amounts[: len(before)], amounts[len(before) :]


def _energy_log_ratio(
    before: Sequence[RunFigures],
    amounts_before: Sequence[float],
    after: Sequence[RunFigures],
    amounts_after: Sequence[float],
    assumed_noise: float,
    bias: float,
) -> tuple[float, float] | None:
    """Return the logarithm of the energy with adjustments divided by the energy without them.

    The standard error of the logarithm is returned as the second value. Runs without the adjustments are
    compared only if their energy covers the same components as that of the last run with the adjustments.
    Return None if the energy of a run with the adjustments is unknown or covers other components, or if no
    run without the adjustments can be compared.
    """
    parts = after[-1].energy_parts
    old, new = (
        [
            run.energy_joules / amount
            for run, amount in zip(runs, amounts, strict=True)
            if run.energy_joules and run.energy_parts == parts
        ]
        for runs, amounts in ((before, amounts_before), (after, amounts_after))
    )
    return _log_ratio(old, new, assumed_noise, bias) if old and len(new) == len(after) else None


def _log_ratio(
    before: Sequence[float], after: Sequence[float], assumed_noise: float, bias: float
) -> tuple[float, float]:
    """Return how much two groups of runs differ: the mean log ratio, and its standard error.

    The log ratio is the mean logarithm of the values `after` minus that of the values `before`. The
    variance of the logarithms is estimated from the scatter within both groups.

    Args:
        before: values of the runs in the first group, for example times.
        after: values of the runs in the second group.
        assumed_noise: minimum of the standard deviation of the logarithms.
        bias: part of the standard error that more runs do not reduce.
    """
    groups = [[math.log(value) for value in group] for group in (before, after)]
    means = [math.fsum(group) / len(group) for group in groups]
    squares = math.fsum(
        (value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group
    )
    freedom = len(before) + len(after) - len(groups)
    variance = max(assumed_noise**2, squares / freedom if freedom else 0.0)
    error = math.hypot(math.sqrt(variance * (1 / len(before) + 1 / len(after))), bias)
    return means[1] - means[0], error
