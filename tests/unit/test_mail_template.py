"""Tests of the mail program for Slurm (MailProg) that `senergy template` creates.

The mail about an ended job contains the energy label of the job. Without a label, the mail is sent without
it.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from slurm_energy.templates import find, render

SUBJECT = "Slurm Job_id=12 Name=x Ended, Run time 00:00:01, COMPLETED, ExitCode 0"


@pytest.fixture
def mail(tmp_path: Path):
    """Return a function that runs the mail script of a template.

    The function returns the message that the script has passed to the mail program.
    """
    sent, mailer, senergy = tmp_path / "sent", tmp_path / "mail", tmp_path / "senergy"
    mailer.write_text(f'#!/bin/sh\n{{ printf "%s|" "$@"; cat; }} >{sent}.new\nmv {sent}.new {sent}\n')
    script = tmp_path / "senergy-mail"
    values = {"mailer": str(mailer), "senergy": str(senergy), "wait_s": "1"}
    script.write_text(render(find("senergy-mail"), values, lambda _raw: None))

    def run(subject: str, job: str, label: str) -> str:
        senergy.write_text(f"#!/bin/sh\n{label}\n")
        for path in (mailer, script, senergy):
            path.chmod(0o755)
        sent.unlink(missing_ok=True)
        environment = {**os.environ, "SLURM_JOB_ID": job}
        subprocess.run([script, "-s", subject, "ada@host"], env=environment, check=True, timeout=60)
        deadline = time.monotonic() + 60
        while not sent.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return sent.read_text()

    return run


def test_the_mail_about_an_ended_job_has_its_label(mail):
    assert mail(SUBJECT, "12", 'echo "$1 $2"') == f"-s|{SUBJECT}|ada@host|label 12\n"


def test_mail_is_sent_without_a_label_if_there_is_none(mail):
    assert mail(SUBJECT, "12", "echo no >&2; exit 6") == f"-s|{SUBJECT}|ada@host|"


@pytest.mark.parametrize(
    ("subject", "job"),
    [(SUBJECT.replace("Ended", "Began"), "12"), (SUBJECT, "12;touch /tmp/x"), (SUBJECT, "")],
)
def test_other_mails_and_bad_job_ids_ask_for_no_label(mail, subject, job):
    assert mail(subject, job, 'echo "$1 $2"') == f"-s|{subject}|ada@host|"
