"""The report of a study as one JSON object, made from the results of its steps.

Page and notebook show this object.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.errors import UsageError
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.goals.conclusions import effect_text, judged_conclusion
from slurm_energy.study.manifest import StepState
from slurm_energy.study.steps import STEPS

_RESULTS: Final = ("baseline", "characterise", "model", "choose", "deploy", "validate")


def report_document(study: StudyDirectory) -> dict[str, Any]:
    """Return the report: objective, steps with hashes, results, daily values of KPIs, power by hour.

    Raises:
        UsageError: no step has a result yet, or a result is damaged.
    """
    objective = study.objective()
    steps, results = [], {}
    for name, step in STEPS.items():
        entry = study.manifest.steps[name]
        stale = study.staleness(name)
        steps.append({"step": name, "title": step.title, "stale": stale or None, **asdict(entry)})
        if name in _RESULTS and entry.state is StepState.DONE:
            results[name] = study.result(name)
    if not results:
        raise UsageError(
            f"{study.path}", "no step has a result yet", f"run: senergy study baseline {study.path}"
        )
    return {
        "release": __version__,
        "id": study.manifest.id,
        "title": objective.title,
        "targets": [asdict(target) for target in objective.targets],
        "limits": [asdict(limit) for limit in objective.limits],
        "steps": steps,
        "results": results,
        "days": _days(study, objective.targets[0].kpi) if "validate" in results else [],
        "hours": _hours(study) if "model" in results else [],
        "conclusions": [judged_conclusion(one, results) for one in objective.conclusions],
        "conclusion": conclusion(results.get("validate"), results.get("choose")),
    }


def conclusion(validation: Mapping[str, Any] | None, choice: Mapping[str, Any] | None) -> list[str]:
    """Return the conclusion of the study: one sentence per target, and one per broken limit.

    Args:
        validation: result of the step `validate`; None means that the step has not run.
        choice: result of the step `choose`; None means that the step has not run.
    """
    if validation is None:
        name = choice.get("recommended") if choice else None
        return [f"recommended and not validated yet: {name}"] if name else ["no alternative is chosen yet"]
    lines = []
    for one in validation["targets"]:
        effect = one["effect"]
        if effect is None:
            lines.append(f"{one['kpi']}: {one['verdict']}")
            continue
        certain = ", the whole interval reaches the target" if one["is_certain"] else ""
        lines.append(
            f"{one['kpi']}: {one['verdict']}: {effect_text(effect)}, wanted {one['wanted']:+.1%}{certain}"
        )
    for one in validation["limits"]:
        if one["verdict"] in ("broken", "at risk"):
            account = f" of account {one['account']}" if one["account"] else ""
            lines.append(f"limit {one['kpi']}{account}: {one['verdict']}: {one['reason']}")
    if validation["undone"]:
        lines.append("the deployment was taken back, because a limit was broken")
    return lines


def _days(study: StudyDirectory, kpi: str) -> list[dict[str, Any]]:
    """Return the daily values of a key performance indicator (KPI) from the table of `validate`.

    `validate` is the last measuring step of the study.
    """
    path = study.folder("validate") / "days.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["kpi"] == kpi]
        return [
            {
                "date": row["date"],
                "group": row["group"],
                "value": float(row["value"]),
                "expected": float(row["expected"]) if row["expected"] else None,
            }
            for row in rows
        ]
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"{path}", f"cannot be read: {error}", "run the step validate again") from None


def _hours(study: StudyDirectory) -> list[dict[str, float | None]]:
    """Return the measured and the simulated power of each hour of the held-out days.

    Held-out days are days that did not calibrate the simulator. The list is empty if an older release wrote
    the result of the step `model`, because that release did not store the hours.
    """
    path = study.folder("model") / "hours.csv"
    if path.name not in study.manifest.steps["model"].outputs:
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                {name: float(text) if text else None for name, text in row.items()}
                for row in csv.DictReader(file)
            ]
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path}", f"cannot be read: {error}", "run the step model again") from None
