"""Design of a sweep: every combination of the values of its factors, and the reference point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.tuning.sweep.factors import LIMITS, UNSET, Factor, option_of, variable_of

MAX_POINTS: Final = 2000
_POLICY_OPTION: Final = option_of("policy")
Settings = tuple[tuple[str, str | None], ...]
"""Value of each factor by its name, in the order of the factors. None: the knob keeps its setting."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of a sweep: a combination of values of the factors (varied settings and options).

    Attributes:
        settings: value of each factor.
    """

    settings: Settings

    def __str__(self) -> str:
        return " ".join(f"{name}={UNSET if value is None else value}" for name, value in self.settings)

    def value(self, name: str) -> str | None:
        """Return the value of a factor (a setting that the sweep varies) at this point.

        The result is None if the point lacks the factor or leaves it unset.
        """
        return dict(self.settings).get(name)

    @property
    def policy(self) -> str:
        """The energy policy of the point.

        The policy is the value of the factor that sets `--energy-policy`. Without this factor, the policy is
        `cap` for a point that fixes a setting of the hardware, and `monitor` for other points.
        """
        options = {option_of(name): value for name, value in self.settings if value is not None}
        chosen = options.get(_POLICY_OPTION)
        if chosen is not None:
            return chosen
        return "cap" if any(option_of(name) in options for name in LIMITS) else "monitor"


def build_points(
    factors: Sequence[Factor], *, with_reference: bool = True, configurations: Sequence[Settings] = ((),)
) -> tuple[SweepPoint, ...]:
    """Return the points of a sweep. The first point is the reference for all comparisons.

    A point is a combination of one value of each factor. The reference leaves all energy settings unchanged
    and has the policy `monitor`. It has the first value of every other factor, and the first configuration.
    If the combinations do not contain the reference, it is added.

    Args:
        factors: factors of the sweep, at least one unless there are configurations.
        with_reference: whether the reference is added. If not, the first combination of values is the
            reference.
        configurations: settings that are combined with the factors, such as those of a preset.

    Raises:
        UsageError: no factor, two factors set the same option or variable, or there are too many points.
    """
    names = [name for name, _ in configurations[0]] + [factor.name for factor in factors]
    if not names:
        raise UsageError("senergy sweep", "no factor given", "e.g. --gpu-cap 100..400:50")
    _refuse_duplicates(names)
    count = len(configurations) * math.prod(len(factor.values) for factor in factors)
    if count > MAX_POINTS:
        raise UsageError("senergy sweep", f"{count} points", f"at most {MAX_POINTS}: use fewer values")
    combinations = itertools.product(*(factor.values for factor in factors))
    own = [tuple((f.name, value) for f, value in zip(factors, row, strict=True)) for row in combinations]
    points = [SweepPoint((*settings, *values)) for settings in configurations for values in own]
    if not with_reference:
        return tuple(points)
    unset = tuple((factor.name, _reference_value(factor)) for factor in factors)
    reference = SweepPoint((*configurations[0], *unset))
    return (reference, *(point for point in points if point != reference))


def _refuse_duplicates(names: Sequence[str]) -> None:
    """Refuse factors that set the same sbatch option or variable: only the value of one could take effect."""
    by_target: dict[tuple[str | None, str | None], str] = {}
    for name in names:
        target = option_of(name), variable_of(name)
        if target in by_target:
            earlier = by_target[target]
            if earlier == name:
                raise UsageError(f"factor {name}", "is given twice", "write all values in one list")
            why = f"sets the same option or variable as factor {earlier}"
            raise UsageError(f"factor {name}", why, "remove one of them")
        by_target[target] = name


def _reference_value(factor: Factor) -> str | None:
    if option_of(factor.name) == _POLICY_OPTION:
        return "monitor"
    return None if factor.is_knob else factor.values[0]
