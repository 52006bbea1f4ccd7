from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy import __version__
from slurm_energy.accounting.records.record_selection import RecordSelection
from slurm_energy.cli import acct, acct_options, acct_query, record_query
from slurm_energy.cli.main import main
from slurm_energy.errors import EnergyError, ForbiddenError, UnavailableError, UsageError
from slurm_energy.slurm import job_state
from slurm_energy.slurm.command import Command

NOW = datetime(2026, 11, 21, 4, 43, 21)
MIDNIGHT = f"{datetime(2026, 11, 21, tzinfo=UTC).timestamp():.0f}"
ME = str(os.geteuid())


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SENERGY_ACCT_FORMAT", "SLURM_TIME_FORMAT", "SENERGY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(acct_query, "installed_release", lambda: None)
    with fake_controller.timezone("UTC"):
        yield


def options(*arguments: str) -> Any:
    parser = ArgumentParser()
    acct.configure(parser)
    return parser.parse_args(arguments)


def selection(args: Any) -> Any:
    return acct_options.record_selection(args, "no slurmdbd")


def show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, answers: Any = None
) -> str:
    records = examples.everything() if answers is None else answers
    fake_controller.install(monkeypatch, {"/v1/records": {"scope": "all", "records": records}})
    assert main(["acct", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("acct_default.txt", ["-a"]),
        ("acct_allocations.txt", ["-a", "-X", "--total"]),
        ("acct_parsable.txt", ["-a", "-p"]),
        ("acct_parsable2.txt", ["-a", "-nP", "--delimiter", ";", "-o", "jobid,nodel,nnodes,nrec,settings"]),
        ("acct_raw.txt", ["-a", "-o", "jobidraw%-12,consumedenergyraw,edpraw,kwh,elapsedraw"]),
        ("acct_units.txt", ["-a", "--units", "M", "-o", "jobid,consumede,gpue,avepower,edp%12,ed2p%14"]),
        ("acct_noconvert.txt", ["-a", "--noconvert", "-o", "jobid,consumedenergy,peakpower,cap,gpucap"]),
        (
            "acct_details.txt",
            ["-a", "-o", "jobid%-9,start,submit,user%6,uid,acc,source%20,qual,unk%8,timeabove,unc,tag"],
        ),
    ],
)  # fmt: skip
def test_tables_match_golden_files(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = examples.everything()
    if "-X" in arguments:
        answers = [item for item in answers if item["step"] is None]
    golden_files.compare(name, show(monkeypatch, capsys, *arguments, answers=answers))


def test_json_matches_golden_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = show(monkeypatch, capsys, "-j", "11,12_3,16", "--json")
    golden_files.compare("acct.json", text.replace(f'"{__version__}"', '"VERSION"'))
    joules = [job["energy"]["energy_joules"] for job in json.loads(text)["jobs"]]
    assert joules == [17600.0, 110000.0, None]


@pytest.mark.parametrize("command", ["acct", "experiment"])
@pytest.mark.parametrize(
    ("scope", "options", "noted"),
    [
        ("own", ["-A", "phys"], True),
        ("own", ["-a"], True),
        ("own", ["-a", "-N", "n1"], True),
        ("own", ["-j", "11"], False),
        ("own", ["-u", "alice"], False),
        ("accounts", ["-A", "phys"], True),
        ("accounts", ["-u", "bob"], True),
        ("all", ["-a"], False),
    ],
)
def test_note_states_that_jobs_of_others_are_hidden(monkeypatch, capsys, command, scope, options, noted):
    answer = {"scope": scope, "records": []} | ({"accounts": ["phys"]} if scope == "accounts" else {})
    fake = fake_controller.install(monkeypatch, {"/v1/records": answer})
    monkeypatch.setattr(os, "geteuid", lambda: 64001)
    for more in ([], ["--json"]):
        assert main([command, *options, *more]) == 0
        output = capsys.readouterr()
        assert ("senergy: note: jobs of other users are not shown" in output.err) is noted
        assert output.err.count("\n") == int(noted)
    printed = json.loads(output.out)
    assert (printed["meta"]["senergy"]["scope"] if command == "acct" else printed["scope"]) == scope
    assert ("user" in fake.asked[0][1]) is ("-u" in options)
    main([command])  # the caller's own jobs
    asked = [parameters for path, parameters in fake.asked if path == "/v1/records"]
    assert asked[-1]["user"] == "64001" and capsys.readouterr().err == ""


def test_every_key_of_the_json_is_documented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()

    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keys, value))
        if not isinstance(value, dict):
            return set()
        inner = [v for k, v in value.items() if k not in ("components", "component_joules", "requested")]
        return set(value) | set().union(*map(keys, inner))

    jobs = json.loads(show(monkeypatch, capsys, "--json"))["jobs"]
    found = keys([item["energy"] for job in jobs for item in (job, *job["steps"])])
    assert found >= {"energy_joules", "untuned_runs", "nodes"}
    assert {key for key in found if f"`{key}`" not in page and f'"{key}"' not in page} == set()


