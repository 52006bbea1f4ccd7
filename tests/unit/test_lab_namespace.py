"""What a node sees of its host, as far as that needs no namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.lab import namespace


def test_what_goes_away_while_it_is_shown_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host, stage = tmp_path / "host", tmp_path / "stage"
    for folder in (host / "stays", host / "goes", stage):
        folder.mkdir(parents=True)
    (host / "file").write_text("x")
    (host / "link").symlink_to("file")
    shown = []

    def mount(source: Path, target: Path, **_: object) -> None:
        if source == host / "goes":  # between the look at it and the call
            source.rmdir()
        source.lstat()
        shown.append(target.relative_to(stage).as_posix())

    monkeypatch.setattr(namespace, "mount", mount)
    for name in ("file", "goes", "link", "never", "stays"):
        namespace._show(host / name, stage / name)
    assert shown == ["file", "stays"]
    assert (stage / "link").readlink() == Path("file")
