"""A real cluster in which daemons die or are away at the wrong moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

OPTIONS = ["--exclusive", "-wn1", "--energy-policy=powersave"]


def _submit(lab: LabDriver, seconds: float) -> int:
    """Submit a job on n1 and wait until its script runs."""
    started = lab.layout.root / f"started.{time.monotonic_ns()}"
    job = lab.sbatch(f"touch {started}; sleep {seconds}", *OPTIONS)
    _until(started.exists, f"job {job} runs")
    return job


def _record(lab: LabDriver, job: int) -> dict[str, Any]:
    """Return the one record of a job on its one node, with its label's energy and policy."""
    judges.acct(lab, job)
    done = lab.run("senergy", "acct", "--json", "-X", "-D", "-j", str(job))
    (label,) = json.loads(done.stdout)["jobs"]
    (node,) = label["nodes"]
    return {**label, "settings": node["settings"]}


def _notes(lab: LabDriver, job: int) -> str:
    return lab.run("senergy", "job", "--json", str(job)).stdout


def _until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def test_slurmd_restarted_while_a_job_runs(lab: LabDriver):
    before = judges.settings(lab, "n1")
    job = _submit(lab, 4)
    lab.kill("slurmd", "n1")
    lab.start("slurmd", "n1")
    assert judges.settings(lab, "n1") != before
    assert lab.wait(job) == "COMPLETED"
    record = _record(lab, job)
    assert record["policy"] == "powersave"
    assert record["energy_joules"] > 0
    assert all(setting["restored"] for setting in record["settings"])
    assert judges.settings(lab, "n1") == before


def test_a_job_that_ends_while_slurmd_is_away(lab: LabDriver):
    before = judges.settings(lab, "n1")
    job = _submit(lab, 1)
    lab.kill("slurmd", "n1")
    time.sleep(2)  # the job ends
    lab.start("slurmd", "n1")
    lab.wait(job)
    assert _record(lab, job)["energy_joules"] > 0
    assert judges.settings(lab, "n1") == before


def test_an_epilog_that_finds_no_senergyd(lab: LabDriver):
    before = judges.settings(lab, "n1")
    job = _submit(lab, 1)
    lab.kill("senergyd", "n1")
    assert lab.wait(job) == "COMPLETED"
    assert judges.settings(lab, "n1") != before
    lab.start("senergyd", "n1")
    assert judges.settings(lab, "n1") == before
    assert _record(lab, job)["policy"] == "powersave"
    assert "s before senergyd took note: end and energy are upper bounds" in _notes(lab, job)


def test_a_prolog_that_finds_no_senergyd(lab: LabDriver):
    before = judges.settings(lab, "n1")
    lab.kill("senergyd", "n1")
    job = _submit(lab, 3)
    lab.start("senergyd", "n1")
    assert judges.settings(lab, "n1") != before
    assert lab.wait(job) == "COMPLETED"
    assert judges.settings(lab, "n1") == before
    assert _record(lab, job)["energy_joules"] > 0
    assert "s before senergyd took note: not measured until then" in _notes(lab, job)


def test_a_job_without_senergyd_has_a_record_all_the_same(lab: LabDriver):
    lab.kill("senergyd", "n1")
    job = lab.sbatch("sleep 1", *OPTIONS)
    assert lab.wait(job) == "COMPLETED"
    lab.start("senergyd", "n1")
    record = _record(lab, job)
    assert (record["energy_joules"], record["settings"]) == (None, [])
    assert "its energy is not known" in _notes(lab, job)
