"""Tests of reading files that other users may control.

The files are symbolic links, FIFOs, or second names (hard links) of files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_energy.errors import UsageError
from slurm_energy.profiling.user_files import list_directory, open_regular

OTHER_UID = 54_321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "a").write_bytes(b"content")
    return tmp_path / "events"


def read(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def test_files_and_directories_are_read_through_own_links(folder: Path) -> None:
    (folder / "absolute").symlink_to(folder / "a")
    (folder.parent / "relative").symlink_to("events/../events")
    assert read(folder / "absolute") == b"content"
    assert read(folder.parent / "relative" / "a") == b"content"
    assert sorted(list_directory(folder.parent / "relative") or ()) == ["a", "absolute"]
    assert list_directory(folder / "a") is None


def test_relative_paths_start_in_the_current_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert read(Path("a")) == read(Path("../events/./a")) == b"content"


def test_fifos_and_devices_are_refused_without_opening_them(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    for path in (folder / "fifo", Path("/dev/zero"), folder):
        with pytest.raises(UsageError, match="not a regular file"):
            open_regular(path)


def test_absent_files_and_loops_of_links_are_errors_of_the_system(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    for name, message in (
        ("absent", "No such file"),
        ("a/b", "Not a directory"),
        ("loop", "Too many levels"),
    ):
        with pytest.raises(OSError, match=message):
            open_regular(folder / name)


@as_root
def test_links_of_another_user_are_refused_anywhere_in_a_path(folder: Path) -> None:
    (folder / "file").symlink_to(folder / "a")
    (folder.parent / "way").symlink_to(folder)
    for link in (folder / "file", folder.parent / "way"):
        os.lchown(link, OTHER_UID, -1)
    for path in (folder / "file", folder.parent / "way" / "a"):
        with pytest.raises(UsageError, match="symbolic link of another user"):
            open_regular(path)
    with pytest.raises(UsageError, match="symbolic link of another user"):
        list_directory(folder.parent / "way")


@as_root
def test_a_second_name_of_a_file_of_another_user_is_refused(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_bytes(b"root only")
    os.chown(folder, OTHER_UID, -1)
    (folder / "mine").hardlink_to(secret)
    with pytest.raises(UsageError, match="2 names"):
        open_regular(folder / "mine")
    assert read(secret) == b"root only"


def test_no_descriptor_is_left_open(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "a")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        read(folder / "link")
        list_directory(folder)
        for name in ("absent", "a/b"):
            with pytest.raises(OSError, match=r"No such file|Not a directory"):
                open_regular(folder / name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
