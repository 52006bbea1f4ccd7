"""Division of a batch among ranks of unequal speed that minimises time, energy or their product.

These functions do no I/O. A rank that computes n samples in a training step needs `fixed_s + sample_s * n`
seconds. A step ends when the last rank has computed and the gradients are exchanged. A rank draws its busy
power while it computes and its idle power in the rest of the training step. Ranks without samples draw idle
power, because the job still holds their nodes. Sources: postdoc (static and dynamic power on heterogeneous
clusters); DAHL, section 2.3 (static energy plus dynamic energy times use); ring allreduce: 2 (k - 1) messages
of 1/k of the gradients each.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError

GOALS: Final = ("time", "energy", "edp")
_ALL_SUBSETS_UP_TO: Final = 8
"""Up to this number of ranks all subsets are tried; above, only the best ranks in several orders."""
_ALL_DEADLINES_UP_TO: Final = 1024
"""Up to this product of ranks and samples every possible end of the slowest rank is tried."""


@dataclass(frozen=True, slots=True)
class RankCost:
    """Cost of a training step on one rank: time and power.

    Attributes:
        fixed_s: seconds of a step that do not depend on the number of samples.
        sample_s: seconds per sample, above 0.
        busy_watts: power while the rank computes; None if unknown.
        idle_watts: power while the rank waits; None if unknown.
    """

    fixed_s: float
    sample_s: float
    busy_watts: float | None = None
    idle_watts: float | None = None

    def seconds(self, samples: int) -> float:
        """Return the time in seconds that a rank needs for a training step with `samples` samples.

        The result is 0 without samples.
        """
        return self.fixed_s + self.sample_s * samples if samples else 0.0


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Part of the time of a gradient exchange that is not hidden behind computation.

    Attributes:
        message_s: seconds per message of the ring of ranks, mainly latency.
        volume_s: seconds to send all gradients once at the bandwidth of a link.
    """

    message_s: float = 0.0
    volume_s: float = 0.0

    def seconds(self, ranks: int) -> float:
        """Return the seconds of an exchange among this number of ranks; 0 for one rank."""
        return 2 * (ranks - 1) * (self.message_s + self.volume_s / ranks) if ranks > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """A division of the global batch, and the predicted time and energy of a training step.

    Attributes:
        samples: samples of each rank in a step; 0 for a rank that pauses.
        step_s: predicted seconds of a step.
        step_joules: predicted joules of a step on all ranks; None if a power is unknown.
    """

    samples: tuple[int, ...]
    step_s: float
    step_joules: float | None

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that get at least one sample of the batch."""
        return tuple(rank for rank, count in enumerate(self.samples) if count)


def predict(samples: Sequence[int], costs: Sequence[RankCost], exchange: ExchangeCost) -> Split:
    """Predict the time and the energy of a training step for a given division of the samples.

    Args:
        samples: samples of each rank.
        costs: cost of a step on each rank.
        exchange: cost of the exchange of gradients.
    """
    busy = [cost.seconds(count) for cost, count in zip(costs, samples, strict=True)]
    step_s = max(busy) + exchange.seconds(sum(1 for count in samples if count))
    joules: float | None = 0.0
    for cost, seconds in zip(costs, busy, strict=True):
        watts = _watts(cost)
        joules = None if joules is None or watts is None else joules + watts[1] * step_s + watts[0] * seconds
    return Split(tuple(samples), step_s, joules)


def divide(
    costs: Sequence[RankCost],
    global_batch: int,
    goal: str = "time",
    *,
    exchange: ExchangeCost = ExchangeCost(),
    max_slowdown: float = 0.1,
    may_pause: bool = True,
) -> Split:
    """Return the best division of a global batch among the ranks.

    A rank may get no samples if the goal is reached better without this rank. If the power of a rank is
    unknown, the goal is time. For up to 8 ranks and small batches, the result is the optimum of the model
    for integer samples. For more ranks, not all subsets of ranks are tried. For larger batches, not all
    durations of a step are tried.

    Args:
        costs: cost of a step on each rank.
        global_batch: samples of a step on all ranks together.
        goal: `time`: least time of a step. `energy`: least energy of steps that take at most `1 +
            max_slowdown` times the least time. `edp`: least product of energy and time.
        exchange: cost of the exchange of gradients.
        max_slowdown: accepted relative increase of the time with the goal `energy`.
        may_pause: whether ranks may get no samples; otherwise each gets at least one.

    Raises:
        UsageError: no ranks, no samples, an unknown goal, or a cost that is negative or not a number.
    """
    _check(costs, global_batch, goal, max_slowdown)
    fewest = 1 if may_pause else min(len(costs), global_batch)
    if may_pause:
        splits = (_earliest(subset, costs, global_batch, exchange) for subset in _subsets(costs))
        fastest = min(splits, key=lambda split: (split.step_s, len(split.active)))
    else:
        fastest = _earliest_of_all(costs, global_batch, exchange)
    if goal == "time" or fastest.step_joules is None:
        return fastest
    limit_s = fastest.step_s * (1 + max_slowdown) if goal == "energy" else math.inf
    thrifty = (
        split for split in _thrifty(costs, global_batch, exchange, limit_s) if len(split.active) >= fewest
    )
    candidates = itertools.chain([fastest], thrifty)
    return min(candidates, key=_rating(goal))


def equal(ranks: int, global_batch: int) -> tuple[int, ...]:
    """Divide the global batch equally. The samples of two ranks differ by at most one.

    Args:
        ranks: number of ranks.
        global_batch: samples of all ranks together.
    """
    return tuple(global_batch // ranks + (rank < global_batch % ranks) for rank in range(ranks))


def scaled(samples: Sequence[int], total: int) -> tuple[int, ...]:
    """Divide the samples of a smaller batch among the ranks.

    The smaller batch has fewer samples than the usual batch, whose division is `samples`. Each rank gets
    about the same fraction of both batches. The largest-remainder method rounds the numbers of samples.

    Args:
        samples: samples of each rank in the usual batch; their sum is above 0.
        total: samples of the smaller batch.
    """
    whole = sum(samples)
    result = [count * total // whole for count in samples]
    by_remainder = sorted(range(len(samples)), key=lambda rank: (-(samples[rank] * total % whole), rank))
    for rank in by_remainder[: total - sum(result)]:
        result[rank] += 1
    return tuple(result)


def _check(costs: Sequence[RankCost], global_batch: int, goal: str, max_slowdown: float) -> None:
    if goal not in GOALS:
        raise UsageError(f"goal '{goal}'", "unknown", f"one of {', '.join(GOALS)}")
    if not costs or global_batch < 1:
        raise UsageError("division of a batch", "needs at least one rank and one sample")
    if not 0 <= max_slowdown < math.inf:
        raise UsageError(
            f"max_slowdown {max_slowdown}", "is invalid", "0 or more; 0.1 accepts 10 % more time"
        )
    for rank, cost in enumerate(costs):
        numbers = [cost.fixed_s, cost.busy_watts or 0.0, cost.idle_watts or 0.0]
        valid = all(math.isfinite(number) and number >= 0 for number in numbers)
        if not valid or not 0 < cost.sample_s < math.inf:
            raise UsageError(f"cost of rank {rank}", "a number is negative, infinite or not a number")


def _watts(cost: RankCost) -> tuple[float, float] | None:
    """Return the power above idle while a rank computes, and the idle power; None if either is unknown."""
    if cost.busy_watts is None or cost.idle_watts is None:
        return None
    return max(0.0, cost.busy_watts - cost.idle_watts), cost.idle_watts


def _subsets(costs: Sequence[RankCost]) -> Iterator[tuple[int, ...]]:
    """Yield the sets of ranks that are candidates for sharing the batch."""
    ranks = range(len(costs))
    if len(costs) <= _ALL_SUBSETS_UP_TO:
        for size in range(1, len(costs) + 1):
            yield from itertools.combinations(ranks, size)
        return
    orders: list[Callable[[int], float]] = [
        lambda rank: costs[rank].sample_s,
        lambda rank: costs[rank].fixed_s + costs[rank].sample_s,
        lambda rank: costs[rank].sample_s * (_watts(costs[rank]) or (1.0, 0.0))[0],
    ]
    seen = set()
    for order in orders:
        best_first = sorted(ranks, key=order)
        for size in range(1, len(costs) + 1):
            subset = tuple(sorted(best_first[:size]))
            if subset not in seen:
                seen.add(subset)
                yield subset


def _earliest(subset: Sequence[int], costs: Sequence[RankCost], total: int, exchange: ExchangeCost) -> Split:
    """Return the division among the ranks of `subset` that minimises the end of the slowest rank.

    If samples could be divided, all ranks would end at the same time. First, each rank gets the whole samples
    that it completes by this time. Each remaining sample goes to the rank that would complete this sample
    first.
    """
    deadline_s = _equal_finish(subset, costs, total)
    samples = [0] * len(costs)
    for rank in subset:
        samples[rank] = min(total, _capacity(costs[rank], deadline_s * (1 - 1e-9)))
    queue = [(costs[rank].seconds(samples[rank] + 1), rank) for rank in subset]
    heapq.heapify(queue)
    for _ in range(total - sum(samples)):
        _, rank = queue[0]
        samples[rank] += 1
        heapq.heapreplace(queue, (costs[rank].seconds(samples[rank] + 1), rank))
    return predict(samples, costs, exchange)


def _earliest_of_all(costs: Sequence[RankCost], total: int, exchange: ExchangeCost) -> Split:
    """Return the division of the samples among the ranks with which the slowest rank ends earliest.

    A rank is a process of the training. If possible, each rank has at least one sample.
    """
    samples = list(_earliest(range(len(costs)), costs, total, exchange).samples)
    for rank, count in enumerate(samples):
        largest = max(range(len(samples)), key=samples.__getitem__)
        if not count and samples[largest] > 1:
            samples[largest] -= 1
            samples[rank] = 1
    return predict(samples, costs, exchange)


def _equal_finish(ranks: Sequence[int], costs: Sequence[RankCost], total: int) -> float:
    """Return the time at which all ranks end together when they divide `total` samples.

    All ranks (processes of the training) start together. A training step of a rank takes a fixed time,
    plus a time per sample. A rank gets no samples if its fixed time alone is longer than the returned
    time.
    """
    best = math.inf
    rate = offset = 0.0
    for rank in sorted(ranks, key=lambda rank: costs[rank].fixed_s):
        if costs[rank].fixed_s >= best:
            break
        rate += 1 / costs[rank].sample_s
        offset += costs[rank].fixed_s / costs[rank].sample_s
        best = (total + offset) / rate
    return best


def _capacity(cost: RankCost, deadline_s: float) -> int:
    """Return the number of samples that a rank of a training can process before a deadline."""
    return max(0, math.floor((deadline_s - cost.fixed_s) / cost.sample_s * (1 + 1e-12)))


def _thrifty(
    costs: Sequence[RankCost], total: int, exchange: ExchangeCost, limit_s: float
) -> Iterator[Split]:
    """Yield divisions of a training batch among the ranks that may be the most efficient ones.

    Each division keeps the time limit of a step and may need the least energy or energy-delay product. For a
    given subset of ranks and a given deadline of a step, energy is linear in the samples. The ranks with the
    lowest energy per sample are therefore filled first, up to the deadline.
    """
    for subset in _subsets(costs):
        order = sorted(subset, key=lambda rank: costs[rank].sample_s * (_watts(costs[rank]) or (0.0, 0.0))[0])
        for deadline_s in _deadlines(order, costs, total):
            if deadline_s + exchange.seconds(1) > limit_s * (1 + 1e-12):
                continue
            samples = _filled(order, costs, total, deadline_s)
            if samples is None:
                continue
            split = predict(samples, costs, exchange)
            if split.step_s <= limit_s * (1 + 1e-12):
                yield split


def _filled(
    order: Sequence[int], costs: Sequence[RankCost], total: int, deadline_s: float
) -> list[int] | None:
    """Divide samples among ranks so that each rank ends before a deadline.

    The first rank in the given order gets as many samples as it can compute until the deadline. The next
    rank gets as many as possible of the remaining samples, and so on.

    Return the number of samples of each rank. Return None if the ranks together cannot compute all samples.
    """
    samples, left = [0] * len(costs), total
    for rank in order:
        samples[rank] = min(left, _capacity(costs[rank], deadline_s))
        left -= samples[rank]
    return None if left else samples


def _deadlines(order: Sequence[int], costs: Sequence[RankCost], total: int) -> Iterator[float]:
    """Yield the times at which the slowest rank of a training step may finish, as candidates.

    Such a time is called a deadline. The search for the best division of the samples among the ranks
    tries each candidate. For a given deadline, the ranks get samples in `order`, each as many as it can
    process before the deadline. With an earlier deadline, more samples go to the later ranks in `order`.

    The energy of a step is a convex and piecewise linear function of the deadline. Its slope changes only
    at certain deadlines: those at which the first j ranks in `order` can just process all samples.
    Between two of these deadlines, the product of energy and time is a parabola. The candidates between
    them form a grid, so that one candidate is near the vertex of the parabola.
    """
    if len(order) * total <= _ALL_DEADLINES_UP_TO:
        for rank in order:
            yield from (costs[rank].seconds(count) for count in range(1, total + 1))
        return
    points = sorted({_equal_finish(order[:count], costs, total) for count in range(1, len(order) + 1)})
    yield points[-1]
    for start, end in itertools.pairwise(points):
        for part in range(8):
            point = start + (end - start) * part / 8
            # The next time after the point at which each rank completes a sample: all samples still fit.
            for rank in order[:_ALL_SUBSETS_UP_TO]:
                yield costs[rank].seconds(_capacity(costs[rank], point) + 1)


def _rating(goal: str) -> Callable[[Split], tuple[float, float]]:
    def rate(split: Split) -> tuple[float, float]:
        joules = split.step_joules if split.step_joules is not None else math.inf
        return (joules, split.step_s) if goal == "energy" else (joules * split.step_s, split.step_s)

    return rate
