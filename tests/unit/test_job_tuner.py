"""Tests of the tuning of one running job by the agent's job manager.

The job's program has a speed and a power that depend on the CPU frequency.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_job_manager import Node, env

import slurm_energy.tuning.search
from slurm_energy.agent.sockets.messages import ProgressMessage
from slurm_energy.agent.tuning.job_tuner import LIMITED_NOTE
from slurm_energy.agent.tuning.local_source import LocalSources
from slurm_energy.budget.messages import NodeDecision
from slurm_energy.config import AgentConfig, BudgetConfig, Config, TuningConfig
from slurm_energy.devices.cpu.cpufreq import CpufreqRange
from slurm_energy.devices.driver import DeviceError

pytestmark = pytest.mark.slow

HIGHEST_KHZ = 3_400_000
POLICIES = range(4)


class Program:
    """A program on the node, and the node's clock.

    Attributes:
        memory_share: share of the untuned time that does not depend on the frequency.
        total_units: units that the program reports it will complete; None: not reported.
    """

    def __init__(
        self,
        node: Node,
        memory_share: float = 1.0,
        *,
        reports: bool = True,
        total_units: float | None = None,
    ) -> None:
        self.node, self.memory_share, self.reports = node, memory_share, reports
        self.total_units = total_units
        self.units = 0.0
        self.seconds = 0.0

    @property
    def clock_share(self) -> float:
        """Minimum of the upper frequency bounds of the job's CPUs, divided by the hardware maximum."""
        bounds = [int(self.node.tree.policy(number, "scaling_max_freq")) for number in POLICIES]
        return min(bounds) / HIGHEST_KHZ

    @property
    def rate(self) -> float:
        """Steps per second at present."""
        return 2.0 / (self.memory_share + (1.0 - self.memory_share) / self.clock_share)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            watts = 60.0 + 140.0 * self.clock_share**2
            self.units += self.rate
            self.node.use(1.0, cpu_watts=watts)
            self.seconds += 1
            if self.reports:
                now = self.node.clock.now
                message = ProgressMessage(5, "0", self.units, False, self.total_units, now)
                self.node.manager.progress.receive(message)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def node(**tuning: Any) -> Node:
        budget = BudgetConfig(mode="enforce")
        config = Config(agent=AgentConfig(sampling_hz=1.0), tuning=TuningConfig(**tuning), budget=budget)
        nodes.append(Node(tmp_path / str(len(nodes)), config))
        return nodes[-1]

    yield node
    for made in nodes:
        made.die()


def record_of(node: Node) -> dict[str, Any]:
    (record,) = (record for record in node.records() if record.step is None)
    assert record.tuning is not None
    return record.tuning | {"notes": record.notes, "applied": record.applied}


def finish(node: Node) -> dict[str, Any]:
    """End the job, check that all settings were restored, and return the tuning data of its record."""
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    assert not node.state.journal.entries
    return record_of(node)


def test_a_memory_bound_job_gets_a_lower_frequency_and_its_record_says_why(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="energy"))
    program = Program(node)
    program.run(12)
    assert node.tree.snapshot() == node.original  # untuned until the reference is measured
    program.run(120)
    assert program.clock_share < 0.8
    tuning = finish(node)
    assert (tuning["mode"], tuning["objective"], tuning["slowdown_limit"]) == ("on", "energy", 0.05)
    assert tuning["progress"] == "reported"
    assert tuning["reference"]["units_per_s"] == pytest.approx(2.0, rel=0.02)
    assert tuning["chosen"]["cpu_max_mhz"] < 3000
    assert (tuning["chosen_source"], tuning["phase"]) == ("this run", "hold")
    assert 1 <= tuning["probes"] == len(tuning["points"]) <= 9
    assert tuning["estimated_saving"] > 0.1
    assert any("cpufreq.frequency" in setting.setting and setting.restored for setting in tuning["applied"])


def test_a_compute_bound_job_stays_untuned_at_a_small_limit(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="energy", slowdown="3"))
    program = Program(node, memory_share=0.0)
    program.run(150)
    assert program.clock_share > 0.95
    assert program.units > 0.97 * 2.0 * program.seconds
    finish(node)


def test_a_job_that_soon_ends_is_not_searched(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node, memory_share=0.0, total_units=80.0)
    program.run(40)
    assert finish(node)["probes"] == 0


def test_a_job_that_exceeds_its_reported_total_is_searched(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="energy"))
    program = Program(node, total_units=30.0)  # each epoch reports its own length as the total
    program.run(150)
    assert program.clock_share < 0.8
    finish(node)


