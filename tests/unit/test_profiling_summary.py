"""Tests of `senergy profile --gather` and of its summary of many ranks and nodes."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import NotFoundError
from slurm_energy.profiling import frame, read_lines, summarise


def line(
    path: str = "solve",
    start: float = 100.0,
    seconds: float = 10.0,
    joules: float | None = 100.0,
    *,
    node: str = "n1",
    rank: int = 0,
    **more: Any,
) -> dict[str, Any]:
    return {
        "section": path.rpartition("/")[2],
        "path": path.split("/"),
        "start": start,
        "seconds": seconds,
        "energy_joules": {"cpu": joules, "dram": 1.0},
        "total_joules": None if joules is None else joules + 1,
        "mean_watts": None if joules is None else (joules + 1) / seconds,
        "source": "agent",
        "age_s": 0.0,
        "failed": None,
        "job_id": 12,
        "step": "0",
        "node": node,
        "rank": rank,
        "pid": 100 + rank,
        "thread": "MainThread",
        **more,
    }


def test_ranks_on_one_node_measured_the_same_and_count_once() -> None:
    lines = [line(rank=rank, joules=100.0 + rank, start=100.0 + rank * 0.01) for rank in range(4)]
    (summary,) = summarise(lines)
    assert summary.energy_joules == {"cpu": 103.0, "dram": 1.0}
    assert summary.total_joules == 104.0
    assert (summary.calls, summary.processes, summary.nodes, summary.seconds) == (4, 4, 1, 10.0)


def test_nodes_add_up() -> None:
    lines = [line(node=f"n{n}", rank=2 * n + r) for n in range(3) for r in range(2)]
    (summary,) = summarise(lines)
    assert (summary.total_joules, summary.nodes, summary.processes) == (303.0, 3, 6)


def test_runs_one_after_the_other_add_up() -> None:
    lines = [line(start=100.0 + 10 * number, joules=50.0) for number in range(3)]
    (summary,) = summarise(lines)
    assert (summary.total_joules, summary.calls, summary.seconds) == (153.0, 3, 30.0)


def test_of_overlapping_runs_the_process_that_measured_most_counts() -> None:
    whole = line(rank=0, seconds=20.0, joules=200.0)
    halves = [line(rank=1, start=100.0 + 8 * n, seconds=7.0, joules=60.0) for n in range(2)]
    (summary,) = summarise([whole, *halves])
    assert summary.energy_joules["cpu"] == 200.0


def test_a_value_unknown_to_all_ranks_of_a_node_is_unknown() -> None:
    known, unknown = line(rank=0, joules=100.0), line(rank=1, joules=None)
    assert summarise([known, unknown])[0].energy_joules["cpu"] == 100.0
    (summary,) = summarise([known, line(node="n2", rank=2, joules=None)])
    assert (summary.energy_joules["cpu"], summary.total_joules) == (None, None)


def test_a_meter_of_the_node_is_the_total() -> None:
    lines = [line() | {"energy_joules": {"cpu": 100.0, "node": 180.0}}]
    assert summarise(lines)[0].total_joules == 180.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        own = [line("all", rank=rank, start=99.0), line("all/io", rank=rank, joules=None, failed="OSError")]
        text = "".join(json.dumps(entry) + "\n" for entry in own)
        (tmp_path / f"job12-rank{rank}.jsonl").write_text(text)
    (tmp_path / "job12-torn.jsonl").write_text(
        '{"path": ["x"], "sta\n{}\n[]\n'
        + "\n".join(json.dumps({**line(), "seconds": seconds}) for seconds in (None, 10**400))
    )
    return tmp_path


def test_incomplete_lines_are_skipped(folder: Path) -> None:
    assert ["/".join(entry["path"]) for entry in read_lines(folder)] == ["all", "all", "all/io", "all/io"]


@pytest.mark.parametrize("option", [[], ["--ranks"], ["--json"], ["--csv"]])
def test_files_of_another_user_neither_block_nor_break_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    os.mkfifo(folder / "fifo.jsonl")
    (folder / "device.jsonl").symlink_to("/dev/zero")
    wrong: list[dict[str, Any]] = [{"thread": []}, {"node": {}}, {"rank": "0"}, {"failed": 5}, {"pid": 1e300}]
    wrong += [{"energy_joules": {"cpu": 1.7e308}, "start": start} for start in (1.0, 100.0)]
    lines = [json.dumps(line() | values) for values in [*wrong, {"path": ["\ud800"]}]]
    (folder / "hostile.jsonl").write_text("\n".join(lines))
    assert main(["profile", "--gather", str(folder), *option]) == 0
    assert capsys.readouterr().out
    assert len(read_lines(folder)) == 5


def test_an_empty_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFoundError):
        read_lines(tmp_path)
    assert main(["profile", "--gather", str(tmp_path)]) == 6
    assert str(tmp_path) in capsys.readouterr().err


def test_the_command_prints_sections_ranks_json_and_csv(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--gather", str(folder)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["CALLS", "RANKS", "NODES", "SECONDS", "JOULES", "SECTION"]
    assert [row.split() for row in rows] == [
        ["2", "2", "1", "10.000", "101.00", "all"],
        ["2", "2", "1", "10.000", "unknown", "all/io"],
    ]
    assert main(["profile", "--gather", str(folder), "--ranks"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["0", "1", "0", "1"]
    assert rows[3].endswith("all/io  ended by OSError")
    assert main(["profile", "--gather", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [section["path"] for section in document["sections"]] == [["all"], ["all", "io"]]
    assert len(document["lines"]) == 4
    assert main(["profile", "--gather", str(folder), "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["section"], row["rank"], row["joules.cpu"]) for row in table][1:3] == [
        ("all", "1", "100.0"),
        ("all/io", "0", ""),
    ]


def test_pandas_gets_a_row_per_run(folder: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed (make test installs it)")
    table = frame(folder)
    assert list(table["section"]) == ["all", "all", "all/io", "all/io"]
    assert table["joules.cpu"].sum() == 200.0
    assert table["joules.cpu"].isna().sum() == 2
