"""The agent writes its files atomically.

Files that another user plants under the names of the agent's files are neither followed nor
read.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_energy import atomic_file
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.errors import ForbiddenError, UnavailableError

PLANTS = ["link", "fifo", "second name", "folder", "too long"]
NAME = "000000000020-planted.json"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text('{"secret": 1}')
    return path


def plant(path: Path, kind: str, victim: Path) -> None:
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "second name":
        path.hardlink_to(victim)
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 300_000_000)


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_file_is_not_read(tmp_path: Path, victim: Path, kind: str) -> None:
    plant(tmp_path / "planted", kind, victim)
    with pytest.raises(OSError, match="planted"):
        atomic_file.read(tmp_path / "planted", 1000)


def test_our_own_file_is_read(tmp_path: Path) -> None:
    atomic_file.write(tmp_path / "a", b"1" * 1000)
    assert atomic_file.read(tmp_path / "a", 1000) == b"1" * 1000
    with pytest.raises(OSError, match="has 1000 bytes, expected at most 999"):
        atomic_file.read(tmp_path / "a", 999)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_another_user_s_file_is_not_read(victim: Path) -> None:
    os.chown(victim, 65534, 65534)
    with pytest.raises(OSError, match="belongs to uid 65534, expected 0"):
        atomic_file.read(victim, 1000)


@pytest.mark.parametrize("kind", ["link", "fifo", "second name"])
@pytest.mark.parametrize("name", ["a", ".a.new"])
def test_writing_replaces_a_planted_file_and_never_follows_it(
    tmp_path: Path, victim: Path, kind: str, name: str
) -> None:
    plant(tmp_path / name, kind, victim)
    atomic_file.write(tmp_path / "a", b"ours")
    assert atomic_file.read(tmp_path / "a", 10) == b"ours"
    assert victim.read_text() == '{"secret": 1}'
    atomic_file.flush([tmp_path / "a", tmp_path / "gone"])


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_file_in_the_spool_is_renamed_unread(tmp_path: Path, victim: Path, kind: str) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    plant(folder / NAME, kind, victim)
    spool = Spool(folder, 10**9)
    assert spool.items(10**9, 100) == []
    assert spool.count() == 0
    assert victim.read_text() == '{"secret": 1}'
    # A file that is larger than all rejected records may be is dropped.
    assert (folder / "rejected" / NAME).exists() or kind in ("folder", "too long")


@pytest.mark.parametrize("kind", ["link", "fifo", "second name"])
def test_a_planted_file_among_the_sessions_is_renamed_unread(tmp_path: Path, victim: Path, kind: str) -> None:
    (tmp_path / "state/sessions").mkdir(parents=True, mode=0o700)
    plant(tmp_path / "state/sessions/5.0.json", kind, victim)
    state = StateDirectory(tmp_path / "state")
    try:
        assert state.load() == []
        assert (tmp_path / "state/sessions/5.0.json.damaged").exists()
        assert victim.read_text() == '{"secret": 1}'
    finally:
        state.close()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_planted_journal_stops_the_start(tmp_path: Path, victim: Path, kind: str) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    plant(tmp_path / "state/journal.json", kind, victim)
    with pytest.raises(UnavailableError):
        StateDirectory(tmp_path / "state")


def test_the_state_directory_is_private_and_its_place_is_safe(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/state").mkdir(mode=0o755)
    StateDirectory(tmp_path / "lib/state").close()
    assert (tmp_path / "lib/state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "lib").chmod(0o777)
    with pytest.raises(ForbiddenError, match="mode 0777: expected"):
        StateDirectory(tmp_path / "lib/state")
    (tmp_path / "lib").chmod(0o755)
    (tmp_path / "lib/link").symlink_to("state")
    with pytest.raises(ForbiddenError, match="symbolic link"):
        StateDirectory(tmp_path / "lib/link")
