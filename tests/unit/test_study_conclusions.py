"""Tests of the statements (conclusions) that the objective of a study contains.

The results of the study show whether each statement holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_energy.config.findings import InvalidConfigError
from slurm_energy.study.goals.conclusions import judged_conclusion
from slurm_energy.study.goals.objective import StudyConclusion, parse_objective, read_objective

EXAMPLE = Path(__file__).parents[2] / "examples/study/thesis/objective.toml"


def results(change: float = -0.06, half: float = 0.02, limit: str = "kept") -> dict[str, Any]:
    effect = {
        "change": change,
        "low": change - half,
        "high": change + half,
        "level": 0.95,
        "is_relative": True,
        "excludes_zero": abs(change) > half,
    }
    return {
        "model": {"errors": [{"kpi": "energy_kwh", "error": -0.03}]},
        "validate": {
            "effects": {"energy_kwh": effect, "jobs_per_hour": effect},
            "limits": [{"kpi": "energy_kwh", "verdict": limit}],
            "predicted": {"energy_kwh": -0.05},
        },
    }


def verdict(finding: str, percent: float | None = None, kpi: str = "energy_kwh", **planted: Any) -> str:
    return str(judged_conclusion(StudyConclusion("x", kpi, finding, percent), results(**planted))["verdict"])


def test_a_saving_must_be_certain_and_large_enough() -> None:
    assert verdict("improves") == "reached"
    assert verdict("improves", half=0.07) == "not reached"
    assert verdict("improves", change=0.06) == "not reached"
    assert verdict("improves", kpi="jobs_per_hour") == "not reached"  # fewer jobs are no improvement
    assert verdict("improves", kpi="jobs_per_hour", change=0.06) == "reached"
    assert (verdict("improves", 5.0), verdict("improves", 7.0)) == ("reached", "not reached")


def test_limits_twin_and_prediction_are_judged() -> None:
    assert (verdict("keeps"), verdict("keeps", limit="at risk")) == ("reached", "not reached")
    assert (verdict("twin_error", 3.5), verdict("twin_error", 2.0)) == ("reached", "not reached")
    assert (verdict("predicts"), verdict("predicts", half=0.005)) == ("reached", "not reached")


@pytest.mark.parametrize("finding", ["improves", "keeps", "twin_error", "predicts"])
def test_what_was_not_measured_is_unknown(finding: str) -> None:
    judged = judged_conclusion(StudyConclusion("x", "energy_kwh", finding, 1.0), {})
    assert judged["verdict"] == "unknown"
    assert judged["figures"]


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('kpi = "energy_kwh"', "text: is missing"),
        ('text = "x"\nfinding = "twin_error"', "percent: is needed for twin_error"),
        ('text = "x"\nfinding = "predicts"\npercent = 1.0', "percent: has no effect on predicts"),
        ('text = "x"\nfinding = "keeps"', "kpi: has no limit"),
        ('text = "x"\nfinding = "proves"', "finding"),
    ],
)
def test_conclusions_that_cannot_be_judged_are_refused(table: str, fault: str) -> None:
    text = f'[[target]]\nkpi = "energy_kwh"\nchange_percent = -5\n[[conclusion]]\n{table}\n'
    with pytest.raises(InvalidConfigError, match=fault):
        parse_objective(text, Path("o.toml"))


def test_the_example_of_the_thesis_names_its_conclusions() -> None:
    names = [one.text for one in read_objective(EXAMPLE).conclusions]
    assert len(names) == 6
    readme = (EXAMPLE.parent / "README.md").read_text()
    assert all(name in readme for name in names)
