"""Tests of the parser of the file that states the objective of a study.

The tests check the keys of the file and the bounds of its limits. They check that an error message names
file, line and key. They also check which sections of the file a digest covers.
"""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path

import pytest

from slurm_energy.config.findings import InvalidConfigError
from slurm_energy.study.goals.indicators import KPIS, Direction
from slurm_energy.study.goals.objective import (
    StudyLimit,
    StudyObjective,
    parse_days,
    parse_objective,
    read_objective,
)
from slurm_energy.study.goals.objective_document import objective_example

TARGET = '[[target]]\nkpi = "energy_kwh"\nchange_percent = -10\n'


def parse(text: str) -> StudyObjective:
    return parse_objective(text, Path("objective.toml"))


def test_the_example_is_valid_and_documents_every_key_and_kpi() -> None:
    text = objective_example('a "quoted" title')
    objective = parse(text)
    assert objective.title == 'a "quoted" title'
    assert objective.targets[0].kpi == "energy_per_work_kwh"
    assert [limit.kpi for limit in objective.limits] == ["mean_jct_s", "jobs_per_hour", "worst_wait_s"]
    uncommented = "\n".join(
        line.removeprefix("# ") if line.startswith("# ") and " = " in line else line
        for line in text.splitlines()
    )
    assert parse(uncommented).prices.price_per_kwh == 0.2
    assert all(f"#   {name} " in text for name in KPIS)
    assert "#   worse_deviations: Permitted worsening, in standard deviations" in text
    assert "# Price of electricity per kWh. No default: an example.\n# price_per_kwh = 0.2\n" in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", r"\[target\]: at least one is needed: write a table \[\[target\]\]"),
        ("x = [", "not TOML"),
        (TARGET + "[scpoe]\n", r"objective.toml:4: \[scpoe\]: unknown section: did you mean 'scope'\?"),
        (TARGET + "[scope]\nusers = []\n", "objective.toml:5: scope.users: unknown key"),
        (TARGET + '[season]\ntimezone = "Mars"\n', "season.timezone: is not a time zone"),
        (TARGET + '[season]\nexclude = ["yesterday"]\n', "season.exclude: 'yesterday' is not a date"),
        (TARGET + '[season]\nexclude = ["2026-02-02/2026-02-01"]\n', "ends before it begins"),
        (TARGET + '[scope]\nbegin = "2026-02-02"\nend = "2026-02-01"\n', "scope.end: is before begin"),
        (TARGET.replace("-10", "10"), "target.change_percent: is no improvement: write a negative number"),
        (TARGET + '[[limit]]\nkpi = "fairness"\n', r"\[limit\]: has no bound: give worse_percent"),
        (TARGET.replace("energy_kwh", "speed"), "target.kpi: must be one of energy_kwh"),
        (TARGET.replace("energy_kwh", "cost"), r"\[prices\]: is needed for the KPI cost: give price_per_kwh"),
        ("title = 5\n" + TARGET, r"\[title\]: must be a string"),
        ("target = 5\n", r"\[target\]: must be a list of tables"),
    ],
)
def test_faults_name_file_line_and_key(text: str, fault: str) -> None:
    with pytest.raises(InvalidConfigError, match=fault) as caught:
        parse(text)
    assert all("\n" not in line for line in caught.value.lines)


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse('[[target]]\nkpi = "x"\n[[limit]]\nkpi = "y"\n[scope]\nz = 1\n')
    assert len(caught.value.lines) == 3


def test_bounds_of_limits() -> None:
    falls, rises = StudyLimit("mean_jct_s", worse_percent=5.0), StudyLimit("fairness", worse_deviations=2.0)
    assert falls.bounds(100.0, 3.0) == (-math.inf, 105.0)
    assert rises.bounds(0.9, 0.05) == (0.8, math.inf)
    assert StudyLimit("mean_jct_s", worse_percent=5.0, maximum=101.0).bounds(100.0, 0.0)[1] == 101.0
    assert falls.bounds(math.nan, math.nan) == (-math.inf, math.inf)


def test_worsening_follows_the_direction_of_the_kpi() -> None:
    assert KPIS["energy_kwh"].worsening(100.0, 110.0) == pytest.approx(0.1)
    assert KPIS["jobs_per_hour"].worsening(100.0, 110.0) == pytest.approx(-0.1)
    assert {kpi.better for kpi in KPIS.values()} == set(Direction)


def test_days_of_the_season() -> None:
    objective = parse(TARGET + '[season]\nexclude = ["2026-12-24", "2026-12-31/2027-01-02"]\n')
    expected = {date(2026, 12, 24), date(2026, 12, 31), date(2027, 1, 1), date(2027, 1, 2)}
    assert objective.season.excluded() == expected
    with pytest.raises(ValueError, match="longer than"):
        parse_days("1000-01-01/2026-01-01")


def test_the_digest_covers_only_the_named_sections_and_their_files(tmp_path: Path) -> None:
    path = tmp_path / "objective.toml"
    path.write_text(TARGET + '[prices]\nprice_file = "price.csv"\n')
    (tmp_path / "price.csv").write_text("time,EUR/kWh\n0,1\n")
    before = read_objective(path)
    path.write_text('title = "t"\n' + TARGET.replace("-10", "-5") + '[prices]\nprice_file = "price.csv"\n')
    after = read_objective(path)
    assert before.digest("scope", "prices") == after.digest("scope", "prices")
    assert before.digest("targets") != after.digest("targets")
    digest = after.digest("prices")
    (tmp_path / "price.csv").write_text("time,EUR/kWh\n0,2\n")
    assert after.digest("prices") != digest
