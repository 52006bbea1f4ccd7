"""Tests of the cache for the files of a lab.

A directory is created once and then copied. The cache does not use an entry that other users could have
changed, or that is broken.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_energy_lab.build_cache import cache_folder, copy_or_make, is_trusted


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def fill(target: Path, log: Path, how: str = 'echo made >>"$2"; echo text >"$1/file"') -> int:
    target.mkdir()
    make = ["sh", "-c", how, "sh", str(target), str(log)]
    return subprocess.run(copy_or_make("entry", target, make), check=False).returncode


def test_a_directory_is_made_once_and_then_copied(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("a", "b", "c"):
        assert fill(tmp_path / name, log) == 0
        assert (tmp_path / name / "file").read_text() == "text\n"
    assert log.read_text() == "made\n"
    (tmp_path / "a" / "file").write_text("changed")
    assert [path.name for path in cache.iterdir()] == ["entry"]
    assert (cache / "entry" / "file").read_text() == "text\n"


def test_what_could_not_be_made_is_not_stored(cache: Path, tmp_path: Path) -> None:
    assert fill(tmp_path / "a", tmp_path / "log", "exit 3") == 3
    assert not cache.exists()


def test_a_lab_starts_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fill(tmp_path / "a", tmp_path / "log") == 0
    assert (tmp_path / "a" / "file").exists()


def test_files_that_others_could_write_are_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "library"
    assert not is_trusted(path)
    path.touch(0o700)
    assert is_trusted(path)
    path.chmod(0o722)
    assert not is_trusted(path)
