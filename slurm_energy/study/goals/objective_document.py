"""Example of `objective.toml`, written from the declarations of its keys."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.goals.objective import (
    StudyConclusion,
    StudyLimit,
    StudyPrices,
    StudyScope,
    StudySeason,
    StudyStatistics,
)

_SECTIONS: Final = (
    ("scope", StudyScope),
    ("season", StudySeason),
    ("prices", StudyPrices),
    ("statistics", StudyStatistics),
)
_INTRODUCTION: Final = """\
# Objective of an energy study, see docs/study.md. Keys with a leading # are not set: each shows its default,
# or an example where it has none.
# After a change, `senergy study status` says which steps have to run again.
"""
_TARGETS: Final = """\

# What is to change. The first target is the main one: data and experiment are planned for it.
[[target]]
kpi = "energy_per_work_kwh"
change_percent = -8.0

# What must not get worse. A broken limit stops and undoes a deployment.
[[limit]]
kpi = "mean_jct_s"
worse_percent = 5.0

[[limit]]
kpi = "jobs_per_hour"
worse_deviations = 1.0

[[limit]]
kpi = "worst_wait_s"
worse_percent = 50.0
"""


def objective_example(title: str) -> str:
    """Return an objective file with a target, limits, and all other keys as comments.

    Args:
        title: title of the study.
    """
    lines = [_INTRODUCTION, f"title = {json.dumps(title)}", _TARGETS.rstrip(), "", "# KPIs:"]
    lines += [f"#   {kpi.name} ({kpi.unit or 'no unit'}): {kpi.meaning}" for kpi in KPIS.values()]
    for table, keys in (("limit", StudyLimit), ("conclusion", StudyConclusion)):
        lines += ["", f"# Keys of [[{table}]]:"]
        lines += [f"#   {field.name}: {field.metadata['doc']}" for field in dataclasses.fields(keys)]
    for name, section in _SECTIONS:
        lines += ["", f"[{name}]"]
        for field in dataclasses.fields(section):
            example = " No default: an example." if field.default is None else ""
            lines += [
                f"# {field.metadata['doc']}{example}",
                f"# {field.name} = {_toml(field.metadata['show'])}",
            ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
