"""Choice of the settings (operating point) for the next run of a recurring job.

The choice uses the measurements of earlier runs.

The prior is a set of hypotheses. Each hypothesis is a complete response of the job: the log ratios of time
and power to the untuned job at every candidate operating point. Measurements change the weights of the
hypotheses, and correct their values at the measured points.

A new operating point is tried on two conditions: it respects the slowdown limit, and the expected saving in
later runs exceeds the cost of the trial.

The module is pure: it has no clock and no storage. All random numbers come from the caller's generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.log_response import conditioned, exceedance
from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective
from slurm_energy.tuning.program_measurement import ProgramMeasurement, after_drift
from slurm_energy.tuning.trial_saving import trial_savings

Floats = NDArray[np.float64]

_DISCREPANCY_SHARE: Final = 0.12
"""Deviation of a real job from the best hypothesis as a share of the spread of all hypotheses."""
_CORRELATION_LENGTH: Final = 0.12


@dataclass(frozen=True, slots=True)
class RecurrenceOptions:
    """Constants for the choice of the operating point of the next run of a program.

    An operating point is a set of hardware settings. A hypothesis is a possible response of the program
    to these settings. A violation is a slowdown that exceeds the user's limit by more than `tolerance`.

    Attributes:
        min_discrepancy: minimum standard deviation of a real job's log ratio from the log ratio of the
            best hypothesis.
        max_violation: probability of a violation up to which a point may always be tried.
        violation_rate: permitted fraction of runs with a violation among all runs of a program. If fewer
            violations than permitted were expected so far, the next run may have a probability above
            `max_violation`. More points can then be explored. On random GPUs, violations are about five
            times as frequent as expected, because the run time of some programs rises suddenly between a
            measured limit and the next lower limit. The goal is 1 % of the runs.
        max_risk: probability of a violation that no run may exceed, even if `violation_rate` would permit
            more.
        max_excess: maximum probability that the slowdown exceeds the limit at all.
        tolerance: slowdown above the limit that counts as a violation; 0.01 is one percentage point.
        min_later_runs: minimum number of later runs that are assumed to use the result of a run. A
            program that has run more often is expected to run as often again.
        max_excess_cost: maximum relative excess of a point's cost over the minimum expected cost. Only
            points within this limit are tried. The point's cost is its expected cost plus one standard
            deviation, because real jobs may slow down more steeply than hypotheses.
        max_second_step: maximum relative reduction of the expected power from the first run to the
            second. Without an untuned run, the first run does not show how steeply the time rises. The
            time of some jobs increases sharply below a power limit that no hypothesis predicts.
        equal_cost: trials whose net costs differ by at most this fraction count as equally good. Thompson
            sampling chooses among them.
        min_gain: minimum expected relative saving at a point other than the untuned point.
    """

    min_discrepancy: float = 0.01
    max_violation: float = 0.0015
    violation_rate: float = 0.0015
    max_risk: float = 0.01
    max_excess: float = 0.25
    tolerance: float = 0.01
    min_later_runs: int = 5
    max_excess_cost: float = 0.2
    max_second_step: float = 0.15
    equal_cost: float = 0.005
    min_gain: float = 0.002


class PriorResponses(Protocol):
    """Hypotheses about how a job responds to settings, as a prior for tuning.

    There are K hypotheses and J candidate points (combinations of settings). `ensemble.Ensemble` implements
    this interface.

    Attributes:
        points: the candidate points, J. The untuned point is among them.
        log_time: natural logarithm of the time ratio, shape (K, J); 0 at the untuned point.
        log_power: natural logarithm of the power ratio, shape (K, J).
        log_weights: unnormalised logarithms of the weights, shape (K,).
    """

    points: tuple[OperatingPoint, ...]
    log_time: NDArray[Any]
    log_power: NDArray[Any]
    log_weights: NDArray[Any]


@dataclass(frozen=True, slots=True)
class PointChoice:
    """The operating point of the next run.

    Attributes:
        point: operating point of the next run.
        exploration: whether the point differs from the point with minimum expected cost.
        violation: probability that the slowdown exceeds the limit by more than the tolerance; 0 without a
            limit.
        cost: expected cost relative to the untuned job, see `Objective.cost`.
    """

    point: OperatingPoint
    exploration: bool
    violation: float
    cost: float


class RecurrencePosterior:
    """Probability distribution of a program's response to settings, after measurements of its runs.

    The distribution consists of K hypotheses about the response, each with a probability.

    Args:
        prior: hypotheses before the measurements.
        measurements: measurements. Measurements at points that are no candidates are ignored.
        options: constants for the choice of operating points.

    Attributes:
        points: the J candidate points.
        weights: probability of each hypothesis, shape (K,).
        log_time, log_power: conditional means under each hypothesis, shape (K, J).
        counts: number of runs at each candidate point, shape (J,). A point measured within a run counts
            once.
    """

    def __init__(
        self,
        prior: PriorResponses,
        measurements: Sequence[ProgramMeasurement],
        options: RecurrenceOptions | None = None,
    ) -> None:
        self._options = options or RecurrenceOptions()
        self.points = prior.points
        index = {point: position for position, point in enumerate(prior.points)}
        self._used = [one for one in measurements if one.point in index]
        self._at = np.array([index[one.point] for one in self._used], np.int64)
        self._untuned = index.get(UNTUNED)
        runs = [one.count if one.scale is not None else 1 for one in self._used]
        self.counts = np.bincount(self._at, np.array(runs), minlength=len(prior.points)).astype(np.int64)
        time = ([one.time for one in self._used], [one.time_error for one in self._used])
        power = ([one.power for one in self._used], [one.power_error for one in self._used])
        log_times, log_powers = prior.log_time.astype(np.float64), prior.log_power.astype(np.float64)
        weights = _normalized(prior.log_weights)
        distances = _distances(weights @ log_times, weights @ log_powers)
        correlation = np.exp(-0.5 * distances / _CORRELATION_LENGTH**2)
        scales = [one.scale for one in self._used]
        self._time, time_likelihood = conditioned(
            log_times, self._deviation(weights, log_times, correlation), self._at, *time, scales
        )
        self._power, power_likelihood = conditioned(
            log_powers, self._deviation(weights, log_powers, correlation), self._at, *power, scales
        )
        self.log_time, self.log_power = self._time.means, self._power.means
        self.weights = _normalized(prior.log_weights + time_likelihood + power_likelihood)

    def _deviation(self, weights: Floats, samples: Floats, correlation: Floats) -> Floats:
        """Return how much a real job may deviate from the best hypothesis, as a covariance.

        The result has the shape (J, J) for J operating points.

        Args:
            weights: probability of each hypothesis, shape (K,).
            samples: log ratios of the hypotheses, shape (K, J).
            correlation: correlation of the deviations, shape (J, J).
        """
        spread = np.sqrt(np.maximum(weights @ samples**2 - (weights @ samples) ** 2, 0.0))
        sd = self._options.min_discrepancy + _DISCREPANCY_SHARE * spread
        if self._untuned is not None:
            sd[self._untuned] = 0.0  # the ratio of the untuned job to itself
        return np.asarray(correlation * sd[:, None] * sd[None, :])

    @property
    def time_sd(self) -> Floats:
        """Standard deviation of the logarithm of the time ratio at each operating point, shape (J,).

        The time ratio is the run time divided by that of the untuned job. The standard deviation is
        conditional: it holds if one hypothesis about the job's response is true. It is the same for all
        hypotheses.
        """
        return np.sqrt(self._time.variances)

    @property
    def power_sd(self) -> Floats:
        """Standard deviation of the logarithm of the power ratio at each operating point, shape (J,).

        The power ratio is the power divided by that of the untuned job. The standard deviation is
        conditional: it holds if one hypothesis about the job's response is true. It is the same for all
        hypotheses.
        """
        return np.sqrt(self._power.variances)

    def expected_costs(self, objective: Objective) -> Floats:
        """Return the expected cost of each operating point for the objective, shape (J,).

        The cost is relative to that of the untuned job.
        """
        exponent = TIME_EXPONENTS[objective.name]
        variance = (exponent * self.time_sd) ** 2 + self.power_sd**2
        logs = exponent * self.log_time + self.log_power + 0.5 * variance
        return np.asarray(self.weights @ np.exp(logs))

    def cost_sd(self, objective: Objective) -> Floats:
        """Return the standard deviation of the job's cost at each operating point, shape (J,).

        The cost is the objective divided by its value for the untuned job.
        """
        exponent = TIME_EXPONENTS[objective.name]
        costs = np.exp(exponent * self.log_time + self.log_power)
        mean = self.weights @ costs
        relative = (exponent * self.time_sd) ** 2 + self.power_sd**2
        return np.asarray(np.sqrt(self.weights @ (costs - mean) ** 2 + mean**2 * relative))

    def exceedance(self, log_ratio: float) -> Floats:
        """Return the probability, for each point, that the slowdown exceeds a bound, shape (J,).

        The slowdown is the time relative to the untuned job. The bound is exp(`log_ratio`).
        """
        return exceedance(self.weights, self.log_time, self._time.variances, log_ratio)

    def allowed(self, objective: Objective) -> NDArray[np.bool_]:
        """Return for each operating point whether it keeps the slowdown limit, shape (J,).

        An operating point is allowed only if a violation of the limit is improbable enough.
        """
        mask = np.ones(len(self.points), np.bool_)
        limit = objective.slowdown_limit
        if limit is not None:
            options = self._options
            violations = self.exceedance(math.log1p(limit + options.tolerance))
            mask = violations <= max(options.max_violation, self._risk_budget(violations))
            mask &= self.exceedance(math.log1p(limit)) <= options.max_excess
        if self._untuned is not None:
            mask[self._untuned] = True
        return mask

    def within_reach(self) -> NDArray[np.bool_]:
        """Return the mask of the operating points that the next run may use, shape (J,).

        The power must not fall too far from the first tuned run to the second. If exactly one tuned run has
        been made so far, the predicted power of the next point must be at most `max_second_step` below the
        predicted power at the point of that run. In all other cases all points are permitted.
        """
        first = int(np.argmax(self.counts))
        if self.counts.sum() != 1 or first == self._untuned or self._used[-1].scale is None:
            return np.ones(len(self.points), np.bool_)
        log_power = self.weights @ self.log_power
        return np.asarray(log_power >= log_power[first] + math.log1p(-self._options.max_second_step))

    def _risk_budget(self, violations: Floats) -> float:
        """Return the maximum permitted probability of a violation in the next run of the job.

        A violation is a run that exceeds the slowdown limit by more than the tolerance. A fixed fraction of
        the runs may be violations (`RecurrenceOptions.violation_rate`). This fraction times the number of
        runs, including the next run, is the permitted number of violations. The sum of the probabilities of a
        violation in all earlier runs is subtracted from this number. The rest is the permitted probability of
        a violation in the next run. The result is never above `RecurrenceOptions.max_risk`.

        Args:
            violations: probability of a violation at each operating point, shape (J,).
        """
        options, runs = self._options, int(self.counts.sum())
        left = options.violation_rate * (runs + 1) - float(self.counts @ violations)
        return min(options.max_risk, left)

    def trial_costs(
        self, objective: Objective, expected: Floats, best: int, random: np.random.Generator
    ) -> Floats:
        """Return the net cost of running a program next at each operating point, shape (J,).

        An operating point is a set of hardware settings. A run at a new operating point shows how the program
        responds to it. This knowledge can save energy or time in later runs. The net cost is the expected
        cost of the next run minus the expected saving in later runs.

        Args:
            objective: objective with its slowdown limit.
            expected: expected cost of each point, shape (J,); infinite for a point that is not allowed.
            best: index of the point at which all later runs are assumed to run without a further trial.
            random: generator of possible results.

        Returns:
            The net costs; infinite for points that are too expensive to try.
        """
        options = self._options
        tried = expected + self.cost_sd(objective) <= expected[best] * (1.0 + options.max_excess_cost)
        tried[best] = True
        savings = trial_savings(
            self.weights,
            self._time,
            self._power,
            TIME_EXPONENTS[objective.name],
            best,
            np.flatnonzero(tried),
            lambda *after: self._allowed_costs(objective, *after),
            random,
        )
        later_runs = max(options.min_later_runs, int(self.counts.sum()))
        return np.where(tried, expected - later_runs * savings, np.inf)

    def _allowed_costs(
        self, objective: Objective, weights: Floats, log_time: Floats, variances: Floats, costs: Floats
    ) -> Floats:
        """Return the costs of operating points, with infinite cost for points that are not allowed.

        An operating point is not allowed if it would probably break the slowdown limit. The probability is
        computed for each possible result of a trial, see `AfterTrial`.
        """
        limit, options = objective.slowdown_limit, self._options
        if limit is None:
            return costs
        violations = exceedance(weights, log_time, variances, math.log1p(limit + options.tolerance))
        above = exceedance(weights, log_time, variances, math.log1p(limit))
        allowed = (violations <= options.max_violation) & (above <= options.max_excess)
        return np.where(allowed, costs, np.inf)

    def sample_costs(self, objective: Objective, random: np.random.Generator) -> Floats:
        """Draw one random response of the job and return its cost at each operating point, shape (J,)."""
        hypothesis = int(random.choice(len(self.weights), p=self.weights))
        time = self.log_time[hypothesis] + _draw(self._time.covariance, random)
        power = self.log_power[hypothesis] + _draw(self._power.covariance, random)
        return np.asarray(np.exp(TIME_EXPONENTS[objective.name] * time + power))


def _normalized(log_weights: NDArray[Any]) -> Floats:
    """Return weights with the sum 1 from logarithms of weights."""
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def _distances(log_time: Floats, log_power: Floats) -> Floats:
    """Return the squared distances between all pairs of operating points, shape (J, J).

    The distance of two points is computed from the differences of their expected logarithms of time and of
    power.
    """
    return np.asarray(
        (log_time[:, None] - log_time[None, :]) ** 2 + (log_power[:, None] - log_power[None, :]) ** 2
    )


def _draw(covariance: Floats, random: np.random.Generator) -> Floats:
    """Draw from a multivariate normal distribution with mean 0. The covariance may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors @ (np.sqrt(np.maximum(values, 0.0)) * random.standard_normal(len(values))))


