"""Combinations of alternatives of an energy study that are worth a simulation.

An alternative is a set of means to save energy. All functions are pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from slurm_energy.study.choice.alternatives import StudyAlternative
from slurm_energy.study.choice.evaluation import AlternativeForecast, LimitForecast
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.goals.objective import StudyObjective

_MAX_RESCUED: Final = 2
"""Number of alternatives that break a limit for which a helping lever is tried."""
_INCOMPATIBLE: Final = frozenset({"budget", "power_saving"})
"""Levers that the simulator does not combine: a power budget with nodes that are switched off."""


def combinations(
    forecasts: Sequence[AlternativeForecast], objective: StudyObjective
) -> list[StudyAlternative]:
    """Return combinations of alternatives that save energy by different means.

    The means of an alternative (its levers) are, for example, tuning or a power budget. Alternatives that
    improve the main target are combined with each other. If the alternative with the largest saving breaks a
    limit, it is combined with the alternative that improves the KPI of this limit most. For example, a
    better order of the queue compensates for jobs that tuning slows down.

    Args:
        forecasts: forecasts of single alternatives.
        objective: objective of the study, with targets and limits.
    """
    improving = _best_by_levers(forecasts, objective)
    groups = [
        group for size in range(2, len(improving) + 1) for group in itertools.combinations(improving, size)
    ]
    for group in list(_rescued(forecasts, objective)):
        groups.append(group)
        groups += [(*group, added) for added in improving]
    joined = {}
    for group in groups:
        if (one := _joined(group)) is not None:
            joined[frozenset(part.name for part in group)] = one
    return list(joined.values())


def _best_by_levers(
    forecasts: Sequence[AlternativeForecast], objective: StudyObjective
) -> list[StudyAlternative]:
    """Return the best study alternative for each set of levers.

    A lever is an energy-saving function, such as tuning or deferral, that an alternative uses. Only
    permitted alternatives that certainly improve the main target are considered.
    """
    kpi = objective.targets[0].indicator
    best: dict[tuple[str, ...], AlternativeForecast] = {}
    for one in forecasts:
        if one.is_permitted and one.certain_improvement(kpi) > 0:
            other = best.get(one.alternative.levers)
            if other is None or one.improvement(kpi) > other.improvement(kpi):
                best[one.alternative.levers] = one
    return [one.alternative for one in best.values()]


def _rescued(
    forecasts: Sequence[AlternativeForecast], objective: StudyObjective
) -> Iterator[tuple[StudyAlternative, ...]]:
    """Yield pairs of study alternatives that may be good in combination.

    An alternative is a combination of energy-saving measures. The first alternative of a pair improves the
    main target but breaks a limit. The second one improves the KPI of this limit.
    """
    main = objective.targets[0].indicator
    broken = [one for one in forecasts if not one.is_permitted and one.improvement(main) > 0]
    broken.sort(key=lambda one: -one.improvement(main))
    for one in broken[:_MAX_RESCUED]:
        for limit in one.limits:
            if limit.forecast is not LimitForecast.BROKEN:
                continue
            kpi = KPIS[limit.kpi]
            helping = [other for other in forecasts if other.improvement(kpi) > 0]
            helping = [other for other in helping if _joined((one.alternative, other.alternative))]
            if helping:
                best = max(helping, key=lambda other: other.improvement(kpi))
                yield one.alternative, best.alternative


def _joined(group: Sequence[StudyAlternative]) -> StudyAlternative | None:
    """Combine several alternatives into one that uses all their means to save energy (levers).

    Return None if two of the alternatives use the same lever or are incompatible.
    """
    levers = list(itertools.chain.from_iterable(one.levers for one in group))
    if len(set(levers)) < len(levers) or set(levers) >= _INCOMPATIBLE:
        return None
    joined = group[0]
    for added in group[1:]:
        joined = joined.with_levers_of(added)
    return joined
