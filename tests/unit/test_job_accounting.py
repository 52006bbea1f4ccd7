"""Test how job facts are read from the output of sacct and squeue.

The output was recorded with Slurm 22.05.8. Some tests use malicious job names.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import RECORDED_DELIMITER, fixed_width_text, recorded_rows, squeue_text

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.command import Command, CommandRunner
from slurm_energy.slurm.command_output import parse_rows
from slurm_energy.slurm.job_accounting import IDS_PER_QUERY, JobFacts, choose_run, read_job_facts
from slurm_energy.slurm.release import release

RECORDED = Path(__file__).parent / "slurm_outputs"
COLUMNS = 15
ADDED = {
    "sacct": ("cpu=2,mem=1M,node=1", "normal", "1:0", "0:125"),
    "squeue": ("2", "normal", "", ""),
}
"""Columns before the name that were not yet queried when the output was recorded."""
SUBMITTED = 1795236334.0


class FakeSlurm:
    """Answer commands from recordings in the requested format; fail for other commands."""

    def __init__(self, **answers):
        self.answers = answers
        self.calls = []

    def __call__(self, argv):
        self.calls.append(list(argv))
        answer = self.answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        rows = [[*row[:-1], *ADDED[argv[0]], row[-1]] for row in recorded_rows(answer, COLUMNS)]
        return (fixed_width_text if argv[0] == "sacct" else squeue_text)(argv, rows)


@pytest.fixture
def sacct():
    return FakeSlurm(sacct=(RECORDED / "sacct-22.05.8.txt").read_text())


@pytest.fixture
def squeue():
    return FakeSlurm(
        sacct=UnavailableError("sacct", "Slurm accounting storage is disabled"),
        squeue=(RECORDED / "squeue-22.05.8.txt").read_text(),
    )


def test_plain_job(sacct):
    (facts,) = read_job_facts({1}, sacct)[1]
    assert facts == JobFacts(
        job_id=1,
        display_id="1",
        cluster="rec",
        name="plain",
        account="root",
        partition="main",
        user="root",
        state="COMPLETED",
        submit=SUBMITTED,
        start=1795236335.0,
        end=1795236336.0,
        elapsed_s=1.0,
        nodes=1,
        time_limit_s=600.0,
        requested="cpu=1,mem=1M,node=1",
        allocated="cpu=2,mem=1M,node=1",
        qos="normal",
        exit_code="1:0",
        step_exit_code="0:125",
    )
    assert facts.finished


def test_squeue_shows_the_cpus_of_jobs_that_have_begun(squeue):
    runs = [facts for runs in read_job_facts(range(1, 16), squeue).values() for facts in runs]
    assert {facts.allocated for facts in runs if facts.state == "PENDING"} <= {None}
    assert {facts.allocated for facts in runs if facts.state != "PENDING"} == {"cpu=2"}
    assert {facts.qos for facts in runs} == {"normal"}


@pytest.mark.parametrize("source", ["sacct", "squeue"])
def test_awkward_names_survive(source, request):
    answer = read_job_facts({2, 3}, request.getfixturevalue(source))
    assert answer[2][0].name == "a|b|c"
    assert answer[3][0].name.startswith("line\nbreak\x1f100% ")
    assert answer[3][0].name.endswith(" ünï")


@pytest.mark.parametrize("source", ["sacct", "squeue"])
def test_arrays_and_components(source, request):
    facts = [
        f for runs in read_job_facts(range(1, 16), request.getfixturevalue(source)).values() for f in runs
    ]
    tasks = {f.array_task_id: (f.display_id, f.array_job_id) for f in facts if f.name == "arr"}
    assert tasks == {3: ("4_3", 4), 4: ("4_4", 4), 5: ("4_5", 4)}
    components = {f.het_offset: (f.display_id, f.het_job_id, f.job_id) for f in facts if f.name == "het"}
    assert components == {0: ("5+0", 5, 5), 1: ("5+1", 5, 6)}
    assert all(f.het_job_id is None for f in facts if f.name == "arr")


@pytest.mark.parametrize("source", ["sacct", "squeue"])
def test_what_is_not_known_is_none(source, request):
    facts = [
        f for runs in read_job_facts(range(1, 16), request.getfixturevalue(source)).values() for f in runs
    ]
    assert all(f.account != "(null)" for f in facts)
    for cancelled in (f for f in facts if f.state.startswith("CANCELLED")):
        assert cancelled.finished


def test_pending_jobs_have_neither_start_nor_end(sacct):
    (pending,) = read_job_facts({13}, sacct)[13]
    assert (pending.state, pending.start, pending.end, pending.finished) == ("PENDING", None, None, False)
    assert (pending.exit_code, pending.step_exit_code) == (None, None)  # not 0:0


def test_a_run_without_a_start_has_no_known_length():
    """A run whose start is missing in Slurm's accounting has an unknown duration.

    The test uses output of sacct 22.05.8 for a job that was requeued before slurmdbd received its start.
    """
    columns = [
        "3",
        "3",
        "lab",
        "root",
        "all",
        "root",
        "REQUEUED",
        "100",
        "None",
        "102",
        "0",
        "1",
        "",
        "",
        "wrap",
    ]
    row = "".join(column + RECORDED_DELIMITER for column in columns)
    (facts,) = read_job_facts({3}, FakeSlurm(sacct=row))[3]
    assert (facts.start, facts.end, facts.elapsed_s, facts.finished) == (None, 102, None, True)


def test_running_job_of_squeue_has_no_end_but_elapsed_time(squeue):
    (facts,) = read_job_facts({7}, squeue)[7]
    assert (facts.state, facts.end, facts.nodes, facts.finished) == ("RUNNING", None, 1, False)
    assert (facts.elapsed_s, facts.start - facts.submit) == (14, 27)
    assert facts.cluster is None  # squeue does not print this column


def facts_of_squeue(state, end):
    columns = (
        "5",
        "5",
        "",
        "(null)",
        "main",
        "me",
        state,
        "100",
        "900",
        end,
        "0:00",
        "1",
        "1-00:00:00",
        "",
        "x",
    )
    row = "".join(column + RECORDED_DELIMITER for column in columns)
    off = UnavailableError("sacct", "Slurm accounting storage is disabled")
    (facts,) = read_job_facts({5}, FakeSlurm(sacct=off, squeue=row))[5]
    return facts


def test_squeue_tells_no_start_for_a_pending_job():
    facts = facts_of_squeue("PENDING", "N/A")
    assert (facts.submit, facts.start, facts.end) == (100, None, None)
    assert (facts.time_limit_s, facts.requested) == (86400, None)


@pytest.mark.parametrize("state", ["STOPPED", "RESV_DEL_HOLD", "EXPEDITING"])
def test_stopped_held_and_expedited_jobs_have_not_ended(state):
    facts = facts_of_squeue(state, "1900")
    assert (facts.finished, facts.end) == (False, None)


def test_runs_of_a_requeued_job_by_time(sacct):
    runs = read_job_facts({11}, sacct)[11]
    assert [facts.state for facts in runs] == ["REQUEUED", "COMPLETED"]
    assert choose_run(runs, 0, 1795236373.5) is runs[0]
    assert choose_run(runs, 1, 1795236401.2) is runs[1]


def test_only_what_was_asked_for_is_returned(sacct):
    assert set(read_job_facts({14, 999}, sacct)) == {14}


def test_one_command_however_many_jobs(sacct):
    read_job_facts(range(1, IDS_PER_QUERY + 1), sacct)
    assert len(sacct.calls) == 1
    read_job_facts(range(1, IDS_PER_QUERY + 2), sacct)
    assert len(sacct.calls) == 3
    assert all(len(argument) < 128 << 10 for call in sacct.calls for argument in call)


def test_no_job_no_command(sacct):
    assert read_job_facts(set(), sacct) == {}
    assert sacct.calls == []


def test_a_database_that_is_down_is_not_answered_by_squeue():
    slurm = FakeSlurm(sacct=UnavailableError("sacct", "error: Problem talking to the database: refused"))
    with pytest.raises(UnavailableError, match="talking to the database"):
        read_job_facts({1}, slurm)


@pytest.mark.parametrize("cut", [2, 30, 400])
def test_torn_output_is_an_error(cut, sacct):
    with pytest.raises(UnavailableError):
        read_job_facts({1}, lambda argv: sacct(argv)[:-cut])


HOSTILE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200) | (
    st.lists(
        st.sampled_from(["\n", " ", "|", "8", "8" + " " * 64, "root", "<", ">", "%", "+", "=", "\t"])
    ).map("".join)
)


@pytest.mark.parametrize("source", ["sacct", "squeue"])
@given(names=st.lists(HOSTILE, min_size=1, max_size=3))
def test_no_job_name_changes_what_is_said_of_any_job(source, names):
    """Each job has the owner and account that Slurm reports, whatever its name."""
    off = UnavailableError("sacct", "Slurm accounting storage is disabled")
    middle = ["c", "physics", "gpu", "alice", "RUNNING", "100", "110", "None", "5", "1", "10", "cpu=1"]
    rows = [[str(7 + number), str(7 + number), *middle, name] for number, name in enumerate(names)]
    text = "".join("".join(field + RECORDED_DELIMITER for field in row) + "\n" for row in rows)
    if any(RECORDED_DELIMITER in name for name in names):
        return
    slurm = FakeSlurm(sacct=text) if source == "sacct" else FakeSlurm(sacct=off, squeue=text)
    facts = read_job_facts(range(7, 12), slurm)
    assert list(facts) == [7 + number for number in range(len(names))]
    for (one,), name in zip(facts.values(), names, strict=True):
        assert (one.user, one.account, one.partition, one.state) == ("alice", "physics", "gpu", "RUNNING")
        whole = len(name.encode()) <= 256 or source == "squeue"
        assert one.name == name.rstrip(" " if source == "sacct" else "") or not whole


def test_a_request_that_sacct_cuts_off_is_not_known(sacct):
    long = "gres/gpu:" + "a" * 1200 + "=1"
    row = ["1", "1", "c", "a", "p", "u", "COMPLETED", "1", "2", "3", "1", "1", "10", long, "x"]
    text = "".join(column + RECORDED_DELIMITER for column in row)
    assert read_job_facts({1}, FakeSlurm(sacct=text))[1][0].requested is None


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=5))
def test_no_text_breaks_rows(rows):
    delimiter = "<0123456789abcdef>"
    rows = [["7", *row] for row in rows]
    output = "".join("".join(field + delimiter for field in row) + "\n" for row in rows)
    assert list(parse_rows(output, delimiter, 4)) == rows


def run_of(start, end, submit=0.0, state="COMPLETED"):
    return JobFacts(7, "7", "c", "n", None, None, None, state, submit, start, end, None, 1)


class TestChooseRun:
    def test_restart_count_decides_where_times_agree(self):
        runs = [run_of(100, 124), run_of(125, 200)]
        # The clock of the node is 2 s late: by time alone, the record would belong to the first run.
        assert choose_run(runs, 1, 123.0) is runs[1]
        assert choose_run(runs, 0, 122.0) is runs[0]

    def test_time_decides_after_a_purge_or_where_ids_were_used_again(self):
        old, new = run_of(100, 200), run_of(90_000, 90_100)
        assert choose_run([old, new], 0, 90_001) is new
        assert choose_run([new], 1, 90_001) is new

    def test_runs_that_never_started_do_not_count(self):
        cancelled, real = run_of(None, 50), run_of(100, None, state="RUNNING")
        assert choose_run([cancelled, real], 0, 101) is real
        assert choose_run([cancelled], 0, 101) is None

    def test_a_run_whose_start_slurm_lost_counts_from_its_submission(self):
        lost, again = run_of(None, 102, submit=100, state="REQUEUED"), run_of(223, 300, submit=106)
        assert choose_run([lost, again], 0, 101) is lost
        assert choose_run([lost, again], 1, 223.4) is again
        assert choose_run([lost], 0, 101) is lost

    def test_nothing_near_is_nothing(self):
        assert choose_run([run_of(100, 200)], 0, 5_000) is None
        assert choose_run([], 0, 5_000) is None


class TestCommandRunner:
    def test_reason_is_the_last_line_without_the_name(self):
        with pytest.raises(UnavailableError, match=r"^sh: bad news$"):
            CommandRunner()(["sh", "-c", "echo first >&2; echo sh: bad news >&2; exit 3"])

    def test_missing_program(self):
        with pytest.raises(UnavailableError, match="not found"):
            CommandRunner()(["sacct-that-is-not-there"])

    def test_a_folder_that_may_not_be_read_hides_no_missing_program(self, tmp_path, monkeypatch):
        (tmp_path / "sacct-of-nobody").mkdir()  # the kernel refuses to execute it even for root
        (tmp_path / "sacct-without-right").touch(mode=0o600)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(UnavailableError, match="not found"):
            CommandRunner()(["sacct-of-nobody"])
        with pytest.raises(UnavailableError, match="Permission denied"):
            CommandRunner()(["sacct-without-right"])

    def test_a_slow_command_is_ended(self):
        with pytest.raises(UnavailableError, match=r"within 0.2 s"):
            CommandRunner(timeout_s=0.2)(["sleep", "60"])

    def test_endless_output_ends_a_command(self):
        with pytest.raises(UnavailableError, match="more than 1 MiB of output: select fewer rows"):
            CommandRunner(60, max_output_bytes=1 << 20)(["sh", "-c", "yes; sleep 60"])

    def test_output_beyond_a_pipe_and_endless_errors_are_read(self):
        code = "import sys; sys.stderr.write('x' * 2**20); print('y' * 2**20)"
        assert len(CommandRunner()([sys.executable, "-c", code])) == 2**20 + 1

    def test_stop_ends_a_running_command_and_refuses_others(self):
        runner, errors = CommandRunner(), []

        def work():
            try:
                runner(["sleep", "60"])
            except UnavailableError as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while runner._child is None:
            time.sleep(0.01)
        runner.stop()
        thread.join(60)
        assert not thread.is_alive() and len(errors) == 1
        with pytest.raises(UnavailableError, match="shutting down"):
            runner(["true"])

    def test_what_others_must_not_see_is_in_the_environment(self):
        code = "import os, sys; sys.stdout.buffer.write(os.environ['SQUEUE_FORMAT'].encode() + b'\\xff')"
        command = Command([sys.executable, "-c", code], encoding="latin-1", SQUEUE_FORMAT="secret")
        assert CommandRunner()(command) == "secret\xff"

    def test_times_are_asked_for_in_unix_seconds(self):
        code = "import os; print(os.environ['SLURM_TIME_FORMAT'])"
        assert CommandRunner()([sys.executable, "-c", code]).strip() == "%s"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5, 8)),
        ("slurm 26.05.5\n", (26, 5, 5)),
        ("slurm 24.11.5-1\n", (24, 11, 5)),
    ],
)
def test_release(text, expected):
    found = release(lambda argv: text)
    assert found == expected
    assert (found >= (23, 11)) == (expected[0] > 22)


def test_release_shows_as_slurm_writes_it():
    assert str(release(lambda argv: "slurm-wlm 22.05.8")) == "22.05.8"


def test_release_without_a_version():
    with pytest.raises(UnavailableError, match="no version"):
        release(lambda argv: "command not understood")