def test_a_change_to_compute_bound_work_regains_its_speed_within_ten_seconds(
    make: Callable[..., Node],
) -> None:
    node = make()
    node.manager.begin(env(policy="energy"))
    program = Program(node)
    program.run(120)
    assert program.clock_share < 0.8
    program.memory_share = 0.0
    program.run(10)
    assert program.clock_share == 1.0
    finish(node)


@pytest.mark.parametrize("mode", ["advise", "off"])
def test_other_modes_change_nothing(make: Callable[..., Node], mode: str) -> None:
    node = make()
    node.manager.begin(env(policy="edp", tuning=mode))
    Program(node).run(60)
    assert node.tree.snapshot() == node.original
    assert node.manager.tuners.awaits_advice == (mode == "advise")
    tuning = finish(node)
    assert tuning["mode"] == mode
    assert tuning["probes"] == 0
    if mode == "advise":
        assert tuning["chosen"]["cpu_max_mhz"] < 3400
        assert (tuning["progress"], tuning["chosen_source"]) == ("reported", "generic prior")
        assert tuning["estimated_saving"] > 0
    else:
        assert tuning["chosen"] is None


@pytest.mark.parametrize(
    ("policy", "what"),
    [("edp", "the setting follows"), ("energy", "almost certain to keep the slowdown limit")],
)
def test_without_progress_cpu_settings_stay_and_the_record_says_so(
    make: Callable[..., Node], policy: str, what: str
) -> None:
    node = make()
    node.manager.begin(env(policy=policy))
    Program(node, reports=False).run(90)
    assert node.tree.snapshot() == node.original
    tuning = finish(node)
    assert (tuning["progress"], tuning["chosen"]) == ("none", {})
    assert any("no trustworthy progress" in note and what in note for note in tuning["notes"])


