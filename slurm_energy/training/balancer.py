"""Division of a global batch among ranks.

The division is adapted to the measured time and power of each rank.

The module does no I/O. The training program passes the measurements of all ranks at the end of each
measurement window, which lasts a few training steps. All ranks compute the same decision from the same
measurements with IEEE operations. They therefore need no message to agree.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.training.shares import ExchangeCost, RankCost, Split, divide, equal, predict
from slurm_energy.training.step_time import StepTimeFit

_MIN_GAIN: Final = 0.05
"""Relative gain below which the shares stay, because each change disturbs caches and measurements."""
_MIN_GAIN_OF_OTHER_RANKS: Final = 0.08
"""The same if ranks pause or resume, which rebuilds the process group."""
_MIN_EXCHANGE_S: Final = 1e-3
_EXCHANGE_FACTORS: Final = (0.1, 10.0)
_POWER_WINDOWS: Final = 5
_MIN_IDLE_WINDOW_S: Final = 0.5
"""Shorter readings of a counter that is updated at intervals tell no power."""
_MIN_BUSY_SHARE: Final = 0.1
"""Minimum fraction of a window that a rank must compute for a valid measurement of its busy power."""


@dataclass(frozen=True, slots=True)
class RankWindow:
    """Measurements of one rank in a window of training steps.

    The batch division is constant in the window.

    Attributes:
        samples: samples of the rank in a step; 0 if the rank paused.
        busy_s: median, over the steps, of the seconds in which the rank computed.
        step_s: median duration of a step in seconds, including the exchange of gradients.
        window_s: duration of the window in seconds.
        steps: steps in the window.
        joules: energy of the rank in the window; None if unknown.
    """

    samples: int
    busy_s: float
    step_s: float
    window_s: float
    steps: int
    joules: float | None


@dataclass(slots=True)
class _Power:
    """Power of one rank while it waits (idle power), and while it computes.

    The power while it computes comes from the last measurement windows.
    """

    idle_watts: float | None
    busy_watts: collections.deque[float] = field(
        default_factory=lambda: collections.deque(maxlen=_POWER_WINDOWS)
    )

    def add(self, window: RankWindow) -> None:
        """Update the rank's idle power or busy power from one measurement window.

        A window in which the rank processed no samples gives the idle power. Any other window gives the busy
        power. For this, the energy of the waiting time at idle power is subtracted from the energy of the
        window. The rest is divided by the busy time.
        """
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
    """Division of the global batch among the ranks, which is computed again after each measurement window.

    Args:
        ranks: number of ranks.
        global_batch: samples of a training step on all ranks together.
        goal: quantity to minimise: `time`, `energy` or `edp`, see `shares.divide`.
        max_slowdown: accepted relative increase of the time with the goal `energy`.
        exchange: time of the exchange of gradients, measured at the start.
        idle_watts: power of each waiting rank, measured at the start; None if unknown.
        may_pause: whether some ranks may get no samples.

    Attributes:
        samples: current number of samples of each rank in a training step.
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
        self._exchange, self._may_pause = exchange, may_pause
        self._exchange_factors: collections.deque[float] = collections.deque(maxlen=_POWER_WINDOWS)
        self._fits = [StepTimeFit() for _ in range(ranks)]
        self._powers = [_Power(watts) for watts in idle_watts]
        self.samples = equal(ranks, global_batch)
        self.predicted: Split | None = None

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """Ranks of the training whose power is unknown.

        Until the power of all ranks is known, the batch is divided for the shortest time.
        """
        return tuple(rank for rank, power in enumerate(self._powers) if power.idle_watts is None)

    @property
    def changes(self) -> int:
        """Number of detected lasting changes of the speed of ranks."""
        return sum(fit.changes for fit in self._fits)

    def add(self, windows: Sequence[RankWindow]) -> bool:
        """Add the measurements of one window, and decide how the batch is divided among the ranks.

        Args:
            windows: measurements of the window, one for each rank, in the order of the ranks. They were
                taken with the current division of the batch.

        Returns:
            Whether the number of samples of any rank has changed.
        """
        for fit, power, window in zip(self._fits, self._powers, windows, strict=True):
            if window.samples and window.busy_s > 0 and fit.add(window.samples, window.busy_s):
                power.busy_watts.clear()  # a cap or another program changes the power as well
            power.add(window)
        self._add_exchange(windows)
        costs = self.costs()
        if costs is None:
            return False
        exchange = self.exchange
        best = divide(
            costs,
            self._global_batch,
            self._goal,
            exchange=exchange,
            max_slowdown=self._max_slowdown,
            may_pause=self._may_pause,
        )
        current = predict(self.samples, costs, exchange)
        self.predicted = current
        if not self._is_better(best, current):
            return False
        self.samples, self.predicted = best.samples, best
        return True

    def costs(self) -> list[RankCost] | None:
        """Return the measured time and power that a training step costs on each rank (process).

        None is returned until every rank has been measured.
        """
        result = []
        for fit, power in zip(self._fits, self._powers, strict=True):
            if fit.sample_s is None:
                return None
            busy_watts = statistics.median(power.busy_watts) if power.busy_watts else None
            result.append(RankCost(fit.fixed_s, fit.sample_s, busy_watts, power.idle_watts))
        return result

    @property
    def exchange(self) -> ExchangeCost:
        """Expected time of the exchange of gradients that is not hidden behind computation.

        The time that was measured at the start is scaled to the times of exchanges that were observed in
        training steps.
        """
        factor = statistics.median(self._exchange_factors) if self._exchange_factors else 1.0
        return ExchangeCost(self._exchange.message_s * factor, self._exchange.volume_s * factor)

    def to_json(self) -> dict[str, Any]:
        """Return the state of the balancer for a checkpoint, as a dict for JSON.

        The state is the division of the batch among the ranks, and the fitted step time of each rank. It is
        valid only for a run with the same ranks.
        """
        return {"samples": list(self.samples), "fits": [fit.to_json() for fit in self._fits]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the division of the batch among the ranks, and the fitted speeds of the ranks.

        The values come from a checkpoint. They are restored only if the checkpoint has the same number of
        ranks and the same batch size.
        """
        samples = tuple(int(count) for count in state["samples"])
        if len(samples) == len(self.samples) and sum(samples) == self._global_batch:
            self.samples = samples
            self._fits = [StepTimeFit.from_json(fit) for fit in state["fits"]]

    def _add_exchange(self, windows: Sequence[RankWindow]) -> None:
        """Record how long an exchange of gradients takes, relative to the duration measured at the start.

        The exchange is the part of a training step in which no rank computes. The method computes its
        duration from the measurements of the ranks. It records the duration divided by the duration at the
        start. A very short exchange is not recorded.

        Args:
            windows: measurements of all ranks.
        """
        active = [window for window in windows if window.samples]
        expected_s = self._exchange.seconds(len(active))
        if expected_s < _MIN_EXCHANGE_S:
            return
        exposed_s = max(window.step_s for window in active) - max(window.busy_s for window in active)
        low, high = _EXCHANGE_FACTORS
        self._exchange_factors.append(min(high, max(low, exposed_s / expected_s)))

    def _is_better(self, best: Split, current: Split) -> bool:
        if best.samples == current.samples:
            return False
        gain = _MIN_GAIN if best.active == current.active else _MIN_GAIN_OF_OTHER_RANKS
        if self._goal == "time" or best.step_joules is None or current.step_joules is None:
            return best.step_s * (1 + gain) < current.step_s
        if self._goal == "edp":
            return best.step_joules * best.step_s * (1 + gain) < current.step_joules * current.step_s
        is_too_slow = current.step_s > best.step_s * (1 + gain) and math.isfinite(current.step_s)
        return is_too_slow or best.step_joules * (1 + gain) < current.step_joules
