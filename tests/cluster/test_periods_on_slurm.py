"""Tests of the energy periods that senergyd reports, with the real daemons in the lab.

A period is the energy of a node in a span of time, divided among its jobs, idle and unattributed energy. An
agent that was stopped and started again still delivers its periods. The sum of a job's energy over the
periods equals the energy in the job's record.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from typing import Any

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

NODE = "n1"


def rows(lab: LabDriver, statement: str, *values: Any) -> list[Any]:
    path = lab.layout.state / "senergyctld/senergy.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as connection:
        return connection.execute(statement, values).fetchall()


def test_a_stopped_agent_delivers_the_periods_of_its_jobs(lab: LabDriver) -> None:
    job = lab.sbatch("sleep 3", f"-w{NODE}")
    assert lab.wait(job) == "COMPLETED"
    record = judges.acct(lab, job)[0]["nodes"][0]
    joules = sum(part["energy_joules"] for name, part in record["components"].items() if name != "node")
    stopped = time.time()
    lab.kill("senergyd", NODE, signal.SIGTERM)
    lab.start("senergyd", NODE)
    deadline = time.monotonic() + 120
    # A period ends at most two seconds before its last sample. At a full hour, the job has two periods.
    while not rows(lab, "SELECT 1 FROM node_periods WHERE node = ? AND end >= ?", NODE, stopped - 2):
        assert time.monotonic() < deadline, lab.log(f"{NODE}-senergyd")
        time.sleep(0.5)
    query = "SELECT start FROM periods WHERE kind = 'job' AND job_id = ? AND node = ?"
    starts = rows(lab, query, job, NODE)
    assert starts
    of_job = rows(lab, "SELECT sum(total_uj) FROM periods WHERE kind = 'job' AND job_id = ?", job)[0][0]
    assert of_job == round(joules * 1e6)
    for (start,) in starts:
        kinds = rows(lab, "SELECT DISTINCT kind FROM periods WHERE node = ? AND start = ?", NODE, start)
        assert {kind for (kind,) in kinds} == {"job", "idle", "unattributed"}
        ((begin, end),) = rows(
            lab, "SELECT start, end FROM node_periods WHERE node = ? AND start = ?", NODE, start
        )
        assert begin < end <= time.time() + 2
