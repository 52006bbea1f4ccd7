"""Tests of `senergy simulate --slurm`, which runs a campaign as a Slurm job array.

Scripts replace Slurm's commands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from simulate_examples import JOBS, SCENARIO

from slurm_energy.cli.main import main
from slurm_energy.simulator.workloads import job_array


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "price.csv").write_text("time_s,price\n0,100\n300,50\n")
    (tmp_path / "small.toml").write_text(SCENARIO)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--slurm"], 2, "--slurm: needs --out"),
        (["--part", "0/2"], 2, "--part: needs --out"),
        (["--part", "2/2", "--out", "out"], 2, "is not I/N"),
        (["--part", "x", "--out", "out"], 2, "is not I/N"),
        (["--slurm", "--out", "out"], 4, "sbatch: not found"),
        (["--slurm=-p 'x", "--out", "out"], 2, "No closing quotation"),
    ],
)
def test_errors_of_a_job_array_are_one_line(folder, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder))
    assert main(["simulate", "small.toml", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_command_of_a_job_array():
    command = job_array.sbatch_command(["senergy", "simulate", "a b"], 3, Path("/s"), "-p short")
    assert command[:2] == ["sbatch", "--parsable"] and {"--array=0-2", "short"} <= set(command)
    assert command[-1] == "--wrap=exec senergy simulate 'a b' --part $SLURM_ARRAY_TASK_ID/3"


SLURM = {
    "sbatch": "echo '77;east'",
    "squeue": '[ -e "$0.ended" ] || echo 77_1',
    "scancel": 'echo "$@" > "$0.arguments"; exit "$(cat "$0.status" 2>/dev/null || echo 0)"',
}


def put_command(folder, name, script):
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
def test_the_results_of_an_array_are_found_although_the_paths_were_relative(folder, monkeypatch, capsys):
    put_command(
        *(folder, "sbatch"),
        'for task in 0 1; do for word; do case "$word" in --wrap=*)'
        ' SLURM_ARRAY_TASK_ID=$task sh -c "${word#--wrap=}" >&2;; esac; done; done; echo 77',
    )
    put_command(folder, "squeue", "")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    assert main(["simulate", "small.toml", "--workload", "jobs.csv", "--out", "out", "--slurm"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["fcfs", "zeus"]


def test_an_array_simulates_a_shipped_scenario_beside_a_file_of_the_same_name(folder, monkeypatch):
    put_command(folder, "sbatch", 'echo "$@" > "$0.arguments"; exit 1')
    (folder / "replay").touch()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    assert main(["simulate", "replay", "--workload", "jobs.csv", "--out", "out", "--slurm"]) == 4
    assert " simulate replay --out " in (folder / "sbatch.arguments").read_text()


def array_command(folder, *before, **scripts):
    """Start `senergy simulate` in the background, which submits two simulations as a job array.

    The Slurm commands are fakes that do nothing.
    """
    for name, script in (SLURM | scripts).items():
        put_command(folder, name, script)
    default_signals = ["env", "--default-signal=INT,TERM,HUP"]  # background jobs of a shell ignore interrupts
    command = [
        *default_signals,
        *before,
        sys.executable,
        "-m",
        "slurm_energy.cli.main",
        "simulate",
        "small.toml",
    ]
    return subprocess.Popen(
        [*command, "--out", "out", "--slurm"],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def started_array(folder, *before):
    """Start a campaign and wait until it reports the submitted array."""
    child = array_command(folder, *before)
    notes = [child.stderr.readline(), child.stderr.readline()]
    assert "job array 77 of 2 tasks" in notes[0] and "kill -9" in notes[0], notes
    assert notes[1] == "senergy: 0 of 2 runs\n"
    return child


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_command_cancels_its_array(folder, number):
    child = started_array(folder)
    child.send_signal(number)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 4 and "array 77 is cancelled" in error, error
    assert (folder / "scancel.arguments").read_text() == "-M east 77\n"


@pytest.mark.slow
def test_an_array_that_is_being_submitted_is_cancelled_too(folder):
    slow = 'touch "$0.begun"; until [ -e "$0.go" ]; do sleep 0.05; done; echo 77'
    child = array_command(folder, sbatch=slow)
    deadline = time.monotonic() + 60
    while not (folder / "sbatch.begun").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.01)
    child.terminate()
    (folder / "sbatch.go").touch()
    assert "array 77 is cancelled" in child.communicate(timeout=60)[1]
    assert (folder / "scancel.arguments").read_text() == "77\n"


@pytest.mark.slow
def test_an_array_that_cannot_be_cancelled_is_reported(folder):
    child = started_array(folder)
    (folder / "scancel.status").write_text("1")
    child.terminate()
    assert "could not be cancelled: scancel -M east 77" in child.communicate(timeout=60)[1]


@pytest.mark.slow
def test_an_array_outlives_the_terminal_under_nohup(folder):
    child = started_array(folder, "nohup")
    child.send_signal(signal.SIGHUP)
    (folder / "squeue.ended").touch()
    _, error = child.communicate(timeout=60)
    assert child.returncode == 4 and "2 of 2 runs are missing" in error, error
    assert not (folder / "scancel.arguments").exists()


@pytest.mark.parametrize(
    ("error", "queries"),
    [
        ("slurm_load_jobs error: Invalid job id specified", 1),
        ("error: Unable to contact slurm controller", 3),
    ],
)
def test_an_array_has_ended_once_slurm_forgot_it_but_not_while_slurm_is_down(
    folder, monkeypatch, error, queries
):
    fake = f'echo >> "$0.queries"; [ $(wc -l < "$0.queries") -gt 2 ] || {{ echo "{error}" >&2; exit 1; }}'
    for name, script in (SLURM | {"squeue": fake}).items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("_POLL_S", "_FIRST_QUERY_S", "_MAX_QUERY_INTERVAL_S"):
        monkeypatch.setattr(job_array, name, 0.01)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    job_array.run(["sbatch"], lambda: False)
    assert (folder / "squeue.queries").read_text().count("\n") == queries
    assert not (folder / "scancel.arguments").exists()
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
