"""Tests that hostile or faulty input does no damage to tuning.

The input is advice of the controller, checkpoints, progress reports and messages of jobs on several nodes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from test_job_manager import Node, env
from test_job_tuner import POLICIES, Program, advice, finish, make

from slurm_energy.agent.tuning.advice import Advice
from slurm_energy.agent.tuning.job_tuner import JobTuner
from slurm_energy.config import Config
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.tuning.groups import MAX_GROUPS, TuningGroups
from slurm_energy.devices.cpu.cpufreq import CpufreqRange, EnergyPerformancePreference
from slurm_energy.devices.driver import DeviceError
from slurm_energy.errors import ForbiddenError, NotFoundError, UsageError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.slurm.queue.running_jobs import AllocatedJob
from slurm_energy.tuning.candidates import (
    CpuHardware,
    GpuHardware,
    cpu_frequencies,
    gpu_limits,
    joint_candidates,
)
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.progress.reported_units import MAX_TOTAL_REPORTS, ReportedUnits
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint
from slurm_energy.tuning_record import check_tuning

pytestmark = pytest.mark.slow

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


def poll_of(job_id: int, node: str = "n1", nodes: int = 2) -> dict[str, Any]:
    return GroupPoll(node, job_id, 0, nodes, "edp").to_json()


class RunningOnTwoNodes:
    """Substitute for the queries to Slurm: job 5 runs on n1 and n2, and no other job runs."""

    async def verified_job(self, node: str, job_id: int, restart_count: int, sender: Sender) -> AllocatedJob:
        if job_id != 5:
            raise NotFoundError(f"job {job_id}", "Slurm runs no such job")
        if node not in ("n1", "n2"):
            raise ForbiddenError(f"job {job_id}", "it does not run there")
        return AllocatedJob(5, 2001, 0, "gpu", "n[1-2]", {})


def test_polls_about_foreign_jobs_leave_no_group() -> None:
    async def polls() -> None:
        groups = TuningGroups(Config, RunningOnTwoNodes())  # type: ignore[arg-type]
        for job_id in range(100, 100 + MAX_GROUPS):
            with pytest.raises(NotFoundError):
                await groups.poll(poll_of(job_id), Sender("10.0.0.9"))
        with pytest.raises(ForbiddenError):
            await groups.poll(poll_of(5, "n9"), Sender("10.0.0.9"))
        with pytest.raises(UsageError):
            await groups.poll(poll_of(5, nodes=3), Sender("10.0.0.9"))
        assert (await groups.poll(poll_of(5), Sender("10.0.0.1")))["needs_offer"]

    asyncio.run(polls())


@pytest.mark.parametrize("change", [{"refused": [[1]]}, {"window": [1]}, {"window": "x"}, {"offer": "x"}])
def test_a_poll_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        GroupPoll.from_json(poll_of(5) | change)


@pytest.mark.parametrize(
    "change",
    [
        {"poll_s": 1e-9},
        {"poll_s": 1e300},
        {"epoch": 10**30},
        {"epoch": -1},
        {"summary": {"points": [{}]}},
        {"summary": {"probes": "many"}},
        {"point": {"gpu_limit_watts": float("nan")}},
        {"switch_at_s": float("inf")},
    ],
)
def test_a_decision_out_of_range_is_refused(change: dict[str, Any]) -> None:
    good = GroupDecision("c", 0.0, 0, UNTUNED).to_json()
    GroupDecision.from_json(good)
    with pytest.raises(UsageError):
        GroupDecision.from_json(good | change)


GPUS = GpuHardware(4, 300.0, 100.0, 1980.0)
CURVES = {
    "impossible": (1e-300, 1e-300, 0.0),
    "wrong": (0.7, 0.05, 0.0),
    "far too high": (1e300, 1e300, None),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize(
    "objective", [Objective("energy", 0.05), Objective("energy", 0.0), Objective("ed2p")]
)
def test_wrong_advice_neither_breaks_the_limit_nor_holds_a_loss(name: str, objective: Objective) -> None:
    pytest.importorskip("numpy")
    from slurm_energy.tuning import priors
    from slurm_energy.tuning.search import SearchOptions, TuningSearch

    time_ratio, power_ratio, error = CURVES[name]
    start = OperatingPoint(gpu_limit_watts=200.0)
    told = ResponsePoint(start, time_ratio, power_ratio, CurveSource.EARLIER_RUNS, error, 1)
    answer = {"curve": ResponseCurve("h", "w", (told,)).to_json(), "start": start.to_json()}
    curve = Advice.from_json(answer).curve
    assert curve is not None
    cpu = CpuHardware(2, 3000.0, 800.0)
    prior = priors.curve_prior(priors.joint_prior(GPUS, cpu), curve)
    points = joint_candidates(gpu_limits(GPUS), cpu_frequencies(cpu))
    search = TuningSearch(points, objective, prior, SearchOptions(start=start))
    times: list[float] = []
    for number in range(100):
        point = search.requested
        limit, mhz = point.gpu_limit_watts or 300.0, point.cpu_max_mhz or 3000.0
        rate = (limit / 300.0) ** 0.5 * (mhz / 3000.0) ** 0.2
        watts = 4 * min(limit, 280.0) + 200.0 * (mhz / 3000.0) ** 2
        times.append(1.0 / rate)
        search.observe(window(point, 5.0 * number, rate, watts))
    held = search.summary()
    assert held["estimated_saving"] >= 0.0
    assert 1.0 / len(times) * sum(times) <= 1.03 + (objective.slowdown_limit or 0.0)


def window(point: OperatingPoint, start_s: float, rate: float, watts: float, **more: Any) -> ProgressWindow:
    values = {
        "relative_error": 0.003,
        "source": ProgressSource.REPORTED,
        "gpu_watts": 250.0,
        "duration_s": 5.0,
    }
    return ProgressWindow(point=point, start_s=start_s, units_per_s=rate, watts=watts, **{**values, **more})


def test_no_window_can_stop_a_search() -> None:
    pytest.importorskip("numpy")
    from slurm_energy.tuning import priors
    from slurm_energy.tuning.search import TuningSearch

    odd = [0.0, 5e-324, 1e-300, 1e15, 1e300, float("inf"), float("nan"), -1.0]
    for seed in range(12):
        draw = random.Random(seed)
        search = TuningSearch(gpu_limits(GPUS), Objective("edp"), priors.gpu_prior(GPUS))
        for number in range(60):
            rate, watts, error = (
                draw.choice([usual, usual, usual, draw.choice(odd)]) for usual in (1.0, 1000.0, 0.01)
            )
            length_s = draw.choice([5.0, 5.0, 5.0, draw.choice(odd)])
            search.observe(
                window(search.requested, 5.0 * number, rate, watts, relative_error=error, duration_s=length_s)
            )
            check_tuning(search.summary())


def test_hardware_that_fails_everywhere_does_not_stop_the_sampling(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(100)
    assert program.clock_share < 1.0

    def vanish(self: CpufreqRange, value: str = "") -> str:
        raise OSError(19, "No such device")

    with monkeypatch.context() as patch:
        patch.setattr(CpufreqRange, "read", vanish)
        patch.setattr(CpufreqRange, "write", vanish)
        program.run(30)
    assert any("internal error" in note for note in finish(node)["notes"])


def test_a_job_with_very_many_probes_keeps_its_description(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    Program(node).run(20)
    (session,) = node.manager._sessions.values()
    assert session.tuning is not None
    session.tuning["probes"] = 10_000
    node.manager.tuners.settings_changed(session)
    Program(node).run(100)
    assert finish(node)["probes"] == 10_000
