"""Tests that compare `senergy acct` with the real sacct for the same jobs.

The tests compare rows, column widths, states, times and JSON. They also check which energy a user may see.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import varied_jobs
from lab_driver import LabDriver
from sacct_cases import CASES

from slurm_energy import __version__
from slurm_energy.cli.main import main
from slurm_energy.slurm.release import parse_release
from slurm_energy.slurm.sacct_fields import fields_of
from slurm_energy.slurm.sacct_options import SACCT_OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
DURATION_S = 240
"""Time of this test, at most: its jobs are of one day, because both commands show the jobs since midnight."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.other_user,
    pytest.mark.timeout(600),
    pytest.mark.lab(profiles=["xeon-8358", "xeon-8358"], energy={"agent": {"live_report_s": 1.0}}),
]


@pytest.fixture
def login(lab: LabDriver, monkeypatch: pytest.MonkeyPatch) -> LabDriver:
    """Return the lab, after giving this process the environment of the lab's login node.

    Commands that the test starts then behave as on the login node.
    """
    for name in ("SENERGY_ACCT_FORMAT", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in lab.lab.environment().items():
        monkeypatch.setenv(name, value)
    return lab


def test_both_commands_over_the_same_jobs(login: LabDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all comparisons of sacct with `senergy acct` in one test.

    The jobs are submitted only once. A new test would cancel the jobs that wait or run.
    """
    year, month, day, *_ = time.localtime()
    left_s = time.mktime((year, month, day + 1, 0, 0, 0, 0, 0, -1)) - time.time()
    if left_s < DURATION_S:
        time.sleep(left_s + 1)
    jobs = varied_jobs.submit(login)
    both_print_the_same_rows(login, jobs)
    both_follow_the_environment(login, monkeypatch)
    default_long_and_brief_tables_have_the_same_rows(login)
    names_chosen_by_users_break_no_row(login, jobs)
    the_document_has_the_keys_and_types_of_sacct(login, jobs)
    a_running_job_shows_its_energy_so_far(jobs)
    energy_of_foreign_jobs_is_hidden(login, jobs)


def run_acct(*arguments: str) -> tuple[int, str, str]:
    """Run `senergy acct` in this process, which is faster than starting an interpreter for each call.

    The result is the exit code, the standard output and the standard error.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["acct", *arguments])
    return code, out.getvalue(), err.getvalue()


def acct(*arguments: str) -> str:
    code, out, err = run_acct(*arguments)
    assert code == 0, (arguments, err)
    return out


def stripped(text: str) -> list[str]:
    """Return the lines without the blanks at their ends, which sacct prints."""
    return [line.rstrip() for line in text.splitlines()]


def side_by_side(
    lab: LabDriver, arguments: Sequence[str], view: Callable[[str], Any] = stripped, **more: Any
) -> tuple[subprocess.CompletedProcess[str], tuple[int, str, str]]:
    """Run sacct and `senergy acct` with the same arguments at a time at which the jobs do not change.

    Values of a job that runs or waits change from one second to the next. sacct therefore runs before and
    after `senergy acct`, until both of its outputs are equal.

    Args:
        lab: the cluster.
        arguments: options of both commands.
        view: function that returns the part of sacct's output that has to stay the same.
        **more: options of `LabDriver.run` for sacct.

    Returns:
        The results of sacct and of `run_acct`.
    """
    deadline = time.monotonic() + 60
    while True:
        before = lab.run("sacct", *arguments, check=False, **more)
        ours = run_acct(*arguments)
        after = lab.run("sacct", *arguments, check=False, **more)
        if view(before.stdout) == view(after.stdout):
            return after, ours
        assert time.monotonic() < deadline, (arguments, before.stdout, after.stdout)
        time.sleep(1 - time.time() % 1)  # the values then stay the same for up to a second


def both_print_the_same_rows(lab: LabDriver, jobs: dict[str, int]) -> None:
    differing = []
    table = []
    for case in CASES:
        arguments = re.sub(r"\{(\w+)\}", lambda match: str(jobs[match[1]]), case).split(" ")
        done, (code, ours, _) = side_by_side(lab, arguments)
        theirs = done.stdout
        if done.returncode != 0:  # sacct 26.05 does not know the user nobody
            assert (code, ours) == (2, ""), case
            continue
        equal = stripped(theirs) == stripped(ours)
        rows = len(stripped(ours)) - (0 if "-n" in arguments else 1 if {"-p", "-P"} & {*arguments} else 2)
        table.append((case, rows, equal))
        if not equal:
            differing.append((case, theirs, ours))
    assert not differing, differing[:2]
    with_rows = [case for case, rows, _ in table if rows]
    assert len(table) >= 60 and len(with_rows) >= 50, [case for case, rows, _ in table if not rows]
    if os.environ.get("UPDATE_GOLDEN"):
        _record(lab, table)


def both_follow_the_environment(lab: LabDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    window = ("-aX", "-S", "now-1hour", "-E", "now+3hours")
    arguments = (*window, "-o", "jobid%40,submit,eligible,start%12,end%-30")
    for name, values in {
        "SLURM_TIME_FORMAT": ("relative", "standard", "%d.%m. %H:%M", "%s", "%d" * 16),
        "SLURM_BITSTR_LEN": ("0", "5", "30"),
        "TZ": ("America/New_York",),
    }.items():
        for value in values:
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                time.tzset()
                done, (code, ours, _) = side_by_side(lab, arguments, env={name: value})
                assert (done.returncode, code) == (0, 0), (name, value)
                assert stripped(done.stdout) == stripped(ours), (name, value)
    time.tzset()


def _record(lab: LabDriver, table: list[tuple[str, int, bool]]) -> None:
    release = lab.run("sacct", "-V").stdout.split()[-1]
    lines = [f"| `{case}` | {rows} | {'yes' if equal else 'no'} |" for case, rows, equal in table]
    page = DOCS / "sacct-comparison.md"
    text = page.read_text()
    head = text.partition("<!-- table -->")[0]
    page.write_text(
        f"{head}<!-- table -->\nSlurm {release}, {len(table)} combinations.\n\n"
        "| options | rows | equal |\n|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def test_the_recorded_table_is_that_of_the_cases() -> None:
    text = (DOCS / "sacct-comparison.md").read_text()
    assert re.findall(r"^\| `(.*)` \| \d+ \| yes \|$", text, re.MULTILINE) == list(CASES)


def default_long_and_brief_tables_have_the_same_rows(lab: LabDriver) -> None:
    names = "--name=plain,array,failed,two,het,cancelled"
    for option in ([], ["-l"], ["-b"]):
        theirs = lab.run("sacct", names, "-n", "-P", "-o", "jobid").stdout.split()
        ours = [line.split()[0] for line in acct(names, "-n", *option).splitlines()]
        assert ours == theirs
    brief = stripped(lab.run("sacct", names, "-b").stdout)
    assert [
        line[: len("JobID             State ExitCode")].rstrip() for line in acct(names, "-b").splitlines()
    ] == brief


def names_chosen_by_users_break_no_row(lab: LabDriver, jobs: dict[str, int]) -> None:
    ids = [str(jobs[name]) for name in varied_jobs.HOSTILE_NAMES]
    printed = acct("-X", "-nP", "-j", ",".join(ids), "-o", "jobid,jobname,state")
    rows = [line.split("|") for line in printed.splitlines()]
    assert {row[0] for row in rows} == set(ids) and all(len(row) == 3 for row in rows)
    assert all(line.isprintable() for line in printed.splitlines())
    ours, theirs = (
        json.loads(text)["jobs"]
        for text in (
            acct("-X", "--json", "-j", ",".join(ids)),
            lab.run("sacct", "-X", "--json", "-j", ",".join(ids)).stdout,
        )
    )
    assert [job["name"] for job in ours] == [job["name"] for job in theirs]


def test_every_option_of_the_installed_sacct_is_known(lab: LabDriver) -> None:
    known = {name for option in SACCT_OPTIONS for name in option.names}
    page = lab.run("sacct", "--help").stdout
    heads = re.findall(r"^ {5,9}(-\S.*?)(?::|$)", page, re.MULTILINE)
    printed = {name for head in heads for name in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", head)}
    printed -= {"--expand-pattern"}  # misspelt in the page since 24.05
    assert len(printed) > 60 and printed <= known, printed - known


def test_every_field_of_the_installed_sacct_is_known_with_its_width(login: LabDriver) -> None:
    release = parse_release(login.run("sacct", "-V").stdout, "sacct -V")
    known = fields_of(release)
    assert login.run("sacct", "-e").stdout.split() == [field.name for field in known]
    header, rule = login.run("sacct", "-j", "4000000", "-o", "ALL").stdout.splitlines()
    assert [len(dashes) for dashes in rule.split()] == [abs(field.width) for field in known]
    ours = acct("-j", "4000000", "-o", ",".join(field.name for field in known)).splitlines()
    assert len(ours) == 2 and len(ours[1]) >= len(rule.rstrip())
    assert header.split()[0] == ours[0].split()[0] == "Account"


def the_document_has_the_keys_and_types_of_sacct(lab: LabDriver, jobs: dict[str, int]) -> None:
    ids = ",".join(str(jobs[name]) for name in ("plain", "array", "requeued", "running"))
    done, (code, printed, _) = side_by_side(lab, ("--json", "-j", ids), lambda text: shape(json.loads(text)))
    assert (done.returncode, code) == (0, 0)
    theirs, ours = json.loads(done.stdout), json.loads(printed)
    extra = [job.pop("energy") for job in ours["jobs"]]
    extra += [step.pop("energy") for job in ours["jobs"] for step in job["steps"]]
    assert any(item and item["energy_joules"] for item in extra)
    assert ours["meta"].pop("senergy") == {"format": 2, "version": __version__, "scope": "all"}
    assert ours.pop("warnings") == theirs.pop("warnings", [])  # 22.05 has no warnings
    for document in (ours, theirs):
        document["meta"].pop("command", None)
    assert shape(ours) == shape(theirs)
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(acct("--yaml", "-X", "-j", str(jobs["plain"]))) == json.loads(
        acct("--json", "-X", "-j", str(jobs["plain"]))
    )


def shape(value: Any) -> Any:
    """Return a copy of a JSON document in which each value is replaced by the name of its type.

    Two documents can then be compared although values change while a job runs.
    """
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__name__


def a_running_job_shows_its_energy_so_far(jobs: dict[str, int]) -> None:
    arguments = ("-j", str(jobs["running"]), "-X", "-nP", "-o", "state,consumedenergyraw")
    deadline = time.monotonic() + 60
    while (row := acct(*arguments).strip().split("|"))[1] in ("", "0"):
        assert time.monotonic() < deadline, row
        time.sleep(0.3)
    assert row[0] == "RUNNING" and float(row[1]) > 0


def energy_of_foreign_jobs_is_hidden(lab: LabDriver, jobs: dict[str, int]) -> None:
    command = ("senergy", "acct", "-aX", "-nP", "-o", "jobid,user,consumedenergyraw,quality")
    done = lab.run(*command, user="nobody")
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == lab.run("sacct", "-aXnPojobid", user="nobody").stdout.split()
    assert all(row[2:] == ["", ""] for row in rows if row[1] == "root")
    assert "jobs of other users is not shown" in done.stderr
    own = lab.run("senergy", "acct", "-X", "-nP", "-o", "jobid", user="nobody")
    assert own.stdout.split() == [str(jobs["nobody"])] and own.stderr == ""
