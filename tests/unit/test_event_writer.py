"""Tests of the writer of event files, which contain the timed phases of a process.

The tests check that the events of a killed process remain, and that no error of a file reaches the program.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_energy.diagnosis.event_format import (
    DEFAULT_CAPACITY,
    GPU_THREAD,
    HEADER_BYTES,
    MAX_NAMES,
    RECORD_BYTES,
    Event,
    EventFileHeader,
    read_events,
    read_header,
)
from slurm_energy.profiling import event_writer
from slurm_energy.profiling.event_writer import EventWriter, event_capacity
from slurm_energy.profiling.process_identity import ProcessIdentity
from slurm_energy.profiling.step_statistics import GPU, TimedPhase

PROCESS = ProcessIdentity(12, "0", "n1", 3, 77)
NAN = math.nan


def content(path: Path) -> tuple[EventFileHeader, list[Event]]:
    with path.open("rb") as stream:
        header = read_header(stream)
        return header, list(read_events(stream, header))


def writer_in(directory: Path, capacity: int = 100) -> EventWriter:
    return EventWriter(PROCESS, directory, 500, lambda: None, capacity)


def test_events_are_written_with_names_threads_and_place(tmp_path: Path) -> None:
    writer = writer_in(tmp_path / "new" / "folder")
    writer.add(TimedPhase("data", 10, 30, NAN, 900))
    writer.add(TimedPhase("forward", 30, 60, NAN, GPU))
    writer.write()
    writer.add(TimedPhase("step", 10, 60, 32.0, 901))
    writer.place(5, 2)
    writer.close()
    assert writer.path.name == "job12-step0-rank3-n1-77.events"
    header, events = content(writer.path)
    assert (header.job_id, header.step, header.node, header.pid) == (12, "0", "n1", 77)
    assert (header.rank, header.gpu, header.unix_offset_ns, header.written) == (5, "gpu[2]", 500, 3)
    assert [(header.name_of(e.phase), e.start_ns, e.duration_ns, e.thread) for e in events] == [
        ("data", 10, 20, 0),
        ("forward", 30, 30, GPU_THREAD),
        ("step", 10, 50, 1),
    ]
    assert events[2].value == 32


def test_the_file_keeps_the_newest_events_and_its_size(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, capacity=10)
    for number in range(37):
        writer.add(TimedPhase("step", number, number, NAN, 1))
        if number % 4 == 0:
            writer.write()
    writer.close()
    assert [event.start_ns for event in content(writer.path)[1]] == list(range(27, 37))
    assert writer.path.stat().st_size == HEADER_BYTES + 10 * RECORD_BYTES


def test_names_beyond_the_table_become_other(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, capacity=300)
    for number in range(200):
        writer.add(TimedPhase(f"mine {number}", number, number, NAN, 1))
    writer.close()
    header, events = content(writer.path)
    names = [header.name_of(event.phase) for event in events]
    assert names == [f"mine {n}" for n in range(MAX_NAMES - 1)] + ["other"] * (200 - MAX_NAMES + 1)


def test_a_second_process_of_the_same_name_gets_its_own_file(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = writer_in(tmp_path)
        writer.add(TimedPhase("step", number, number, NAN, 1))
        writer.close()
    files = sorted(tmp_path.iterdir())
    assert [[event.start_ns for event in content(path)[1]] for path in files] == [[2], [1]]


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("text")
    writer = writer_in(tmp_path)
    writer.path.symlink_to(victim)
    writer.add(TimedPhase("step", 1, 2, NAN, 1))
    writer.close()
    assert victim.read_text() == "text"


def test_a_program_that_closes_all_files_keeps_its_own(tmp_path: Path) -> None:
    """The event writer does not write to another file that has the writer's file descriptor.

    If a program closes all files, the next file that it opens may get this descriptor.
    """
    writer = writer_in(tmp_path)
    writer.add(TimedPhase("step", 1, 2, NAN, 1))
    writer.write()
    descriptor = writer._descriptor
    assert descriptor is not None
    os.close(descriptor)
    victim = tmp_path / "victim"
    own = os.open(victim, os.O_RDWR | os.O_CREAT)
    os.dup2(own, descriptor)
    writer.add(TimedPhase("step", 2, 3, NAN, 1))
    writer.write()
    writer.abandon()
    assert victim.read_bytes() == b""
    os.close(descriptor)
    if own != descriptor:
        os.close(own)


@pytest.mark.parametrize("why", ["is a file", "no space"])
def test_failures_are_logged_once_and_end_the_file(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "events"
    if why == "is a file":
        directory.write_text("")
    else:
        monkeypatch.setattr(
            event_writer.os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space"))
        )
    writer = writer_in(directory)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            writer.add(TimedPhase("step", number, number, NAN, 1))
            writer.write()
    assert len(caplog.messages) == 1
    assert "events are not written" in caplog.messages[0]


def test_events_that_cannot_be_written_in_time_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "_MAX_WAITING", 5)
    writer = writer_in(tmp_path)
    for number in range(8):
        writer.add(TimedPhase("step", number, number, NAN, 1))
    writer.close()
    header, events = content(writer.path)
    assert (len(events), header.lost) == (5, 3)


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("", DEFAULT_CAPACITY),
        ("1", 32768),
        ("2048", 1 << 26),
        ("2049", DEFAULT_CAPACITY),
        ("x", DEFAULT_CAPACITY),
    ],
)
def test_the_size_of_the_file_is_configured(text: str, records: int) -> None:
    assert event_capacity({"SENERGY_EVENTS_MIB": text}) == records


PROGRAM = """
import os, signal, sys, time
import slurm_energy
from slurm_energy.profiling import event_writer
from slurm_energy.profiling.step_recorder import recorder
if sys.argv[1] == "kill":
    event_writer._PERIOD_S = 0.05
    for item in slurm_energy.watch(range(50)):
        pass
    while not recorder._writer or not recorder._writer._written:
        recorder.collect()
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "raise":
    for item in slurm_energy.watch(range(50)):
        if item == 30:
            raise KeyError("mine")
