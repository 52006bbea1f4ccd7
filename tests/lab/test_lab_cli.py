"""Tests of invalid calls of `senergy lab`, which starts a cluster of emulated nodes.

The calls are refused before they change the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_energy.cli.main import main


def test_a_page_that_cannot_be_written_is_refused_before_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    page = tmp_path / "nowhere" / "page.html"
    assert main(["lab", "demo", "--html", str(page)]) == 2
    assert capsys.readouterr().err.startswith(f"senergy: error: --html {page}: there is no such directory")
    assert main(["lab", "demo", "--html", str(tmp_path / "page.html")]) == 5


def test_text_without_quotes_in_set_energy_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["lab", "up", "--set-energy", "cluster.name=lab"]) == 2
    assert """quotes, as in --set-energy 'cluster.name="lab"'""" in capsys.readouterr().err
