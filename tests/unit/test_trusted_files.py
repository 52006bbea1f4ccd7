"""Tests of the function that reads trusted files.

The function must reject a file that another user could have written. The error has one line.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_energy.config import load
from slurm_energy.errors import ConfigError
from slurm_energy.trusted_files import MAX_FILE_BYTES, check_folder, read_trusted

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "etc/slurm"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    file = folder / "energy.toml"
    file.write_bytes(b"[cluster]\nname = 'a'\n")
    file.chmod(0o644)
    return file


def refusal(path: Path, *, secret: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        read_trusted(path, secret=secret)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ") or "chmod" in text or "chown" in text
    return text


def test_a_file_of_ours_is_read_and_a_secret_must_be_private(file: Path) -> None:
    assert read_trusted(file) == b"[cluster]\nname = 'a'\n"
    assert "mode 0644: expected owner" in refusal(file, secret=True)
    file.chmod(0o600)
    assert read_trusted(file, secret=True) == read_trusted(file)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_others_may_not_write_the_file(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert f"mode {mode:04o}: expected owner" in refusal(file)
    assert f"chmod go-w {file}" in refusal(file)


@pytest.mark.parametrize("above", [1, 2])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_others_may_not_write_a_folder_on_the_way(file: Path, above: int, mode: int) -> None:
    folder = file.parents[above - 1]
    folder.chmod(mode)
    assert f"{folder}: owner" in refusal(file)
    assert f"chmod go-w {folder}" in refusal(file)
    folder.chmod(mode | 0o1000)  # like /tmp: the sticky bit protects the files
    assert read_trusted(file)


@as_root
def test_neither_file_nor_folder_may_be_somebody_else_s(file: Path) -> None:
    os.chown(file, NOBODY, 0)
    assert f"owner uid {NOBODY}, mode 0644: expected owner uid 0" in refusal(file)
    assert f"chown root {file}" in refusal(file)
    os.chown(file, 0, 0)
    os.chown(file.parent, NOBODY, 0)
    assert f"{file.parent}: owner uid {NOBODY}" in refusal(file)
    # `chown root` would lock out a service that runs as the owner.
    assert "but if a service of user nobody writes there, run this command as nobody" in refusal(file)


def test_a_link_is_not_followed_at_the_end_but_on_the_way(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert "is a symbolic link" in refusal(link)
    (tmp_path / "way").symlink_to("etc/../etc/slurm")
    assert read_trusted(tmp_path / "way" / file.name)


@as_root
def test_a_link_of_somebody_else_on_the_way_is_refused(file: Path, tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "slurm"
    link.symlink_to(file.parent)
    assert read_trusted(link / file.name)
    os.lchown(link, NOBODY, NOBODY)
    assert f"{link}: owner uid {NOBODY}" in refusal(link / file.name)


def test_links_in_a_circle_and_absent_folders_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigError, match="symbolic links"):
        check_folder(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        check_folder(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        read_trusted(tmp_path / "none")


def test_a_fifo_does_not_stop_the_reader(tmp_path: Path) -> None:
    fifo = tmp_path / "energy.toml"
    os.mkfifo(fifo, 0o600)
    assert "is not a regular file" in refusal(fifo)


def test_a_huge_file_is_refused(file: Path) -> None:
    os.truncate(file, MAX_FILE_BYTES + 1)
    assert f"longer than {MAX_FILE_BYTES} bytes" in refusal(file)


def test_only_daemons_ask_who_wrote_the_configuration(file: Path) -> None:
    """Only daemons refuse a configuration file that other users can write.

    A command that a user runs accepts the file.
    """
    file.chmod(0o666)
    assert load(file).cluster.name == "a"
    with pytest.raises(ConfigError, match="mode 0666"):
        load(file, trusted=True)
