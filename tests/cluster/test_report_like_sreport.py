"""Comparison of `senergy report` with the real sreport over the same jobs.

Rows, order, columns, widths and CPU time are compared.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_driver import LabDriver
from sreport_cases import CASES

from slurm_energy.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
HOUR_S = 3600
DURATION_S = 180
"""Time of this test, at most: its jobs are in one hour, because sreport shows whole hours."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.lab(
        profiles=["xeon-8358", "xeon-8358"],
        users={"nobody": 1, "games": 1, "mail": 1},
        energy={"controller": {"enrich_interval_s": 1.0}},
    ),
]


@pytest.fixture
def login(lab: LabDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabDriver]:
    """Return the lab after adding Slurm accounts to it.

    Commands that the test runs use the environment of the lab's login node.
    """
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    for name, value in lab.lab.environment().items():
        monkeypatch.setenv(name, value)
    for command in (
        ("add", "account", "phys"),
        ("add", "account", "theory", "parent=phys"),
        ("add", "account", "bio"),
        ("add", "user", "mail", "account=theory"),
        ("add", "user", "games", "account=phys"),
        ("add", "user", "games", "account=bio"),
    ):
        lab.run("sacctmgr", "-i", *command)
    yield lab
    lab.run("sacctmgr", "-i", "delete", "account", "theory", "phys", "bio", check=False)


def test_both_commands_over_the_same_jobs(login: LabDriver) -> None:
    left_s = HOUR_S - time.time() % HOUR_S
    if left_s < DURATION_S:
        time.sleep(left_s)
    hour = int(time.time()) // HOUR_S * HOUR_S
    jobs = run_jobs(login)
    window = [f"start={time.strftime('%Y-%m-%dT%H:%M', time.localtime(hour))}"]
    until(lambda: is_complete(login, jobs, window), "all jobs in the report")
    edges = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(edge)) for edge in (hour, hour + HOUR_S))
    login.run("sacctmgr", "-i", "rollup", *edges)
    both_print_the_same_rows(login, window)
    energies_are_those_of_the_records(login, jobs, window)


def run_jobs(lab: LabDriver) -> list[int]:
    """Run jobs of several users, accounts and sizes to their end and return the job ids.

    One of the jobs is suspended for some seconds.
    """
    users = {
        "mail": [("theory", 1, 3), ("theory", 2, 2)],
        "games": [("phys", 4, 2), ("bio", 1, 4)],
    }
    jobs = [
        lab.sbatch(f"sleep {seconds}", f"-n{cpus}", f"-A{account}", "-t2", user=user)
        for user, own in users.items()
        for account, cpus, seconds in own
    ]
    jobs.append(lab.sbatch("sleep 2", "-n2", "-N2", "-t2"))
    suspended = lab.sbatch("sleep 8", "-n3", "-Aphys", "-t2", user="games")
    until(lambda: lab.job(suspended)["JobState"] == "RUNNING", "a running job")
    lab.run("scontrol", "suspend", str(suspended))
    time.sleep(5)
    lab.run("scontrol", "resume", str(suspended))
    jobs.append(suspended)
    assert [lab.wait(job) for job in jobs] == ["COMPLETED"] * len(jobs)
    return jobs


def report(*arguments: str) -> str:
    """Return the output of `senergy report`, run in this process to save the starts of interpreters."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["report", *arguments])
    assert code == 0, (arguments, err.getvalue())
    return out.getvalue()


def document(*arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(report("--json", *arguments))
    return result


def is_complete(lab: LabDriver, jobs: list[int], window: list[str]) -> bool:
    """Return whether `senergy report` already includes all jobs with all of their CPU time."""
    ids = ",".join(map(str, jobs))
    times = lab.run("sacct", "-aXnP", "-j", ids, "-ocputimeraw").stdout.split()
    rows = document("job", "SizesByAccount", "printjobcount", *window)["rows"]
    counted = sum(row["jobs"] for row in rows), sum(row["cpu_seconds"] for row in rows)
    return counted == (len(jobs), sum(map(int, times)))


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def both_print_the_same_rows(lab: LabDriver, window: list[str]) -> None:
    table, differing = [], []
    for case in CASES:
        words = case.split()
        theirs = body(lab.run("sreport", *words, *window, check=False).stdout)
        jobs_only = ["jobsonly"] if words[0] == "cluster" else []
        ours = body(report(*words, *window, *jobs_only))
        table.append((case, len(theirs), theirs == ours))
        if theirs != ours:
            differing.append((case, theirs, ours))
    if differing:
        print(*("\n".join([case, *theirs, *ours, ""]) for case, theirs, ours in differing), sep="\n")
    assert not differing
    if os.environ.get("UPDATE_GOLDEN"):
        _record(lab, table)


def body(text: str) -> list[str]:
    """Return the header and the rows of a report, for a comparison with the report of Slurm.

    The title is left out, because its units differ. Blanks at the ends of lines are removed.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    rule = "-" * 80
    return lines[len(lines) - lines[::-1].index(rule) :] if rule in lines else lines


def _record(lab: LabDriver, table: list[tuple[str, int, bool]]) -> None:
    release = lab.run("sreport", "-V").stdout.split()[-1]
    rows = [f"| `{case}` | {count} | {'yes' if equal else 'no'} |" for case, count, equal in table]
    page = DOCS / "reports.md"
    head, _, rest = page.read_text().partition("<!-- table -->")
    tail = rest.partition("<!-- end of table -->")[2]
    title = f"Slurm {release}, {len(table)} combinations."
    lines = [title, "", "| words and options | lines | equal |", "|---|---|---|"]
    page.write_text(f"{head}<!-- table -->\n" + "\n".join([*lines, *rows]) + f"\n<!-- end of table -->{tail}")


def test_the_recorded_table_is_that_of_the_cases() -> None:
    text = (DOCS / "reports.md").read_text()
    assert re.findall(r"^\| `(.*)` \| \d+ \| yes \|$", text, re.MULTILINE) == list(CASES)


def energies_are_those_of_the_records(lab: LabDriver, jobs: list[int], window: list[str]) -> None:
    """Check the energies in the report.

    The energy of an account equals the energy of the records of its jobs. The energy of all lines
    adds up to the total of the meters.
    """
    for node in lab.nodes:  # an agent that stops ends its period
        lab.kill("senergyd", node, signal.SIGTERM)
        lab.start("senergyd", node)
    ids = ",".join(map(str, jobs))
    answer = json.loads(lab.run("senergy", "acct", "-a", "-X", "--json", "-j", ids).stdout)
    expected: dict[str, float] = {}
    for job in answer["jobs"]:
        expected[job["account"]] = expected.get(job["account"], 0) + job["energy"]["energy_joules"]

    def energies() -> dict[str, float]:
        rows = document("cluster", "AccountUtilizationByQOS", *window)["rows"]
        return {row["account"]: row["energy_joules"] for row in rows if row["kind"] == "job"}

    until(lambda: energies() == pytest.approx(expected, abs=1e-5), f"the energies {expected}")
    rows = document("cluster", "AccountUtilizationByUser", *window)["rows"]
    energy = {row["kind"]: row["energy_microjoules"] for row in rows if row["kind"] != "job"}
    root = next(row for row in rows if row.get("account") == "root" and not row["user"])
    parts = root["energy_microjoules"] + energy["idle"] + energy["unattributed"]
    assert parts == energy["total"] and energy["idle"] > 0
