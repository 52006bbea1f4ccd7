"""Test jobs on a real Slurm cluster whose slurmd or senergyd is down when a job starts or ends."""

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


class _Job:
    """A job on n1 whose script runs until it is released."""

    def __init__(self, lab: LabDriver) -> None:
        place, now = lab.layout.root, time.monotonic_ns()
        started, self._let_go, over = (place / f"{word}.{now}" for word in ("started", "go", "over"))
        wait = f"while [ ! -e {self._let_go} ]; do sleep 0.1; done"
        self.number = lab.sbatch(f"touch {started}; {wait}; touch {over}", *OPTIONS)
        self._over = over
        _until(started.exists, f"job {self.number} runs")

    def end(self) -> None:
        """Release the job, and wait until its script has ended."""
        self._let_go.touch()
        _until(self._over.exists, f"job {self.number} ends")


def _record(lab: LabDriver, job: int) -> dict[str, Any]:
    """Return the only record of a job that ran on one node.

    The result contains the energy of the job, its energy policy, and the settings on the node.
    """
    judges.acct(lab, job)
    done = lab.run("senergy", "acct", "--json", "-X", "-D", "-j", str(job))
    (job,) = json.loads(done.stdout)["jobs"]
    label = {**job, **job["energy"]}
    (node,) = label["nodes"]
    return {**label, "settings": node["settings"]}


def _notes(lab: LabDriver, job: int) -> str:
    return lab.run("senergy", "job", "--json", str(job)).stdout


def _until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def _expect_others(lab: LabDriver, before: judges.Seen) -> None:
    assert judges.settings_in_time(lab, "n1", before.__ne__) != before


def test_slurmd_restarted_while_a_job_runs(lab: LabDriver):
    before = judges.settings(lab, "n1")
    job = _Job(lab)
    lab.kill("slurmd", "n1")
    lab.start("slurmd", "n1")
    _expect_others(lab, before)
    job.end()
    assert lab.wait(job.number) == "COMPLETED"
    record = _record(lab, job.number)
    assert record["policy"] == "powersave"
    assert record["energy_joules"] > 0
    assert all(setting["restored"] for setting in record["settings"])
    assert judges.settings_at_rest(lab, "n1") == before


def test_a_job_that_ends_while_slurmd_is_down(lab: LabDriver):
    before = judges.settings(lab, "n1")
    job = _Job(lab)
    lab.kill("slurmd", "n1")
    job.end()
    time.sleep(1)  # what slurmstepd does after it is none of ours
    lab.start("slurmd", "n1")
    lab.wait(job.number)
    assert _record(lab, job.number)["energy_joules"] > 0
    assert judges.settings_at_rest(lab, "n1") == before


def test_an_epilog_without_senergyd(lab: LabDriver):
    before = judges.settings(lab, "n1")
    job = _Job(lab)
    _expect_others(lab, before)
    lab.kill("senergyd", "n1")
    job.end()
    assert lab.wait(job.number) == "COMPLETED"
    assert judges.settings(lab, "n1") != before
    lab.start("senergyd", "n1")
    assert judges.settings(lab, "n1") == before
    assert _record(lab, job.number)["policy"] == "powersave"
    assert "s before senergyd received its message; end and energy are upper bounds" in _notes(
        lab, job.number
    )


def test_a_prolog_without_senergyd(lab: LabDriver):
    before = judges.settings(lab, "n1")
    lab.kill("senergyd", "n1")
    job = _Job(lab)
    lab.start("senergyd", "n1")
    assert judges.settings(lab, "n1") != before
    job.end()
    assert lab.wait(job.number) == "COMPLETED"
    assert judges.settings_at_rest(lab, "n1") == before
    assert _record(lab, job.number)["energy_joules"] > 0
    assert "s before senergyd received its message; not measured until then" in _notes(lab, job.number)


def test_a_job_without_senergyd_still_has_a_record(lab: LabDriver):
    lab.kill("senergyd", "n1")
    job = lab.sbatch("sleep 1", *OPTIONS)
    assert lab.wait(job) == "COMPLETED"
    lab.start("senergyd", "n1")
    record = _record(lab, job)
    assert (record["energy_joules"], record["settings"]) == (None, [])
    assert "its energy is unknown" in _notes(lab, job)
