"""Tuning under hostile or faulty input: advice, checkpoints, reports and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_job_manager import Node, env
from test_job_tuner import POLICIES, Program, advice, finish, make

from slurm_energy.agent.tuning.job_tuner import JobTuner
from slurm_energy.devices.cpu.cpufreq import CpufreqRange, EnergyPerformancePreference
from slurm_energy.devices.driver import DeviceError
from slurm_energy.tuning.progress.reported_units import MAX_TOTAL_REPORTS, ReportedUnits

__all__ = ["make"]


def advise(node: Node, **values: Any) -> None:
    (request,) = node.manager.tuners.advice_requests()
    node.manager.tuners.advise(request, advice(**values))


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("reports", [True, False])
def test_a_refused_knob_of_the_advice_is_tried_once(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, pinned: bool, reports: bool
) -> None:
    node = make()
    writes: list[str] = []

    def refuse(self: CpufreqRange, value: str) -> None:
        writes.append(f"{self.key}={value}")
        raise DeviceError(self.key, "Operation not permitted")

    monkeypatch.setattr(CpufreqRange, "write", refuse)
    node.manager.begin(env(policy="edp", model="solver"))
    program = Program(node, reports=reports)
    program.run(4)
    advise(node, start={"cpu_max_mhz": 2000.0}, start_source="earlier runs", pinned=pinned)
    program.run(100)
    assert len(writes) == len(set(writes))
    monkeypatch.undo()
    notes = finish(node)["notes"]
    assert len([note for note in notes if "not moved any more" in note]) == 1


def test_a_pinned_point_survives_a_new_cap(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp", model="solver"))
    program = Program(node)
    program.run(4)
    advise(node, start={"cpu_max_mhz": 3000.0}, start_source="pinned", pinned=True)
    program.run(60)
    node.manager.set_caps(5, {"cap_watts": 300.0})
    program.run(120)
    assert program.clock_share == pytest.approx(3.0 / 3.4)
    tuning = finish(node)
    assert (tuning["chosen"], tuning["chosen_source"], tuning["probes"]) == (
        {"cpu_max_mhz": 3000.0},
        "pinned",
        0,
    )


@pytest.mark.parametrize(
    "tuning",
    [
        {},
        [],
        "x",
        {"mode": "on"},
        {"mode": "on", "objective": "edp", "slowdown_limit": None, "points": [{"point": {}}]},
        {"mode": "on", "objective": "edp", "slowdown_limit": None, "points": [3]},
        {"mode": "on", "objective": "speed", "slowdown_limit": None, "points": []},
        {"mode": "on", "objective": "edp", "slowdown_limit": "x", "points": [], "probes": "many"},
        {"mode": "maybe", "objective": "edp", "slowdown_limit": None, "points": None},
    ],
)
def test_a_malformed_checkpoint_does_not_cost_the_job(make: Callable[..., Node], tuning: Any) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(5)
    (session,) = node.manager._sessions.values()
    session.tuning = tuning
    node.state.save(session, {})
    node.die()
    node.manager = node.start()
    program.run(12)
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    assert len(node.records()) == 1


@pytest.mark.parametrize("pinned", [True, False])
def test_a_point_keeps_its_other_knobs_if_one_is_refused(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    node = make()
    writes: list[str] = []

    def refuse(self: EnergyPerformancePreference, value: str) -> None:
        writes.append(f"{self.key}={value}")
        raise DeviceError(self.key, "Operation not permitted")

    monkeypatch.setattr(EnergyPerformancePreference, "write", refuse)
    node.manager.begin(env(policy="edp", model="solver"))
    program = Program(node, reports=False)
    program.run(4)
    start = {"cpu_max_mhz": 3000.0, "cpu_epp": "power"}
    advise(node, start=start, start_source="earlier runs", pinned=pinned)
    program.run(120)
    assert 0 < len(writes) <= 2 * len(POLICIES)  # the point and its withdrawal
    assert program.clock_share == pytest.approx(3.0 / 3.4 if pinned else 1.0)
    monkeypatch.undo()
    tuning = finish(node)
    assert "cpu_epp" not in tuning["chosen"]


def test_an_error_at_the_end_of_a_job_does_not_keep_its_settings(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    Program(node).run(120)
    monkeypatch.setattr(JobTuner, "finish", lambda self: 1 // 0)
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    assert any("internal error" in note for note in node.records()[0].notes)


def test_many_processes_keep_few_reports_each() -> None:
    reports = ReportedUnits()
    for number in range(300):
        for process in range(400):
            reports.add(float(number), 0.5 * number, str(process))
    assert sum(len(series) for series in reports._reports.values()) <= MAX_TOTAL_REPORTS
    rate = reports.rate(140.0, 150.0)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(2.0)
