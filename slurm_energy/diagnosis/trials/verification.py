"""Decision whether an adjustment of a program saves time or energy.

An adjustment is a value that was changed on advice of the diagnosis. Runs with the adjustment are compared
with earlier runs without it.

Times and energies are compared per unit of progress. The unit is a sample if all runs report samples. It is
a step if all runs report steps of the same size. Otherwise it is a whole run. If all runs report how long
they waited for CPUs that other work on the nodes used, the time and energy of these waits are left out. The
logarithm of each ratio is compared with the run-to-run noise. The noise is estimated from the same runs, but
is never taken to be below an assumed minimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from slurm_energy.adjustment import KINDS, Adjustment, AdjustmentKind
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal

MAX_TRIAL_RUNS: Final = 3
"""Number of runs with an adjustment after which a trial is decided, if these can show the predicted gain."""
MAX_NOISY_RUNS: Final = 6
"""Number of runs after which a trial is decided if the noise exceeds the predicted gain."""
ASSUMED_NOISE: Final = 0.02
"""Relative standard deviation of time and energy between runs, assumed before it can be measured."""
_CONTENTION_NOISE: Final = 0.1
"""Additional noise of a run that other work delays all the time. The delay is known only approximately."""
_CONTENTION_BIAS: Final = 0.5
"""Assumed error of the difference that corrections for delays make between the groups, as a fraction of it.

Unlike noise, this error does not shrink with the number of runs: an adjustment may change how much of the
waiting is counted as a delay by other work.
"""
MIN_RUNS_OF_SHORTFALL: Final = 3
"""Minimum number of runs with an adjustment that is kept although it saves much less than predicted."""
_SHORTFALL: Final = 0.5
"""Fraction of the logarithm of the predicted gain below which a saving needs `MIN_RUNS_OF_SHORTFALL` runs."""
_CONFIDENCE: Final = (9.92, 5.84, 4.60, 4.03, 3.71, 3.50)
"""Standard errors by which a significant difference exceeds the noise.

