"""Tests of alerts about findings of running jobs: which are sent, and how they are delivered."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import smtplib
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_running_findings import ALICE, BOB, IDLE, STALL, controller, report

from slurm_energy.config import Config
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.controller.diagnosis import alert_delivery
from slurm_energy.controller.diagnosis.alert_delivery import FindingAlert, mail_message, run_command
from slurm_energy.controller.diagnosis.finding_alerts import FindingAlerts
from slurm_energy.controller.diagnosis.running_findings import JobWithFindings, RunningFindings
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.live_finding import LiveFinding
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import RepeatedFailureLog

INJECTED = Path(tempfile.gettempdir()) / f"senergy-injected-{os.getpid()}"
HOSTILE = f"a\nBcc: root@example.org\r%s $(touch {INJECTED}) `id` ;\x1b[2J"


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


def run_script(folder: Path, text: str) -> None:
    """Run a shell script as the command for an alert. The script is the file `alert` in the folder."""
    program = folder / "alert"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(stat.S_IRWXU)
    run_command(alert_of("alice", "t"), DiagnosisConfig(alert_command=[str(program)]))


def test_the_exit_status_of_a_command_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="exit status 3"):
        run_script(tmp_path, "exit 3")


def test_a_command_has_limited_time_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alert.pid"

    class StartedCommand(subprocess.Popen[bytes]):
        """Command whose time limit only counts from when it has started a child process."""

        def communicate(self, *arguments: Any, **options: Any) -> Any:
            wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
            return super().communicate(*arguments, **options)

    monkeypatch.setattr(alert_delivery, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(subprocess, "Popen", StartedCommand)
    with pytest.raises(UnavailableError, match=r"longer than 0\.5 s"):
        run_script(tmp_path, "sleep 1000 & echo $! >$0.pid; sleep 1000")
    pid = file.read_text().strip()
    assert pid.isdecimal()
    wait_until(lambda: not is_running(pid))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. The test fails if it is still false after 60 s."""
    deadline = time.monotonic() + 60.0
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition is false after 60 s")
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