child = 0
for item in slurm_energy.watch(range(50)):
    if item == 20 and sys.argv[1] == "fork":
        child = os.fork()
        if not child:
            with slurm_energy.phase("of the child"):
                pass
            from slurm_energy.profiling.step_recorder import close_all
            close_all()
            os._exit(0)
        os.waitpid(child, 0)
os.chdir("/")
"""


def run(mode: str, tmp_path: Path) -> tuple[int, str, list[Path]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    environment |= {"SENERGY_EVENTS_DIR": "events"}
    command = [sys.executable, "-c", PROGRAM, mode]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr, sorted((tmp_path / "events").iterdir())


def steps_in(path: Path) -> list[str]:
    header, events = content(path)
    return [header.name_of(event.phase) for event in events]


def test_a_program_leaves_its_events_and_its_child_its_own(tmp_path: Path) -> None:
    code, errors, files = run("fork", tmp_path)
    assert (code, errors) == (0, "")
    names = sorted((steps_in(path) for path in files), key=len)
    assert names[0] == ["of the child"]
    assert names[1].count("step") == names[1].count("data") == 50


def test_an_exception_of_the_program_passes_and_the_events_are_kept(tmp_path: Path) -> None:
    code, errors, files = run("raise", tmp_path)
    assert code == 1
    assert "KeyError: 'mine'" in errors.splitlines()[-1]
    assert steps_in(files[0]).count("step") == 30


def test_a_killed_program_leaves_what_was_written(tmp_path: Path) -> None:
    code, _, files = run("kill", tmp_path)
    assert code == -9
    assert steps_in(files[0])[:4] == ["data", "step", "data", "step"]
