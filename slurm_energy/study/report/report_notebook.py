"""Write the report of a study as a Jupyter notebook.

The notebook reads the study's files and repeats the computation of the effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IMPORTS = """\
import json
from pathlib import Path

import pandas as pd

study = Path({path!r})
report = json.loads((study / "report.json").read_text())
"""
_STEPS = """\
pd.DataFrame(report["steps"])[["step", "state", "command", "seed", "release"]]
"""
_EFFECTS = """\
pd.DataFrame(report["results"]["validate"]["effects"]).T[["change", "low", "high", "p_value", "method"]]
"""
_DAYS = """\
days = pd.read_csv(study / "validate" / "days.csv", parse_dates=["date"])
main = days[days.kpi == {kpi!r}].copy()
main["relative"] = main.value / main.expected.fillna(1.0)
main.pivot_table(index="date", columns="group", values="relative").plot(style="o", title={kpi!r})
"""
_AGAIN = """\
from slurm_energy.study.effects.effects import switchback_effect, difference_effect
from slurm_energy.study.effects.period_series import PeriodSeries
import numpy as np

is_switchback = report["results"]["validate"]["design"] == "switchback"
one = main[main.group != "control"] if not is_switchback else main
day = (one.date - pd.Timestamp("1970-01-01")).dt.days.to_numpy(float)
series = PeriodSeries(
    day, one.date.dt.day_of_week.to_numpy(), (one.group == "treated").to_numpy(),
    (one.group != "baseline").to_numpy(), one.relative.to_numpy(),
    period=one.period.to_numpy() if is_switchback and "period" in one else None,
)
switchback_effect(series) if is_switchback else difference_effect(series, None)
"""


def study_notebook(report: Mapping[str, Any], folder: Path) -> str:
    """Return the notebook as text (nbformat 4.5), without outputs.

    Args:
        report: object of `report_document`. It is stored as `report.json` beside the notebook.
        folder: directory of the study.
    """
    lines = "\n".join(f"- {line}" for line in report["conclusion"])
    cells = [
        _markdown(f"# {report['title']}\n\nEnergy study {report['id']}\n\n{lines}\n"),
        _code(_IMPORTS.format(path=str(folder.absolute()))),
        _markdown("## Steps\n\nHashes of all inputs and outputs are in `study.json`."),
        _code(_STEPS),
    ]
    if "validate" in report["results"]:
        kpi = report["targets"][0]["kpi"]
        cells += [
            _markdown("## Effects"),
            _code(_EFFECTS),
            _markdown("## Days\n\nRelative to the value that the work of a day lets expect, where known."),
            _code(_DAYS.format(kpi=kpi)),
            _markdown("## The estimate again, without the work and the randomisation test"),
            _code(_AGAIN),
        ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return (
        json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1)
        + "\n"
    )


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(text: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
