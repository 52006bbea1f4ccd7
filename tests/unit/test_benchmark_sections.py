"""Tests that benchmarks/profile_section.py compares only with tools that measure energy.

If a tool measures nothing, the benchmark prints no result about this tool.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    import profile_section

    monkeypatch.setattr(profile_section, "PACE_S", 0.0)
    monkeypatch.setattr(profile_section, "BODY_S", 0.0)
    yield profile_section
    for name in ("profile_section", "peers", "own_agent", "claims"):
        sys.modules.pop(name, None)


def install_zeus(monkeypatch: pytest.MonkeyPatch, **energy: Any) -> None:
    monitor = SimpleNamespace(
        begin_window=lambda *_, **__: None, end_window=lambda *_, **__: SimpleNamespace(**energy)
    )
    module = types.ModuleType("zeus.monitor")
    module.ZeusMonitor = lambda: monitor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus", types.ModuleType("zeus"))
    monkeypatch.setitem(sys.modules, "zeus.monitor", module)


@pytest.mark.parametrize(
    "energy", [{"gpu_energy": {}, "cpu_energy": None}, {"gpu_energy": {}, "cpu_energy": {}}]
)
def test_a_zeus_that_measures_nothing_is_no_judge(
    sections: Any, energy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_zeus(monkeypatch, **energy)
    assert sections.zeus_window() is None
    assert "measures nothing" in capsys.readouterr().out


def test_a_zeus_that_measures_is_one(sections: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install_zeus(monkeypatch, gpu_energy={0: 1.0}, cpu_energy=None)
    assert sections.zeus_window() is not None


def test_ours_that_measures_nothing_is_no_claim(sections: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import slurm_energy

    class Section:
        energy_joules: dict[str, float] = {}  # noqa: RUF012
        age_s = None

        def __enter__(self) -> Section:
            return self

        def __exit__(self, *_: object) -> None:
            return

    monkeypatch.setattr(sections, "zeus_window", lambda: None)
    monkeypatch.setattr(slurm_energy, "profile", lambda _name: Section(), raising=False)
    with pytest.raises(SystemExit, match="measures nothing"):
        sections.measure(1, None)


def test_outside_a_node_it_starts_one(sections: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(sections, "run_in_node", lambda *arguments: started.append(arguments) or 0)
    monkeypatch.setattr(sys, "argv", ["profile_section.py", "--rounds", "5"])
    assert sections.main() == 0
    assert started == [("xeon-h100", ["--rounds", "5"])]
