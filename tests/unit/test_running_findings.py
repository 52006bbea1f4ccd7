"""Tests of the findings about jobs that still run.

The tests follow a finding through live reports, the controller, `senergy top --findings`, and alerts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import smtplib
import stat
import tempfile
import time
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
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.config.loader import load
from slurm_energy.controller.diagnosis import alert_delivery
from slurm_energy.controller.diagnosis.alert_delivery import FindingAlert, mail_message, run_command
from slurm_energy.controller.diagnosis.finding_alerts import FindingAlerts
from slurm_energy.controller.diagnosis.running_findings import JobWithFindings, RunningFindings
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.json_codec import rank_to_json
from slurm_energy.diagnosis.live_finding import MAX_FINDINGS, LiveFinding, merged, parse_live_findings
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps
from slurm_energy.errors import ConfigError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
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
INJECTED = Path(tempfile.gettempdir()) / f"senergy-injected-{os.getpid()}"
HOSTILE = f"a\nBcc: root@example.org\r%s $(touch {INJECTED}) `id` ;\x1b[2J"


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


class Alerts:
    """Sender of alerts about findings, with a test clock. It records the alerts that are sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, findings: RunningFindings, **values: Any) -> None:
        self.sent: list[tuple[int, str]] = []
        self.now_s = 0.0
        self.config = DiagnosisConfig(alerts=["all"], alert_command=["/bin/true"], **values)
        monkeypatch.setattr("slurm_energy.controller.diagnosis.finding_alerts.run_command", self._deliver)
        failures = RepeatedFailureLog(logging.getLogger("alerts"))
        self.alerts = FindingAlerts(lambda: self.config, findings, failures, lambda: self.now_s)

    def _deliver(self, alert: FindingAlert, _: DiagnosisConfig) -> None:
        self.sent.append((alert.job.job_id, alert.finding.kind.value))

    def send(self, now_s: float) -> list[tuple[int, str]]:
        self.now_s = now_s
        self.sent.clear()
        asyncio.run(self.alerts.send())
        return list(self.sent)


def test_an_alert_is_sent_once_for_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    alerts = Alerts(monkeypatch, controller(report("n1", (1, ALICE, [STALL, IDLE]))))
    assert alerts.send(0.0) == [(1, "data-stall")]  # the other one has less than alert_share
    assert alerts.send(30.0) == []
    alerts.config = DiagnosisConfig(alerts=["idle-allocation"], alert_command=["/x"], alert_share=5)
    assert alerts.send(60.0) == [(1, "idle-allocation")]


