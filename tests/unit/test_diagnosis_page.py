"""Tests that docs/diagnosis.md and docs/findings agree with the code, and show real output."""

import sys
from pathlib import Path

import diagnosis_examples
import fake_controller
import pytest

from slurm_energy.cli.main import main
from slurm_energy.config.diagnosis_section import threshold_table
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED
from slurm_energy_lab.diagnosis_corpus.scores import build
from slurm_energy_lab.diagnosis_corpus.straggler_tasks import STRAGGLERS, TASKS, score, task_groups

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "diagnosis.md").read_text(encoding="utf-8")


def test_table_of_thresholds_is_that_of_the_code() -> None:
    assert "\n".join(threshold_table()) in PAGE


def test_each_kind_of_finding_has_a_page_with_meaning_looks_and_remedy() -> None:
    pages = {file.stem for file in (DOCS / "findings").glob("*.md")}
    assert pages == {kind.value for kind in FindingKind}
    for kind in FindingKind:
        text = (DOCS / f"findings/{kind}.md").read_text(encoding="utf-8")
        headings = [line for line in text.splitlines() if line.startswith("#")]
        assert headings[1:] == ["## Meaning", "## Signs", "## Remedy"]
        assert f"(findings/{kind}.md) (`{kind}`)" in PAGE


def test_example_is_the_output_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = build(next(job for job in PLANTED if job.name == "slow-storage"), 6)
    fake_controller.install(monkeypatch, diagnosis_examples.answers(job))
    assert main(["diagnose", "7"]) == 0
    text = capsys.readouterr().out
    assert sys.stdout.encoding.lower() == "utf-8"
    assert f"$ senergy diagnose 7\n{text}```" in PAGE


def test_table_of_stragglers_is_that_of_the_benchmark() -> None:
    groups = task_groups(724)
    assert sum(len(group.durations_s) for group in groups) == TASKS == 21_000
    assert sum(len(group.slow) for group in groups) == STRAGGLERS == 724
    for threshold in (1.2, 1.3, 2.0):
        one = score(groups, threshold)
        assert f"| {threshold:.1f} | {one.precision:.3f} | {one.recall:.3f} | {one.f1:.3f} |" in PAGE
