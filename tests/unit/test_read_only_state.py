"""Test of the job manager while the state directory cannot be written.

The kernel makes a file system read-only, for example, after a disk error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_job_manager import Node, env

from slurm_energy.agent import offline_commands
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import AgentConfig, Config
from slurm_energy.devices.discovery import discover
from slurm_energy.errors import AlreadyRunningError

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Context manager in which no file below `folder` can be created, changed, renamed or removed."""

    def refuse_below(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            is_read = function is real_open and not (arguments[0] if arguments else 0) & WRITING
            if not is_read and str(folder) in str(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return function(path, *arguments, **options)

        return call

    real_open = os.open
    with pytest.MonkeyPatch.context() as patch:
        names = (
            "open",
            "unlink",
            "remove",
            "rename",
            "replace",
            "mkdir",
            "rmdir",
            "truncate",
            "utime",
            "chmod",
        )
        for name in names:
            patch.setattr(os, name, refuse_below(getattr(os, name)))
        yield


def test_settings_are_restored_and_records_are_kept(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(1, policy="powersave"))
    node.use(10)
    assert node.tree.snapshot() != node.original
    with read_only(node.folder / "state"):
        assert node.manager.end(env(1)) == {"known": True}
        answer = node.manager.begin(env(2, policy="powersave"))
        assert (answer["applied"], answer["failed"] > 0) == (0, True)
        node.use(20)
        node.manager.housekeeping()
        node.manager.finalize_jobs()
        assert node.manager.end(env(2)) == {"known": True}
        node.use(10)
        node.manager.housekeeping()
        assert node.tree.policy(3, "scaling_max_freq") == "3400000"
    node.manager.housekeeping()
    records = {record.job_id: record for record in node.records() if record.step is None}
    assert sorted(records) == [1, 2]
    assert [round(record.elapsed_s) for record in records.values()] == [10, 20]
    node.die()
    again = Node(tmp_path)
    assert {record.job_id for record in again.records() if record.step is None} == {1, 2}
    assert again.manager.status()["jobs"] == []
    again.die()


def test_an_agent_starts_restores_and_continues(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(1, policy="powersave"))
    node.use(10)
    node.die()
    state = node.folder / "state"
    leftovers = [state / ".x.new", state / "spool/.x.new", state / "sessions/9.0.trace"]
    damaged = state / "sessions/8.0.json"
    for path in (*leftovers, damaged):
        path.write_text("x")
    with read_only(state):
        node.manager = node.start()
        assert [job["job_id"] for job in node.manager.status()["jobs"]] == [1]
        with pytest.raises(AlreadyRunningError):
            StateDirectory(state)
        assert node.manager.end(env(1)) == {"known": True}
        assert node.tree.snapshot() == node.original
    node.die()
    assert all(path.exists() for path in (*leftovers, damaged))


def test_restore_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(1, policy="powersave"))
    node.die()
    assert node.tree.snapshot() != node.original
    monkeypatch.setattr(offline_commands, "discover", lambda: discover(node.tree.root))
    config = Config(agent=AgentConfig(state_dir=node.folder / "state"))
    with read_only(node.folder / "state"):
        assert offline_commands.restore(config) == 0
    assert node.tree.snapshot() == node.original
    assert "restored" in capsys.readouterr().out


@pytest.mark.root
@pytest.mark.parametrize("option", ["--restore", "--safe-limits"])
def test_commands_run_on_a_read_only_mount(tmp_path: Path, option: str) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts permitted")
    StateDirectory(tmp_path / "state").close()
    config = tmp_path / "energy.toml"
    config.write_text(f'[agent]\nstate_dir = "{tmp_path}/state"\n[budget]\nmode = "enforce"\n')
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    senergyd = sys.executable, "-m", "slurm_energy.agent.main", "--config", str(config), option
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, str(tmp_path / "state"), *senergyd],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("nothing to restore\n", "no decision of the controller is stored\n")
