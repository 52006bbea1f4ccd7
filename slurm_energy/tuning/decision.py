"""Choice of what a job tries next during tuning.

There are three possible actions: the job tries an operating point (settings of the hardware) for a short
time (probe), keeps an operating point (hold), or returns to the untuned point. The choice is based on an
ensemble of possible responses of the job, weighted by measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slurm_energy.tuning.ensemble import Array, EnsemblePosterior
from slurm_energy.tuning.objective import Objective

MARGIN = 0.01
"""Excess over the slowdown limit, or loss of the objective, that must be improbable."""
MAX_HOLD_RISK = 0.02
STAY_MARGIN = 0.002
CATCH_UP_SHARE = 0.5
"""Largest slowdown of a held point, as a share of the limit, while the whole job is above its limit."""
MAX_LOSS_RISK = 0.05
MAX_PROBE_RISK = 0.8
MIN_GAIN = 0.005
"""Smallest expected improvement of the objective over the untuned job that is worth a setting. On some GPUs
the best limit saves only 1 to 2 %."""
SWITCH_GAIN = 0.003
"""Smallest expected improvement over the point in force for which another measured point is held."""
PROBE_GAIN = 0.002
"""Smallest expected gain of a probe. The gain is an average over samples of which most gain nothing."""
SMALL_LOSS = 0.05
"""Expected loss, in windows, that a probe with an expected gain may bring even if the budget is used up."""
SMALL_LOSS_SHARE = 0.0025
"""Upper bound of `SMALL_LOSS` as a share of the rest of the job."""
LARGE_LOSS = 0.15
"""Maximum expected loss of a probe, in windows, unless it has the least expected loss of all probes: the
search goes down in steps."""
PROBE_WINDOWS = 2.0
"""Duration of a probe in windows: a setting takes effect within a second or two, at the end of a step."""


@dataclass(frozen=True, slots=True)
class PointDecision:
    """Decision about the next operating point.

    Attributes:
        index: index of the chosen candidate point.
        probe: whether the point needs measurements before the job may stay at this point.
    """

    index: int
    probe: bool


@dataclass(frozen=True, slots=True)
class Situation:
    """State of a search for an operating point. The next point is chosen from this state.

    A probe is a measurement of a point that is not measured yet.

    Attributes:
        current: index of the point in force.
        visited: indices of the measured points.
        excluded: indices of the points that the hardware refused, and of the points that have been measured
            in the maximum number of measurement windows.
        refuted: indices of the points whose own measurements show a loss or a broken limit. The measurements
            of a point count even if no sample of the prior (the ensemble) agrees with them, for example
            because figures of earlier runs are wrong.
        may_probe: whether points that are not measured yet may be tried.
        remaining_windows: expected number of measurement windows until the end of the job.
        max_time_ratio: maximum expected time of a probe relative to the untuned job. The time that the job
            may still lose under its slowdown limit determines this maximum.
        run_slowdown: slowdown of the whole job so far, relative to the untuned job, the time lost in probes
            included. While this exceeds the slowdown limit, only points that bring it down quickly are kept.
        max_loss: maximum expected relative loss of the objective in the measurement window of a probe. This
            maximum applies only to objectives without a slowdown limit.
    """

    current: int
    visited: frozenset[int]
    excluded: frozenset[int] = frozenset()
    refuted: frozenset[int] = frozenset()
    may_probe: bool = True
    remaining_windows: float = 20.0
    max_time_ratio: float = math.inf
    run_slowdown: float = 0.0
    max_loss: float = math.inf


def decide(posterior: EnsemblePosterior, objective: Objective, situation: Situation) -> PointDecision:
    """Decide which operating point the search measures next, or keeps.

    A measured point may be kept if it improves the objective and is unlikely to exceed the slowdown limit.
    Any other point is worth a probe (a short trial) on one condition: its possible gain until the end of the
    job exceeds the possible loss during the probe.

    Args:
        posterior: weighted ensemble; index 0 is the untuned point.
        objective: objective with its slowdown limit.
        situation: the state of the search.
    """
    current, excluded = situation.current, [0, *situation.excluded]
    cost = posterior.mean_cost(objective)
    cost[0] = 1.0
    log_time = posterior.mean_log_time()
    known = np.zeros(len(cost), dtype=bool)
    known[list(situation.visited)] = True
    safe, possible = _safety(posterior, objective, log_time, current)
    holdable = (cost < 1.0 - MIN_GAIN) & known & safe
    holdable[list(situation.refuted)] = False
    if objective.slowdown_limit is not None and _is_over_limit(objective.slowdown_limit, situation):
        holdable &= log_time <= math.log1p(objective.slowdown_limit * CATCH_UP_SHARE)
    holdable[0] = True
    hold = _least(cost, holdable)
    if holdable[current] and current != 0 and cost[hold] > cost[current] * (1.0 - SWITCH_GAIN):
        hold = current
    open_points = possible & (log_time <= math.log(situation.max_time_ratio)) & ~(known & safe)
    if not situation.may_probe:
        open_points &= known
    open_points[[*excluded, *situation.refuted]] = False
    if objective.slowdown_limit is None:
        loss = posterior.expected_change(objective, 1.0)[1]
        most = min(situation.max_loss, LARGE_LOSS)
        small = min(SMALL_LOSS, SMALL_LOSS_SHARE * situation.remaining_windows)
        allowed = np.where(cost < 1.0 - MIN_GAIN, max(most, small), most)
        nearest = _least(loss, open_points)
        allowed[nearest] = max(allowed[nearest], situation.max_loss)  # no smaller step is possible
        open_points &= PROBE_WINDOWS * loss <= allowed
    gain, loss = posterior.expected_change(objective, float(cost[hold]))
    value = np.where(
        open_points, gain * max(situation.remaining_windows - PROBE_WINDOWS, 0.0) - PROBE_WINDOWS * loss, 0.0
    )
    probe = int(value.argmax())
    if value[probe] > 0 and gain[probe] > PROBE_GAIN * cost[hold]:
        return PointDecision(probe, probe=True)
    return PointDecision(hold, probe=False)


def _is_over_limit(limit: float, situation: Situation) -> bool:
    """Return whether the whole job has lost more time than its slowdown limit permits."""
    # A job at a tuned point stays there until it is clearly over the limit, so that noise does not move it.
    margin = 0.0 if situation.current == 0 else STAY_MARGIN
    return situation.run_slowdown > limit + margin


def _safety(
    posterior: EnsemblePosterior, objective: Objective, log_time: Array, current: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return two masks over the operating points (settings) that tell at which the job may be tuned.

    The first mask is true for points at which the job may stay. The second mask is true for points that are
    worth a further measurement, because the measurement may show that they are safe.
    """
    if objective.slowdown_limit is None:
        risk = posterior.cost_exceedance(objective, 1.0 + MARGIN)
        return risk <= MAX_LOSS_RISK, risk < 1.0
    limit = objective.slowdown_limit
    risk = posterior.time_exceedance(1.0 + limit + MARGIN)
    within = log_time <= math.log1p(limit)
    # The point in force stays until it is clearly over the limit, so that noise does not move the job.
    within[current] = log_time[current] <= math.log1p(limit + STAY_MARGIN)
    return within & (risk <= MAX_HOLD_RISK), risk <= MAX_PROBE_RISK


def _least(cost: Array, allowed: npt.NDArray[np.bool_]) -> int:
    return int(np.where(allowed, cost, np.inf).argmin())
