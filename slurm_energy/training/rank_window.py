"""Measurements that the ranks exchange at the end of a window of steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankWindow:
    """Measurements of one rank in a window of steps with constant shares.

    Attributes:
        samples: samples of the rank in a step; 0 if it paused.
        busy_s: median seconds of a step in which the rank computed.
        step_s: median seconds of a step, with the exchange of gradients.
        window_s: seconds of the window.
        steps: steps in the window.
        joules: energy of the rank in the window; None if unknown.
        overlap_s: median seconds of a step in which the rank computed after its first gradients were sent.
    """

    samples: int
    busy_s: float
    step_s: float
    window_s: float
    steps: int
    joules: float | None
    overlap_s: float = 0.0