class LiveNode:
    """A node that sends live reports, and senergyctld's findings from these reports, with a test clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.live = LiveReports(Config, clock=lambda: self.now_s)
        self.findings = RunningFindings(self.live, lambda: 1000.0 + 3600.0)

    def report(self, now_s: float, *jobs: tuple[int, int, list[Any]]) -> None:
        self.now_s = now_s
        asyncio.run(self.live.receive(report("n1", *jobs), Sender()))


@pytest.mark.parametrize("others", [[], [STALL | {"kind": "unused-cpu"}]])
def test_an_alert_about_a_finding_that_comes_and_goes_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, others: list[Any]
) -> None:
    node = LiveNode()
    alerts = Alerts(monkeypatch, node.findings)
    node.report(0.0, (1, ALICE, [STALL, *others]))
    assert len(alerts.send(0.0)) == 1 + len(others)
    for now_s in range(60, 3600, 60):
        node.report(now_s, (1, ALICE, others))
        assert alerts.send(now_s) == []
    node.report(3600.0, (1, ALICE, [STALL, *others]))
    assert alerts.send(3600.0) == []


def test_alerts_about_ended_jobs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    node = LiveNode()
    alerts = Alerts(monkeypatch, node.findings)
    node.report(0.0, (1, ALICE, [STALL]))
    assert alerts.send(0.0) == [(1, "data-stall")]
    node.report(1100.0)
    assert alerts.send(1100.0) == []
    node.report(1200.0, (1, ALICE, [STALL]))  # another job with the same id
    assert alerts.send(1200.0) == [(1, "data-stall")]


@pytest.mark.parametrize("values", [{"alert_share": 60.0}, {"alert_after_s": 4000.0}])
def test_small_findings_and_young_jobs_raise_no_alert(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Alerts(monkeypatch, controller(report("n1", (1, ALICE, [STALL]))), **values)
    assert alerts.send(0.0) == []


def test_alerts_beyond_the_limit_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    findings = controller(report("n1", *((job, ALICE, [STALL]) for job in range(1, 6))))
    alerts = Alerts(monkeypatch, findings, alerts_per_hour=2)
    assert [job for job, _ in alerts.send(0.0)] == [1, 2]
    assert alerts.send(30.0) == alerts.send(3599.0) == []
    assert [job for job, _ in alerts.send(3601.0)] == [3, 4]
    assert caplog.text.count("more than 2 in an hour") == 1


def test_one_user_does_not_use_up_the_alerts_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(job, ALICE, [STALL]) for job in range(1, 6)]
    findings = controller(report("n1", *many, (9, BOB, [STALL])))
    alerts = Alerts(monkeypatch, findings, alerts_per_hour=3)
    assert [job for job, _ in alerts.send(0.0)] == [1, 9, 2]
    assert [job for job, _ in alerts.send(3601.0)] == [3, 4, 5]


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


def test_a_failed_delivery_is_logged_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    findings = controller(report("n1", *((job, ALICE, [STALL]) for job in range(1, 4))))
    config = DiagnosisConfig(
        alerts=["all"], alert_mail="user", alert_smtp="127.0.0.1:1", alert_command=["/nonexistent/x"]
    )
    failures = RepeatedFailureLog(logging.getLogger("alerts"))
    assert asyncio.run(FindingAlerts(lambda: config, findings, failures).send()) == 3
    assert caplog.text.count("alert_command: an alert was not delivered") == 1
    assert caplog.text.count("alert_mail: an alert was not delivered: mail server 127.0.0.1:1") == 1


def alert_of(user: str, title: str) -> FindingAlert:
    finding = LiveFinding(FindingKind.DATA_STALL, title, 0.5, 7.2e6, 0.7)
    return FindingAlert(JobWithFindings("c1", 7, 0, ALICE, user, 0.0, ("n1",), (finding,)), finding, 600.0)


def test_text_of_a_job_reaches_the_command_as_data_only(tmp_path: Path) -> None:
    program, output = tmp_path / "alert", tmp_path / "output"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{output}\nenv | sort >>{output}\ncat >>{output}\n')
    program.chmod(stat.S_IRWXU)
    run_command(alert_of(HOSTILE, HOSTILE), DiagnosisConfig(alert_command=[str(program), "%s $(id)"]))
    lines = output.read_text().splitlines()
    assert lines[0] == "%s $(id)"
    names = [line.partition("=")[0] for line in lines[1:-1]]
    own = [f"SENERGY_{name}" for name in ("CLUSTER", "FINDING", "JOB_ID", "TITLE", "USER")]
    assert set(names) - {"PWD", "OLDPWD", "SHLVL", "_"} == {"LC_ALL", "PATH", *own}
    sent = json.loads(lines[-1])
    assert (sent["job_id"], sent["kind"]) == (7, "data-stall")
    page = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
    section = page.read_text().partition("# JSON of alerts")[2].partition("\n# ")[0]
    assert set(re.findall(r"`([a-z_]+)`", section.replace("diagnosis.alert_command", ""))) == set(sent)
    assert sent["user"] == f"a Bcc: root@example.org %s $(touch {INJECTED}) `id` ; [2J"
    assert not INJECTED.exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [("exit 3", "exit status 3"), ("sleep 60 & echo $! >$0.pid; sleep 60", "longer than 0.5 s")],
)
def test_a_command_has_limited_time_and_leaves_no_process(
    tmp_path: Path, text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "alert"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(alert_delivery, "TIMEOUT_S", 0.5 if "sleep" in text else 10.0)
    with pytest.raises(UnavailableError, match=why):
        run_command(alert_of("alice", "t"), DiagnosisConfig(alert_command=[str(program)]))
    file = tmp_path / "alert.pid"
    if file.exists() and (pid := file.read_text().strip()):  # empty if the command was ended before it wrote
        while is_running(pid):
            time.sleep(0.01)


def is_running(pid: str) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_mail_has_no_header_from_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DiagnosisConfig(alert_mail="ops@example.org")
    message = mail_message(alert_of(HOSTILE, HOSTILE), config)
    assert sorted(message.keys())[:3] == ["Auto-Submitted", "Content-Transfer-Encoding", "Content-Type"]
    assert (message["To"], message["Subject"]) == ("ops@example.org", "Job 7: data-stall")
    assert "\nBcc" not in message.as_string() and "\x1b" not in message.as_string()
    to_user = DiagnosisConfig(alert_mail="user", alert_mail_domain="example.org")
    assert mail_message(alert_of("alice", "t"), to_user)["To"] == "alice@example.org"
    assert mail_message(alert_of("alice", "t"), DiagnosisConfig(alert_mail="user"))["To"] == "alice"
    for user in (HOSTILE, "", "a,b", "a@b", "-a"):
        with pytest.raises(UnavailableError, match="mail address"):
            mail_message(alert_of(user, "t"), to_user)


def test_a_mail_is_sent_to_the_configured_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Server:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            sent.append((host, port, timeout))

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def send_message(self, message: Any) -> None:
            sent.append(message["From"])

    monkeypatch.setattr(smtplib, "SMTP", Server)
    config = DiagnosisConfig(alert_mail="user", alert_smtp="mail:587", alert_mail_from="energy@example.org")
    alert_delivery.send_mail(alert_of("alice", "t"), config)
    assert sent == [("mail", 587, 10.0), "energy@example.org"]


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
