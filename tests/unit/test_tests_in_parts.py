"""Tests that `make check` divides the unit tests completely and evenly among its processes."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci/tests-in-parts"
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_file_is_in_one_part_and_the_parts_are_equal(count: int) -> None:
    program = runpy.run_path(str(PROGRAM))
    files = program["test_files"]([str(TESTS / "unit"), str(TESTS / "lab")], [])
    parts = program["parts_of"](files, count)
    assert {TESTS / "unit/test_readers.py", TESTS / "lab/test_lab_job.py"} <= set(files)
    assert sorted(path for part in parts for path in part) == sorted(files)
    sizes = [sum(path.stat().st_size for path in part) for part in parts]
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= max(path.stat().st_size for path in files)


def test_only_files_with_slow_tests_alone_are_left_out(tmp_path: Path) -> None:
    marks = {
        "test_all.py": "pytestmark = pytest.mark.slow",
        "test_all_as_list.py": "pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.root,\n]",
        "test_one.py": "@pytest.mark.slow",
        "test_slower.py": "pytestmark = pytest.mark.slower",
    }
    for name, mark in marks.items():
        (tmp_path / name).write_text(f"import pytest\n\n{mark}\n")
    chosen = runpy.run_path(str(PROGRAM))["test_files"]
    assert len(chosen([str(tmp_path)], ["-m", "not soak"])) == 4
    names = {path.name for path in chosen([str(tmp_path)], ["-m", "not slow and not soak"])}
    assert names == {"test_one.py", "test_slower.py"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "options", "code"), [("True", (), 0), ("False", (), 1), ("True", ("-k", "absent"), 5)]
)
def test_the_run_fails_if_a_part_fails(
    tmp_path: Path, outcome: str, options: tuple[str, ...], code: int
) -> None:
    (tmp_path / "test_first.py").write_text("def test_good():\n    assert True\n")
    (tmp_path / "test_second.py").write_text(f"def test_second():\n    assert {outcome}  # shorter\n")
    command = [sys.executable, str(PROGRAM), "2", str(tmp_path), "--", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    if not options:
        assert "test_first" in done.stdout and "test_second" in done.stdout


def test_wrong_use_is_explained() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Usage:" in done.stderr
