"""Which term of the score puts one job before another, in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from slurm_energy.reports.scaling import figure
from slurm_energy.scheduling import Ranking
from slurm_energy.scheduling.ranking import AGED, URGENT, Term

_WORDS: Final = {
    "age": "age",
    "ageing": "waiting",
    "deadline": "its deadline",
    "edp": "energy-delay product",
    "fair": "its user's share of energy",
    "fairshare": "its user's fair share",
    "had": "what its user had of the share",
    "jobsize": "size",
    "partition": "its partition",
    "qos": "its QOS",
    "slack": "slack before its deadline",
    "submit": "submission",
    "time": "run time",
    "wait": "waiting",
}
"""For people; other terms go by their names."""

_FIRST_BY_TIER: Final = {AGED: "as it waited past the bound", URGENT: "as it has a deadline"}


def reason(ranking: Ranking, first: int, second: int) -> str:
    """Return why one ranked job goes before another, to follow `job 1 goes before job 2`.

    Args:
        ranking: a policy's answer.
        first: row of the job that goes before.
        second: row of the other.
    """
    tier = int(ranking.tier[first])
    if tier != ranking.tier[second]:
        return _FIRST_BY_TIER.get(tier, "by its tier")
    if not math.isfinite(ranking.score[second]) and math.isfinite(ranking.score[first]):
        return "as the other cannot run now"
    if tier == AGED:
        return "as it was submitted earlier"
    found = decisive(ranking.terms, first, second)
    if ranking.score[first] == ranking.score[second]:
        return "at equal scores, by its lower number"
    if found is None:
        return f"by its score ({figure(ranking.score[first])} against {figure(ranking.score[second])})"
    return f"for {_WORDS.get(found, found)} ({_against(ranking.terms[found], first, second)})"


def decisive(terms: Mapping[str, Term], first: int, second: int) -> str | None:
    """Return the name of the term that speaks most for the first of two jobs; None: none does.

    Contributions are compared where the score is a sum, logarithms where it is a product. A term that does
    not concern a job speaks neither for nor against it.
    """
    speaks = {name: _favour(term, first) - _favour(term, second) for name, term in terms.items()}
    best = max(speaks, key=lambda name: speaks[name], default=None)
    return best if best is not None and speaks[best] > 0 else None


def _favour(term: Term, row: int) -> float:
    value = float(term.value[row])
    if not math.isfinite(value):
        return 0.0
    if term.weight is not None:
        return term.weight * value
    if term.power is not None and value > 0:
        return -term.power * math.log(value)
    return 0.0


def _against(term: Term, first: int, second: int) -> str:
    words = [figure(float(term.value[row])) for row in (first, second) if np.isfinite(term.value[row])]
    return f"{' against '.join(words)} {term.unit}".rstrip()
