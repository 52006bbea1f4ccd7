"""How a node's cap is shared among the parts whose power can be limited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitRange:
    """A package or GPU.

    Attributes:
        name: any unique name.
        min_watts: lowest limit that makes sense for it.
        max_watts: highest limit it may get: what was in force before the job, or less.
    """

    name: str
    min_watts: float
    max_watts: float


def split_cap(cap_watts: float, parts: Sequence[LimitRange]) -> dict[str, float]:
    """Share a cap: every part gets its least, the rest goes in proportion to the parts' ranges.

    Every part is so at the same fraction of its own range, and the limits add up to the cap wherever it lies
    between the sum of the least and the sum of the most; outside it they are at their bounds.

    Args:
        cap_watts: power for all parts together.
        parts: each with least <= most.

    Returns:
        Limit by part name, in watts.
    """
    least = math.fsum(part.min_watts for part in parts)
    span = math.fsum(part.max_watts - part.min_watts for part in parts)
    fraction = min(1.0, max(0.0, (cap_watts - least) / span)) if span > 0 else 0.0
    return {part.name: part.min_watts + fraction * (part.max_watts - part.min_watts) for part in parts}
