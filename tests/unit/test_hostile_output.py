"""Tests of all commands with hostile names from users, nodes and daemons.

A name in the output must not control the terminal, imitate rows of a table, or break a page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_controller
import pytest
import queue_answers
import report_examples as examples

from slurm_energy.cli.main import main
from slurm_energy.protocol import agent_socket
from slurm_energy.records import AppliedSetting
from slurm_energy.reports.trace import encode_trace

EVIL = "x\x1b[31m\nFAKE ROW\u202e\x07|=1\ud800"
ESCAPED = r"x\x1b[31m\nFAKE ROW\u202e\x07"


def answers() -> dict[str, Any]:
    setting = AppliedSetting("cpufreq.governor[policy0]", EVIL, EVIL, EVIL, True, EVIL)
    rec = examples.record(1, notes=(EVIL,), applied=(setting,))
    facts = dict.fromkeys(("name", "account", "partition", "state", "user", "requested"), EVIL)
    trace = encode_trace(examples.START, 1.0, {"cpu": [1.0, 2.0]})
    records = [examples.answer(rec, examples.job_info(1, **facts), trace)]
    job = queue_answers.job(
        1, 1, **dict.fromkeys(("name", "user", "account", "partition", "qos", "reason", "why"), EVIL)
    )
    shares = queue_answers.shares()
    for row in shares["rows"]:
        row |= {"account": EVIL, "user": EVIL if row.get("user") else None}
    node = {"node": EVIL, "last_received": 1.0, "spooled": 3}
    return {
        "/v1/records": {"scope": "all", "records": records},
        "/v1/jobs/1": {"decisions": [], "records": records},
        "/v1/priority": queue_answers.priority(job, queue_answers.job(2, 2), policy=EVIL, error=EVIL),
        "/v1/shares": shares,
        "/v1/status": {
            "version": EVIL,
            "cluster": EVIL,
            "database": EVIL,
            "nodes": [node],
            "enrichment": {"last_error": EVIL},
            "priority": {"mode": "shadow", "policy": EVIL, "error": EVIL, "computed": None},
        },
        "/v1/policies": {
            "policies": [{"name": EVIL, "users": [EVIL], "description": EVIL}],
            "bounds": {},
            "defaults": {"policy": EVIL, "user": {EVIL: EVIL}},
        },
    }


AGENT = {
    "ok": True,
    "node": EVIL,
    "version": EVIL,
    "jobs": [{"job_id": 1, "user": EVIL, "policy": EVIL, "watts": {EVIL: 1.0}, "elapsed_s": 1.0}],
    "watts": {EVIL: 3.0},
    "devices": {EVIL: [EVIL]},
    "unrestored": [EVIL],
}


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_controller.install(monkeypatch, answers())
    monkeypatch.setattr(agent_socket, "ask_agent", lambda path, message: AGENT)


@pytest.mark.parametrize(
    "command",
    [
        "acct -a", "acct -a -l", "acct -a -P -o ALL", "acct -a --total", "acct -a --json",
        "experiment -a -S 0101 --by user", "experiment -a -S 0101 --by account -P",
        "experiment -a -S 0101 --json",
        "job 1", "job 1 --ascii", "job 1 --json",
        "prio", "prio -l", "prio -w", "prio 1", "prio -P -o ALL", "prio --json",
        "share -a", "share -a -P", "share -a --json", "status", "status --json", "policies", "top --once",
    ],
)  # fmt: skip
def test_printed_names_cannot_control_the_terminal_or_imitate_rows(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 0
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert [line for line in lines if line.lstrip().startswith("FAKE")] == []


def test_a_page_can_contain_any_name(tmp_path: Path) -> None:
    assert main(["job", "1", "--html", str(tmp_path / "p.html")]) == 0
    assert "FAKE ROW" in (tmp_path / "p.html").read_text("utf-8")


@pytest.mark.parametrize("delimiter", ["\t", ";", "::"])
def test_the_delimiter_is_escaped_in_values(delimiter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acct", "-a", "-P", "-o", "JobID,JobName,Account,UID", "--delimiter", delimiter]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split(delimiter) == ["JobID", "JobName", "Account", "UID"]
    first, name, _, uid = row.split(delimiter)
    assert (first, uid) == ("1", "1001")
    assert name.startswith(ESCAPED)
