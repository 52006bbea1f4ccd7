"""Tests of the construction of an emulated node's file system.

Only the parts that work without Linux namespaces are tested.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from slurm_energy_lab.cluster import namespaces


def test_an_entry_removed_during_assembly_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host, stage = tmp_path / "host", tmp_path / "stage"
    for folder in (host / "stays", host / "goes", stage):
        folder.mkdir(parents=True)
    (host / "file").write_text("x")
    (host / "link").symlink_to("file")
    shown = []

    def mount(source: Path, target: Path, **_: object) -> None:
        if source == host / "goes":  # between lstat and the call
            source.rmdir()
        source.lstat()
        shown.append(target.relative_to(stage).as_posix())

    monkeypatch.setattr(namespaces, "mount", mount)
    for name in ("file", "goes", "link", "never", "stays"):
        namespaces._show(host / name, stage / name)
    assert shown == ["file", "stays"]
    assert (stage / "link").readlink() == Path("file")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts")
def test_own_files_of_a_node_survive_a_rename_on_the_host(tmp_path: Path):
    """A node keeps its own files when the host replaces the files by a rename.

    ldconfig renames /etc/ld.so.cache in this way, useradd renames /etc/passwd.
    """
    etc, stage = tmp_path / "etc", tmp_path / "stage"
    for folder in (etc / "folder", stage):
        folder.mkdir(parents=True)
    for name in ("cache", "passwd", "folder/file"):
        (etc / name).write_text("host")
    (etc / "link").symlink_to("passwd")
    (tmp_path / "own").write_text("own")
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            namespaces.unshare()
            binds = {etc / "cache": tmp_path / "own", etc / "added": tmp_path / "own"}
            namespaces._bind_all(binds, stage)
            theirs.send(b"mounted")
            theirs.recv(10)
            names = ("cache", "added", "passwd", "link", "folder/file")
            theirs.send(json.dumps({name: (etc / name).read_text() for name in names}).encode())
            code = 0
        finally:
            os._exit(code)
    ours.settimeout(60)
    assert ours.recv(10) == b"mounted"
    for name in ("cache", "passwd"):
        (etc / "new").write_text("changed")
        (etc / "new").rename(etc / name)
    ours.send(b"go on")
    seen = json.loads(ours.recv(1000))
    assert os.waitpid(child, 0)[1] == 0
    assert seen == {
        "cache": "own",
        "added": "own",
        "passwd": "changed",
        "link": "changed",
        "folder/file": "host",
    }
    assert (etc / "cache").read_text() == "changed"
