"""Tests that options and names of columns are those of sacct, sprio and sshare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fake_controller
import pytest
import queue_answers
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.cli import acct_query
from slurm_energy.cli.main import main
from slurm_energy.errors import UsageError
from slurm_energy.reports.acct.acct_fields import catalogue
from slurm_energy.reports.acct.job_filter import STATES, job_states
from slurm_energy.reports.queue import sprio_format
from slurm_energy.reports.queue.queue_fields import FIELDS as QUEUE_FIELDS

FIELDS = catalogue(None)
PRIO_LISTING = "senergy prio --helpformat lists all"


@pytest.fixture(autouse=True)
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SENERGY_ACCT_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    answers: dict[str, Any] = {
        "/v1/records": {"scope": "all", "records": examples.everything()},
        "/v1/priority": queue_answers.priority(*queue_answers.queue()),
        "/v1/shares": queue_answers.shares(),
    }
    answers["/v1/untuned-runs"] = {"untuned_runs": [None]}
    fake_controller.install(monkeypatch, answers)
    monkeypatch.setattr(acct_query, "installed_release", lambda: None)
    with fake_controller.timezone("UTC"):
        yield


def rows(capsys: pytest.CaptureFixture[str], *command: str) -> list[str]:
    assert main(command) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.removeprefix("senergy: error: ").removesuffix("\n")


@pytest.mark.parametrize("word", ["ALL", "all"])
def test_all_means_every_field(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    header = rows(capsys, "acct", "-a", "-P", "-o", word)[0].split("|")
    assert [name.partition("(")[0] for name in header] == [field.name for field in FIELDS]
    header = rows(capsys, "acct", "-a", "-P", "-o", f"uid,{word},jobid")[0].split("|")
    assert len(header) == len(FIELDS) + 2
    assert rows(capsys, "share", "-a", "-P", "-o", word)[0].startswith("Account|User|RawShares|")
    assert rows(capsys, "prio", "-P", "-o", word)[0].startswith("JOBID|ACCOUNT|BASIS|")


def test_part_of_a_name_suggests_the_fields_that_contain_it(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "acct", "-a", "-o", "jobid,energy")
    assert said == (
        "--format: unknown field 'energy': "
        "did you mean ConsumedEnergy, CPUEnergy, DRAMEnergy or FacilityEnergy?"
    )
    said = refusal(capsys, "share", "-o", "EnergykW%3,enrgyshare")
    assert said.endswith("unknown field 'enrgyshare': did you mean EnergyShare?")


def test_a_width_without_a_field_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "acct", "-o", "%20")
    assert said.startswith("--format: '%20' names no field: write names with widths behind them: Account%20")


def test_prio_takes_the_letters_of_sprio(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys, "prio", "-h", "-o", "%i")[0] == "1"
    header, first = rows(capsys, "prio", "-o", "%.8i|%9r %.10Y")[:2]
    assert header == "   JOBID PARTITION   PRIORITY"
    assert first == "       1 gpu             3294"
    assert rows(capsys, "prio", "-h", "-o", "%u%N")[0] == "alice 0"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("%A", "--format: '%A': Slurm's age factor has no column here: senergy prio --helpformat lists all"),
        ("%z", "--format: '%z': sprio has no such letter: senergy prio --helpformat lists all"),
        ("%0i", "--format: bad width in '%0i': use 1 to 4096"),
        ("%i x", "--format: 'x' is not a field: write %.15i, or JOBID%15; " + PRIO_LISTING),
    ],
)  # fmt: skip
def test_prio_says_which_letters_it_cannot_show(
    form: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, "prio", "-o", form) == said


@pytest.mark.parametrize(
    ("order", "jobs"),
    [
        (["-S", "-y"], ["5", "1", "2_[5]", "3", "4"]),
        (["-S", "-Y"], ["5", "1", "2_[5]", "3", "4"]),
        (["--sort", "-energy"], ["5", "4", "3", "2_[5]", "1"]),
        (["-S", "u,-i"], ["5", "3", "1", "4", "2_[5]"]),
    ],
)
def test_prio_sorts_as_sprio_does(
    order: list[str], jobs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows(capsys, "prio", "-h", "-o", "jobid%-5", *order)[:5] == jobs


def test_the_normalized_priority_is_a_part_of_the_highest(capsys: pytest.CaptureFixture[str]) -> None:
    assert float(rows(capsys, "prio", "-h", "-o", "%y")[0]) == pytest.approx(3294 / (2**32 - 1), rel=1e-3)


@given(st.text(alphabet="%.0123456789iruYySNaAz, x", max_size=12))
def test_any_format_of_letters_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        columns = sprio_format.parse(QUEUE_FIELDS, text, "--format", "see")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert all(0 <= column.width <= 4096 for column in columns)


def test_share_has_the_options_of_sshare(capsys: pytest.CaptureFixture[str]) -> None:
    with_header = rows(capsys, "share", "-a")
    for option in ("-n", "-h", "--noheader"):
        assert rows(capsys, "share", "-a", option) == with_header[2:-1]
    assert rows(capsys, "share", "-aU", "-n", "-o", "user%-6,rawshares%5")[0] == "bob    pare+"
    assert "EnergyShare" in rows(capsys, "share", "-e")[1]


@pytest.mark.parametrize(("command", "count"), [("acct", len(FIELDS)), ("prio", len(QUEUE_FIELDS))])
def test_fields_and_their_meaning_are_listed(
    command: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(" ".join(rows(capsys, command, "--helpformat")).split()) == count
    assert len(rows(capsys, command, "--helpformat", "-v")) == count


def test_acct_selects_by_state_and_name_and_shows_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(rows(capsys, "acct", "-a", "-n", "-X")) == 5  # the stand-in always sends steps
    table = rows(capsys, "acct", "-a", "-n", "-s", "CD,failed", "--name", "gemm")
    assert [row.split()[0] for row in table] == ["11", "11.batch", "11.0"]
    assert rows(capsys, "acct", "-a", "-n", "-s", "timeout") == []
    assert rows(capsys, "acct", "-a", "-P", "-l")[0].startswith("JobID|JobName|User|Account|Partition|Policy")
    said = refusal(capsys, "acct", "-s", "complete")
    assert said == "--state: 'complete' is not a state of jobs: did you mean COMPLETED?"


@given(st.lists(st.sampled_from([*STATES, *STATES.values()]), min_size=1), st.booleans())
def test_states_have_short_and_long_names(words: list[str], lower: bool) -> None:
    text = ",".join(words)
    assert job_states(text.lower() if lower else text) == {STATES.get(word, word) for word in words}
