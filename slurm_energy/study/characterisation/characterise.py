"""Step 3 of a study, which divides the jobs of the site into classes with similar behaviour.

The step also assigns response curves (relative time and power at settings) to the classes. It plans
how to measure missing curves. Source: thesis, section 6.3.3.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.study.baseline import read_baseline
from slurm_energy.study.characterisation.curve_sources import CurveProgram
from slurm_energy.study.characterisation.job_classes import (
    MAX_CLASSES,
    JobClass,
    classified,
    job_class_of,
    job_classes,
    programs_of,
)
from slurm_energy.study.data.jobs_table import JobsTable, bounded_name
from slurm_energy.study.data.jobs_table import csv_text as jobs_csv
from slurm_energy.study.directory import StudyDirectory

SETTINGS: Final = 6
"""Number of settings that a planned sweep measures, including the untuned setting."""
REPEATS: Final = 2


def run_characterise(
    study: StudyDirectory,
    programs: Sequence[CurveProgram],
    command: str,
    *,
    files: Mapping[str, Path] | None = None,
    budget_node_hours: float = math.inf,
    max_classes: int = MAX_CLASSES,
    settings: int = SETTINGS,
) -> dict[str, Any]:
    """Run the study's step `characterise` and return its result.

    The step divides the jobs into classes and assigns response curves to the classes. It also plans
    measurements for classes without a curve.

    Args:
        study: directory of the study.
        programs: programs with known response curves.
        command: command line of the step, which the manifest records.
        files: files that contain the curves, for the manifest.
        budget_node_hours: node-hours that planned measurements may take.
        max_classes: maximum number of classes.
        settings: settings that each planned sweep measures, including the untuned setting.
    """
    options = {"budget": budget_node_hours, "classes": max_classes, "settings": settings}
    with study.running("characterise", command, files=files, options=options) as run:
        period = read_baseline(study)
        classes = job_classes(period.jobs, max_classes)
        jobs = classified(period.jobs, classes)
        matched = _matched(jobs, programs)
        described = [_described(one, jobs, matched) for one in classes]
        plan = _plan(described, jobs, budget_node_hours, settings)
        result = {
            "classes": described,
            "plan": plan,
            "planned_node_hours": sum(one["node_hours"] for one in plan if one["in_budget"]),
            "covered_energy": sum(one["energy_share"] for one in described if one["points"]),
            "matched_programs": sorted(matched),
            "unmatched_programs": len(programs) - len({id(one) for one in matched.values()}),
        }
        run.write("jobs.csv", jobs_csv(jobs))
        run.finish(result)
    return result


def read_classes(study: StudyDirectory) -> list[JobClass]:
    """Return the classes of similar jobs that the study has found.

    The list is empty if the step `characterise` has not run.

    Raises:
        UsageError: the stored result is damaged.
    """
    if not study.manifest.steps["characterise"].outputs:
        return []
    try:
        return [job_class_of(one) for one in study.result("characterise")["classes"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        todo = f"run: senergy study characterise {study.path}"
        raise UsageError(f"{study.folder('characterise')}", f"is damaged: {error!r}", todo) from None


def _matched(jobs: JobsTable, programs: Sequence[CurveProgram]) -> dict[str, CurveProgram]:
    """Find the programs in the jobs to which the given response curves belong.

    A response curve states time and power of a program at several hardware settings. The result maps each
    program to its curve. Three rules apply. A curve that states its program belongs to this program. A
    curve that states the id of its program's last job belongs to the program of this job. Any other curve
    belongs to all programs of the same user whose jobs have the name of the curve.
    """
    own = programs_of(jobs)
    row_of = {job_id: row for row, job_id in enumerate(jobs.job_id.tolist())}
    matched: dict[str, CurveProgram] = {}
    for one in programs:
        if one.program:
            matched |= {one.program: one} if one.program in own else {}
            continue
        if one.last_job in row_of:
            matched[str(own[row_of[one.last_job]])] = one
            continue
        same = np.isin(jobs.name, [bounded_name(name) for name in one.names])
        if one.user:
            same &= jobs.user == one.user
        matched |= dict.fromkeys((str(name) for name in np.unique(own[same])), one)
    return matched


def _described(one: JobClass, jobs: JobsTable, matched: Mapping[str, CurveProgram]) -> dict[str, Any]:
    members = jobs.where(jobs.job_class == one.name)
    total_joules = float(np.nansum(jobs.energy_joules))
    joules = float(np.nansum(members.energy_joules))
    hours, total_hours = (float(np.nansum(table.work_node_hours)) for table in (members, jobs))
    share = joules / total_joules if total_joules else hours / total_hours if total_hours else 0.0
    return {
        **one.to_json(),
        "jobs": members.count,
        "node_hours": hours,
        "energy_kwh": joules / JOULES_PER_KWH if joules else None,
        "energy_share": share,
        "points": _points(members, matched),
    }


def _points(members: JobsTable, matched: Mapping[str, CurveProgram]) -> list[dict[str, Any]]:
    """Return the response curve (time and power at settings) of a class of similar programs.

    The curve is the mean over the programs of the class that have a curve, weighted by node-hours.
    """
    own = programs_of(members)
    hours = np.nan_to_num(members.work_node_hours)
    collected: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for name in np.unique(own).tolist():
        for point in matched[name].points if name in matched else ():
            key = json.dumps(point.get("point") or {}, sort_keys=True)
            weight = max(float(hours[own == name].sum()), 1e-9)
            collected.setdefault(key, []).append((weight, point))
    points = []
    for key, pairs in collected.items():
        weights = np.array([weight for weight, _ in pairs])
        weights /= weights.sum()
        logs = np.log([[float(p["time_ratio"]), float(p["power_ratio"])] for _, p in pairs])
        means = weights @ logs
        between = float(np.sqrt(np.max(weights @ (logs - means) ** 2)))
        stated = [float(p["time_error"]) for _, p in pairs if p.get("time_error") is not None]
        deviation = math.hypot(between, max(stated)) if stated else (between or None)
        points.append(
            {
                "time_ratio": math.exp(means[0]),
                "power_ratio": math.exp(means[1]),
                "deviation": deviation,
                "settings": json.loads(key),
                "programs": len(pairs),
            }
        )
    return sorted(points, key=lambda point: float(point["time_ratio"]))


def _plan(
    classes: Sequence[Mapping[str, Any]], jobs: JobsTable, budget_node_hours: float, settings: int
) -> list[dict[str, Any]]:
    """Return the planned measurements of classes of jobs that have no response curve yet.

    A response curve states time and power at different settings. The plan is sorted by the energy of the
    classes per node-hour, highest first. For each class, a sweep runs one program of the class: the one with
    the most node-hours. The program runs `REPEATS` times at each setting.
    """
    plan = []
    own = programs_of(jobs)
    for one in classes:
        if one["points"] or not one["jobs"]:
            continue
        members = jobs.job_class == one["name"]
        hours = {
            str(name): float(np.nansum(jobs.work_node_hours[members & (own == name)]))
            for name in np.unique(own[members])
        }
        program = max(hours, key=lambda name: hours[name])
        runs = jobs.where(members & (own == program) & (jobs.run_s > 0))
        node_hours = float(np.median(runs.nodes * runs.run_s)) / 3600 * settings * REPEATS
        plan.append(
            {
                "class": one["name"],
                "program": program,
                "energy_share": one["energy_share"],
                "runs": settings * REPEATS,
                "nodes": float(np.median(runs.nodes)),
                "node_hours": node_hours,
            }
        )
    plan.sort(key=lambda item: -item["energy_share"] / max(item["node_hours"], 1e-9))
    left = budget_node_hours
    for item in plan:
        item["in_budget"] = item["node_hours"] <= left
        left -= item["node_hours"] if item["in_budget"] else 0.0
    return plan
