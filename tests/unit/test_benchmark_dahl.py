"""Tests of the tables and verdicts of benchmarks/dahl.py.

The tests use invented runs, for which the correct tables and verdicts are known.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCALES = ((26, 34), (62, 84), (270, 360))


@pytest.fixture
def dahl(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import dahl_findings
    import dahl_report
    import dahl_results

    yield SimpleNamespace(findings=dahl_findings, report=dahl_report, results=dahl_results)
    for name in ("dahl_findings", "dahl_report", "dahl_results", "claims"):
        sys.modules.pop(name, None)


def runs_of(figures: dict[str, tuple[float, float, float]], batch: int = 32) -> list[dict[str, Any]]:
    """Return invented runs of the benchmark dahl.py, three for each configuration, on 2 cores.

    Args:
        figures: for each configuration, the seconds of a run at each of the three image scales.
        batch: batch size.
    """
    return [
        {
            "config": config, "cores": 2, "height": height, "width": width, "batch": batch, "samples": 1000,
            "repetition": number, "seconds": seconds + 0.01 * number, "cpu_s": seconds,
            "joules": 10 * seconds + 0.1 * number, "energy_source": "RAPL packages", "threads": 2,
            "loss": 2.0,
        }
        for config, row in figures.items()
        for (height, width), seconds in zip(SCALES, row, strict=True)
        for number in range(3)
    ]  # fmt: skip


def text(dahl: Any, runs: list[dict[str, Any]]) -> str:
    return "\n".join(dahl.report.page_lines(runs))


def test_crossover_and_best_configuration(dahl: Any) -> None:
    page = text(dahl, runs_of({"openmp": (1.0, 2.0, 9.0), "taskgraph": (2.0, 2.0, 5.0)}))
    assert "| time | OpenMP | task graph | 26x34x3 | 270x360x3 |" in page
    assert "| energy | OpenMP | task graph | 26x34x3 | 270x360x3 |" in page
    assert "| 26x34x3 | **1.01 ± 0.025** | 2.01 ± 0.025 |" in page
    assert "| 62x84x3 | OpenMP, 2 cores * |" in page, "equal configurations are marked"
    assert "| 270x360x3 | task graph, 2 cores |" in page
    assert "task graph, 2 cores at 270x360x3 | yes |" in page


def test_no_crossover_without_a_clear_difference(dahl: Any) -> None:
    page = text(dahl, runs_of({"openmp": (1.0, 2.0, 9.0), "taskgraph": (1.001, 1.999, 8.999)}))
    assert "None beyond the confidence intervals." in page
    assert "no two scales differ beyond the confidence intervals | not decided |" in page


def verdicts(dahl: Any, runs: list[dict[str, Any]]) -> dict[str, bool | None]:
    return {name: holds for name, _, holds in dahl.findings.findings(dahl.results.Results(runs))}


def test_verdicts_need_a_clear_difference(dahl: Any) -> None:
    ddp = "data-parallel processes need more time and energy than threads (8.7x and 11.5x)"
    slower = {"openmp": (1.0, 2.0, 9.0), "ddp": (3.0, 4.0, 12.0)}
    assert verdicts(dahl, runs_of(slower))[ddp] is True
    assert verdicts(dahl, runs_of({**slower, "ddp": (3.0, 2.0, 12.0)}))[ddp] is None
    assert verdicts(dahl, runs_of({**slower, "ddp": (3.0, 1.0, 12.0)}))[ddp] is False
    assert verdicts(dahl, runs_of({"openmp": slower["openmp"]}))[ddp] is None
    batches = "larger batches reduce the time of all frameworks"
    both = runs_of({"openmp": (1.0, 2.0, 9.0)}) + runs_of({"openmp": (0.5, 1.0, 5.0)}, batch=128)
    assert verdicts(dahl, both)[batches] is True


def test_claims_about_the_task_graph(dahl: Any) -> None:
    runs = runs_of({"openmp": (1.0, 2.0, 9.0), "taskgraph": (1.5, 2.0, 5.0)})
    loss, time, cpu = dahl.findings.claims(runs)
    assert loss["holds"]
    assert (time["ratio"], time["holds"]) == (pytest.approx(1.51 / 1.01, abs=1e-3), False)
    assert (cpu["ratio"], cpu["holds"]) == (pytest.approx(1 / 3, abs=1e-3), False)
    assert not list(dahl.findings.claims([]))


def test_last_losses_may_differ_as_those_of_pytorch_do(dahl: Any) -> None:
    runs = runs_of({"openmp": (1.0, 2.0, 9.0)})
    ddp = [run | {"config": "ddp", "loss": 2.1} for run in runs]
    for loss, ratio, holds in ((2.2, 1.0, True), (1.6, 4.0, False)):
        own = [run | {"config": "taskgraph", "loss": loss} for run in runs]
        first = next(dahl.findings.claims([*runs, *ddp, *own]))
        assert (first["ratio"], first["holds"]) == (pytest.approx(ratio, abs=1e-3), holds)
    own = [run | {"config": "taskgraph", "loss": 2.01} for run in runs]
    first = next(dahl.findings.claims([*runs, *own]))
    assert (first["ratio"], first["holds"]) == (pytest.approx(5.0, abs=1e-3), False)


@pytest.mark.parametrize(("difference", "holds"), [(1e-13, True), (1e-8, False)])
def test_losses_in_float64_have_equal_digits(dahl: Any, difference: float, holds: bool) -> None:
    exact = runs_of({"default": (1.0, 2.0, 9.0)})[0] | {"dtype": "float64", "losses": [2.0, 1e-7]}
    own = exact | {"config": "taskgraph", "losses": [2.0, 1e-7 + difference]}
    (claim,) = dahl.findings.claims([exact, own])
    assert claim["holds"] is holds
    assert text(dahl, [exact, own]) == "No runs."


def test_tables_replace_the_lines_between_the_markers(dahl: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- dahl:begin -->\nold\n<!-- dahl:end -->\nb\n")
    runs = runs_of({"openmp": (1.0, 2.0, 9.0)})
    for _ in range(2):
        dahl.report.write_page(page, [*runs, runs[0] | {"seconds": None}])
    lines = page.read_text().splitlines()
    assert "old" not in lines
    assert (lines[0], lines[-1]) == ("a", "b")
    assert lines.count("<!-- dahl:end -->") == 1
    assert "1 runs failed and are left out." in lines
    page.write_text("no markers")
    with pytest.raises(ValueError, match="no lines"):
        dahl.report.write_page(page, runs)


def test_the_page_has_the_markers(dahl: Any) -> None:
    page = (BENCHMARKS.parent / "docs/training-configurations.md").read_text()
    assert page.index(dahl.report.BEGIN) < page.index(dahl.report.END)
