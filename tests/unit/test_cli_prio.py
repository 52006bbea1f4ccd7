"""Tests of `senergy prio` and `senergy share`.

The two commands take the options of Slurm's sprio and sshare. The tests apply these options to example
responses of the controller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import fake_controller
import golden_files
import pytest
import queue_answers as answers
import queue_examples
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy import config as configuration
from slurm_energy import scheduling
from slurm_energy.cli import prio, reference
from slurm_energy.cli.main import main
from slurm_energy.errors import UsageError
from slurm_energy.priority import explanation
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.reports.figure_format import figure
from slurm_energy.reports.queue import queue_page


@pytest.fixture(autouse=True)
def a_fixed_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    monkeypatch.setattr("time.time", lambda: answers.NOW)
    with fake_controller.timezone("UTC"):
        yield


def show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, answer: Any = None
) -> str:
    found = answers.priority() if answer is None else answer
    fake_controller.install(monkeypatch, {"/v1/priority": found, "/v1/shares": answers.shares()})
    assert main([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("prio_default.txt", ["prio"]),
        ("prio_long.txt", ["prio", "-l"]),
        ("prio_weights.txt", ["prio", "-w"]),
        ("prio_norm.txt", ["prio", "-n", "-h", "-o", "jobid%-8,edp,deadline,age,score,shape,why%-30"]),
        ("prio_job.txt", ["prio", "3"]),
        ("prio_job_fixed.txt", ["prio", "5"]),
        ("share_default.txt", ["share", "-u", "alice"]),
        ("share_long.txt", ["share", "-a", "-l"]),
        ("share_parsable.txt", ["share", "-a", "-U", "-A", "physics", "-h", "-p"]),
    ],
)
def test_pages_match_golden_files(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    golden_files.compare(name, show(monkeypatch, capsys, *arguments))


def test_a_limited_scope_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/shares": answers.shares() | {"scope": "own"}})
    assert main(["share", "-a"]) == 0
    assert "note: jobs of other users are not shown: only operators see them" in capsys.readouterr().err
    show(monkeypatch, capsys, "share", "-a")
    fake_controller.install(monkeypatch, {"/v1/priority": answers.priority() | {"scope": "own"}})
    for options in ((), ("-h",), ("--json",), ("-w",)):
        assert main(["prio", *options]) == 0
        assert capsys.readouterr().err.count("jobs of other users are not shown") == 1
    told = answers.priority() | {"scope": "accounts", "accounts": ["bio", "phys"]}
    fake_controller.install(monkeypatch, {"/v1/priority": told})
    assert main(["prio"]) == 0
    assert "except in the accounts that you coordinate: bio, phys\n" in capsys.readouterr().err


def test_parsable_output_has_no_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = show(monkeypatch, capsys, "share", "-a", "-P").splitlines()
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def test_json_is_the_controllers_response(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(show(monkeypatch, capsys, "prio", "--json")) == answers.priority()
    assert json.loads(show(monkeypatch, capsys, "share", "--json")) == answers.shares()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), {}),
        (("-u", "alice,bob", "-p", "gpu"), {"user": "alice,bob", "partition": "gpu"}),
        (("-A", "physics"), {"account": "physics"}),
        (("-j", "12_[1-3]", "-j", "14+0"), {"job": "12_1,12_2,12_3,14+0"}),
        (("--json", "--state"), {"state": "1"}),
        (("12",), {"job": "12", "neighbours": "1"}),
    ],
)  # fmt: skip
def test_options_become_the_controllers_query(arguments: tuple[str, ...], expected: dict[str, str]) -> None:
    assert prio.query(reference.parser_of("prio").parse_args([*arguments])) == expected


@pytest.mark.parametrize("arguments", [("x",), ("",), ("12", "-j", "13"), ("-j", ","), ("--state",)])
def test_invalid_job_ids_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        prio.query(reference.parser_of("prio").parse_args([*arguments]))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("why", [1, 2, 3, 4, 5]),
        ("-place", [4, 3, 2, 1, 5]),
        ("user,-place", [3, 1, 5, 4, 2]),
        ("-edp", [1, 2, 3, 4, 5]),
        ("+edp", [4, 3, 2, 1, 5]),
        ("-shape,-score", [3, 2, 1, 4, 5]),
    ],
)
def test_rows_are_sorted_by_the_given_keys(keys: str, expected: list[int]) -> None:
    assert [job["job_id"] for job in queue_page.sort(answers.queue(), keys)] == expected


def test_job_ids_sort_as_numbers() -> None:
    shown = ["100", "12_10", "12_3", "9", "12_[*]", "14+0"]
    jobs = [answers.job(1, 1, display_id=text) for text in shown]
    wanted = ["9", "12_3", "12_10", "12_[*]", "14+0", "100"]
    assert [job["display_id"] for job in queue_page.sort(jobs, "jobid")] == wanted


@pytest.mark.parametrize("option", ["-o", "-S"])
def test_an_unknown_field_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/priority": answers.priority()})
    assert main(["prio", option, "scoer"]) == 2
    assert "did you mean SCORE?" in capsys.readouterr().err


def test_a_missing_job_is_not_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/priority": answers.priority()})
    assert main(["prio", "77"]) == 6
    assert re.fullmatch("senergy: error: job 77: .*squeue.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-u", "nosuch"], "user nosuch: the user is unknown on this host"),
        (["-A", "physics,nosuch"], "account nosuch: it has neither shares nor used energy"),
    ],
)
def test_unknown_accounts_and_users_are_refused(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/shares": answers.shares()})
    assert main(["share", *arguments]) == 6
    output = capsys.readouterr()
    assert output.err.startswith(f"senergy: error: {said}") and output.err.count("\n") == 1
    assert output.out == ""
    fake_controller.install(monkeypatch, {"/v1/shares": answers.shares() | {"computed": None, "rows": []}})
    assert main(["share", *arguments]) == 0  # no shares computed yet
    assert "usage has not been computed yet" in capsys.readouterr().out


def test_users_with_a_row_or_an_account_on_this_host_are_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "carol" in show(monkeypatch, capsys, "share", "-u", "carol,root,12345,", "-A", "physics,")


def test_an_account_or_partition_without_jobs_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = answers.priority(answers.job(1, 1, partition="gpu,cpu"))
    page = show(monkeypatch, capsys, "prio", "-A", "physics,phsics", "-p", "cpu,gup", answer=answer)
    assert [line for line in page.splitlines() if line.startswith("note")] == [
        "note: none of the requested jobs is under account phsics",
        "note: none of the requested jobs is in partition gup",
    ]
    assert "note" not in show(monkeypatch, capsys, "prio", "-h", "-p", "gup", answer=answer)


def test_an_array_is_found_by_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [
        answers.job(20, 1, display_id="18_2"),
        answers.job(21, 2, display_id="18_[4]"),
        answers.job(18, 3, display_id="180"),
    ]
    page = show(monkeypatch, capsys, "prio", "18_2", answer=answers.priority(*tasks))
    assert page.startswith("job 18_2 ")
    page = show(
        monkeypatch, capsys, "prio", "18_3", answer=answers.priority(answers.job(18, 1, display_id="18_[*]"))
    )
    assert page.startswith("job 18_[*] ")
    whole = [answers.job(18, 1, display_id="18_[*]"), tasks[0]]
    page = show(monkeypatch, capsys, "prio", "18", answer=answers.priority(*whole))
    assert re.findall(r"^job (\S+)", page, re.M) == ["18_[*]", "18_2"]
    both = show(monkeypatch, capsys, "prio", "18", answer=answers.priority(*tasks[:2]))
    assert re.findall(r"^job (\S+)", both, re.M) == ["18_2", "18_[4]"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "shadow"}, "shadow mode"),
        ({"mode": "off", "computed": None}, "priority.mode is off"),
        ({"error": "squeue: timed out"}, "the last ranking failed: squeue: timed out"),
        ({"computed": None}, "no ranking has been computed yet"),
        ({"computed": answers.NOW - 300}, "computed 00:05:00 ago"),
    ],
)
def test_notes_state_what_limits_the_order(
    changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = show(monkeypatch, capsys, "prio", answer=answers.priority(**changes))
    (note,) = [line for line in page.splitlines() if line.startswith("note: ")]
    assert words in note
    assert "note" not in show(monkeypatch, capsys, "prio", "-h", answer=answers.priority(**changes))


def test_terms_named_like_columns_get_their_own_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    term = {"name": "partition", "value": 0.5, "unit": "", "weight": 1000.0, "contribution": 500.0}
    jobs = [answers.job(1, 1, terms=[term])]
    page = show(monkeypatch, capsys, "prio", "-o", "partition,partitionterm", answer=answers.priority(*jobs))
    assert [line.split() for line in page.splitlines()] == [["PARTITION", "PARTITIONTERM"], ["gpu", "500.00"]]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e17, max_value=1e17))
def test_figures_fit_their_columns_and_are_accurate(value: float) -> None:
    text = figure(value)
    assert len(text) <= 10
    assert float(text) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize("name", scheduling.names())
def test_pages_show_the_engines_results_of_every_policy(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`senergy prio` shows the results of the priority engine under every scheduling policy.

    Each term of the score is shown. The details of a job include its neighbours in the queue.
    """
    rows = [
        {"user": "bob", "time_limit_s": 60.0 * hours, "submit_s": queue_examples.NOW - 100 * hours}
        for hours in range(1, 6)
    ]
    rows[2] |= {"deadline_s": queue_examples.NOW + 7200}
    rows[3] |= {"fixed": True}
    rows[4] |= {"held": True, "array_job_id": 100, "tasks": 7}
    config = configuration.parse(f'[priority]\npolicy = "{name}"')
    snapshot = PriorityEngine(config, EngineState(DecayedUsage(86400.0))).cycle(
        queue_examples.queue(*rows), queue_examples.NOW
    )
    explainer = explanation.Explainer(snapshot)
    jobs = [explainer.job(row) for row in explanation.pending_rows(snapshot)]
    answer = answers.priority(*jobs, policy=name, computed=answers.NOW)
    lines = show(monkeypatch, capsys, "prio", answer=answer).splitlines()
    assert len(lines) == 6
    titles = [title.partition("(")[0] for title in lines[0].split()]
    for term in snapshot.ranking.terms:
        assert {term.upper(), f"{term.upper()}TERM"} & {*titles}
    page = show(monkeypatch, capsys, "prio", "103", answer=answer)
    assert page.splitlines()[1] == next(job["why"] for job in jobs if job["job_id"] == 103)
    assert len(page.split("neighbouring jobs\n")[1].splitlines()) in (3, 4)
    assert "not ranked" in show(monkeypatch, capsys, "prio", "104", answer=answer)
    assert show(monkeypatch, capsys, "prio", "-w", answer=answer).startswith(f"policy {name}, ")
    assert show(monkeypatch, capsys, "prio", "-l", answer=answer).count("held") == 1
