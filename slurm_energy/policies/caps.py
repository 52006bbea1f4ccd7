"""Division of a node's power cap among its packages and GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitRange:
    """The range of power limits of a package or GPU.

    Attributes:
        name: name that is unique among the parts of the node.
        min_watts: minimum useful limit.
        max_watts: maximum permitted limit, which is at most the limit in force before the job.
    """

    name: str
    min_watts: float
    max_watts: float


def split_cap(cap_watts: float, parts: Sequence[LimitRange]) -> dict[str, float]:
    """Divide a power cap among parts of a node (packages and GPUs).

    Each part gets its minimum. The rest is divided among the parts in proportion to their ranges. All parts
    are then at the same fraction of their own range. The limits add up to the cap if the cap lies between the
    sum of the minima and the sum of the maxima. Otherwise all parts are at the nearer bound.

    Args:
        cap_watts: cap on the power of all parts together.
        parts: ranges with min_watts <= max_watts.

    Returns:
        Limit in watts by name of the part.
    """
    minimum = math.fsum(part.min_watts for part in parts)
    span = math.fsum(part.max_watts - part.min_watts for part in parts)
    fraction = min(1.0, max(0.0, (cap_watts - minimum) / span)) if span > 0 else 0.0
    return {part.name: part.min_watts + fraction * (part.max_watts - part.min_watts) for part in parts}
