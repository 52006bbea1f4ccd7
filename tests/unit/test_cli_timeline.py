"""Tests of the command `senergy timeline`."""

from __future__ import annotations

import json
import random
import re
from array import array
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import chrome_trace_judge as judge
import diagnosis_examples
import fake_controller
import pytest
import report_examples
import timeline_examples as examples

from slurm_energy.cli.main import main
from slurm_energy.diagnosis.json_codec import node_to_json
from slurm_energy.diagnosis.signals import SIGNALS
from slurm_energy.diagnosis.timeline.chrome_scanner import MAX_CONTENT_BYTES, MAX_EVENT_CHARACTERS
from slurm_energy.diagnosis.timeline.overview import CATEGORIES, COLUMNS, MAX_ROWS, Overview
from slurm_energy.diagnosis.timeline.process_events import MAX_OVERLAPPING, MAX_PROCESS_LANES
from slurm_energy.diagnosis.timeline.profile_events import MAX_PROFILE_LANES
from slurm_energy.diagnosis.timeline.window import TimeWindow
from slurm_energy.errors import ForbiddenError, NotFoundError
from slurm_energy.protocol import agent_socket
from slurm_energy.reports.diagnosis.timeline_page import TimelinePage, timeline_page
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED
from slurm_energy_lab.diagnosis_corpus.scores import build