def choose_point(
    posterior: RecurrencePosterior,
    objective: Objective,
    random: np.random.Generator,
    *,
    explore: bool = True,
    options: RecurrenceOptions | None = None,
) -> PointChoice:
    """Choose the operating point of the next run.

    Without exploration, the allowed point with the minimum expected cost is chosen. With exploration, the
    point with the minimum net cost is chosen. The net cost is the cost of the next run minus the saving
    that is expected in later runs, because these runs can use the result of the next run. If several
    points have nearly the same net cost, a response is drawn from the posterior (Thompson sampling). The
    point with the minimum cost under this response is then chosen.

    Args:
        posterior: distribution of the job's response.
        objective: objective with its slowdown limit.
        random: generator of random numbers; with a seed the choice is reproducible.
        explore: whether exploration is allowed. The caller passes False while another run of the same job
            explores.
        options: constants for the choice of operating points.
    """
    options = options or RecurrenceOptions()
    allowed = posterior.allowed(objective) & posterior.within_reach()
    expected = posterior.expected_costs(objective)
    expected = np.where(allowed, expected, np.inf)
    best = int(np.argmin(expected))
    untuned = next((i for i, point in enumerate(posterior.points) if point == UNTUNED), None)
    if untuned is not None and allowed[untuned] and expected[best] > 1.0 - options.min_gain:
        best = untuned
    chosen = best
    if explore:
        net = posterior.trial_costs(objective, expected, best, random)
        equal = net <= net.min() + options.equal_cost
        sampled = np.where(equal, posterior.sample_costs(objective, random), np.inf)
        chosen = int(np.argmin(sampled))
    violation = 0.0
    if objective.slowdown_limit is not None:
        violation = float(
            posterior.exceedance(math.log1p(objective.slowdown_limit + options.tolerance))[chosen]
        )
    return PointChoice(posterior.points[chosen], chosen != best, violation, float(expected[chosen]))


