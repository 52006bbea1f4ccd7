"""Tests of the command `senergy top`: its screen, its JSON lines and its error messages.

The agent's responses have the form that docs/reference/protocol.md specifies.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import UnavailableError
from slurm_energy.protocol import agent_socket
from slurm_energy.reports.live_power import screen, total
from slurm_energy.reports.plots.text_plot import ASCII, BLOCKS

OWN = {
    "job_id": 12,
    "policy": "edp",
    "phase": "open",
    "user": "alice",
    "elapsed_s": 65.0,
    "watts": {"cpu": 150.0, "gpu[0]": 250.0},
    "energy_joules": {"cpu": 1500.0, "gpu[0]": None},
}
OTHER = {"job_id": 13, "policy": "monitor", "phase": "open"}
STATUS = {
    "ok": True,
    "node": "n1",
    "jobs": [OWN, OTHER],
    "watts": {"cpu": 200.0, "dram": None, "gpu[0]": 250.0},
    "watts_window_s": 1.0,
}


def test_a_job_s_gpus_share_a_column() -> None:
    eight = {f"gpu[{index}]": 100.0 for index in range(8)}
    job = {**OWN, "watts": {"cpu": 150.0, **eight}}
    lines = screen({**STATUS, "jobs": [job]}, "10:00:00", ASCII, 250.0)
    head = next(line for line in lines if "JOB" in line)
    assert head.split()[-2:] == ["CPU(W)", "GPU(W)"]
    assert lines[-1].split()[-2:] == ["150.0", "800.0"]
    assert max(map(len, lines)) <= 100
    unknown = {**job, "watts": {**job["watts"], "gpu[7]": None}}
    assert screen({**STATUS, "jobs": [unknown]}, "10:00:00", ASCII, 250.0)[-1].split()[-1] == "unknown"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []

    def ask(path: Path, message: dict[str, Any]) -> dict[str, Any]:
        assert message == {"op": "status"}
        if not answers:
            raise KeyboardInterrupt
        return answers.pop(0)

    monkeypatch.setattr(agent_socket, "ask_agent", ask)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    return answers


def test_the_screen_shows_node_components_and_jobs() -> None:
    lines = screen(STATUS, "10:00:00", ASCII, 250.0)
    assert (
        lines[0] == "n1  unknown W  10:00:00, mean of 1.0 s"
    )  # the sum is unknown if a component is unknown
    assert lines[2] == f"{'cpu':<10} {'200.0':>8} W  {'#' * 24}{'.' * 6}"
    assert lines[3].split()[:3] == ["dram", "unknown", "W"]
    own = next(line for line in lines if line.split()[:1] == ["12"])
    assert own.split() == ["12", "alice", "edp", "00:01:05", "400.0", "unknown", "150.0", "250.0"]
    other = next(line for line in lines if line.split()[:1] == ["13"])
    assert other.split()[:3] == ["13", "-", "monitor"]
    assert all(line.isascii() for line in lines)
    assert "█" in "".join(screen(STATUS, "", BLOCKS, 250.0))


def test_a_meter_of_the_node_is_the_total() -> None:
    assert total({"cpu": 100.0, "node": 180.0}) == 180.0
    assert total({"cpu": 100.0, "dram": 20.0}) == 120.0
    assert total({"cpu": 100.0, "dram": None}) is None
    assert total({}) is None


def test_once_prints_one_screen(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    asked += [STATUS, STATUS]
    assert main(["top", "--once", "--ascii"]) == 0
    assert capsys.readouterr().out.count("n1  ") == 1
    assert len(asked) == 1


def test_an_idle_node_is_queried_twice_before_the_first_screen(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked += [{**STATUS, "jobs": [], "watts": {}}, {**STATUS, "jobs": []}]
    assert main(["top", "--once", "--ascii"]) == 0
    output = capsys.readouterr().out
    assert "no job is running on this node" in output
    assert "cpu" in output


def test_json_is_a_line_per_refresh_until_interrupted(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked += [STATUS, STATUS, STATUS]
    assert main(["top", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["watts"]["cpu"] for line in lines] == [200.0] * 3


def test_a_node_without_counters_promises_no_power() -> None:
    assert "no power yet" in "\n".join(screen({**STATUS, "watts": {"cpu": None}}, "", ASCII, 0.0))
    shown = "\n".join(screen({**STATUS, "watts": {}}, "", ASCII, 0.0))
    assert "no power yet" not in shown
    assert "this node has no energy counter" in shown


@pytest.mark.parametrize("size", [(0, 0), (80, 1)])
def test_a_terminal_without_a_size_or_with_one_row_shows_the_node(
    asked: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: tuple[int, int],
) -> None:
    # A serial console has the size 0 x 0.
    asked += [STATUS]
    monkeypatch.setenv("TERM", "vt220")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size(size))
    assert main(["top"]) == 0
    assert "n1  unknown W" in capsys.readouterr().out


def test_an_unusable_interval_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--interval", "0"]) == 2
    assert "--interval" in capsys.readouterr().err


def test_a_missing_agent_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(*_: Any) -> dict[str, Any]:
        raise UnavailableError("agent /x", "no such file")

    monkeypatch.setattr(agent_socket, "ask_agent", nobody)
    assert main(["top", "--once"]) == 4
    assert "agent /x" in capsys.readouterr().err
