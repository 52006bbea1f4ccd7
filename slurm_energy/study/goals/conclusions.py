"""Conclusions of a study: statements in its objective that the results confirm or refute.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from slurm_energy.study.goals.indicators import KPIS, Direction
from slurm_energy.study.goals.objective import StudyConclusion


class ConclusionVerdict(StrEnum):
    """Verdict that states whether a conclusion of a study was reached."""

    REACHED = "reached"
    NOT_REACHED = "not reached"
    UNKNOWN = "unknown"


def judged_conclusion(conclusion: StudyConclusion, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conclusion of a study, with the verdict whether it was reached and the evidence.

    The result is a JSON object. The evidence consists of figures from the results of the study.

    Args:
        conclusion: conclusion that the study's objective names in advance.
        results: results of the study, by step. The verdict is unknown if the step that the conclusion is
            judged by has no result.
    """
    is_reached, figures = _JUDGES[conclusion.finding](conclusion, results)
    verdict = ConclusionVerdict.REACHED if is_reached else ConclusionVerdict.NOT_REACHED
    return {
        "text": conclusion.text,
        "kpi": conclusion.kpi,
        "finding": conclusion.finding,
        "percent": conclusion.percent,
        "verdict": str(ConclusionVerdict.UNKNOWN if is_reached is None else verdict),
        "figures": figures,
    }


Judgement = tuple[bool | None, str]


def _improves(conclusion: StudyConclusion, results: Mapping[str, Any]) -> Judgement:
    effect = _effect(conclusion, results)
    if effect is None:
        return None, "no effect is validated"
    falls = KPIS[conclusion.kpi].better is Direction.LOWER
    bound = conclusion.percent
    figures = effect_text(effect)
    if bound is not None and not effect["is_relative"]:
        return None, f"{figures}; the effect is no share"
    gain = -effect["change"] if falls else effect["change"]
    is_reached = effect["excludes_zero"] and gain > 0 and gain >= (bound or 0.0) / 100
    return is_reached, figures


def _keeps(conclusion: StudyConclusion, results: Mapping[str, Any]) -> Judgement:
    own = [one for one in results.get("validate", {}).get("limits", []) if one["kpi"] == conclusion.kpi]
    verdicts = sorted({one["verdict"] for one in own})
    effect = _effect(conclusion, results)
    figures = "" if effect is None else f"{effect_text(effect)}; "
    if not own or verdicts == ["not enough data"]:
        return None, "no limit is judged"
    return verdicts == ["kept"], f"{figures}limit {', '.join(verdicts)}"


def _twin_error(conclusion: StudyConclusion, results: Mapping[str, Any]) -> Judgement:
    listed = results.get("model", {}).get("errors", [])
    errors = [one["error"] for one in listed if one["kpi"] == conclusion.kpi]
    if not errors or errors[0] is None:
        return None, "the twin has no error of this figure"
    return abs(errors[0]) <= (conclusion.percent or 0.0) / 100, f"error on the held-out days {errors[0]:+.1%}"


def _predicts(conclusion: StudyConclusion, results: Mapping[str, Any]) -> Judgement:
    effect = _effect(conclusion, results)
    predicted = (results.get("validate", {}).get("predicted") or {}).get(conclusion.kpi)
    if effect is None or predicted is None:
        return None, "no prediction or no effect"
    figures = f"predicted {predicted:+.1%}, measured {effect_text(effect)}"
    return effect["low"] <= predicted <= effect["high"], figures


def _effect(conclusion: StudyConclusion, results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    effect: Mapping[str, Any] | None = results.get("validate", {}).get("effects", {}).get(conclusion.kpi)
    return effect


def effect_text(effect: Mapping[str, Any]) -> str:
    """Return an effect of a deployment with its confidence interval as readable text."""
    if effect["is_relative"]:
        interval = f"{effect['low']:+.1%} to {effect['high']:+.1%}"
        return f"{effect['change']:+.1%} ({effect['level']:.0%} interval {interval})"
    interval = f"{effect['low']:+.4g} to {effect['high']:+.4g}"
    return f"{effect['change']:+.4g} ({effect['level']:.0%} interval {interval})"


_JUDGES: Final = {"improves": _improves, "keeps": _keeps, "twin_error": _twin_error, "predicts": _predicts}
