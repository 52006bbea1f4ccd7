"""Tests of the power budget on one node.

The tests check the ceilings (upper bounds of the power limits) of devices, and the lease (the time for which
limits are valid). They also check starts and ends of jobs, restarts of the agent, reboots of the node, and
kill -9.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_agent_sharing import Limit
from test_job_manager import Node, env

from slurm_energy.agent import offline_commands
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.budget.messages import DeviceReport, NodeDecision, NodePoll
from slurm_energy.config import AgentConfig, BudgetConfig, Config
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.tuning.response_curve import ResponseCurve

ENFORCED = Config(agent=AgentConfig(sampling_hz=1.0), budget=BudgetConfig(mode="enforce"))
OFF = dataclasses.replace(ENFORCED, budget=BudgetConfig(mode="off"))
MIN_PACKAGE, MIN_GPU = 75.0, 100.0  # RAPL names no minimum: 30 % of 250 W
IDLE = {"package-0": MIN_PACKAGE, "package-1": MIN_PACKAGE, "gpu0": MIN_GPU, "gpu1": MIN_GPU}
SAFE = {"package-0": 90.0, "package-1": 90.0, "gpu0": 120.0, "gpu1": 120.0}
START = {"package-0": 110.0, "package-1": 110.0, "gpu0": 200.0, "gpu1": 200.0}


class BudgetNode(Node):
    """A node of two packages and two GPUs with a budget."""

    def __init__(self, folder: Path) -> None:
        self.gpus = [Limit(index) for index in range(2)]
        super().__init__(folder, ENFORCED)

    def start(self) -> JobManager:
        self.tree.cores(4, 2)
        found = discover(self.tree.root)
        gpus = tuple(
            GpuInfo(i, i, "A100", int(limit.value) / 1e3, MIN_GPU, 400.0, None)
            for i, limit in enumerate(self.gpus)
        )
        devices = dataclasses.replace(
            found,
            hardware=dataclasses.replace(found.hardware, gpus=gpus),
            knobs={**found.knobs, **{limit.key: limit for limit in self.gpus}},
        )
        self.state = StateDirectory(self.folder / "state")
        self._open.callback(devices.close)
        self._open.callback(self.state.close)
        manager = JobManager(self.config, devices, self.state, self.clock, self._count_write)
        manager.start()
        return manager

    def kill(self) -> None:
        """End the agent as kill -9 does, and start another one."""
        self.die()
        self.manager = self.start()

    def reboot(self, boot_id: str = "another-boot") -> None:
        """Restart the node: its hardware forgets the limits, and its clock starts again."""
        self.die()
        for path, value in self.original.items():
            self.tree.put(path, value)
        for limit in self.gpus:
            limit.value = "400000"
        self.clock.boot_id, self.clock.now = boot_id, 20.0
        self.manager = self.start()

    def decide(self, limits: dict[str, float | None], number: int = 1, **changes: Any) -> None:
        values: dict[str, Any] = {"safe_watts": SAFE, "start_watts": START, "lease_s": 30.0, "poll_s": 1.0}
        self.manager.budget.apply(NodeDecision(number, limits, **{**values, **changes}))

    def begin(self, job_id: int, gpus: str = "", cpus: str = "4", **flags: str) -> None:
        self.manager.begin({**env(job_id, cpus=cpus, **flags), "SLURM_JOB_GPUS": gpus})

    def end(self, job_id: int) -> None:
        self.manager.end(env(job_id))

    def poll(self) -> NodePoll:
        poll = self.manager.poll_budget()
        assert NodePoll.from_json(json.loads(json.dumps(poll.to_json()))) == poll
        return poll

    def device(self, name: str) -> DeviceReport:
        return next(device for device in self.poll().devices if device.name == name)

    def limits(self) -> dict[str, float]:
        """Return the power limits that the hardware holds."""
        zones = {"package-0": "intel-rapl:1", "package-1": "intel-rapl:0"}
        watts = {
            name: int(self.tree.get(f"sys/class/powercap/{zone}/constraint_0_power_limit_uw")) / 1e6
            for name, zone in zones.items()
        }
        return watts | {limit.domain: int(limit.value) / 1e3 for limit in self.gpus}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BudgetNode]:
    made = BudgetNode(tmp_path)
    yield made
    made.die()


def whole(watts: float) -> dict[str, float | None]:
    return dict.fromkeys(IDLE, watts)


def test_a_poll_reports_devices_jobs_and_confirmed_ceilings(node: BudgetNode) -> None:
    poll = node.poll()
    assert (poll.number, poll.is_safe, poll.jobs) == (0, False, ())
    first, gpu = poll.devices[0], poll.devices[-1]
    assert (first.name, first.min_watts, first.max_watts) == ("package-0", MIN_PACKAGE, 250.0)
    assert first.limit_watts is None  # RAPL names a limit, but it is switched off
    assert (gpu.name, gpu.kind, gpu.limit_watts, gpu.ceiling_watts) == ("gpu1", "A100", 400.0, None)
    node.begin(5, gpus="0-1")
    node.decide(whole(150.0), number=7)
    node.use(2.0)
    poll = node.poll()
    assert (poll.number, [job.job_id for job in poll.jobs]) == (7, [5])
    for device in poll.devices:
        assert (device.limit_watts, device.ceiling_watts, device.job_ids) == (150.0, 150.0, (5,))
    assert [device.watts for device in poll.devices] == [200.0, 200.0, None, None]


def test_limits_stay_within_the_range_of_the_device(node: BudgetNode) -> None:
    node.decide({"package-0": 1.0, "gpu0": 9000.0, "gpu7": 5.0})
    assert node.limits() == {"package-0": MIN_PACKAGE, "package-1": 250.0, "gpu0": 400.0, "gpu1": 400.0}


def test_a_ceiling_shortens_the_averaging_window_until_it_is_lifted(
    node: BudgetNode,
) -> None:
    window = "sys/class/powercap/intel-rapl:1/constraint_0_time_window_us"
    before = int(node.tree.get(window))
    node.decide(whole(150.0))
    assert int(node.tree.get(window)) == 100_000 < before
    node.decide(whole(150.0), number=0)
    assert int(node.tree.get(window)) == before


def test_a_device_that_is_not_listed_keeps_its_ceiling_and_none_lifts_it(node: BudgetNode) -> None:
    node.decide(whole(150.0))
    node.decide({"gpu0": 200.0, "package-1": None})
    assert node.limits() == {"package-0": 150.0, "package-1": 250.0, "gpu0": 200.0, "gpu1": 150.0}
    assert node.device("package-1").ceiling_watts is None


def test_decision_zero_restores_everything(node: BudgetNode) -> None:
    node.decide(whole(150.0))
    node.decide({}, number=0)
    assert node.tree.snapshot() == node.original
    assert [limit.value for limit in node.gpus] == ["400000"] * 2
    node.kill()
    assert node.tree.snapshot() == node.original


def test_without_a_decision_the_lease_ends_in_the_safe_limits(node: BudgetNode) -> None:
    node.decide({**whole(200.0), "gpu1": 105.0, "package-1": None})
    node.use(30.0)
    assert not node.poll().is_safe
    node.use(1.0)
    expected = {**SAFE, "gpu1": 105.0}  # never above the ceiling before
    assert node.limits() == expected
    assert node.poll().is_safe
    node.decide(whole(200.0), number=2)
    assert not node.poll().is_safe
    assert node.limits() == whole(200.0)


def test_the_lease_counts_from_the_poll_and_not_from_the_response(node: BudgetNode) -> None:
    decision = NodeDecision(1, whole(200.0), SAFE, START, 30.0, 1.0)
    node.manager.budget.apply(decision, node.clock.now - 29.0)
    node.use(2.0)
    assert node.limits() == SAFE


def test_jobs_start_at_the_start_limits_and_leave_devices_at_their_minimum(node: BudgetNode) -> None:
    node.decide(dict(IDLE))
    node.begin(5, gpus="0", cpus="2")
    # The packages of a job that shares the node are unknown until its first step.
    assert node.limits() == {**IDLE, "gpu0": 200.0}
    node.end(5)
    assert node.limits() == IDLE
    node.begin(6)
    assert node.limits() == START
    node.decide(whole(240.0), number=2)
    node.end(6)
    assert node.limits() == IDLE


def test_starts_and_ends_change_nothing_where_the_budget_is_not_tight(node: BudgetNode) -> None:
    free = {"package-0": 250.0, "package-1": 250.0, "gpu0": 400.0, "gpu1": 400.0}
    node.decide(dict(free))
    node.begin(5)
    assert node.limits() == free
    node.end(5)
    assert node.limits() == free


def test_a_second_job_on_a_device_does_not_raise_its_ceiling(node: BudgetNode) -> None:
    node.decide(dict(IDLE))
    node.begin(5, gpus="0", cpus="1")
    node.decide({"gpu0": 130.0}, number=2)
    node.begin(6, gpus="0", cpus="1")
    assert node.limits()["gpu0"] == 130.0
    node.end(5)
    assert node.limits()["gpu0"] == 130.0
    assert node.device("gpu0").job_ids == (6,)


def test_a_start_without_a_lease_gets_at_most_the_safe_limits(node: BudgetNode) -> None:
    node.decide(dict(IDLE))
    node.use(31.0)
    node.begin(5)
    assert node.limits() == SAFE


def test_a_start_raises_no_device_that_has_no_ceiling(node: BudgetNode) -> None:
    node.decide({"package-0": 80.0})
    node.begin(5)
    assert node.limits() == {"package-0": 110.0, "package-1": 250.0, "gpu0": 400.0, "gpu1": 400.0}


def test_jobs_keep_their_own_lower_limits(node: BudgetNode) -> None:
    node.decide(dict(IDLE))
    node.begin(5, gpus="0-1", gpu_cap="110")
    assert node.limits()["gpu0"] == 110.0
    assert node.poll().jobs[0].requested_watts == {"gpu0": 110.0, "gpu1": 110.0}
    assert node.device("gpu0").ceiling_watts == 200.0
    node.end(5)
    assert node.limits() == IDLE


def test_kill_9_keeps_ceilings_and_lease(node: BudgetNode) -> None:
    node.begin(5)
    node.decide(whole(160.0), number=3)
    node.clock.now += 10.0
    node.kill()
    assert node.limits() == whole(160.0)
    poll = node.poll()
    assert (poll.number, poll.is_safe) == (3, False)
    assert [job.job_id for job in poll.jobs] == [5]
    node.clock.now += 21.0
    node.kill()
    assert node.limits() == SAFE
    assert node.poll().is_safe


def test_the_end_of_a_job_while_no_agent_runs_keeps_the_ceilings(node: BudgetNode) -> None:
    node.begin(5, gpus="0-1", gpu_cap="110")
    node.decide(whole(160.0))
    node.die()
    node.manager = node.start()
    node.end(5)
    node.manager.finalize_jobs()
    assert node.limits() == IDLE
    node.kill()
    assert node.limits() == IDLE


def test_after_a_reboot_the_safe_limits_hold_before_jobs_start(node: BudgetNode) -> None:
    node.begin(5)
    node.decide(whole(160.0), number=3)
    node.reboot()
    assert node.limits() == SAFE
    poll = node.poll()
    assert (poll.boot_id, poll.number, poll.is_safe) == ("another-boot", 0, True)
    node.decide(whole(200.0), number=4)
    assert node.limits() == whole(200.0)
    node.decide({}, number=0)
    assert node.tree.snapshot() == node.original


def test_budgets_switched_off_restore_everything_at_the_next_start_or_reload(node: BudgetNode) -> None:
    node.decide(whole(160.0))
    node.config = OFF
    node.kill()
    assert node.tree.snapshot() == node.original
    assert not node.manager.budget.is_active
    node.config = ENFORCED
    node.kill()
    node.decide(whole(160.0))
    node.manager.reconfigure(OFF)
    node.manager.housekeeping()
    assert node.tree.snapshot() == node.original


def test_a_lost_or_damaged_lease_keeps_the_ceilings(
    node: BudgetNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.decide(whole(160.0))
    path = node.folder / "state" / "budget.json"
    for text in ("{", '{"version": 1}', '{"version": 9}', "[]"):
        path.write_text(text)
        node.kill()
        assert node.limits() == whole(160.0)
        assert "ceilings stay" in caplog.text
        caplog.clear()
    path.unlink()
    node.kill()
    assert node.limits() == whole(160.0)


def test_a_limit_that_the_hardware_refuses_is_not_confirmed(
    node: BudgetNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.decide(whole(160.0), number=1)
    with monkeypatch.context() as patch:
        patch.setattr(Limit, "write", lambda _knob, _value: None)
        node.decide(whole(120.0), number=2)
        poll = node.poll()
        assert poll.number == 1
        gpu = next(device for device in poll.devices if device.name == "gpu0")
        assert (gpu.limit_watts, gpu.ceiling_watts) == (160.0, None)
    node.decide(whole(120.0), number=3)
    assert node.poll().number == 3


def test_a_program_that_exceeds_a_ceiling_is_overruled_at_the_next_poll(node: BudgetNode) -> None:
    node.decide(whole(160.0))
    node.gpus[0].value = "400000"
    assert node.device("gpu0").ceiling_watts == 160.0
    assert node.limits()["gpu0"] == 160.0


def test_ends_and_starts_of_jobs_ask_for_a_poll(node: BudgetNode) -> None:
    node.poll()
    assert not node.manager.budget.wants_poll
    node.begin(5)
    assert node.manager.budget.wants_poll
    node.poll()
    node.end(5)
    assert node.manager.budget.wants_poll


def test_the_lease_is_checked_in_time_on_a_node_without_jobs(node: BudgetNode) -> None:
    node.decide(whole(160.0), lease_s=5.0)
    assert node.manager.sampling_interval_s == 5.0


def test_the_record_states_the_time_below_the_limits_of_the_job(node: BudgetNode) -> None:
    node.begin(5, gpus="0-1", gpu_cap="150")
    node.use(3.0)
    node.decide({"gpu0": 200.0, "gpu1": 400.0})
    node.use(4.0)  # the job itself wants at most 150 W
    node.decide({"gpu0": 120.0}, number=2)
    node.use(5.0)
    node.manager.housekeeping()
    node.kill()
    node.use(2.0)
    node.decide({}, number=0)
    node.use(6.0)
    node.end(5)
    node.begin(6)
    node.use(2.0)
    node.end(6)
    records = {record.job_id: record for record in node.records() if record.step is None}
    assert records[5].budget_capped_seconds == 7.0
    assert records[6].budget_capped_seconds is None


@pytest.mark.parametrize("config", [ENFORCED, OFF])
def test_restore_by_hand_lifts_ceilings_only_without_budgets(
    node: BudgetNode, config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.decide({"package-0": 120.0, "package-1": 120.0})
    node.die()
    at_node = dataclasses.replace(
        config, agent=dataclasses.replace(config.agent, state_dir=node.folder / "state")
    )
    monkeypatch.setattr(offline_commands, "discover", lambda: discover(node.tree.root))
    assert offline_commands.restore(at_node) == 0
    text = capsys.readouterr().out
    if config is OFF:
        assert node.tree.snapshot() == node.original
        assert "powercap.power_limit[package-0]: restored" in text
    else:
        assert node.limits()["package-0"] == 120.0
        assert "powercap.power_limit[package-0]: a power budget holds 120 W" in text
        assert "ceilings of the power budget stay" in text


def test_the_status_shows_the_budget(node: BudgetNode) -> None:
    assert node.manager.status()["budget"] == {"mode": "enforce", "is_safe": False, "ceilings_watts": {}}
    node.decide({"gpu0": 130.0})
    node.use(31.0)
    state = node.manager.status()["budget"]
    assert (state["is_safe"], state["ceilings_watts"]["gpu0"]) == (True, 120.0)


def test_a_restarted_agent_records_the_limit_without_ceilings(node: BudgetNode) -> None:
    node.decide(whole(150.0))
    node.kill()
    node.begin(5, gpus="0-1")
    node.end(5)
    (record,) = (record for record in node.records() if record.step is None)
    assert node.manager._devices.hardware.packages[0].limit_watts == 250.0
    assert [device.max_cap_watts for device in record.devices if device.name != "cpu"] == [400.0, 400.0]


def test_the_curve_of_a_tuned_job_is_reported_within_bounds(node: BudgetNode) -> None:
    point = {
        "point": {"gpu_limit_watts": 200.0},
        "time_ratio": 1.02,
        "power_ratio": 0.7,
        "source": "this run",
        "time_error": 0.01,
        "count": 3,
        "measured_unix_s": None,
    }
    clock = {**point, "point": {"gpu_clock_mhz": 1000.0}}
    for job_id in range(1, 41):
        node.begin(job_id, cpus="1", model="bert")
        session = node.manager._sessions.require_run(job_id)
        points = [{**point, "point": {"gpu_limit_watts": 100.0 + number}} for number in range(40)]
        session.tuning = {"mode": "on", "objective": "edp", "points": [clock, *points]}
    curves = [job.curve for job in node.poll().jobs]
    reported = [ResponseCurve.from_json(curve) for curve in curves if curve is not None]
    assert [len(curve.points) for curve in reported] == [32] * 16
    assert reported[0].workload == "bert"
    assert all(item.point.gpu_clock_mhz is None for item in reported[0].points)