def test_field_list_matches_golden_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acct", "--helpformat"]) == 0
    golden_files.compare("acct_helpformat.txt", capsys.readouterr().out)
    assert main(["acct", "-ev"]) == 0
    assert "EDPRaw             EDP as a plain number, J*s\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("selected", "squeue", "shown"),
    [
        (["-j", "12"], True, ["12_3", "12_5", "12_5.0"]),
        (["-j", "12", "-X"], True, ["12_3", "12_5"]),
        (["-j", "12_3"], True, ["12_3"]),
        (["-j", "40"], True, ["12_3"]),
        (["-j", "14+1"], True, ["14+1"]),
        (["-j", "12.0"], True, ["12_5.0"]),
        (["-j", "12_5.0", "-X"], True, ["12_5.0"]),
        (["-j", "12.batch"], True, []),
        (["-j", "13"], True, []),
        (["-j", "12"], False, ["12", "12.0"]),
        (["-j", "12_3"], False, []),
        (["-a"], True, ["12", "12.0", "15", "40"]),
    ],
)
def test_running_jobs_are_selected_like_ended_ones(
    selected: list[str],
    squeue: bool,
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tasks 3 and 5 of array 12 and component 1 of job 14 run; task 5 has the numeric id of the array."""

    def run(argv: Command) -> str:
        if not squeue:
            raise UnavailableError("squeue", "slurmctld does not answer")
        assert argv[:2] == ["squeue", "-h"]
        delimiter = argv.environment["SQUEUE_FORMAT"].rpartition("%i")[2]
        ids = [("12", "12_5"), ("40", "12_3"), ("15", "14+1")]
        return "".join(f"{number}{delimiter}{text}{delimiter}\n" for number, text in ids)

    monkeypatch.setattr(job_state, "CommandRunner", lambda timeout_s: run)
    running = [examples.record(12), examples.record(12, step="0"), examples.record(40), examples.record(15)]
    fake_controller.install(
        monkeypatch,
        {
            "/v1/records": {"scope": "all", "records": []},
            "/v1/running": {"records": [record.to_json() for record in running]},
        },
    )
    assert main(["acct", *selected, "-nP", "-o", "jobid"]) == 0
    assert capsys.readouterr().out.splitlines() == shown


def test_no_jobs_gives_the_header_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(monkeypatch, capsys, "-o", "jobid,edp", answers=[]).splitlines() == [
        "JobID               EDP",
        "------------ ----------",
    ]


def test_the_environment_gives_format_and_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SENERGY_ACCT_FORMAT", "jobid%-5,start%12")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%d.%m. %H:%M")
    assert show(monkeypatch, capsys, "-n").splitlines()[0] == "11    18.11. 11:06"
    assert show(monkeypatch, capsys, "-n", "-o", "jobid%-3").splitlines()[0] == "11"


def test_repeated_format_options_add_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(monkeypatch, capsys, "-nP", "-o", "jobid", "-o", "policy").splitlines()[0] == "11|powersave"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {"start": MIDNIGHT}),
        (("-j", "12"), {"job": "12"}),
        (("-j", "12,14+0", "-j", "15_3.batch"), {"job": "12,14+0,15_3.batch"}),
        (("-j", "12_[1-3,7]"), {"job": "12_1,12_2,12_3,12_7"}),
        (
            ("-j", "12", "-S", "now-1hour"),
            {"job": "12", "start": f"{NOW.replace(tzinfo=UTC).timestamp() - 3600.0:.0f}"},
        ),
        (("-S", "1120", "-E", "1121"), {"start": str(int(MIDNIGHT) - 86400), "end": MIDNIGHT}),
        (("-u", "bob,1002"), {"start": MIDNIGHT, "user": "bob,1002"}),
        (
            ("-A", "physics", "-r", "gpu,cpu"),
            {"start": MIDNIGHT, "account": "physics", "partition": "gpu,cpu"},
        ),
        (("-N", "n[1-3],login"), {"start": MIDNIGHT, "node": "login,n1,n2,n3"}),
        (("-X", "-D"), {"start": MIDNIGHT, "steps": "0", "duplicates": "1"}),
    ],
)
def test_options_become_the_controllers_query(
    arguments: tuple[str, ...], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    query = record_query.query(selection(options(*arguments)), NOW)
    assert query == {"steps": "1", "duplicates": "0"} | expected
    assert RecordSelection.from_query(query).steps == (query["steps"] == "1")  # the controller understands it


@pytest.mark.parametrize(
    ("arguments", "user"), [((), "1001"), (("-a",), None), (("-j", "12"), None), (("-u", "bob"), "bob")]
)
def test_the_default_is_the_callers_own_jobs(
    arguments: tuple[str, ...], user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert record_query.query(selection(options(*arguments)), NOW).get("user") == user


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-j", "x"], "--jobs: 'x' is not a job id: write 12, 12_3, 14+0 or 12.batch"),
        (["-j", "12_[1-"], "--jobs: '12_[1-' is not a job id: write 12, 12_3, 14+0 or 12.batch"),
        (["-j", "1_[0-9999]"], "--jobs: 10000 job ids: give 1 to 5000"),
        (["-j", ","], "--jobs: 0 job ids: give 1 to 5000"),
        (["-S", "15Wh"], "--starttime: '15Wh' is not a time"),
        (["-E", "10" * 5000], "--endtime: '1010101010101010101010101010101010101...' is not a time"),
        (["-S", "now", "-E", "now-1hour"], "--starttime: "),
        (["-o", "joules"], "--format: unknown field 'joules'"),
        (["--units", "k"], "--units: 'k' is not a unit: use one of K, M, G, T, P"),
        (["-N", "n[1"], "--nodelist: 'n[1' is not a node list"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {})
    assert main(["acct", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"senergy: error: {said}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnavailableError("controller x", "refused"), 4), (ForbiddenError("jobs of user bob"), 5)],
)
def test_the_controllers_errors_keep_their_exit_codes(
    error: EnergyError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/records": error})
    assert main(["acct"]) == code
    assert capsys.readouterr().err == f"senergy: error: {error}\n"


@given(st.text(max_size=40))
def test_any_job_list_is_ids_or_a_usage_error(text: str) -> None:
    try:
        assert record_query.job_ids(text)
    except UsageError as error:
        assert "\n" not in str(error)


def test_a_terminal_without_utf8_gets_question_marks(tmp_path: Path) -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import report_examples
from slurm_energy.cli import connection, main
class Controller:
    def get(self, *_):
        return {"records": report_examples.gpu_job()}
connection.connect = lambda args: Controller()
sys.exit(main.main(["acct", "-nP", "-j", "12_3", "-o", "jobname"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "train-r?sum?\n"), done.stderr
