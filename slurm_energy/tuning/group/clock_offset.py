"""Estimate of the offset between the clock of an agent and the clock of the controller."""

from __future__ import annotations

from collections import deque
from typing import Final

_MAX_SAMPLES: Final = 16


class ClockOffset:
    """Offset of the controller's clock, estimated from the round trips of requests.

    The controller reads its clock between the sending of a request and the arrival of the response. The
    offset is therefore known to within half the length of the round trip. The shortest of the latest round
    trips determines the estimate (Cristian, Probabilistic clock synchronization, 1989).
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_MAX_SAMPLES)

    def add(self, sent_s: float, controller_s: float, received_s: float) -> None:
        """Record a round trip: a request to the controller and its response.

        A response that arrives before its request was sent is ignored.

        Args:
            sent_s: time of the request on the agent's clock in seconds.
            controller_s: time on the controller's clock in the response.
            received_s: time of the response on the agent's clock.
        """
        length_s = received_s - sent_s
        if length_s >= 0:
            self._samples.append((length_s, controller_s - (sent_s + received_s) / 2))

    def reset(self) -> None:
        """Discard all measured round trips of messages, because the controller has restarted its clock."""
        self._samples.clear()

    @property
    def error_s(self) -> float | None:
        """Maximum error of the estimated difference of the clocks in seconds.

        The value is None if no message has made a round trip yet.
        """
        return min(self._samples)[0] / 2 if self._samples else None

    def to_local(self, controller_s: float) -> float | None:
        """Convert a time on the controller's clock to the agent's clock.

        The result is None if no request and response have been exchanged yet.
        """
        return controller_s - min(self._samples)[1] if self._samples else None

    def to_controller(self, local_s: float) -> float | None:
        """Return the time on the controller's clock for an agent's time; None without a round trip."""
        return local_s + min(self._samples)[1] if self._samples else None
