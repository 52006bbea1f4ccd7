"""Tests of the inputs of `senergy timeline`: files of events and traces, directories, times and ranks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import chrome_trace_judge as judge
import pytest
import report_examples
import timeline_examples as examples
from test_cli_timeline import offline, working_directory  # noqa: F401

from slurm_energy.cli.main import main
from slurm_energy.cli.timeline_times import parse_ranks, parse_shown_time
from slurm_energy.diagnosis.event_format import GPU_THREAD, MARK
from slurm_energy.errors import UsageError

NOW = report_examples.START


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return examples.write_event_folder(tmp_path / "events")


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ([13], "note: 1 event file of another job is left out: "),
        ([13, 14], "note: 2 event files of other jobs are left out, for example "),
    ],
)
def test_files_of_other_jobs_are_counted_in_a_note(
    events: Path, jobs: list[int], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in jobs:
        examples.write_events(events / f"other-{job}.events", examples.steps(), job_id=job)
    assert offline(events) == 0
    assert text in capsys.readouterr().err


def test_the_directory_of_the_environment_is_the_default(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENERGY_EVENTS_DIR", str(events))
    assert offline("--ranks", "1", "--html", "t.html") == 0
    assert not Path("timeline-12.json.gz").exists()
    page = Path("t.html").read_text()
    assert ">rank 1<" in page
    assert ">rank 0<" not in page


def test_a_timeline_that_was_written_before_is_no_input(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = []
    for number in (1, 2):
        assert offline(events, "-o", events / f"{number}.json", "--json") == 0
        documents.append(json.loads(capsys.readouterr().out))
    first, second = documents
    assert second["events"] == first["events"]
    assert second["files"] == first["files"]
    assert second["skipped"] == [
        {"path": str(events / "1.json"), "reason": "senergy timeline has written it"}
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["12.batch"], 2, "is not one job"),
        (["12,13"], 2, "is not one job"),
        (["x"], 2, "is not a job id"),
        (["12", "absent", "--offline"], 6, "absent: No such file"),
        (["12", "--offline"], 6, "nothing about its time is known"),
        (["12", "notes.txt", "--offline"], 2, "neither an event file nor a Chrome trace: byte 0"),
        (["12", "fifo", "--offline"], 2, "fifo: it is not a regular file"),
        (["12", "fifos", "--offline"], 6, "nothing about its time is known"),
        (["12", "other.events", "--offline"], 2, "it belongs to job 13"),
        (["12", "0.events", "--offline", "--ranks", "2-1"], 2, "--ranks: '2-1' is not a list of ranks"),
        (["12", "0.events", "--offline", "--ranks", "7"], 6, "nothing about its time is known"),
        (["12", "0.events", "--offline", "--from", "+1x"], 2, "--from: '+1x' is not a duration"),
        (["12", "0.events", "--offline", "--from", "soon"], 2, "--from: 'soon' is not a time"),
        (
            ["12", "0.events", "--offline", "--from", "foo"],
            2,
            "write +90s, +10m, +2h or +1:30:00 since the start of the job, or HH:MM",
        ),
        (["--offline"], 2, "JOBID"),
        (["12", "--offline", "--from"], 2, "--from: expected one argument"),
        (["12", "--ofline", "x"], 2, "unknown option '--ofline'"),
        (["12", "0.events", "--offline", "--from", "+9", "--to", "+8"], 2, "--to +8: is not after"),
        (["12", "0.events", "--offline", "-o", "no/t.json"], 1, "no/t.json: No such file or directory"),
        (["12", "0.events", "--offline", "-o", "t", "--html", "t"], 2, "they name the same file"),
    ],
)
def test_mistakes_are_one_line_with_a_remedy(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes.txt").write_text("notes")
    os.mkfifo("fifo")
    Path("fifos").mkdir()
    os.mkfifo("fifos/x.events")
    examples.write_events(Path("0.events"), examples.steps())
    examples.write_events(Path("other.events"), examples.steps(), job_id=13)
    assert main(["timeline", *arguments]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("senergy: note:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not [path for path in Path().iterdir() if path.name.startswith(("timeline", "."))]


def test_faults_of_files_are_notes_with_their_place(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = examples.profile()
    document["traceEvents"].append({"ph": "X"})
    examples.write_profile(events / "trace.json", document)
    assert offline(events) == 0
    assert re.search(
        r"note: \S+trace.json: 1 event left out: no valid 'ts', the first one at byte \d+",
        capsys.readouterr().err,
    )


def test_a_trace_of_unknown_clock_begins_with_the_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    event = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5e6, "dur": 7}
    examples.write_profile(Path("p.json"), [event, {**event, "ts": 6e6}])
    assert offline("p.json", "-o", "t.json") == 0
    times = [event["ts"] for event in judge.check(judge.load(Path("t.json"))) if event["ph"] == "X"]
    assert times == [0.0, 1e6]
    assert "its clock is unknown" in capsys.readouterr().err


def test_the_timeline_ends_with_the_last_event_although_events_of_gpus_arrive_late(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = examples.steps(20)
    late = [record for record in records if record[4] == GPU_THREAD][-3:]
    damaged = (2**63, 2**62, 0.0, 0, 0, MARK)
    examples.write_events(
        Path("0.events"), [*(one for one in records if one not in late), *late[::-1], damaged]
    )
    assert offline("0.events", "-o", "t.json", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"][0]["shown"] == len(records)
    assert document["to"] == pytest.approx(examples.START_S + 20, abs=0.01)


def test_a_trace_of_one_of_two_nodes_is_aligned_with_the_clock_of_its_own_node() -> None:
    examples.write_events(Path("0.events"), examples.steps(600)[:-2])
    offset_ns = examples.START_NS - 560 * examples.SECOND
    examples.write_events(
        Path("1.events"), examples.steps(600, 560.0)[:-2], rank=1, node="n2", pid=12, unix_offset_ns=offset_ns
    )
    event = {"ph": "X", "name": "kernel", "pid": 12, "tid": 1, "ts": 660e6, "dur": 7}
    examples.write_profile(Path("p.json"), {"distributedInfo": {"rank": 1}, "traceEvents": [event]})
    assert offline("0.events", "1.events", "p.json", "-o", "t.json") == 0
    written = judge.check(judge.load(Path("t.json")))
    assert [one["ts"] for one in written if one["name"] == "kernel"] == [pytest.approx(100e6, abs=2e3)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("+90", 90),
        ("+90s", 90),
        ("+1.5m", 90),
        ("+2h", 7200),
        ("+1d", 86400),
        ("+1:30", 90),
        ("+1:00:30", 3630),
    ],
)
def test_durations_count_from_the_start_of_the_job(text: str, seconds: float) -> None:
    from datetime import datetime

    now = datetime.fromtimestamp(NOW)
    assert parse_shown_time(text, 1000.0, now, "--from") == 1000 + seconds
    assert parse_shown_time("now-1hour", 1000.0, now, "--from") == NOW - 3600


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-2", "1,,2", "0x1", "1" * 20, "٣"])
def test_other_lists_of_ranks_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of ranks"):
        parse_ranks(text)


def test_ranges_of_ranks_may_be_large() -> None:
    ranges = parse_ranks("0-7,12,100-999999999")
    assert [any(rank in one for one in ranges) for rank in (7, 8, 12, 5000)] == [True, False, True, True]
