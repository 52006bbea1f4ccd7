"""Tests of `senergy acct`, which adds energy to the rows of sacct.

The tests cover the selection of rows, the columns, the assignment of energy to rows, and what each user may
see.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import fake_controller
import golden_files
import pytest
import report_examples as examples
import sacct_answers
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples as example_count

from slurm_energy.cli.main import main
from slurm_energy.reports.acct.acct_fields import catalogue, parse_format
from slurm_energy.reports.acct.rows import VisibleJobs, joined
from slurm_energy.slurm import sacct
from slurm_energy.slurm.release import Release
from slurm_energy.slurm.sacct_fields import SACCT_FIELDS, fields_of
from slurm_energy.slurm.sacct_options import REFUSED, ROWS, SACCT_OPTIONS, options_with

UNTUNED = {"runs": 4, "energy_joules": 22000.0, "elapsed_s": 32.0}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SENERGY_ACCT_FORMAT", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SACCT_LOCAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SACCT_FEDERATION", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    with fake_controller.timezone("UTC"):
        yield


def rows() -> list[dict[str, str]]:
    """Return rows of sacct for tests.

    The first three rows are a job and two of its steps. The other four rows are a pending, a running, a
    cancelled and a failed job.
    """
    pending = {"Start": "Unknown", "End": "Unknown", "NodeList": "None assigned", "Elapsed": "00:00:00"}
    return [
        sacct_answers.job(11),
        sacct_answers.job(11, "batch"),
        sacct_answers.job(11, "0"),
        sacct_answers.job(21, JobID="20_[1-3]", State="PENDING", **pending),
        sacct_answers.job(22, State="RUNNING", End="Unknown"),
        sacct_answers.job(23, State="CANCELLED by 0", **pending),
        sacct_answers.job(24, State="FAILED", JobName="=a|b\n\x1b[31m"),
    ]


def answers(**changes: Any) -> dict[str, Any]:
    records = [item | {"fingerprint": "f" * 16} for item in examples.cpu_job()]
    return {
        "/v1/records": {"scope": "all", "records": records} | changes,
        "/v1/untuned-runs": {"untuned_runs": [UNTUNED]},
    }


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> sacct_answers.FakeSacct:
    fake_controller.install(monkeypatch, answers())
    return sacct_answers.install(monkeypatch, rows())


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["acct", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("acct_sacct.txt", []),
        ("acct_sacct_wide.txt", ["--total"]),
        ("acct_sacct_brief.txt", ["-b"]),
        ("acct_sacct_saved.txt", ["-o", "jobid,jobname%-20,state%4,start%10,saved,savedenergy,eds,untuned"]),
        ("acct_sacct_parsable.txt", ["-P", "-o", "jobid,jobname,state,start%10,end,consumedenergy,saved"]),
    ],
)
def test_tables_match_golden_files(
    name: str,
    arguments: list[str],
    fake: sacct_answers.FakeSacct,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "wide" in name:
        monkeypatch.setenv("COLUMNS", "180")
    text = show(capsys, *arguments)
    golden_files.compare(name, text)
    width = 180 if "wide" in name else 80
    assert "-o" in arguments or all(len(line) <= width for line in text.splitlines())


def test_each_option_for_rows_reaches_sacct_unchanged(
    fake: sacct_answers.FakeSacct, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_energy.cli.acct_query.installed_release", lambda: Release(26, 5, 0))
    value = "1,x y;$(id)"
    for option in options_with(ROWS):
        given_value = option.value and not option.optional
        expected = f"={'yes' if option.optional else value}" if option.value else ""
        for name in option.names:
            show(capsys, name, *([value] if given_value else []))
            assert fake.selection == [option.long_name + expected]
    show(capsys, "-j", "12_[1-3,7].batch,12")  # sacct has no brackets
    assert fake.selection == ["--jobs=12_1.batch,12_2.batch,12_3.batch,12_7.batch,12"]
    show(capsys, "-Aa", "-A", "b", "--units=K", "--noconvert", "-u", "-1")
    assert fake.selection == ["--accounts=a", "--accounts=b", "--user=-1", "--units=K", "--noconvert"]


@pytest.mark.parametrize("option", options_with(REFUSED), ids=lambda option: option.long_name)
def test_options_without_meaning_are_refused_with_the_reason(
    option: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in option.names:
        assert main(["acct", name, *(["x"] if option.value else [])]) == 2
        error = capsys.readouterr().err
        assert error.endswith(f"is not an option here: {option.doc}\n") and error.count("\n") == 1


def test_an_option_of_a_newer_release_is_refused(
    fake: sacct_answers.FakeSacct, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acct", "--array"]) == 2
    assert capsys.readouterr().err.endswith("--array: Slurm has this option from 23.02 on; this is 22.05.8\n")
    assert main(["acct", "-o", "SLUID"]) == 0  # an energy record has it
    assert main(["acct", "-o", "qosreq"]) == 2
    assert "field 'QOSREQ': Slurm has it from 24.11 on; this is 22.05.8" in capsys.readouterr().err


def test_variables_of_sacct_count(
    fake: sacct_answers.FakeSacct, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(capsys)
    assert fake.environments[-1]["SLURM_BITSTR_LEN"] == "64"
    monkeypatch.setenv("SACCT_FEDERATION", "1")
    monkeypatch.setenv("SLURM_BITSTR_LEN", "9")
    monkeypatch.setenv("SENERGY_ACCT_FORMAT", "jobid%-9,start%12")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%d.%m. %H:%M")
    assert show(capsys, "-n").splitlines()[0] == "11        18.11. 11:06"
    assert fake.environments[-1]["SLURM_BITSTR_LEN"] == "9" and "--federation" in fake.calls[-1]
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%d" * 16)  # 32 bytes: sacct ignores it
    assert show(capsys, "-nP", "-o", "start").splitlines()[0] == "2026-11-18T11:06:40"


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (["error: Invalid user id: x"], 2, "sacct: Invalid user id: x"),
        (["error: You gave a bad qos 'x'.", "fatal: problem"], 2, "sacct: You gave a bad qos 'x'.; problem"),
        (["error: Start time (1795487536) requested is after"], 2, "Start time (2026-11-24T02:32:16)"),
    ],
)
def test_errors_of_sacct_are_one_line(
    failure: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sacct_answers.install(monkeypatch, [], failure=failure)
    fake_controller.install(monkeypatch, answers())
    assert main(["acct"]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("failure", "noted"),
    [
        (["Slurm accounting storage is disabled"], ""),
        (
            ["error: Problem talking to the database: Connection refused"],
            "the rows are those of energy records",
        ),
    ],
)
def test_without_slurmdbd_the_rows_are_those_of_records(
    failure: list[str], noted: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sacct_answers.install(monkeypatch, [], failure=failure)
    fake_controller.install(monkeypatch, answers())
    assert main(["acct", "-a", "-nP", "-o", "jobid,state,consumedenergy"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "11|COMPLETED|17600\n11.batch||15900\n11.0||15000\n"
    assert noted in printed.err and bool(noted) is bool(printed.err)
    for arguments, said in ((["-q", "x"], "--qos: needs Slurm's accounting"), (["-o", "qos"], "field 'qos'")):
        assert main(["acct", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_energy_of_foreign_rows_is_hidden_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = [
        sacct_answers.job(31, UID="1002", Account="chem"),
        sacct_answers.job(31, "batch", Account="chem"),
    ]
    sacct_answers.install(monkeypatch, [*rows()[:3], *theirs])
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    note = "senergy: note: the energy of 1 job of {} is not shown: only operators see it"
    for scope, who in (
        ({"scope": "own"}, "other users"),
        ({"scope": "accounts", "accounts": ["x"]}, "users outside your accounts"),
    ):
        controller = fake_controller.install(monkeypatch, answers(**scope))
        assert main(["acct", "-a", "-nP", "-o", "jobid,consumedenergy,quality"]) == 0
        printed = capsys.readouterr()
        assert printed.out.splitlines()[-2:] == ["31||", "31.batch||"]
        assert printed.err.startswith(note.format(who)) and printed.err.count("\n") == 1
        assert controller.asked[0][1] == {"job": "11,31", "steps": "1", "duplicates": "1", "omit_others": "1"}
        assert main(["acct", "-n", "-o", "jobid%-9,consumedenergy"]) == 0
        assert capsys.readouterr().out.splitlines()[-2:] == ["31", "31.batch"]
    fake_controller.install(monkeypatch, answers(scope="accounts", accounts=["chem"]))
    assert main(["acct", "-n", "-o", "jobid%-9,consumedenergy"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].split() == ["31.batch", "unknown"] and printed.err == ""


def test_runs_of_a_requeued_job_have_their_own_energy() -> None:
    first, second = (
        examples.answer(
            examples.record(7, restart_count=count, start=start, end=start + 10.0),
            None if count else examples.job_info(7, submit=start - 5),
        )
        for count, start in ((0, examples.START), (1, examples.START + 500))
    )
    usages = examples.usages([first, second], duplicates=True)
    times = [
        {"Submit": str(int(at) - 5), "Start": str(int(at)), "End": str(int(at) + 10)}
        for at in (examples.START, examples.START + 500)
    ]
    cells = [sacct_answers.job(7, DBIndex=str(index), **one) for index, one in enumerate(times)]
    found = joined(cells, usages, VisibleJobs(0, "all"))
    assert [row.usage and row.usage.first.restart_count for row in found] == [0, 1]
    other = sacct_answers.job(7, Submit="100", Start="100", End="200")
    assert joined([other, cells[0] | {"Cluster": "west"}], usages, VisibleJobs(0, "all"))[0].usage is None
    assert [row.usage for row in joined([cells[0] | {"Cluster": "west"}], usages, VisibleJobs(0, "all"))] == [
        None
    ]


def test_a_step_alone_finds_its_energy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, answers())
    sacct_answers.install(monkeypatch, [sacct_answers.job(11, "0")])
    assert show(capsys, "-j", "11.0", "-nP", "-o", "jobid,consumedenergy") == "11.0|15000\n"


@pytest.mark.parametrize("release", [(22, 5, 8), (23, 11, 1), (24, 11, 5), (25, 11, 5), (26, 5, 3)])
def test_every_field_of_a_release_is_a_column_and_has_a_meaning(release: tuple[int, int, int]) -> None:
    known = catalogue(Release(*release))
    names = [field.name for field in known]
    assert len(set(names)) == len(names) and all(field.doc for field in known)
    assert [name for name in names if name in {field.name for field in SACCT_FIELDS}][:20] == [
        field.name for field in fields_of(Release(*release))
    ][:20]
    assert [column.field.name for column in parse_format("a%5", Release(*release))] == names
    assert ("QOSREQ" in names, "Reserved" in names) == (release >= (24, 11), release < (23, 2))


@given(st.text(max_size=60), st.text(max_size=60), st.sampled_from(["-P", "-p", ""]))
@example_count(60)
def test_no_name_breaks_rows_or_controls_the_terminal(name: str, user: str, how: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake_controller.install(patch, answers())
        hostile = sacct_answers.job(11, JobName=name.replace("\0", ""), User=user.replace("\0", ""))
        sacct_answers.install(patch, [hostile, sacct_answers.job(11, "batch")])
        printed: list[str] = []
        patch.setattr("slurm_energy.cli.acct.emit_verbatim", printed.extend)
        patch.setattr("slurm_energy.cli.acct.emit", printed.extend)
        assert main(["acct", "-n", *([how] if how else []), "-o", "jobname,jobid,user"]) == 0
        assert len(printed) == 2 and all(line.isprintable() for line in printed)
        if how:
            delimiters = 3 if how == "-p" else 2
            assert [line.count("|") for line in printed] == [delimiters, delimiters]
            assert printed[0].split("|")[1] == "11"


@given(st.lists(st.lists(st.text(max_size=20), min_size=13, max_size=13), max_size=3))
@example_count(60)
def test_any_output_of_sacct_is_rows_or_an_error(values: list[list[str]]) -> None:
    def run(argv: Any) -> str:
        delimiter = next(word.partition("=")[2] for word in argv if word.startswith("--delimiter"))
        return "".join(delimiter.join(row) + delimiter + "\n" for row in values)

    try:
        found = sacct.read_rows([], ["JobName", "QOS", "User"], run)
    except sacct.UnavailableError as error:
        assert "\n" not in str(error)
    else:
        assert all(row["DBIndex"].isdecimal() for row in found)


def test_the_options_have_one_meaning_each() -> None:
    names = [name for option in SACCT_OPTIONS for name in option.names]
    assert len(set(names)) == len(names)
    assert json.dumps(names)  # all of them are text


@pytest.mark.parametrize(
    ("release", "table", "parsable"),
    [
        (Release(22, 5, 8), ["2026-11-18", "Unknow"], ["2026-11-18", "Unknow"]),
        (Release(23, 2, 7), ["2026-11-18", "Unknow"], ["2026-11-18T11:06:40", "Unknown"]),
        (Release(24, 11, 5), ["##########", "Unknow"], ["2026-11-18T11:06:40", "Unknown"]),
    ],
)
def test_times_that_do_not_fit_look_as_in_each_release(
    release: Release, table: list[str], parsable: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    fake_controller.install(monkeypatch, answers())
    sacct_answers.install(monkeypatch, [sacct_answers.job(24, End="Unknown")])
    monkeypatch.setattr("slurm_energy.cli.acct_query.installed_release", lambda: release)
    assert show(capsys, "-n", "-o", "start%10,end%6").split() == table
    assert show(capsys, "-nP", "-o", "start%10,end%6").strip().split("|") == parsable


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_no_spreadsheet_takes_a_name_for_a_formula(
    delimiter: str, fake: sacct_answers.FakeSacct, capsys: pytest.CaptureFixture[str]
) -> None:
    table = show(capsys, "-nP", "--delimiter", delimiter, "-o", "jobname,jobid").splitlines()
    assert table[-1] == f"'=a|b\\n\\x1b[31m{delimiter}24"
