"""The reason why each pending job has its place in the queue.

The reason is plain data for `GET /v1/priority`.

This module only describes the engine's decisions in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from slurm_energy.priority.offered_shapes import OfferedShapeTable
from slurm_energy.priority.prediction import SOURCES, QueuePredictions
from slurm_energy.priority.quota_tiers import HOLD_OFFSET, TIER_NAMES
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.quantities import format_duration, shown
from slurm_energy.reports.figure_format import figure, with_unit
from slurm_energy.scheduling import Ranking
from slurm_energy.scheduling.queue import Bools
from slurm_energy.scheduling.ranking import AGED, NORMAL, URGENT, Term
from slurm_energy.slurm.queue.columns import PENDING

_SHOWN_RATIO: Final = 1.01
_WORDS: Final = {
    "age": "age",
    "ageing": "waiting",
    "deadline": "its deadline",
    "edp": "energy-delay product",
    "fair": "its user's share of energy",
    "fairshare": "its user's fair share",
    "usage": "its user's usage per share",
    "jobsize": "size",
    "partition": "its partition",
    "qos": "its QOS",
    "slack": "slack before its deadline",
    "submit": "submission",
    "time": "run time",
    "wait": "waiting",
}
"""Names of terms for users; other terms appear under their own names."""

_FIRST_BY_TIER: Final = {AGED: "as it waited past the bound", URGENT: "as it has a deadline"}


def display_id(snapshot: Snapshot, row: int) -> str:
    """Return the job id of a queue row as squeue shows it.

    Examples: `12`, `12_3` for a task, `12_[*]` for several tasks, `14+1` for a component of a heterogeneous
    job.
    """
    queue = snapshot.queue
    job, array = int(queue.job_id[row]), int(queue.array_job_id[row])
    if array and queue.array_task_id[row] >= 0:
        return f"{array}_{int(queue.array_task_id[row])}"
    if array:
        return f"{array}_[*]"
    leader = int(queue.het_job_id[row])
    return f"{leader}+{job - leader}" if leader else str(job)


def pending_rows(snapshot: Snapshot, rows: Iterable[int] | None = None) -> list[int]:
    """Return the queue rows of pending jobs in the order of the ranking.

    Jobs without a place in the ranking come last, ordered by job id.

    Args:
        snapshot: the ranked queue.
        rows: the queue rows to choose from; None means all.
    """
    queue = snapshot.queue
    at = np.flatnonzero(queue.state == PENDING)
    if rows is not None:
        at = np.intersect1d(at, np.fromiter(rows, np.int64))
    place = np.where(snapshot.place[at] > 0, snapshot.place[at], np.iinfo(np.int64).max)
    ordered: list[int] = at[np.lexsort((queue.job_id[at], place))].tolist()
    return ordered


class Explainer:
    """Describes why each pending job has its place in the queue.

    Args:
        snapshot: result of one ranking of the queue.
        may_see: for each queue row, whether descriptions of other jobs may name this job; None means that
            they may name all jobs.
    """

    def __init__(self, snapshot: Snapshot, may_see: Bools | None = None) -> None:
        self._snapshot, self._may_see = snapshot, may_see
        leaders = snapshot.rows
        self._ranked = {int(row): at for at, row in enumerate(leaders.tolist())}
        self._at_place = leaders[snapshot.order]
        self._waited_s = snapshot.scheduled.wait_s

    def job(self, row: int) -> dict[str, Any]:
        """Return the description of a pending job for the response to `GET /v1/priority`.

        It states the job's place in the queue and why the job has this place.

        Args:
            row: index of the job in the queue.
        """
        snapshot, queue = self._snapshot, self._snapshot.queue
        at = self._ranked.get(int(self._snapshot.leader[row]))
        place, number = int(snapshot.place[row]), int(snapshot.site_factors[row])
        return {
            "job_id": int(queue.job_id[row]),
            "display_id": display_id(snapshot, row),
            "user": queue.user[row],
            "account": queue.account[row],
            "partition": queue.partition[row],
            "qos": queue.qos[row],
            "name": queue.name[row],
            "submit": json_number(queue.submit_s[row]),
            "eligible": json_number(queue.eligible_s[row]),
            "deadline": json_number(queue.deadline_s[row]),
            "wait_s": self._wait_s(row, at),
            "place": place or None,
            "ranked_jobs": len(snapshot.order),
            "tier": None if at is None else TIER_NAMES[int(snapshot.ranking.tier[at])],
            "quota": self._quota(at),
            "score": None if at is None else json_number(snapshot.ranking.score[at]),
            "site_factor": number or None,
            "priority": int(queue.priority[row]),
            "nice": int(queue.nice[row]),
            "held": bool(queue.held[row]),
            "dependent": bool(queue.dependent[row]),
            "fixed": bool(queue.fixed[row]),
            "reason": queue.reason[row],
            "terms": [] if at is None else self.terms(at),
            "predicted": _predicted(*self._best(row)),
            "shapes": [] if at is None else self._shapes(at),
            "why": self.why(row),
        }

    def terms(self, at: int) -> list[dict[str, Any]]:
        """Return the terms of a ranked job's score. Terms without effect on the job are left out.

        `at` is the index of the job among the ranked jobs.
        """
        entries = []
        for name, term in self._snapshot.ranking.terms.items():
            value = json_number(term.value[at])
            if value is not None:
                contribution = None if term.weight is None else term.weight * value
                entries.append(
                    {
                        "name": name,
                        "value": value,
                        "unit": term.unit,
                        "weight": term.weight,
                        "contribution": contribution,
                    }
                )
        return entries

    def why(self, row: int) -> str:
        """Return one sentence that explains the place of the job in queue row `row`."""
        snapshot, queue = self._snapshot, self._snapshot.queue
        at = self._ranked.get(int(self._snapshot.leader[row]))
        if queue.fixed[row]:
            return "An administrator gave it a priority of its own, which stays."
        if at is None:
            return "Its partition is not among priority.partitions: it keeps Slurm's own order."
        place = f"{int(snapshot.place[row])} of {len(snapshot.order)} by {snapshot.policy}"
        return f"{self._free(row)}{place}: {self._because(int(snapshot.leader[row]), at)}."

    def _because(self, row: int, at: int) -> str:
        snapshot = self._snapshot
        tier = int(snapshot.ranking.tier[at])
        if tier == AGED:
            bound = format_duration(snapshot.options.wait_bound_s)
            return f"it has waited for longer than {bound} and goes before all others, oldest first"
        if snapshot.ranking.choice[at] < 0:
            return "none of its shapes can run now"
        figures = _figures(*self._best(row))
        if tier > NORMAL:
            order = "goes after the jobs of others" if tier < HOLD_OFFSET else "goes last"
            figures = f"{snapshot.quotas[at].sentence}, so it {order}; {figures}"
        if float(self._waited_s[at]) >= snapshot.options.wait_bound_s:
            most = snapshot.options.aged_jobs_per_user
            figures = f"it is past the bound on waiting, but {most} jobs of its user go before, and {figures}"
        if tier == URGENT:
            left_s = float(snapshot.queue.deadline_s[row]) - snapshot.computed
            when = f"is in {format_duration(left_s)}" if left_s > 0 else "is over"
            figures = f"its deadline {when}, and {figures}"
        return figures + self._neighbours(row, at)

    def _quota(self, at: int | None) -> dict[str, Any] | None:
        """Return the quota that limits a ranked job; None if no quota limits the job.

        Only the percentage of the use is included, because a user of an account must learn no more than the
        total use of the account.
        """
        use = None if at is None else self._snapshot.quotas.get(at)
        if use is None:
            return None
        keys = ("account", "user", "resource", "period", "used_percent", "level")
        return {key: value for key, value in use.to_json().items() if key in keys}

    def _best(self, row: int) -> tuple[QueuePredictions, int]:
        """Return the prediction by which the policy ranks a job.

        The result is a table of predictions and the row of the job's best GPU shape (number and type of
        GPUs) in this table.
        """
        at = self._ranked.get(row)
        choice = -1 if at is None else int(self._snapshot.ranking.choice[at])
        return (self._snapshot.predicted, row) if choice < 0 else (self._snapshot.shapes.predicted, choice)

    def _neighbours(self, row: int, at: int) -> str:
        """Return a text that compares a job with its two neighbours in the queue and so explains its place.

        The text states why the previous job goes before this job, and why this job goes before the next job.
        Neighbours that the caller may not see are left out.
        """
        snapshot, place = self._snapshot, int(self._snapshot.place[row])
        parts = []
        if near := self._neighbour(place - 1):
            parts.append(f"job {near[0]} goes before it {order_reason(snapshot.ranking, near[1], at)}")
        if near := self._neighbour(place + 1):
            parts.append(f"it goes before job {near[0]} {order_reason(snapshot.ranking, at, near[1])}")
        return f"; {', and '.join(parts)}" if parts else ""

    def _neighbour(self, place: int) -> tuple[int, int] | None:
        """Return the job at a position in the ranked queue, as job id and ranked index.

        The result is None if no job has this position, or if the user may not see the job.

        Args:
            place: position in the ranked queue, counted from 1.
        """
        if not 1 <= place <= len(self._at_place):
            return None
        queue, row = self._snapshot.queue, int(self._at_place[place - 1])
        if self._may_see is not None and not self._may_see[row]:
            return None
        return int(queue.job_id[row]), int(self._snapshot.order[place - 1])

    def _free(self, row: int) -> str:
        queue = self._snapshot.queue
        if queue.held[row]:
            return "Held; once released "
        if queue.dependent[row]:
            return "Waits for other jobs or a time; then "
        return "Place "

    def _wait_s(self, row: int, at: int | None) -> float | None:
        if at is not None:
            return float(self._waited_s[at])
        submit = json_number(self._snapshot.queue.submit_s[row])
        return None if submit is None else max(0.0, self._snapshot.computed - submit)

    def _shapes(self, at: int) -> list[dict[str, Any]]:
        shapes, table = self._snapshot.shapes, self._snapshot.shapes.table
        choice = int(self._snapshot.ranking.choice[at])
        splits = shapes.splits if isinstance(shapes, OfferedShapeTable) else {}
        entries = []
        for row in range(int(table.first[at]), int(table.first[at + 1])):
            entries.append(
                {
                    "text": shapes.text(row),
                    "gpus": int(table.gpus[row]),
                    "gpu_kind": shapes.gpu_kind[row],
                    "time_s": float(table.time_s[row]),
                    "power_watts": float(table.power_watts[row]),
                    "energy_joules": float(table.power_watts[row] * table.time_s[row]),
                    "work_shares": splits[row].work_shares if row in splits else None,
                    "edp_js": float(table.power_watts[row] * table.time_s[row] ** 2),
                    "fits": shapes.fits_now(row),
                    "chosen": row == choice,
                }
            )
        return entries


def _predicted(predicted: QueuePredictions, row: int) -> dict[str, Any]:
    return {
        "time_s": float(predicted.time_s[row]),
        "power_watts": float(predicted.power_watts[row]),
        "energy_joules": float(predicted.time_s[row] * predicted.power_watts[row]),
        "edp_js": float(predicted.power_watts[row] * predicted.time_s[row] ** 2),
        "source": str(SOURCES[predicted.source[row]]),
        "runs": int(predicted.runs[row]),
        "basis": predicted.basis(row),
        "source_time_s": float(predicted.source_time_s[row]),
        "lower_bound_s": float(predicted.lower_bound_s[row]) or None,
        "misprediction_factor": float(predicted.misprediction[row]),
    }


def _figures(predicted: QueuePredictions, row: int) -> str:
    time_s, watts = float(predicted.time_s[row]), float(predicted.power_watts[row])
    basis = [shown(predicted.basis(row), 80), *_adjustments(predicted, row)]
    return (
        f"{format_duration(time_s)} at {with_unit(watts, 'W')} are expected, "
        f"EDP {with_unit(watts * time_s**2, 'J s')} ({'; '.join(basis)})"
    )


def _adjustments(predicted: QueuePredictions, row: int) -> list[str]:
    """Return phrases that explain why the run time of a job differs from the first prediction.

    There are two reasons: the time was raised to a lower bound, or it was multiplied by a factor that
    corrects earlier mispredictions.
    """
    words, said_s = [], float(predicted.source_time_s[row])
    bound_s, factor = float(predicted.lower_bound_s[row]), float(predicted.misprediction[row])
    if bound_s > said_s * _SHOWN_RATIO:
        words.append(f"{format_duration(said_s)} raised to the lower bound {format_duration(bound_s)}")
    if factor > _SHOWN_RATIO:
        words.append(f"times misprediction factor {factor:.3g}")
    return words


def json_number(value: Any) -> float | None:
    """Convert a number to one that JSON can represent: None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def order_reason(ranking: Ranking, first: int, second: int) -> str:
    """Return the reason why one ranked job goes before another one.

    The text completes the sentence `job 1 goes before job 2`.

    Args:
        ranking: the policy's result.
        first: ranked index of the job that goes before.
        second: ranked index of the other job.
    """
    tier = int(ranking.tier[first])
    if tier != ranking.tier[second]:
        if int(ranking.tier[second]) > NORMAL:
            return "as the other is over a level of its quota"
        return _FIRST_BY_TIER.get(tier, "by its tier")
    if not math.isfinite(ranking.score[second]) and math.isfinite(ranking.score[first]):
        return "as the other cannot run now"
    if tier == AGED:
        return "as it was submitted earlier"
    term = decisive(ranking.terms, first, second)
    if ranking.score[first] == ranking.score[second]:
        return "at equal scores, by its lower number"
    if term is None:
        return f"by its score ({figure(ranking.score[first])} against {figure(ranking.score[second])})"
    return f"for {_WORDS.get(term, term)} ({_against(ranking.terms[term], first, second)})"


def decisive(terms: Mapping[str, Term], first: int, second: int) -> str | None:
    """Return the name of the score term that favours the first of two ranked jobs most.

    Return None if no term favours the first job.

    If the score is a sum, the contributions of the terms are compared. If it is a product, the logarithms of
    the factors are compared. For a job on which a term has no effect, the contribution of the term is 0 or
    its factor 1.
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