NOW = report_examples.START


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("SENERGY_CONFIG", "SENERGY_EVENTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    with fake_controller.timezone("UTC"):
        yield tmp_path


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return examples.write_event_folder(tmp_path / "events")


def offline(*arguments: object) -> int:
    return main(["timeline", "12", *map(str, arguments), "--offline"])


def test_files_become_a_compressed_trace_with_a_sensible_name(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offline(events) == 0
    written = judge.check(judge.load(Path("timeline-12.json.gz")))
    groups = {event["args"]["name"] for event in written if event["name"] == "process_name"}
    assert groups == {
        "rank 0 (n1, gpu[0], pid 4711)",
        "rank 1 (n1, gpu[1], pid 4712)",
        "rank 0 trace.json python (77)",
        "rank 0 trace.json 0",
    }
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(
        r"senergy: written: timeline-12.json.gz: 2 processes, \d+ events, 0 findings; "
        r"\d+ trace items on \d+ lanes; .*\n",
        output.err,
    )
    assert not list(Path().glob(".*.new"))


def test_json_names_what_was_written(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (events / "broken.json").write_text("nothing")
    (events / "cut.json").write_bytes((events / "trace.json").read_bytes()[:700])
    examples.write_events(events / "other.events", examples.steps(), job_id=13)
    assert offline(events, events / "0.events", "-o", "t.json", "--html", "t.html", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["trace"], document["page"]) == ("t.json", "t.html")
    assert [Path(file["path"]).name for file in document["files"]] == [
        "0.events",
        "1.events",
        "cut.json",
        "trace.json",
    ]
    assert re.match(r"byte \d+: the file ends", document["files"][2]["fault"])
    assert {Path(file["path"]).name: file["reason"] for file in document["skipped"]} == {
        "broken.json": "neither an event file nor a Chrome trace: byte 0: neither a JSON object nor a list",
    }
    assert document["other_jobs"] == 1
    assert document["events"] == sum(file["shown"] for file in document["files"]) > 0
    judge.check(judge.load(Path("t.json")))
    assert "<h2>Processes by phase</h2>" in Path("t.html").read_text()


def test_trace_and_page_count_the_same_events(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offline(events, "-o", "t.json", "--html", "t.html", "--json") == 0
    output = capsys.readouterr()
    counts = re.findall(r"written: t\.\w+: (\d+) processes, (\d+) events, (\d+) findings", output.err)
    assert len(counts) == 2
    assert counts[0] == counts[1]
    assert int(counts[0][1]) == json.loads(output.out)["events"]
    items = re.search(r"; (\d+) trace items on", output.err)
    written = [event for event in judge.load(Path("t.json"))["traceEvents"] if event["ph"] != "M"]
    assert items
    assert int(items[1]) == len(written)


@pytest.mark.parametrize(
    "arguments",
    [
        ["12", "--offline", "events"],
        ["--offline", "12", "events"],
        ["12", "events", "--offline", "more"],
        ["12", "--from", "+0", "events", "--offline"],
        ["12", "--offline", "--", "events"],
    ],
)
def test_options_may_stand_between_job_and_paths(events: Path, arguments: list[str]) -> None:
    Path("more").mkdir()
    assert (
        main(
            ["timeline", *arguments, "-o", "t.json"]
            if "--" not in arguments
            else ["timeline", "-o", "t.json", *arguments]
        )
        == 0
    )
    assert judge.check(judge.load(Path("t.json")))


def test_existing_files_are_kept_unless_forced(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("timeline-12.json.gz").write_text("mine")
    assert offline(events) == 1
    assert "exists already" in capsys.readouterr().err
    assert Path("timeline-12.json.gz").read_text() == "mine"
    assert offline(events, "--force") == 0
    judge.check(judge.load(Path("timeline-12.json.gz")))


def test_times_select_a_part(events: Path) -> None:
    assert offline(events, "--from", "+1", "--to", "+2s", "-o", "t.json") == 0
    written = judge.check(judge.load(Path("t.json")))
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in written if event["ph"] == "X"]
    assert spans
    assert all(1e6 - 1 <= start <= end <= 2e6 + 1 for start, end in spans)


def test_a_time_before_the_job_does_not_move_the_start_of_the_timeline(events: Path) -> None:
    assert offline(events, "-o", "whole.json") == 0
    assert offline(events, "--from", "2020-01-01", "-o", "t.json") == 0
    whole, part = (judge.load(Path(name)) for name in ("whole.json", "t.json"))
    assert part == whole


def test_a_file_in_no_directory_is_refused(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offline(events, "-o", "/dev/full/t.json") == 1
    assert "Not a directory" in capsys.readouterr().err


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202e"


def controller(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> fake_controller.FakeController:
    """Return a controller that knows job 11 and its observation on node n1."""
    records = report_examples.cpu_job()
    for record in records:
        record["job"] |= changes
    node = examples.observation(
        replace(examples.series("cpu_busy_cores", [4.0] * 20), start_s=NOW),
        replace(examples.series(HOSTILE.replace("\u202e", ""), [1.0] * 20), start_s=NOW),
    )
    answers: dict[str, Any] = {
        "/v1/jobs/11": {"records": records},
        "/v1/jobs/11/observation": {"nodes": [node_to_json(node)]},
        "/v1/jobs/13": ForbiddenError("job 13", "it belongs to another user"),
        "/v1/jobs/99": NotFoundError("job 99", "no energy record"),
    }
    return fake_controller.install(monkeypatch, answers)


def test_a_job_is_shown_by_its_power_and_signals_without_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controller(monkeypatch)
    assert main(["timeline", "11"]) == 0
    document = judge.load(Path("timeline-11.json.gz"))
    counters = judge.counters(judge.check(document))
    assert {("node n1", "power_watts cpu"), ("node n1", "cpu_busy_cores")} <= set(counters)
    assert counters["node n1", "cpu_busy_cores"] == [(0.0, 4.0), (20e6, 4.0)]
    assert document["otherData"]["start_unix_s"] == NOW
    assert "written: timeline-11.json.gz" in capsys.readouterr().err


def running_controller(monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any]) -> dict[str, Any]:
    """Install a fake controller and a fake agent for tests of a running job.

    The controller has seen 5 s of job 11. Return the dict that collects the keys of the requests to the
    agent.
    """
    full = report_examples.cpu_job()
    records = [item | {"job": None, "trace": None, "end": NOW + 5} for item in full]
    answers = {
        "/v1/jobs/11": NotFoundError("job 11", "no energy record", "a record arrives when its job ends"),
        "/v1/running": {"scope": "own", "nodes": [], "records": records},
    }
    fake_controller.install(monkeypatch, answers)
    asked: dict[str, Any] = {}

    def ask(path: Path, message: dict[str, Any], **_: Any) -> dict[str, Any]:
        asked.update(message)
        return agent

    monkeypatch.setattr(agent_socket, "ask_agent", ask)
    return asked


def test_a_running_job_is_shown_by_the_signals_of_its_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = examples.observation(replace(examples.series("cpu_busy_cores", [4.0] * 20), start_s=NOW))
    trace = report_examples.cpu_job()[0]["trace"]
    agent = {"ok": True, "node": "n1", "observation": node_to_json(node), "trace": trace}
    asked = running_controller(monkeypatch, agent)
    assert main(["timeline", "11"]) == 0
    assert asked == {"op": "observation", "job_id": 11}
    counters = judge.counters(judge.check(judge.load(Path("timeline-11.json.gz"))))
    # The agent knows more than the last report to the controller, which ends 5 s after the start.
    assert counters["node n1", "cpu_busy_cores"] == [(0.0, 4.0), (20e6, 4.0)]
    assert ("node n1", "power_watts cpu") in counters
    assert "note:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "note"),
    [
        ({"ok": True, "node": "n1", "observation": None, "trace": None}, "after the first interval"),
        ({"ok": False, "error": "job 11 does not run on this node", "code": 6}, "on a node of the job"),
        ({"ok": False, "error": "observation: too many requests", "code": 4}, "too many requests"),
    ],
)
def test_a_running_job_without_signals_says_why(
    agent: dict[str, Any], note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running_controller(monkeypatch, agent)
    assert main(["timeline", "11"]) == 6
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("senergy: note: job 11: no signals so far")
    assert note in lines[0]
    assert "it runs, and neither its power nor its signals are known so far" in lines[1]


@pytest.mark.parametrize("command", ["timeline", "diagnose"])
@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ({"ok": True, "node": "n1", "observation": None, "trace": None}, "job 11: it has just started"),
        ({"ok": False, "error": "it does not run here", "code": 6}, "if it has just started"),
    ],
)
def test_a_job_in_its_first_seconds_is_told_from_an_unknown_one(
    command: str,
    agent: dict[str, Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = NotFoundError("job 11", "no energy record", "a record arrives when its job ends")
    running = {"scope": "own", "nodes": [], "records": []}
    fake_controller.install(monkeypatch, {"/v1/jobs/11": missing, "/v1/running": running})
    monkeypatch.setattr(agent_socket, "ask_agent", lambda path, message, **_: agent)
    assert main([command, "11"]) == 6
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error
    assert "after the first interval" in error


@pytest.mark.parametrize(("job", "code"), [("13", 5), ("99", 6)])
def test_jobs_of_other_users_and_unknown_jobs_are_errors(
    job: str, code: int, monkeypatch: pytest.MonkeyPatch, events: Path
) -> None:
    controller(monkeypatch)
    assert main(["timeline", job, str(events)]) == code
    assert not list(Path().glob("timeline*"))


def test_names_of_users_are_inert_on_the_page_and_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    controller(monkeypatch, name=HOSTILE, state=HOSTILE, user=HOSTILE)
    folder = Path(HOSTILE.replace("/", "|"))
    folder.mkdir()
    examples.write_profile(
        folder / "<b>x.json",
        [{"ph": "X", "name": HOSTILE, "ts": 1, "dur": 9, "args": {HOSTILE: HOSTILE}}, {}],
    )
    examples.write_events(
        folder / "0.events",
        examples.steps(),
        names=("<b>data", '"><svg onload=alert(3)>', "copy", "step"),
        node=HOSTILE,
        gpu=HOSTILE[:20],
        job_id=11,
    )
    assert main(["timeline", "11", str(folder), "-o", "t.json", "--html", "t.html"]) == 0
    judge.check(judge.load(Path("t.json")))
    page = Path("t.html").read_text()
    judge_page(page)
    assert "alert(1)" in page


def judge_page(page: str) -> None:
    """Check that a page contains only HTML elements and attributes that slurm-energy itself writes.

    The page must not load scripts or other resources from elsewhere. The check shows that text from users
    cannot add elements to the page.
    """

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            assert tag not in ("img", "iframe", "object", "embed", "form", "b", "base"), tag
            for name, value in attributes:
                assert not name.startswith("on"), (tag, name)
                if name in ("href", "src", "xlink:href"):
                    assert value == "data:,", value
            tags.append(tag)

    tags: list[str] = []
    Elements().feed(page)
    assert tags.count("script") == page.count("<script") <= 3
    assert "\u202e" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.slow
def test_the_page_of_the_largest_job_stays_below_5_mb(tmp_path: Path) -> None:
    window = TimeWindow.of_seconds(NOW, NOW, NOW + 3600)
    overview = Overview(window)
    noise = random.Random(1)
    for rows in overview.rows_for([f"rank {number}" for number in range(2 * MAX_ROWS)])[::2]:
        for row in rows:
            for phase in CATEGORIES[:-2]:
                # Every column differs from its neighbours in every phase.
                shares = (0.07, 0.17) if phase == CATEGORIES[0] else (0.1, 0.1)
                row.column(phase)[:] = array(
                    "d", [2 * share * overview.column_ns for share in shares] * (COLUMNS // 2)
                )
    finding = examples.finding(HOSTILE * 3, where="n" * 200)
    many = [
        examples.series(name, [noise.random() for _ in range(60)], f"gpu[{part}]", f"n{part}")
        for name in (*SIGNALS, *(f"later_{number}" for number in range(60)))
        for part in range(9)
    ]
    page = TimelinePage(
        "T", "S", [examples.observation(*many)], [finding] * 500, overview, 1, 1, 1, None, ["x" * 300] * 20
    )
    text = timeline_page(page)
    judge_page(text)
    assert len(text.encode()) < 5_000_000


def test_the_documentation_states_the_limits() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "timeline.md").read_text().split())
    for fact in (
        f"an event ({MAX_EVENT_CHARACTERS >> 20} MiB)",
        f"the content of a file ({MAX_CONTENT_BYTES >> 30} GiB)",
        f"lanes ({MAX_PROFILE_LANES} per trace, {MAX_PROCESS_LANES} per process)",
        f"that overlap ({MAX_OVERLAPPING})",
        f"it has {COLUMNS} columns",
        f"at most {MAX_ROWS} rows. With more than {MAX_ROWS} processes",
    ):
        assert fact in text


def test_findings_of_the_diagnosis_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_storage = build(next(job for job in PLANTED if job.name == "slow-storage"), 6)
    fake_controller.install(monkeypatch, diagnosis_examples.answers(slow_storage))
    assert main(["timeline", "7", "-o", "t.json", "--html", "t.html"]) == 0
    lanes = judge.lane_names(judge.check(judge.load(Path("t.json"))))
    (marker,) = [event for event in lanes["findings", "1 data-stall-io"] if event["ph"] == "i"]
    assert marker["s"] == "g"
    assert marker["args"]["joules_lost"] > 0
    assert any(group == "findings" and events[0]["ph"] == "X" for (group, _), events in lanes.items())
    page = Path("t.html").read_text()
    judge_page(page)
    assert "data-stall-io" in page
    assert "Dashed lines mark findings." in page
