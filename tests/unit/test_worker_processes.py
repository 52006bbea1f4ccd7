"""Long computations that are killed leave no worker process behind."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="calibration needs scipy")

from slurm_energy.errors import UnavailableError
from slurm_energy.worker_processes import end_with_parent, process_pool

STEPS = "model,batch,gpus,precision,optimizer,cap_watts,step_s,power_watts\n" + "".join(
    f"resnet50,{batch},1,fp32,momentum,,{batch * 0.003},280\n" for batch in (8, 16, 32, 64, 128)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "calibrate steps.csv --gpu a40 --output own.toml --method search --population 8 --generations 100000"
        " --workers 2",
        "simulate training --seeds 100 --jobs 2",
    ],
)
def test_a_killed_command_leaves_no_worker_behind(tmp_path: Path, words: str) -> None:
    (tmp_path / "steps.csv").write_text(STEPS)
    command = [sys.executable, "-m", "slurm_energy.cli.main", *words.split()]
    running = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    until(lambda: len(group(running.pid)) > 2)
    running.kill()
    running.wait()
    until(lambda: not group(running.pid))


@pytest.mark.parametrize(
    ("number", "todo"),
    [
        (errno.EACCES, "use --jobs 1, or let this user write /dev/shm (mode 1777)"),
        (errno.EMFILE, "use --jobs 1"),
    ],
)
def test_without_semaphores_a_pool_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, number: int, todo: str
) -> None:
    def semaphore(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("multiprocessing.synchronize._multiprocessing.SemLock", semaphore)
    with pytest.raises(UnavailableError) as caught:
        process_pool(2, "--jobs", initializer=end_with_parent)
    assert str(caught.value) == f"worker processes: no semaphores ({os.strerror(number)}): {todo}"


def test_a_pool_beyond_the_limit_of_processes_is_refused_and_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The start of worker processes fails with an error if it would exceed the limit of processes.

    No worker that was already started remains. The number of processes is often limited on login nodes,
    for each user or control group.
    """
    try:
        get_context("fork").Lock()
    except OSError:
        pytest.skip("worker processes need semaphores, and this user cannot write /dev/shm")
    forks, fork = [], os.fork

    def fork_once() -> int:
        forks.append(1)
        if len(forks) > 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", fork_once)
    with pytest.raises(UnavailableError) as caught:
        process_pool(3, "--jobs", context=get_context("fork"), initializer=end_with_parent)
    assert str(caught.value) == (
        "worker processes: 3 processes cannot be started (Resource temporarily unavailable):"
        " use a smaller --jobs"
    )
    until(lambda: not active_children())


@pytest.mark.slow
def test_a_search_with_one_worker_keeps_one_core_busy(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(STEPS)
    words = (
        "calibrate steps.csv --gpu a40 --output own.toml --method search --population 8 --generations 1"
        " --polish 1 --kicks 0"
    )
    code = (
        f"import os; from slurm_energy.cli import main; assert main.main({words.split()!r}) == 0;"
        " print(len(os.listdir('/proc/self/task')))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split()[-1] == "1"


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group(number: int) -> list[str]:
    """Return the running processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, own = path.read_text().rpartition(")")[2].split()[:3]
            found += [path.parent.name] if int(own) == number and state not in "ZX" else []
    return found
