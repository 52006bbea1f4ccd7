"""Decision whether an adjustment of a program saves time or energy.

An adjustment is a value that was changed on advice of the diagnosis. Runs with the adjustment are compared
with earlier runs without it.

Times and energies are compared per unit of progress. The logarithm of each ratio is compared with the
run-to-run noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from slurm_energy.adjustment import KINDS, Adjustment, AdjustmentKind
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal
from slurm_energy.diagnosis.trials.run_comparison import RunComparison, compare_runs
from slurm_energy.diagnosis.trials.run_figures import RunFigures

MAX_TRIAL_RUNS: Final = 3
"""Number of runs with an adjustment after which a trial is decided, if these can show the predicted gain."""
MAX_NOISY_RUNS: Final = 6
"""Number of runs after which a trial is decided if the noise exceeds the predicted gain."""
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
    comparison = compare_runs(proposal.adjustments, before, after)
    return _decision(proposal, comparison, slowdown_percent, (len(before), len(after)))


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


def _decision(
    proposal: AdjustmentProposal,
    comparison: RunComparison,
    slowdown_percent: float,
    counts: tuple[int, int],
) -> TrialDecision:
    unit, energies = comparison.unit, comparison.energy
    time, time_error = comparison.time
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