def test_without_numpy_the_job_runs_and_the_record_says_so(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    monkeypatch.setitem(sys.modules, "slurm_energy.tuning.search", None)  # as an ImportError
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(1)
    for thread in threading.enumerate():
        if thread.name == "tuning":  # it notices that the search cannot be loaded
            thread.join()
    program.run(59)
    assert node.tree.snapshot() == node.original
    assert any("numpy is not installed" in note for note in finish(node)["notes"])


def test_a_refused_knob_is_tried_once_and_the_job_goes_on(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    writes: list[str] = []

    def refuse(self: CpufreqRange, value: str) -> None:
        writes.append(value)
        raise DeviceError(self.key, "Operation not permitted")

    monkeypatch.setattr(CpufreqRange, "write", refuse)
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(200)
    assert 0 < len(set(writes)) <= 2  # the first point and its withdrawal
    monkeypatch.undo()
    assert any("not moved any more: cpufreq.frequency" in note for note in finish(node)["notes"])


def test_an_error_in_the_search_ends_the_tuning_and_not_the_job(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    while program.clock_share == 1.0:
        program.run(1)

    def fail(self: object, window: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(slurm_energy.tuning.search.TuningSearch, "observe", fail)
    program.run(60)
    assert program.clock_share == 1.0
    assert node.manager.tuners.phases() == {}
    assert any("internal error" in note for note in finish(node)["notes"])


def test_a_crash_in_the_begin_does_not_cost_the_tuning(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make()

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(node.manager.tuners, "start", crash)
        with pytest.raises(KeyboardInterrupt):
            node.manager.begin(env(policy="edp", cap="300"))
    node.die()
    node.manager = node.start()
    program = Program(node)
    program.run(120)
    assert program.clock_share < 1.0
    assert finish(node)["chosen"]


def test_a_malformed_description_does_not_cost_the_record(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    Program(node).run(5)
    (session,) = node.manager._sessions.values()
    assert session.tuning is not None
    session.tuning["estimated_saving"] = float("nan")
    node.manager.end(env())
    (record,) = node.records()
    assert record.tuning is None
    assert any("estimated_saving" in note for note in record.notes)


def test_a_knob_that_another_program_changes_is_left_alone(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(120)
    assert program.clock_share < 1.0
    for number in POLICIES:
        node.tree.put(f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_max_freq", 2_900_000)
    program.run(60)
    assert program.clock_share == pytest.approx(2.9 / 3.4)
    node.manager.end(env())
    assert program.clock_share == pytest.approx(2.9 / 3.4)
    assert any("another program set" in note for note in record_of(node)["notes"])


def test_kill_9_during_a_search_restores_and_tunes_again(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    while program.clock_share == 1.0:
        program.run(1)
    node.die()
    node.manager = node.start()
    assert node.tree.snapshot() == node.original  # the search starts from the untuned job
    program.run(120)
    assert program.clock_share < 1.0
    assert finish(node)["chosen"]


def test_kill_9_and_the_end_of_the_job_before_the_next_start(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    while program.clock_share == 1.0:
        program.run(1)
    node.die()
    node.manager = node.start()
    finish(node)


def test_a_cap_during_the_run_starts_the_tuning_again(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(120)
    assert program.clock_share < 1.0
    node.manager.set_caps(5, {"cap_watts": 300.0})
    assert program.clock_share == 1.0
    limit = node.tree.get("sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw")
    program.run(120)
    assert program.clock_share < 1.0
    assert node.tree.get("sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw") == limit
    finish(node)


def advice(**values: Any) -> dict[str, Any]:
    answer = {"fingerprint": None, "workload": None, "mode": "on", "curve": None, "site_curves": []}
    return {**answer, "start": None, "start_source": "", "exploration": False, "pinned": False, **values}


def test_a_pinned_point_holds_without_a_search(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp", model="solver"))
    program = Program(node, reports=False)
    program.run(4)
    (request,) = node.manager.tuners.advice_requests()
    assert (request.job_id, request.objective, request.model) == (5, "edp", "solver")
    assert not node.manager.tuners.awaits_advice
    answer = advice(start={"cpu_max_mhz": 2000.0}, start_source="pinned", pinned=True)
    node.manager.tuners.advise(request, answer)
    assert program.clock_share == pytest.approx(2.0 / 3.4)
    program.run(60)
    assert program.clock_share == pytest.approx(2.0 / 3.4)
    tuning = finish(node)
    assert (tuning["chosen"], tuning["chosen_source"]) == ({"cpu_max_mhz": 2000.0}, "pinned")


def test_stored_advice_serves_while_the_controller_is_away(make: Callable[..., Node]) -> None:
    node = make()
    for answer in (advice(start={"cpu_max_mhz": 1700.0}, start_source="earlier runs"), None):
        node.manager.begin(env(policy="edp", model="solver"))
        program = Program(node, reports=False)
        program.run(4)
        (request,) = node.manager.tuners.advice_requests()
        node.manager.tuners.advise(request, answer)
        program.run(60)
        assert program.clock_share == pytest.approx(0.5)
        node.manager.end(env())
        assert node.tree.snapshot() == node.original
    assert [record.tuning["chosen_source"] for record in node.records()] == ["earlier runs"] * 2  # type: ignore[index]


def bound(node: Node, watts: float | None) -> None:
    """Let a power budget limit the power of each of the node's two CPU packages.

    `watts` is the upper bound (ceiling) of each package. None means that no budget applies any more.
    """
    limits = {} if watts is None else {"package-0": watts, "package-1": watts}
    node.manager.budget.apply(NodeDecision(len(limits), dict(limits), limits, limits, 3600.0, 1.0))


def test_nothing_is_measured_while_a_budget_limits_the_job(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    program.run(4)
    bound(node, 190.0)  # the program reaches it: the node of files draws 200 W whatever the limit is
    program.run(60)
    assert program.clock_share == 1.0
    assert node.manager.tuners.phases() == {"5.0": "reference"}
    bound(node, None)
    program.run(120)
    assert program.clock_share < 1.0
    chosen = program.clock_share
    bound(node, 100.0)
    program.run(60)
    assert program.clock_share == chosen
    bound(node, None)
    program.run(20)
    tuning = finish(node)
    assert LIMITED_NOTE in tuning["notes"]
    assert not any("not moved any more" in note for note in tuning["notes"])
    assert all(point["time_ratio"] < 1.05 for point in tuning["points"])
    assert tuning["reference"]["watts"] == pytest.approx(440.0, rel=0.02)


def test_a_ceiling_that_the_job_does_not_reach_changes_no_measurement(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    program = Program(node)
    bound(node, 240.0)
    program.run(120)
    assert program.clock_share < 1.0
    bound(node, None)
    assert LIMITED_NOTE not in finish(node)["notes"]


def test_advice_is_followed_while_a_budget_limits_the_job(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp", model="solver"))
    bound(node, 190.0)
    program = Program(node, reports=False)
    program.run(4)
    (request,) = node.manager.tuners.advice_requests()
    answer = advice(start={"cpu_max_mhz": 1700.0}, start_source="earlier runs")
    node.manager.tuners.advise(request, answer)
    program.run(30)
    assert program.clock_share == pytest.approx(0.5)
    bound(node, None)
    assert finish(node)["chosen_source"] == "earlier runs"


@pytest.mark.parametrize("obstacle", ["no progress", "budget"])
def test_a_search_replaces_an_advised_start_as_soon_as_the_job_can_be_measured(
    make: Callable[..., Node], obstacle: str
) -> None:
    node = make()
    node.manager.begin(env(policy="energy", model="solver"))
    program = Program(node, memory_share=0.0, reports=obstacle != "no progress")
    if obstacle == "budget":
        bound(node, 190.0)
    program.run(4)
    (request,) = node.manager.tuners.advice_requests()
    answer = advice(start={"cpu_max_mhz": 1700.0}, start_source="earlier runs")
    node.manager.tuners.advise(request, answer)
    program.run(60)
    assert program.clock_share == pytest.approx(0.5)  # twice the time of the untuned program
    program.reports = True
    bound(node, None)
    program.run(150)
    assert program.clock_share > 0.95
    assert finish(node)["progress"] == "reported"


def test_an_advised_start_returns_if_the_untuned_job_reaches_its_budget_again(
    make: Callable[..., Node],
) -> None:
    node = make()
    node.manager.begin(env(policy="edp", model="solver"))
    bound(node, 190.0)
    program = Program(node)
    program.run(4)
    (request,) = node.manager.tuners.advice_requests()
    answer = advice(start={"cpu_max_mhz": 1700.0}, start_source="earlier runs")
    node.manager.tuners.advise(request, answer)
    shares = []
    for _ in range(900):
        program.run(1)
        shares.append(program.clock_share)
    changes = sum(one != other for one, other in itertools.pairwise(shares))
    assert shares[-1] == pytest.approx(0.5)
    # At the start, and twice at each attempt to measure the reference: after 120, 120 and 240 s.
    assert changes == 7
    assert sum(shares) / len(shares) < 0.55
    bound(node, None)
    finish(node)


@pytest.mark.parametrize(
    "answer",
    [
        advice(curve={"hardware": "x"}),
        advice(start={"cpu_max_mhz": -1}),
        advice(start={"surprise": 1}),
        advice(site_curves=[1]),
        advice(start_source=5, start={}),
    ],
)
def test_malformed_advice_is_ignored(make: Callable[..., Node], answer: dict[str, Any]) -> None:
    node = make()
    node.manager.begin(env(policy="edp"))
    Program(node).run(4)
    (request,) = node.manager.tuners.advice_requests()
    node.manager.tuners.advise(request, answer)
    assert node.tree.snapshot() == node.original
    finish(node)


def test_a_job_that_shares_the_node_changes_only_its_own_cpus(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="edp", cpus="2"))
    program = Program(node)
    program.run(40)
    assert node.tree.snapshot() == node.original
    node.tree.cores(4, 2)
    assert node.manager.step("start", 5, "batch")["known"]
    program.run(60)
    assert node.tree.snapshot() == node.original  # its CPUs are not known
    finish(node)


def test_numpy_is_loaded_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("OPENBLAS", "MKL", "OMP"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "")
        monkeypatch.delenv(f"{library}_NUM_THREADS")
    LocalSources(Config)._load()
    assert [os.environ[f"{library}_NUM_THREADS"] for library in ("OPENBLAS", "MKL", "OMP")] == ["1"] * 3


@pytest.mark.parametrize("probing_s", [0, 2, 4, 6, 9])
def test_a_change_of_the_program_during_a_probe_is_noticed_at_once(
    make: Callable[..., Node], probing_s: int
) -> None:
    node = make()
    node.manager.begin(env(policy="energy"))
    program = Program(node)
    while program.clock_share > 0.75:
        program.run(1)
        assert program.seconds < 300
    program.run(probing_s)
    assert program.clock_share < 1.0
    program.memory_share = 0.0
    changed_s = program.seconds
    while program.clock_share < 0.95:
        program.run(1)
        assert program.seconds <= changed_s + 8
    finish(node)


def test_a_program_with_regular_checkpoints_is_measured_over_whole_cycles(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="energy"))
    program = Program(node)
    bounds = set()
    for cycle in range(9):
        program.run(24)
        program.reports = False
        for _ in range(4):
            node.use(1.0, cpu_watts=60.0)
        program.reports = True
        if cycle == 2:
            assert program.clock_share == 1.0, "untuned until the third checkpoint shows the cycle"
        if cycle >= 7:
            bounds.add(program.clock_share)
    assert len(bounds) == 1, "checkpoints do not move the setting"
    assert max(bounds) < 0.8
    assert finish(node)["chosen"]


def test_long_units_of_work_are_awaited_untuned(make: Callable[..., Node]) -> None:
    node = make()
    node.manager.begin(env(policy="energy"))
    program = Program(node)
    phases = set()
    for second in range(1, 80):
        program.reports = second % 25 == 0
        program.run(1)
        phases |= set(node.manager.tuners.phases().values())
    assert phases <= {"warm-up", "reference"}
    finish(node)
