"""Cost of the exchange of gradients, from measurements without computation and from training steps. Pure."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence
from typing import Final

from slurm_energy.training.rank_window import RankWindow
from slurm_energy.training.shares import ExchangeCost

_WINDOWS: Final = 5
_MIN_EXCHANGE_S: Final = 1e-3
_RATIOS: Final = (0.1, 10.0)
_CHANGE: Final = 1.25
"""A measurement that differs from the previous one by this factor shows another network load."""
_MAX_PROBE_SHARE: Final = 0.02
"""Part of the training time that repeated measurements of the exchange may take."""


class ExchangeEstimate:
    """Exchange cost by number of ranks.

    The exchange is measured without computation. In training steps the computation hides a part of it. The
    rest is observed for the numbers of ranks that have computed and gives a factor for each of them; other
    numbers get the factor of the nearest one.

    Args:
        probed: cost of an exchange without computation.
    """

    def __init__(self, probed: ExchangeCost) -> None:
        self._probed = probed
        self._ratios: dict[int, collections.deque[float]] = {}
        self._hidden: collections.deque[float] = collections.deque(maxlen=_WINDOWS)
        self._since_probe_s = 0.0
        self._probe_s = 0.0

    @property
    def cost(self) -> ExchangeCost:
        """Cost of the exchange in training steps."""
        probed = self._probed
        counts = sorted({*self._ratios, *(count for count, _ in probed.factors)})
        factors = tuple((count, probed.factor(count) * self._ratio(count)) for count in counts)
        return ExchangeCost(probed.message_s, probed.volume_s, factors, self._hidden_share)

    @property
    def is_probe_due(self) -> bool:
        """Whether the training has lasted long enough since the last measurement for another one."""
        return self._since_probe_s * _MAX_PROBE_SHARE >= max(self._probe_s, _MIN_EXCHANGE_S)

    def add(self, windows: Sequence[RankWindow]) -> None:
        """Compare the part of the steps in which all ranks wait with the expected one.

        Args:
            windows: one window of each rank.
        """
        active = [window for window in windows if window.samples]
        self._since_probe_s += max(window.window_s for window in active)
        slowest = max(active, key=lambda window: window.busy_s)
        if len(active) < 2 or slowest.busy_s <= 0:
            return
        self._hidden.append(min(1.0, max(0.0, slowest.overlap_s / slowest.busy_s)))
        last_s, whole_s = self._probed.ring_seconds(len(active))
        if whole_s < _MIN_EXCHANGE_S:
            return
        exposed_s = max(0.0, max(window.step_s for window in active) - slowest.busy_s)
        # The factor for which the cost equals the observation: see `ExchangeCost.seconds`.
        factor = (exposed_s + self._hidden_share * slowest.busy_s) / whole_s
        if last_s > 0:
            factor = min(factor, exposed_s / last_s)
        low, high = _RATIOS
        ratios = self._ratios.setdefault(len(active), collections.deque(maxlen=_WINDOWS))
        ratios.append(min(high, max(low, factor / self._probed.factor(len(active)))))

    def forget(self, ranks: int) -> None:
        """Remove the observations of training steps of a number of ranks."""
        self._ratios.pop(ranks, None)

    def renew(self, probed: ExchangeCost, seconds: float) -> bool:
        """Take a new measurement without computation.

        Args:
            probed: measured cost of an exchange.
            seconds: duration of the measurement.

        Returns:
            Whether the exchange has changed, so that observations of steps no longer hold.
        """
        self._since_probe_s, self._probe_s = 0.0, seconds
        largest = max((count for count, _ in probed.factors), default=2)
        before_s, now_s = self._probed.seconds(largest), probed.seconds(largest)
        if max(before_s, now_s) < _MIN_EXCHANGE_S or 1 / _CHANGE <= now_s / max(before_s, 1e-9) <= _CHANGE:
            return False
        self._probed = probed
        self._ratios.clear()
        return True

    @property
    def _hidden_share(self) -> float:
        return statistics.median(self._hidden) if self._hidden else 0.0

    def _ratio(self, count: int) -> float:
        if not self._ratios:
            return 1.0
        nearest = min(self._ratios, key=lambda known: (abs(known - count), -known))
        return statistics.median(self._ratios[nearest])