The values are Student's t at 99.5 % for 2 to 7 degrees of freedom. The noise is known from earlier jobs with
two degrees of freedom. Each run beyond the first run of both groups adds one.
"""
_SAME_WORK: Final = 0.02
"""Maximum relative difference of the reported progress of runs that did the same work."""
_SAME_ACTIVITY: Final = 0.1
"""Maximum relative difference of the time to the last activity of such runs, if they report no progress."""
_MIN_OWN: Final = 0.05
"""Minimum fraction of the time and energy of a run that remains after subtracting the delay by other work."""
_MIN_RATIO: Final = 0.01
_MAX_LOG: Final = 700.0
"""The exponential of a larger number exceeds the range of floats. Samples are figures of users."""
_MIN_TAIL: Final = 0.02
"""Minimum idle time at the end of a run, as a fraction, if its time limit did not cut off its work."""
_ENDED_WELL: Final = "COMPLETED"
_TIMED_OUT: Final = "TIMEOUT"


class TrialVerdict(StrEnum):
    """Outcome of a trial of adjusted values for a program: kept, undone, unused or undecided."""

    KEPT = "kept"
    UNDONE = "undone"
    UNUSED = "unused"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Time, energy and progress of one run.

    Attributes:
        job: id of the job.
        state: Slurm's state, such as COMPLETED.
        elapsed_s: duration in seconds.
        energy_joules: energy on all nodes; None if unknown.
        samples, steps: samples and steps of all ranks; None if unknown.
        ranks: processes that reported steps.
        nodes: nodes with a record; 0 if unknown.
        hints: settings that every rank reported alike, by name, such as `num_workers`.
        tail_s: seconds without activity at the end; None if unknown.
        contended_s: seconds by which other work on the nodes delayed the run; None if unknown.
        contended_joules: energy that the run used in the time `contended_s`; None if unknown.
        energy_parts: one text per kind of node: the types of the components whose energy is in
            `energy_joules`, such as `cpu+gpu`. Energies of different parts cannot be compared. Runs that an
            earlier release stored have no texts.
    """

    job: str
    state: str
    elapsed_s: float
    energy_joules: float | None = None
    samples: float | None = None
    steps: float | None = None
    ranks: int = 0
    nodes: int = 0
    hints: Mapping[str, float] = field(default_factory=dict)
    tail_s: float | None = None
    contended_s: float | None = None
    contended_joules: float | None = None
    energy_parts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"hints": dict(self.hints), "energy_parts": list(self.energy_parts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunFigures:
        """Return the figures in an object that `to_json` returned. Unknown keys are ignored."""
        values = {name: data[name] for name in cls.__slots__ if name in data}
        return cls(**values | {"energy_parts": tuple(data.get("energy_parts", ()))})


@dataclass(frozen=True, slots=True)
class TrialDecision:
    """Result of the comparison of runs.

    Attributes:
        verdict: whether the adjustments stay.
        reason: the result in one sentence.
        unit: unit of progress: `sample`, `step` or `run`.
        time_ratio: time per unit with the adjustments, divided by the time per unit before. Known delays by
            other work are left out. None if the runs are not comparable.
        energy_ratio: energy per unit with the adjustments, divided by the energy per unit before; None if
            unknown.
        noise: relative standard error of the ratios.
    """

    verdict: TrialVerdict
    reason: str
    unit: str = ""
    time_ratio: float | None = None
    energy_ratio: float | None = None
    noise: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a JSON object."""
        return {
            "verdict": self.verdict.value,
            "reason": self.reason,
            "unit": self.unit,
            "measured_time_ratio": self.time_ratio,
            "measured_energy_ratio": self.energy_ratio,
            "noise": self.noise,
        }


def decide(
    proposal: AdjustmentProposal,
    before: Sequence[RunFigures],
    after: Sequence[RunFigures],
    slowdown_percent: float,
) -> TrialDecision:
    """Return the decision about a trial: keep its adjustments, undo them, or await a further run.

    Time and energy are per unit of progress.

    The adjustments are kept in two cases. In the first case, the energy fell by more than the noise of the
    runs, and the time rose by at most `slowdown_percent`. In the second case, the time fell by more than the
    noise, and the energy did not rise by more than the noise. A saving that is much smaller than predicted
    may be noise. It therefore counts only after `MIN_RUNS_OF_SHORTFALL` runs.

    The adjustments are undone in two cases. In the first case, the time exceeds the slowdown limit by more
    than the noise. In the second case, the energy rose by more than the noise.

    Otherwise the trial continues, for at most `MAX_TRIAL_RUNS` runs, or `MAX_NOISY_RUNS` while the noise
    exceeds the predicted gain. After these runs, the adjustments are undone. They are undone earlier if
    neither time nor energy fell and the noise is at most the predicted gain.

    Args:
        proposal: the adjustments with their predicted gain.
        before: at least one completed run without the adjustments.
        after: at least one run with the adjustments.
        slowdown_percent: permitted increase of the time per unit.
    """
    if refusal := _refusal(proposal.adjustments, before, after):
        return refusal
    unit, amounts_before, amounts_after = _units(proposal.adjustments, before, after)
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
    return _decision(proposal, unit, times, energies, slowdown_percent, (len(before), len(after)))


def is_unresolved(proposal: AdjustmentProposal, decision: TrialDecision, runs: int) -> bool:
    """Return whether a trial of adjustments stays undecided because its runs vary too much.

    The noise of the runs exceeds the predicted gain.

    Args:
        proposal: the adjustments with their predicted gain.
        decision: result of the comparison.
        runs: number of all compared runs, with and without the adjustments.
    """
    if decision.verdict is not TrialVerdict.UNDECIDED or decision.noise is None:
        return False
    return decision.noise * _confidence(runs) > _log_gain(proposal)


def _confidence(runs: int) -> float:
    """Return how many standard errors a difference between two groups of runs must have to be significant."""
    return _CONFIDENCE[min(max(0, runs - 2), len(_CONFIDENCE) - 1)]


def _log_gain(proposal: AdjustmentProposal) -> float:
    """Return the logarithm of the gain that an adjustment proposal promises.

    The proposal predicts a gain in time and possibly a gain in energy. The larger gain counts.
    """
    ratio = min(proposal.time_ratio, 1.0 if proposal.energy_ratio is None else proposal.energy_ratio)
    return -math.log(max(_MIN_RATIO, ratio))


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
    """Return by how much delays from other work lengthened the runs, as a mean logarithm.

    The value of a run is log(duration without the delays / measured duration). The result is the mean
    over the runs.

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


def _decision(
    proposal: AdjustmentProposal,
    unit: str,
    times: tuple[float, float],
    energies: tuple[float, float] | None,
    slowdown_percent: float,
    counts: tuple[int, int],
) -> TrialDecision:
    time, time_error = times
    energy, energy_error = energies or (0.0, time_error)
    error, confidence, runs = max(time_error, energy_error), _confidence(sum(counts)), counts[1]
    time_error, energy_error = confidence * time_error, confidence * energy_error
    permitted = math.log1p(slowdown_percent / 100)
    saves_energy = energies is not None and energy < -energy_error and time <= permitted
    saves_time = time < -time_error and energy <= energy_error
    ratios = _ratio(time), _ratio(energy) if energies else None
    predicted = _log_gain(proposal)
    saving = max(-energy if saves_energy else 0.0, -time if saves_time else 0.0)
    if 0 < saving < _SHORTFALL * predicted and runs < MIN_RUNS_OF_SHORTFALL:
        reason = f"saves much less per {unit} than predicted: awaits a further run"
        return TrialDecision(TrialVerdict.UNDECIDED, reason, unit, *ratios, error)
    if saves_energy or saves_time:
        text = "uses less energy" if saves_energy else "takes less time"
        return TrialDecision(TrialVerdict.KEPT, f"{text} per {unit} beyond the noise", unit, *ratios, error)
    if time > permitted + time_error:
        reason = f"slower per {unit} than the permitted {slowdown_percent:g} %"
    elif energies is not None and energy > energy_error:
        reason = f"uses more energy per {unit} beyond the noise"
    elif runs >= MAX_NOISY_RUNS or (
        confidence * error <= predicted and (min(time, energy) >= 0 or runs >= MAX_TRIAL_RUNS)
    ):
        reason = f"no saving per {unit} beyond the noise in {runs} {'run' if runs == 1 else 'runs'}"
    else:
        return TrialDecision(
            TrialVerdict.UNDECIDED, "within the noise: awaits a further run", unit, *ratios, error
        )
    return TrialDecision(TrialVerdict.UNDONE, reason, unit, *ratios, error)


def _ratio(logarithm: float) -> float:
    """Return the ratio with a natural logarithm. Ratios beyond the range of floats become finite."""
    return math.exp(max(-_MAX_LOG, min(_MAX_LOG, logarithm)))


def _refusal(
    adjustments: Sequence[Adjustment], before: Sequence[RunFigures], after: Sequence[RunFigures]
) -> TrialDecision | None:
    """Return why a trial of adjustments must end without a comparison of its runs.

    The result is a decision with a reason. It is None if the runs can be compared.
    """
    last = after[-1]
    for adjustment in adjustments:
        hint = KINDS[adjustment.kind].hint
        used = last.hints.get(hint) if hint else None
        if used is not None and used != adjustment.new and used == adjustment.old:
            reason = f"the program reports {hint}={used:g}: it does not use the adjusted value"
            return TrialDecision(TrialVerdict.UNUSED, reason)
    ends_by_limit = any(adjustment.kind is AdjustmentKind.TIME for adjustment in adjustments)
    for run in after:
        if run.state != _ENDED_WELL and not (ends_by_limit and run.state == _TIMED_OUT):
            return TrialDecision(TrialVerdict.UNDONE, f"run {run.job} ended with {run.state}")
    if ends_by_limit and not _same_work(before, after):
        return TrialDecision(TrialVerdict.UNDONE, "nothing shows that the runs did the same work")
    return None


def _same_work(before: Sequence[RunFigures], after: Sequence[RunFigures]) -> bool:
    """Return whether the runs before and after an adjustment did the same amount of work.

    The amounts are the same if the progress of all runs is about equal. If no run reports progress, two
    conditions must hold instead. The active times of all runs must be about equal, and each run must end
    with some idle time.
    """
    amounts = [run.samples or run.steps for run in (*before, *after)]
    known = [amount for amount in amounts if amount]
    if known:
        return len(known) == len(amounts) and max(known) / min(known) <= 1 + _SAME_WORK
    active = [run.elapsed_s - run.tail_s for run in (*before, *after) if run.tail_s]
    if len(active) < len(amounts) or min(active) <= 0:
        return False
    return max(active) / min(active) <= 1 + _SAME_ACTIVITY and all(
        (run.tail_s or 0.0) >= _MIN_TAIL * run.elapsed_s for run in after
    )


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
    Return None if the energy of a run with the adjustments is unknown or covers other components.
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
