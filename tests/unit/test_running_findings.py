"""Tests of the findings about jobs that still run.

The tests follow a finding through live reports, the controller, and `senergy top --findings`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import fake_controller
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from store_examples import record
from test_job_manager import Node, env

from slurm_energy.agent.signals.live_diagnosis import LiveDiagnosisLoop
from slurm_energy.cli.main import main
from slurm_energy.config import Config
from slurm_energy.config.loader import load
from slurm_energy.controller.diagnosis.running_findings import RunningFindings
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.json_codec import rank_to_json
from slurm_energy.diagnosis.live_finding import MAX_FINDINGS, LiveFinding, merged, parse_live_findings
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps
from slurm_energy.errors import ConfigError, UsageError
from slurm_energy.protocol.live_reports import LiveReport

ALICE, BOB = 1000, 1001
STALL = {
    "kind": "data-stall",
    "title": "Steps wait for data",
    "time_share": 0.5,
    "joules_lost": 100.0,
    "confidence": 0.7,
}
IDLE = STALL | {"kind": "idle-allocation", "time_share": 0.1, "joules_lost": None}


def report(node: str, *jobs: tuple[int, int, list[Any]]) -> bytes:
    """Return a live report of a node, as bytes, with the running jobs and their findings.

    Each job is given as job id, user id and list of findings.
    """
    records = [
        record(job_id=job, uid=uid, node=node, user=f"user{uid}", start=1000.0) | {"findings": findings}
        for job, uid, findings in jobs
    ]
    return json.dumps(
        {"cluster": "c1", "node": node, "time": 1100.0, "watts": {}, "records": records}
    ).encode()


def controller(*reports: bytes) -> RunningFindings:
    live = LiveReports(Config)
    for body in reports:
        asyncio.run(live.receive(body, Sender()))
    return RunningFindings(live, lambda: 1000.0 + 3600.0)


def test_an_agent_reports_what_it_found_so_far(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(5))
    node.clock.now += 300
    times = {"forward": 0.1, "data": 0.1, "step": 0.2}
    phases = {name: PhaseStatistics.of([value] * 1000) for name, value in times.items()}
    node.manager._sessions[5, 0].step_reports.put("0", rank_to_json(RankSteps("n1", 0, None, 7, phases)), 7)
    diagnosis = node.manager.signals.diagnosis
    (run,) = diagnosis.observed()
    diagnosis.store(run.key, diagnosis.diagnose(run))
    diagnosis.store((99, 0), diagnosis.diagnose(run))
    again = LiveReport.from_json(json.loads(json.dumps(node.manager.queries.report("n1", "lab").to_json())))
    (finding,) = parse_live_findings(dict(again.records[0].extra)["findings"])
    assert (finding.kind, finding.confidence) == (FindingKind.DATA_STALL, 0.7)
    assert finding.time_share == pytest.approx(100 / 300, rel=1e-3)
    assert "findings" not in node.manager._sessions[5, 0].dump()
    node.die()


def test_users_see_findings_of_their_own_jobs() -> None:
    findings = controller(
        report("n1", (1, ALICE, [STALL]), (2, BOB, [IDLE])), report("n2", (1, ALICE, [STALL, IDLE]))
    )

    def seen(rights: Rights) -> Any:
        return json.loads(json.dumps(asyncio.run(findings.inquire({}, rights))))

    everything = seen(Rights(0, "root", everything=True))
    assert [job["job_id"] for job in everything["jobs"]] == [1, 2]
    (own,) = seen(Rights(ALICE, "alice"))["jobs"]
    assert (own["job_id"], own["nodes"], own["elapsed_s"]) == (1, ["n1", "n2"], 3600.0)
    assert [(one["kind"], one["joules_lost"]) for one in own["findings"]] == [
        ("data-stall", 200.0),
        ("idle-allocation", None),
    ]
    assert seen(Rights(4711, "eve"))["jobs"] == []
    (family,) = findings.families()
    assert family.samples == {("data-stall",): 1.0, ("idle-allocation",): 2.0}


@pytest.mark.parametrize(
    "wrong", [5, [5], [STALL] * (MAX_FINDINGS + 1), [STALL | {"time_share": 2}], [STALL | {"title": ""}]]
)
def test_malformed_findings_hide_nothing_else(wrong: Any) -> None:
    with pytest.raises(UsageError):
        parse_live_findings(wrong)
    assert controller(report("n1", (1, ALICE, wrong), (2, ALICE, [STALL]))).jobs()[0].job_id == 2


def test_kinds_of_a_newer_release_are_left_out() -> None:
    assert [one.kind for one in parse_live_findings([STALL | {"kind": "new"}, STALL])] == ["data-stall"]


@given(st.lists(st.lists(st.tuples(st.sampled_from(list(FindingKind)), st.none() | st.floats(0, 1e9)))))
@examples(30)
def test_energy_of_nodes_is_summed_unless_unknown(
    nodes: list[list[tuple[FindingKind, float | None]]],
) -> None:
    lists = [[LiveFinding(kind, "t", None, joules, 1.0) for kind, joules in node] for node in nodes]
    for finding in merged(lists):
        values = [one.joules_lost for node in lists for one in node if one.kind is finding.kind]
        known = [value for value in values if value is not None]
        expected = sum(known) if len(known) == len(values) else None
        assert finding.joules_lost == (None if expected is None else pytest.approx(expected))


def test_the_command_shows_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"job_id": 7, "user": "al\x1b[2Jice", "nodes": ["n1"], "elapsed_s": 600, "findings": [STALL, IDLE]}
    answer = {"scope": "own", "time": 0.0, "jobs": [job]}
    fake = fake_controller.install(monkeypatch, {"/v1/findings": answer})
    assert main(["top", "--findings", "--once"]) == 0
    text = capsys.readouterr().out
    assert "50 %" in text and "100 J" in text and "data-stall: Steps wait for data" in text
    assert "\x1b" not in text and "other users are not shown" in text
    assert main(["top", "--findings", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert fake.asked == [("/v1/findings", {})] * 2
    assert main(["top", "--findings", "--cluster"]) == 2


def test_steps_that_cannot_be_diagnosed_do_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(5))
    node.manager._sessions[5, 0].step_reports.put("0", rank_to_json(RankSteps("n1", 0, None, 7, {})), 7)
    diagnosis = node.manager.signals.diagnosis
    stored = []

    def fail(run: Any) -> Any:
        raise OverflowError("of a user")

    async def work(function: Any, *arguments: Any) -> Any:
        if arguments:
            stored.append(arguments[1])
            raise asyncio.CancelledError
        return function()

    monkeypatch.setattr(diagnosis, "diagnose", fail)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(LiveDiagnosisLoop(diagnosis, Config, work).run())
    assert stored == [()]
    assert "job 5 is not diagnosed" in caplog.text
    node.die()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('alerts = ["slow"]', "no finding 'slow'"),
        ('alert_command = ["mail"]', "absolute path"),
        ('alert_mail = "a b"', "mail address"),
        ('alert_mail = "a@b\\nBcc: c"', "mail address"),
        ('alert_mail_domain = "a/b"', "domain"),
        ('alert_smtp = "mail"', "HOST:PORT"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "energy.toml"
    path.write_text(f"[diagnosis]\n{line}\n")
    with pytest.raises(ConfigError, match=why):
        load(path)


def test_the_kinds_of_alerts_are_those_of_the_findings(tmp_path: Path) -> None:
    path = tmp_path / "energy.toml"
    path.write_text(f"[diagnosis]\nalerts = {json.dumps([kind.value for kind in FindingKind] + ['all'])}\n")
    assert len(load(path).diagnosis.alerts) == len(FindingKind) + 1
