from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import pytest
import report_examples as examples

from slurm_energy.cli.main import main
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError
from slurm_energy.protocol import agent_socket
from slurm_energy.slurm import job_state
from slurm_energy.slurm.command import Command

REAL_STATE_OF = job_state.read_job_state


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SLURM_TIME_FORMAT", "SENERGY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    with fake_controller.timezone("UTC"):
        yield


@pytest.fixture(autouse=True)
def slurm_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_state, "read_job_state", lambda job_id: None)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    runs = [*examples.earlier_run(), *examples.gpu_job()]
    array = [*examples.cpu_job(), *examples.unknown_job()]
    answers = {"11": examples.cpu_job(), "12_3": runs, "10": array, "16": examples.unknown_job()}
    found = {f"/v1/jobs/{job}": {"records": records} for job, records in answers.items()}
    errors = {
        "/v1/jobs/99": NotFoundError("job 99", "no energy record"),
        "/v1/jobs/5": ForbiddenError("job 5", "it belongs to another user"),
    }
    budget = {"/v1/budget/explain": NotFoundError("job 99", "no budget concerns it")}
    return fake_controller.install(monkeypatch, found | errors | budget)


def test_the_label_is_that_of_the_last_run(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "12_3", "--ascii"]) == 0
    golden_files.compare("label_gpu_ascii.txt", capsys.readouterr().out)
    assert controller.asked == [("/v1/jobs/12_3", {"duplicates": "1"})]


def test_runs_of_another_job_with_the_same_id_are_no_earlier_runs(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    last, (before,) = examples.gpu_job(), examples.earlier_run()
    old_start = before["start"] - 9_000_000
    old_info = {**before["job"], "submit": old_start - 5, "start": old_start, "end": old_start + 60}
    old = {**before, "job": old_info, "start": old_start, "end": old_start + 60, "record_id": "old"}
    for other in (old, old | {"uid": 4711, "user": "mallory"}):
        controller.answers["/v1/jobs/12_3"] = {"records": [other, before, *last]}
        assert main(["job", "12_3", "--ascii"]) == 0
        golden_files.compare("label_gpu_ascii.txt", capsys.readouterr().out)
    for other in (old | {"restart_count": 3}, old | {"uid": 4711}):
        controller.answers["/v1/jobs/12_3"] = {"records": [other, *last]}
        assert main(["job", "12_3", "--ascii"]) == 0
        assert "earlier run" not in capsys.readouterr().out


def test_an_array_gives_one_label_per_task(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "10"]) == 0
    output = capsys.readouterr().out
    assert output.count("Energy label of job") == 2


def test_json_has_the_form_of_acct(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", "11", "12_3", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [(job["display_id"], job["restart_count"], job["energy_joules"]) for job in jobs] == [
        ("11", 0, 17600.0),
        ("12_3", 1, 110000.0),
    ]


DECISIONS = [
    {
        "job_id": 123,
        "submit": 1.0,
        "time": 1_800_000_000.0,
        "kind": "shape",
        "chosen": "gpu:h100:2",
        "offered": ["gpu:a100:4", "gpu:h100:2"],
        "why": "zeus takes gpu:h100:2",
    },
    {
        "job_id": 123,
        "submit": 1.0,
        "time": 1_800_000_060.0,
        "kind": "requeue",
        "for_job": 7,
        "why": "least energy lost",
        "lost_joules": 5.0,
    },
]


