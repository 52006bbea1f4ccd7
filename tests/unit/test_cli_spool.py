"""Tests of `senergy spool`, which lists and resends the records that wait on a node.

The tests also check the exit codes.
"""

from __future__ import annotations

from typing import Any

import fake_controller
import golden_files
import pytest

from slurm_energy.cli import main
from slurm_energy.errors import UnavailableError
from slurm_energy.protocol import agent_socket

LISTING = {
    "ok": True,
    "spooled": 4,
    "deferred": 2,
    "deferred_reason": "schema 2 is newer than 1",
    "rejected": 3,
    "rejected_bytes": 1_234_567,
    "rejected_limit_bytes": 128_000_000,
    "rejected_dropped": 1,
    "rejected_folder": "/var/lib/senergy/agent/spool/rejected",
    "rejected_records": [
        {
            "record_id": "a" * 32,
            "end": 0,
            "bytes": 900,
            "trace": True,
            "reason": "too hot",
            "refused_by": "1",
        },
        {"record_id": "b", "end": None, "bytes": 9, "trace": False, "reason": "odd", "refused_by": None},
    ],
}


class Agent:
    """An agent that returns given responses and stores the requests."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def __call__(self, _path: Any, message: Any) -> Any:
        self.asked.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def run(monkeypatch: pytest.MonkeyPatch, answer: Any, *arguments: str) -> tuple[int, Agent]:
    agent = Agent(answer)
    monkeypatch.setattr(agent_socket, "ask_agent", agent)
    return main.main(["spool", *arguments]), agent


def test_listing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_controller.timezone("UTC"):
        code, agent = run(monkeypatch, LISTING)
    assert (code, agent.asked) == (0, [{"op": "spool"}])
    golden_files.compare("spool.txt", capsys.readouterr().out)


def test_listing_of_periods(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TZ", "UTC")
    empty = {**LISTING, "deferred": 0, "rejected": 0, "rejected_dropped": 0, "rejected_records": []}
    run(monkeypatch, {**empty, "periods": {**LISTING, "spooled": 7}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "spooled   7 periods of the node's energy wait for the controller"
    assert lines[5].startswith("rejected  3 periods of the node's energy, 1.2 of 128 MB")
    assert lines[8].startswith("PERIOD ")


def test_resend(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, agent = run(monkeypatch, {"ok": True, "resent": 3}, "resend")
    assert (code, agent.asked) == (0, [{"op": "resend", "record_ids": None}])
    assert capsys.readouterr().out.startswith("3 records will be sent again")
    assert run(monkeypatch, {"ok": True, "resent": 1}, "resend", "x", "--json")[1].asked == [
        {"op": "resend", "record_ids": ["x"]}
    ]
    assert capsys.readouterr().out.split() == ["{", '"resent":', "1", "}"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"ok": False, "error": "spool: uid 5 may not: root only", "code": 5}, 5),
        ({"ok": False, "error": "record x: not among the refused ones", "code": 6}, 6),
        ({"ok": False, "error": "internal error", "code": 1}, 1),
        (UnavailableError("agent /run/x", "No such file"), 4),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any, code: int
) -> None:
    assert run(monkeypatch, answer, "resend")[0] == code
    assert capsys.readouterr().err.count("\n") == 1


def test_records_need_an_action(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, LISTING, "list", "someid")[0] == 2