class RecurringJob:
    """A recurring job: its measurements so far, and the operating point of its next run.

    For each job that starts, senergyctld builds an object from its stored runs. A replay calls `next_point`
    and `record` in turn, once per run:

        >>> job = RecurringJob(prior, Objective("edp"), np.random.default_rng(1))
        >>> for _ in range(10):
        ...     choice = job.next_point()
        ...     seconds, watts = run_at(choice.point)
        ...     job.record(ProgramMeasurement(choice.point, seconds, watts, scale="whole runs"))

    Some runs measure several points and compare each of them with their own untuned reference. Such a run is
    recorded as one measurement per point, with ratios and without a scale.

    Args:
        prior: assumed responses before any measurement; an `Ensemble` for this hardware and for the power
            that the job draws.
        objective: objective with its slowdown limit.
        random: generator of random numbers.
        measurements: measurements of earlier runs in the order of time.
        options: constants for the choice of operating points.
    """

    def __init__(
        self,
        prior: PriorResponses,
        objective: Objective,
        random: np.random.Generator,
        measurements: Sequence[ProgramMeasurement] = (),
        options: RecurrenceOptions | None = None,
    ) -> None:
        self._prior, self._objective, self._random = prior, objective, random
        self._options = options or RecurrenceOptions()
        self._measurements = after_drift(measurements)

    @property
    def measurements(self) -> tuple[ProgramMeasurement, ...]:
        """The measurements since the program last changed its behaviour (drift)."""
        return self._measurements

    @property
    def posterior(self) -> RecurrencePosterior:
        """Probability distribution of the job's response to settings, given its measurements so far."""
        return RecurrencePosterior(self._prior, self._measurements, self._options)

    def record(self, *measurements: ProgramMeasurement) -> None:
        """Add the measurements of a run to those of the recurring job.

        If the new measurements show that the program has changed, the earlier measurements are dropped.
        """
        self._measurements = after_drift((*self._measurements, *measurements))

    def next_point(self, *, explore: bool = True) -> PointChoice:
        """Choose the operating point of the next run, see `choose_point`."""
        return choose_point(
            self.posterior, self._objective, self._random, explore=explore, options=self._options
        )
