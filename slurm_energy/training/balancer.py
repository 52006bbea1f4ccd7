"""Shares of a global batch that follow the measured time and power of each rank. Pure.

The program passes the measurements of all ranks at the end of each window of a few steps. All ranks compute
the same decision from the same measurements with IEEE operations, so that the decision needs no message.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.training.exchange_estimate import ExchangeEstimate
from slurm_energy.training.rank_window import RankWindow
from slurm_energy.training.shares import ExchangeCost, RankCost, Split, divide, equal, predict
from slurm_energy.training.step_record import StepRecord, scale
from slurm_energy.training.step_time import StepTimeFit

_MIN_GAIN: Final = 0.03
"""Relative gain below which the shares stay, because each change disturbs caches and measurements."""
_MIN_GAIN_OF_OTHER_RANKS: Final = 0.04
"""The same if ranks pause or resume. It grows by the same amount with each return to a set of ranks, so that
noise of the measurements does not alternate between two sets forever."""
_COLD_WINDOWS: Final = 1
"""Windows after a change of the ranks whose exchanges do not count: TCP starts new connections slowly."""
_MIN_WARM_WINDOWS: Final = 2
"""Windows without cold ones before the set of ranks may change again."""
_MAX_GROWTH: Final = 2.0
"""Maximum exponent with which times are extrapolated to more samples than a rank has computed."""
_POWER_WINDOWS: Final = 5
_MIN_IDLE_WINDOW_S: Final = 0.5
"""Shorter readings of a counter that is updated at intervals tell no power."""
_MIN_BUSY_SHARE: Final = 0.1
"""A window in which a rank computed for a smaller part of the time does not tell its busy power."""


@dataclass(slots=True)
class _Power:
    """Power of one rank: idle power, and busy power of the last windows."""

    idle_watts: float | None
    busy_watts: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=_POWER_WINDOWS)
    )

    def add(self, window: RankWindow) -> None:
        """Take the power from a window. Energy below that of the idle rank counts as idle power."""
        if window.joules is None or window.window_s <= 0:
            return
        if window.samples == 0:
            if window.window_s < _MIN_IDLE_WINDOW_S:
                return
            self.idle_watts = window.joules / window.window_s
            return
        busy_s = min(window.window_s, window.busy_s * window.steps)
        if self.idle_watts is None or busy_s < _MIN_BUSY_SHARE * window.window_s:
            return
        waiting_joules = self.idle_watts * (window.window_s - busy_s)
        self.busy_watts.append(max(self.idle_watts, (window.joules - waiting_joules) / busy_s))


class Balancer:
    """Shares of the ranks, re-evaluated after each window.

    Args:
        ranks: number of ranks.
        global_batch: samples of a step on all ranks together.
        goal: `time`, `energy` or `edp`, see `shares.divide`.
        max_slowdown: accepted relative increase of the time with the goal `energy`.
        exchange: cost of the exchange of gradients, measured at the start.
        idle_watts: power of each waiting rank, measured at the start; None if unknown.
        may_pause: whether ranks may get no samples.

    Attributes:
        samples: current samples of each rank in a step.
        predicted: prediction for the current samples; None before all ranks are measured.
    """

    def __init__(
        self,
        ranks: int,
        global_batch: int,
        goal: str,
        max_slowdown: float,
        exchange: ExchangeCost,
        idle_watts: Sequence[float | None],
        *,
        may_pause: bool = True,
    ) -> None:
        self._global_batch, self._goal, self._max_slowdown = global_batch, goal, max_slowdown
        self._may_pause = may_pause
        self._exchange = ExchangeEstimate(exchange)
        self._record = StepRecord()
        self._windows_of_set = 0
        self._growth = 1.0
        self._fits = [StepTimeFit() for _ in range(ranks)]
        self._powers = [_Power(watts) for watts in idle_watts]
        self.samples = equal(ranks, global_batch)
        self.predicted: Split | None = None

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """Ranks whose power is unknown, so that the goal is time."""
        return tuple(rank for rank, power in enumerate(self._powers) if power.idle_watts is None)

    @property
    def changes(self) -> int:
        """Number of lasting changes of the speed of ranks that were detected."""
        return sum(fit.changes for fit in self._fits)

    def add(self, windows: Sequence[RankWindow]) -> bool:
        """Add the measurements of all ranks for one window, and decide on the shares.

        Args:
            windows: one window of each rank, with the current shares.

        Returns:
            Whether the shares have changed.
        """
        for rank, window in enumerate(windows):
            self._add_window(rank, window)
        self._windows_of_set += 1
        if self._windows_of_set > _COLD_WINDOWS:
            self._exchange.add(windows)
            self._record.add(self.samples, max(window.step_s for window in windows if window.samples))
            for count in self._record.expire():
                self._exchange.forget(count)
        costs = self.costs()
        if costs is None:
            return False
        correct = self._correction(costs)
        current = correct(predict(self.samples, costs, self.exchange))
        best = self._best(costs, correct)
        if best.active != current.active and self._windows_of_set < _COLD_WINDOWS + _MIN_WARM_WINDOWS:
            best = self._best_of_same_ranks(costs, current.active)
        if not self._is_better(best, current):
            self.predicted = current
            return False
        if best.active != current.active:
            self._record.enter(best.active)
            self._windows_of_set = 0
        self.samples, self.predicted = best.samples, best
        return True

    @property
    def is_probe_due(self) -> bool:
        """Whether the exchange should be measured again, because not all ranks take part in it."""
        paused = sum(1 for count in self.samples if not count)
        return self._may_pause and paused > 0 and self._exchange.is_probe_due

    def add_probe(self, exchange: ExchangeCost, seconds: float) -> None:
        """Take a new measurement of the exchange. If it has changed, sets of ranks may be tried again.

        Args:
            exchange: measured cost, equal on all ranks.
            seconds: duration of the measurement, equal on all ranks.
        """
        if self._exchange.renew(exchange, seconds):
            self._record.forget(lambda active: len(active) > 1)

    def costs(self) -> list[RankCost] | None:
        """Return the measured cost of a step on each rank; None while a rank is not measured."""
        result = []
        for fit, power in zip(self._fits, self._powers, strict=True):
            if fit.sample_s is None:
                return None
            busy_watts = statistics.median(power.busy_watts) if power.busy_watts else None
            result.append(RankCost(fit.fixed_s, fit.sample_s, busy_watts, power.idle_watts))
        return result

    @property
    def exchange(self) -> ExchangeCost:
        """Cost of the exchange that the computation does not hide, scaled to the observed steps."""
        return self._exchange.cost

    def to_json(self) -> dict[str, Any]:
        """Return the shares and fits for a checkpoint; they hold for the same ranks only."""
        return {"samples": list(self.samples), "fits": [fit.to_json() for fit in self._fits]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the shares and fits of a checkpoint if its ranks and its batch are the same."""
        samples = tuple(int(count) for count in state["samples"])
        if len(samples) == len(self.samples) and sum(samples) == self._global_batch:
            self.samples = samples
            self._fits = [StepTimeFit.from_json(fit) for fit in state["fits"]]

    def _add_window(self, rank: int, window: RankWindow) -> None:
        fit, power = self._fits[rank], self._powers[rank]
        if window.samples and window.busy_s > 0 and fit.add(window.samples, window.busy_s):
            power.busy_watts.clear()  # a cap or another program changes the power as well
            self._record.forget(lambda active: rank in active)
        power.add(window)

    def _best(self, costs: Sequence[RankCost], correct: Callable[[Split], Split]) -> Split:
        return divide(
            costs,
            self._global_batch,
            self._goal,
            exchange=self.exchange,
            max_slowdown=self._max_slowdown,
            may_pause=self._may_pause,
            correct=correct,
        )

    def _best_of_same_ranks(self, costs: Sequence[RankCost], active: tuple[int, ...]) -> Split:
        """Return the best division among the ranks that compute now."""
        split = divide(
            [costs[rank] for rank in active],
            self._global_batch,
            self._goal,
            exchange=self.exchange,
            max_slowdown=self._max_slowdown,
            may_pause=False,
        )
        samples = [0] * len(costs)
        for rank, count in zip(active, split.samples, strict=True):
            samples[rank] = count
        return self._correction(costs)(predict(samples, costs, self.exchange))

    def _correction(self, costs: Sequence[RankCost]) -> Callable[[Split], Split]:
        """Return a function that corrects predictions by measurements, or for more samples than measured.

        Ranks run the same program: if the time grows faster than the samples on one, it does so on others.
        """
        measured = self._record.correction(costs, self.exchange)
        known = [fit.growth for fit in self._fits if fit.growth is not None]
        if known:
            self._growth = min(_MAX_GROWTH, max(1.0, statistics.median(known)))

        def correct(split: Split) -> Split:
            if split.active in self._record:
                return measured(split)
            beyond = max(
                count / max(1, fit.largest) for fit, count in zip(self._fits, split.samples, strict=True)
            )
            return scale(split, max(1.0, beyond) ** (self._growth - 1))

        return correct

    def _is_better(self, best: Split, current: Split) -> bool:
        if best.samples == current.samples:
            return False
        gain = _MIN_GAIN
        if best.active != current.active:
            gain = _MIN_GAIN_OF_OTHER_RANKS * (1 + self._record.returns(best.active))
        if self._goal == "time" or best.step_joules is None or current.step_joules is None:
            return best.step_s * (1 + gain) < current.step_s
        if self._goal == "edp":
            return best.step_joules * best.step_s * (1 + gain) < current.step_joules * current.step_s
        is_too_slow = current.step_s > best.step_s * (1 + gain) and math.isfinite(current.step_s)
        return is_too_slow or best.step_joules * (1 + gain) < current.step_joules
