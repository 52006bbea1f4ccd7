"""Delivery of alerts about findings of running jobs: by e-mail, and to a command of the site.

The text of an alert is only used as data: the body of a message, a value in the environment, or JSON on
standard input. No shell reads the text. The arguments of the command come from the configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import smtplib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Final

from slurm_energy.config.addresses import parse_listen
from slurm_energy.config.diagnosis_section import MAIL_TO_USER, DiagnosisConfig
from slurm_energy.controller.diagnosis.running_findings import JobWithFindings
from slurm_energy.diagnosis.live_finding import LiveFinding
from slurm_energy.errors import UnavailableError

TIMEOUT_S: Final = 10.0
"""Maximum time of the command, and of each exchange with the mail server."""
_MAIL_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class FindingAlert:
    """An alert about one finding of one running job.

    Attributes:
        job: the running job, with all its findings.
        finding: the finding that causes the alert.
        elapsed_s: seconds since the start of the job.
    """

    job: JobWithFindings
    finding: LiveFinding
    elapsed_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the alert as a JSON object."""
        job = self.job
        return {
            "cluster": job.cluster,
            "job_id": job.job_id,
            "restart_count": job.restart_count,
            "uid": job.uid,
            "user": _printable(job.user) or None,
            "nodes": list(job.nodes),
            "elapsed_s": round(self.elapsed_s, 1),
            **self.finding.to_json(),
        }


def send_mail(alert: FindingAlert, config: DiagnosisConfig) -> None:
    """Send an alert by e-mail.

    Raises:
        UnavailableError: the mail server does not accept the message, or the user has no address.
    """
    message = mail_message(alert, config)
    host, port = parse_listen(config.alert_smtp)
    try:
        with smtplib.SMTP(host, port, timeout=TIMEOUT_S) as server:
            server.send_message(message)
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise UnavailableError(f"mail server {config.alert_smtp}", _one_line(error)) from None


def mail_message(alert: FindingAlert, config: DiagnosisConfig) -> EmailMessage:
    """Return the e-mail about an alert.

    Raises:
        UnavailableError: the user's name cannot be part of an address.
    """
    job, finding = alert.job, alert.finding
    message = EmailMessage()
    message["From"] = config.alert_mail_from
    message["To"] = _recipient(job, config)
    message["Subject"] = f"Job {job.job_id}: {finding.kind.value}"
    message["Auto-Submitted"] = "auto-generated"
    share = "unknown" if finding.time_share is None else f"{100 * finding.time_share:.0f} %"
    lines = [
        f"Job {job.job_id} of {_printable(job.user)} runs since {alert.elapsed_s / 60:.0f} minutes.",
        "",
        f"{_printable(finding.title)}.",
        f"Share of the time: {share}.",
    ]
    if finding.joules_lost is not None:
        lines.append(f"Energy so far: {finding.joules_lost / 3.6e6:.3g} kWh.")
    lines += ["", f"Details: senergy diagnose {job.job_id}", ""]
    message.set_content("\n".join(lines))
    return message


def run_command(alert: FindingAlert, config: DiagnosisConfig) -> None:
    """Run the site's command for an alert, for at most `TIMEOUT_S` seconds.

    The command gets the alert as JSON on standard input, and the main values of the alert in environment
    variables.

    Raises:
        UnavailableError: the command does not start, fails or takes too long.
    """
    argv = config.alert_command
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=command_environment(alert),
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise UnavailableError(f"alert command {argv[0]}", _one_line(error)) from None
    try:
        child.communicate(json.dumps(alert.to_json()).encode() + b"\n", TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"alert command {argv[0]}", f"runs longer than {TIMEOUT_S:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode != 0:
        raise UnavailableError(f"alert command {argv[0]}", f"exit status {child.returncode}")


def command_environment(alert: FindingAlert) -> Mapping[str, str]:
    """Return the complete environment of the site's command for an alert."""
    job, finding = alert.job, alert.finding
    return {
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
        "SENERGY_CLUSTER": _printable(job.cluster),
        "SENERGY_JOB_ID": str(job.job_id),
        "SENERGY_USER": _printable(job.user),
        "SENERGY_FINDING": finding.kind.value,
        "SENERGY_TITLE": _printable(finding.title),
    }


def _recipient(job: JobWithFindings, config: DiagnosisConfig) -> str:
    if config.alert_mail != MAIL_TO_USER:
        return config.alert_mail
    if not _MAIL_USER.fullmatch(job.user):
        raise UnavailableError(f"job {job.job_id}", "its user's name cannot be part of a mail address")
    return f"{job.user}@{config.alert_mail_domain}" if config.alert_mail_domain else job.user


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _one_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _printable(text)[:200]