def test_decisions_of_the_queue_engine_are_shown(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = examples.cpu_job()[0]["job_id"]
    made = [one | {"job_id": job_id} for one in DECISIONS]
    controller.answers["/v1/jobs/11"] = {"records": examples.cpu_job(), "decisions": made}
    assert main(["job", "11", "--ascii"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "set gpu:h100:2; offered: gpu:a100:4, gpu:h100:2: zeus takes gpu:h100:2" in text
    assert "requeued for job 7: least energy lost" in text
    assert main(["job", "11", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["decisions"] == made
    del made[1]["for_job"]  # hidden from the owner
    assert main(["job", "11", "--ascii"]) == 0
    assert "requeued for another job: least" in " ".join(capsys.readouterr().out.split())
    made[0] |= {"chosen": None, "offered": [], "why": "Slurm cannot run it"}
    assert main(["job", "11", "--ascii"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "kept its requested resources: Slurm cannot run it" in text
    assert "None" not in text


def test_html_and_png_are_written_to_files_only(
    controller: fake_controller.FakeController, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "label.html", tmp_path / "power.png"
    assert main(["job", "11", "--html", str(page), "--png", str(picture)]) == 0
    assert capsys.readouterr().out == ""
    assert "<h1>Energy label of job 11</h1>" in page.read_text()
    assert picture.stat().st_size > 1000


def test_several_jobs_are_compared_under_a_title_with_notes(
    controller: fake_controller.FakeController, tmp_path: Path
) -> None:
    page = tmp_path / "cmp.html"
    arguments = [
        "job",
        "11",
        "12_3",
        "--html",
        str(page),
        "--title",
        "Two jobs",
        "--note",
        "First.",
        "--note",
        "Second.",
    ]
    assert main(arguments) == 0
    text = page.read_text()
    assert "<h1>Two jobs</h1>" in text
    assert text.index("<li>First.</li>") < text.index("<li>Second.</li>")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["x"], 2, "JOBID: 'x' is not a job id"),
        (["11.batch"], 2, "senergy job: it shows jobs, not steps"),
        (["11", "--title", "T"], 2, "--title, --note, --budget: they require --html: add"),
        (["11", "12_3", "--png", "x.png"], 2, "--png: it shows one job, not 2: use --html to compare"),
        (["16", "--png", "x.png"], 6, "job 16: it has no stored power trace"),
        (["99"], 6, "job 99: no energy record"),
        (["5"], 5, "job 5: it belongs to another user"),
        (["11", "--html", "/nonexistent/x.html"], 1, "/nonexistent/x.html: No such file or directory"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    arguments: list[str],
    code: int,
    said: str,
    controller: fake_controller.FakeController,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["job", *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith(f"senergy: error: {said}")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "no energy record"),
        ("", "it is unknown to Slurm and has no energy record: senergy acct lists your jobs"),
        ("PENDING", "it has not started (PENDING): its energy record arrives when it ends"),
        ("RUNNING", "it has not ended (RUNNING): run senergy job on its node for its energy so far"),
        ("TIMEOUT", "it ended (TIMEOUT) without an energy record so far: see senergy status"),
    ],
)  # fmt: skip
def test_a_job_without_a_record_is_described_by_its_slurm_state(
    state: str | None,
    said: str,
    controller: fake_controller.FakeController,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(job_state, "read_job_state", lambda job_id: asked.append(job_id) or state)
    assert main(["job", "11", "99", "12_3"]) == 6
    assert capsys.readouterr() == ("", f"senergy: error: job 99: {said}\n")
    assert asked == ["99"]


def test_a_deferred_job_shows_until_when_it_waits(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    deferral = {"planned_start_s": 1.9e9, "latest_start_s": 1.9e9 + 3600, "signal_now": None}
    controller.answers["/v1/priority"] = {"jobs": [{"job_id": "99", "deferral": deferral}]}
    assert main(["job", "99"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "Job 99 has not started. senergy prio 99 shows its place in the queue."
    assert second == "deferred   until 2030-03-17T17:46:40, at the latest 2030-03-17T18:46:40"
    assert main(["job", "99", "--json"]) == 6
    assert capsys.readouterr() == ("", "senergy: error: job 99: no energy record\n")


class FakeSlurm:
    """Substitute for Slurm: answers squeue with job states or an error, and sacct with job states."""

    def __init__(self, squeue: list[str] | str, sacct: list[str] | None) -> None:
        self.squeue, self.sacct = squeue, sacct

    def __call__(self, argv: Sequence[str]) -> str:
        if argv[0] == "squeue":
            if isinstance(self.squeue, str):
                raise UnavailableError("squeue", self.squeue)
            assert isinstance(argv, Command)
            delimiter = argv.environment["SQUEUE_FORMAT"].removeprefix("%T")
            return "".join(f"{state}{delimiter}\n" for state in self.squeue)
        if self.sacct is None:
            raise UnavailableError("sacct", "Slurm accounting storage is disabled")
        return "".join(f"{state:<40} \n" for state in self.sacct)


NO_JOB = "slurm_load_jobs error: Invalid job id specified"


@pytest.mark.parametrize(
    ("squeue", "sacct", "state"),
    [
        (["RUNNING"], None, "RUNNING"),
        (["COMPLETED", "PENDING"], None, "PENDING"),
        (["COMPLETED"], [], "COMPLETED"),
        (NO_JOB, ["CANCELLED by 1001"], "CANCELLED"),
        (NO_JOB, [], ""),
        (NO_JOB, None, None),
        ([], None, None),
        ("Unable to contact slurm controller", [], None),
    ],
)
def test_the_state_of_a_job_is_queried_from_slurm(
    squeue: list[str] | str, sacct: list[str] | None, state: str | None
) -> None:
    assert REAL_STATE_OF("12_3", FakeSlurm(squeue, sacct)) == state


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A substitute for senergyd that sends one response and stores the request."""
    conversation: dict[str, Any] = {"path": tmp_path / "agent.sock"}
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(conversation["path"]))
    listener.listen(1)
    listener.settimeout(30)  # in case no client connects

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rwb") as stream:
            conversation["question"] = json.loads(stream.readline())
            stream.write(json.dumps(conversation["answer"]).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield conversation
    thread.join(60)
    listener.close()


def test_a_running_job_of_this_node_shows_its_energy_so_far(
    controller: fake_controller.FakeController,
    agent: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "energy.toml"
    config.write_text(f'[agent]\nsocket = "{agent["path"]}"\n')
    agent["answer"] = {"ok": True, "components": {"cpu": 1234.5, "dram": None}, "watts": {"cpu": 80.0}}
    assert main(["job", "99", "--config", str(config)]) == 0
    assert (
        capsys.readouterr().out
        == "Job 99 is still running; energy so far on this node: cpu 1.23 kJ, dram unknown.\n"
    )
    assert agent["question"] == {"op": "energy", "job_id": 99}


@pytest.mark.parametrize("form", [["--json"], ["--html", "label.html"], ["--png", "power.png"]])
def test_a_running_job_has_neither_a_document_nor_a_file(
    form: list[str],
    controller: fake_controller.FakeController,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script must not get a sentence instead of JSON, or success without the file."""
    answer = {"ok": True, "components": {"cpu": 1234.5}}
    monkeypatch.setattr(agent_socket, "ask_agent", lambda path, message: answer)
    monkeypatch.setattr(job_state, "read_job_state", lambda job_id: "RUNNING")
    monkeypatch.chdir(tmp_path)
    assert main(["job", "99", *form]) == 6
    said = "job 99: it has not ended (RUNNING): its energy record arrives when it ends"
    assert capsys.readouterr() == ("", f"senergy: error: {said}\n")
    assert list(tmp_path.iterdir()) == []
