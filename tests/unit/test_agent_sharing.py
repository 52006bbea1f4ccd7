"""Test the agent's job manager with several jobs on one node.

The cores of each job have their own settings. On shared devices, the settings of the jobs are merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_mig
from shared_node import SharedNode as EnergyNode
from shared_node import joules, quality
from test_job_manager import Node, env
from test_sampler import HandClock

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import Config
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.cpu.powercap import RaplPowerLimit
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.gpu import nvml
from slurm_energy.devices.gpu.nvml import NvmlPowerLimit
from slurm_energy.devices.hardware import GpuInfo, NodeHardware
from slurm_energy.policies import WAITING_FOR_CPUS
from slurm_energy.records import EnergyRecord, JobDevice


class SharedNode(Node):
    """A node of 4 cores in two packages."""

    def start(self) -> JobManager:
        self.tree.cores(4, 2)
        return super().start()

    def begin(self, job_id: int, cpus: int = 2, **flags: str) -> dict[str, Any]:
        return self.manager.begin(env(job_id, cpus=str(cpus), **flags))

    def step(self, job_id: int, cores: str | None) -> None:
        assert self.manager.step("start", job_id, "batch", cores)["known"]
        if self.manager.has_pending_settings:
            self.manager.apply_pending_settings()

    def job_record(self, job_id: int) -> EnergyRecord:
        return next(r for r in self.records() if r.job_id == job_id and r.step is None)

    def governors(self) -> list[str]:
        return [self.tree.policy(cpu, "scaling_governor")[:4] for cpu in range(4)]

    def limits(self) -> list[int]:
        """Return the power limits of package-0 and package-1 in watts."""
        zones = [f"sys/class/powercap/intel-rapl:{zone}/constraint_0_power_limit_uw" for zone in (1, 0)]
        return [int(self.tree.get(zone)) // 1_000_000 for zone in zones]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SharedNode]:
    node = SharedNode(tmp_path)
    yield node
    node.die()


def test_each_job_s_cores_have_its_own_settings_once_a_step_reported_them(node: SharedNode) -> None:
    assert node.begin(5, policy="performance")["applied"] == 0
    node.begin(6, policy="powersave")
    assert node.tree.snapshot() == node.original
    node.use(2)
    node.step(5, "0-1")
    assert node.governors() == ["perf", "perf", "powe", "powe"]
    node.step(6, "2-3")
    assert [node.tree.policy(cpu, "scaling_max_freq") for cpu in range(4)] == ["3400000"] * 2 + ["800000"] * 2
    node.manager.end(env(5, cpus="2"))
    assert node.governors() == ["powe"] * 4
    assert node.tree.policy(3, "scaling_max_freq") == "800000"
    node.manager.end(env(6, cpus="2"))
    assert node.tree.snapshot() == node.original
    first = node.job_record(5)
    assert WAITING_FOR_CPUS not in first.notes
    assert "CPU settings in force 2.0 s after the begin, from the first step on" in first.notes
    assert all(setting.restored for setting in first.applied)


def test_messages_that_waited_together_share_one_sample(node: SharedNode) -> None:
    for job_id in (5, 6, 7):
        node.begin(job_id, cpus=1)
    node.use(2)
    received_s = node.clock.now
    node.manager.end(env(5, cpus="1"), received_s=received_s)
    node.clock.now += 0.5
    node.manager.end(env(6, cpus="1"), received_s=received_s)
    node.manager.end(env(7, cpus="1"), received_s=node.clock.now)
    records = [node.job_record(job_id) for job_id in (5, 6, 7)]
    assert [record.elapsed_s for record in records] == [2.0, 2.0, 2.5]
    assert records[0].energy_joules == pytest.approx(records[1].energy_joules, abs=1e-5)


def test_a_step_of_unknown_processes_never_shares_a_sample(node: SharedNode) -> None:
    node.begin(5, cpus=1)
    node.begin(6, cpus=1)
    node.use(2)
    received_s = node.clock.now
    node.manager.end(env(6, cpus="1"), received_s=received_s)
    node.clock.now += 0.5
    node.manager.step("start", 5, "0", received_s=received_s)
    node.clock.now += 1.0
    node.manager.step("end", 5, "0")
    (step,) = [record for record in node.records() if record.step == "0"]
    assert step.elapsed_s == 1.0


def test_caps_count_together_and_not_against_others(node: SharedNode) -> None:
    for job_id, cap, cores in ((5, "110", "0"), (6, "100", "1")):
        node.begin(job_id, 1, cap=cap)
        node.step(job_id, cores)
    assert node.limits() == [220, 250]  # 110 W for half a package is 220 W for all of it
    node.begin(7, 1)  # measures only, and may be anywhere
    assert node.limits() == [250, 250]
    node.step(7, "3")
    assert node.limits() == [220, 250]
    node.manager.end(env(5, cpus="1"))
    assert node.limits() == [200, 250]
    node.manager.end(env(7, cpus="1"))
    node.manager.end(env(6, cpus="1"))
    assert node.tree.snapshot() == node.original
    record = node.job_record(5)
    limit = {setting.setting: setting for setting in record.applied}["powercap.power_limit[package-0]"]
    assert (limit.requested, limit.applied, limit.restored) == ("220 W", "220 W", True)
    assert limit.note == "after the job: other jobs on the node hold 200 W"


def test_the_caps_of_a_shared_job_can_be_changed(node: SharedNode) -> None:
    node.begin(5, cap="100")
    node.step(5, "0-1")
    assert node.limits() == [100, 250]
    node.manager.set_caps(5, {"cap_watts": 120.0})
    assert node.limits() == [120, 250]
    node.manager.set_caps(5, {"cap_watts": None})
    assert node.limits() == [250, 250]
    node.manager.end(env(5, cpus="2"))
    assert node.tree.snapshot() == node.original


@pytest.mark.parametrize("cores", [None, "0-1", "7"])
def test_cores_that_do_not_fit_change_nothing(node: SharedNode, cores: str | None) -> None:
    node.begin(5, 3, policy="powersave", cap="100")
    node.step(5, cores)
    assert node.tree.snapshot() == node.original
    node.manager.end(env(5, cpus="3"))
    record = node.job_record(5)
    assert WAITING_FOR_CPUS in record.notes
    assert any("core numbers do not match" in note for note in record.notes) == (cores is not None)


def test_a_restarted_agent_resumes_the_claims_of_all_jobs(node: SharedNode) -> None:
    node.begin(5, 1, cap="110")
    node.step(5, "0")
    node.begin(6, 1, cap="100")
    assert node.manager.step("start", 6, "batch", "1")["known"]
    node.die()  # before the settings that the step made possible
    node.manager = node.start()
    assert node.limits() == [220, 250]
    node.manager.end(env(5, cpus="1"))
    assert node.limits() == [200, 250]
    node.die()
    node.manager = node.start()
    node.manager.end(env(6, cpus="1"))
    assert node.tree.snapshot() == node.original


def test_a_failed_write_of_a_shared_limit_is_logged_and_retried(
    node: SharedNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.begin(5, 1, cap="110")
    node.step(5, "0")
    with monkeypatch.context() as patch:
        patch.setattr(RaplPowerLimit, "write", lambda _knob, _value: None)
        node.begin(6, 1)
        node.manager.housekeeping()
    assert node.limits() == [220, 250]
    told = [record.getMessage() for record in caplog.records if "required value" in record.getMessage()]
    (line,) = told
    assert "powercap.power_limit[package-0] cannot be set" in line
    node.manager.housekeeping()
    assert node.limits() == [250, 250]


def test_everything_is_restored_without_an_agent(node: SharedNode) -> None:
    for job_id, core in ((5, "0"), (6, "1")):
        node.begin(job_id, 1, cap="100", policy="performance")
        node.step(job_id, core)
    assert node.limits() == [200, 250]
    devices = discover(node.tree.root)
    results = SettingsManager(devices, node.state.journal).repair(running=())
    devices.close()
    assert all(result.done for result in results)
    assert node.tree.snapshot() == node.original


class Limit(NvmlPowerLimit):
    """Stand-in for a GPU power limit. Reads and writes only change a stored number."""

    def __init__(self, index: int) -> None:
        self.domain, self.dependents, self.value = f"gpu{index}", (), "400000"

    def read(self) -> str:
        return self.value

    def write(self, value: str) -> None:
        self.value = value


@pytest.fixture
def gpu_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[JobManager, list[Limit]]]:
    """Yield a job manager on a node with two GPUs, and the power limits of these GPUs.

    The test's parameter states whether the GPUs are divided into MIG instances.
    """
    gpus = tuple(
        GpuInfo(i, i, "A100", 400.0, 100.0, 400.0, None, partitioned=request.param) for i in range(2)
    )
    limits = [Limit(index) for index in range(2)]
    hardware = NodeHardware("", 8, gpus=gpus)
    devices = NodeDevices(hardware, (), {limit.key: limit for limit in limits}, ())
    manager = JobManager(Config(), devices, StateDirectory(tmp_path / "state"), HandClock())
    yield manager, limits
    manager.stop()


@pytest.mark.parametrize("gpu_node", [False], indirect=True)
def test_jobs_on_one_gpu_share_its_limit(gpu_node: tuple[JobManager, list[Limit]]) -> None:
    manager, limits = gpu_node
    for job_id, cap, gpus in ((5, "150", "0"), (6, "200", "0-1")):
        manager.begin(env(job_id, cpus="2", gpu_cap=cap) | {"SLURM_JOB_GPUS": gpus})
    assert [limit.value for limit in limits] == ["200000", "200000"]
    manager.end(env(6, cpus="2"))
    assert [limit.value for limit in limits] == ["150000", "400000"]
    manager.end(env(5, cpus="2"))
    manager.finalize_jobs()
    records = [EnergyRecord.from_json(item.record) for item in manager.spool.items(10**9, 9)]
    gpus = [JobDevice(f"gpu[{index}]", "A100", 100.0, 400.0) for index in range(2)]
    assert {record.job_id: list(record.devices) for record in records} == {5: gpus[:1], 6: gpus}


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_job_with_an_instance_gets_no_figure_of_the_gpu_with_its_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, partitioned: bool
) -> None:
    library = test_mig.Node(int(partitioned))
    library.nvmlDeviceGetTotalEnergyConsumption = lambda handle: next(millijoules)  # type: ignore[attr-defined]
    millijoules = itertools.count(0, 50_000)
    monkeypatch.setattr(nvml.NvmlLibrary, "open", lambda: nvml.NvmlLibrary(library))
    found = nvml.discover()
    hardware = NodeHardware("", 8, gpus=tuple(found.gpus))
    clock = HandClock()
    devices = NodeDevices(hardware, tuple(found.counters), {}, ())
    manager = JobManager(Config(), devices, StateDirectory(tmp_path / "state"), clock)
    for job_id, whole in ((5, {}), (6, {"SLURM_JOB_EXCLUSIVE": "node"})):
        manager.begin(env(job_id, cpus="2") | {"SLURM_JOB_GPUS": "0"} | whole)
        clock.now += 1.0
        manager.sample()
        manager.end(env(job_id, cpus="2"))
    manager.finalize_jobs()
    shared, alone = [EnergyRecord.from_json(item.record) for item in manager.spool.items(10**9, 9)]
    manager.stop()
    (gpu,) = shared.components
    assert (gpu.name, gpu.energy_joules is None) == ("gpu[0]", partitioned)
    assert any("MIG" in note for note in shared.notes) is partitioned
    assert alone.components[0].energy_joules > 0 and alone.gpus == (0,)


@pytest.mark.parametrize("gpu_node", [True], indirect=True)
def test_a_cap_of_a_gpu_with_instances_needs_all_jobs_that_have_any(
    gpu_node: tuple[JobManager, list[Limit]],
) -> None:
    manager, limits = gpu_node
    manager.begin(env(5, cpus="2", gpu_cap="150") | {"SLURM_JOB_GPUS": "9"})
    manager.begin(env(6, cpus="2"))
    assert [limit.value for limit in limits] == ["150000"] * 2
    manager.begin(env(7, cpus="2") | {"SLURM_JOB_GPUS": "3"})
    assert [limit.value for limit in limits] == ["400000"] * 2
    manager.end(env(7, cpus="2"))
    assert [limit.value for limit in limits] == ["150000"] * 2
    manager.end(env(5, cpus="2"))
    assert [limit.value for limit in limits] == ["400000"] * 2


def living(node: EnergyNode, job_id: int, pid: int) -> None:
    """Add the slurmstepd process of a job's batch step."""
    title = node.tree.root / f"proc/{pid}/cmdline"
    title.parent.mkdir(parents=True)
    title.write_bytes(f"slurmstepd: [{job_id}.batch]\0".encode())
    node.tree.put(f"proc/{pid}/stat", f"{pid} (slurmstepd) S 1 " + "0 " * 40)
    node.tree.process_ids(pid)


def running(node: EnergyNode) -> list[int]:
    return sorted(job["job_id"] for job in node.manager.status()["jobs"] if job["phase"] == "open")


def test_jobs_on_the_same_cpus_share_the_node_while_both_live(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path, components=("cpu",))
    node.begin(1, 8)
    living(node, 1, pid=77)
    node.use(10, {"cpu": 100.0}, {1: 8})
    node.begin(2, 8)
    assert running(node) == [1, 2]
    node.use(10, {"cpu": 100.0}, {1: 4, 2: 4})
    node.end(2)
    node.use(10, {"cpu": 100.0}, {1: 8})
    node.end(1)
    records = node.records()
    assert joules(records[2])["cpu"] == pytest.approx(500, rel=0.05)
    assert joules(records[1])["cpu"] == pytest.approx(2500, rel=0.05)
    assert any("another job began on the same CPUs" in note for note in records[1].notes)
    assert not any("no epilog ran" in note for record in records.values() for note in record.notes)


def test_jobs_on_the_same_cpus_share_gpus_that_slurm_does_not_name(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path, components=("cpu", "gpu[0]"))
    node.begin(1, 8)
    living(node, 1, pid=77)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 8})
    node.begin(2, 8)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 4, 2: 4})
    node.end(2)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 8})
    node.end(1)
    records = node.records()
    assert joules(records[1])["gpu[0]"] == pytest.approx(7500)
    assert joules(records[2])["gpu[0]"] == pytest.approx(1500)
    assert [quality(records[job])["gpu[0]"] for job in (1, 2)] == ["partial"] * 2


def test_a_restarted_agent_still_knows_which_gpus_are_assumed(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path, components=("cpu", "gpu[0]"))
    node.begin(1, 8)
    living(node, 1, pid=77)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 8})
    node.kill()
    node.begin(2, 8)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 4, 2: 4})
    node.end(2)
    node.end(1)
    records = node.records()
    assert joules(records[2])["gpu[0]"] == pytest.approx(1500)
    assert [quality(records[job])["gpu[0]"] for job in (1, 2)] == ["partial"] * 2


def test_a_job_beside_one_with_named_gpus_has_no_gpus(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path, components=("cpu", "gpu[0]"))
    node.begin(1, 8, "0")
    living(node, 1, pid=77)
    node.begin(2, 8)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 4, 2: 4})
    node.end(2)
    node.end(1)
    records = node.records()
    assert joules(records[1])["gpu[0]"] == pytest.approx(3000)
    assert quality(records[1])["gpu[0]"] == "measured"
    assert "gpu[0]" not in joules(records[2]) and records[2].gpus == ()


def test_a_job_loses_assumed_gpus_when_a_job_with_named_gpus_begins(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path, components=("cpu", "gpu[0]"))
    node.begin(2, 8)
    living(node, 2, pid=77)
    node.use(10, {"cpu": 100.0, "gpu[0]": 50.0}, {2: 8})
    node.begin(1, 8, "0")
    node.kill()
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0}, {1: 4, 2: 4})
    node.end(1)
    node.end(2)
    records = node.records()
    assert joules(records[1])["gpu[0]"] == pytest.approx(3000)
    assert joules(records[2])["gpu[0]"] == pytest.approx(500)
    assert [quality(records[job])["gpu[0]"] for job in (1, 2)] == ["measured"] * 2


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_job_without_named_gpus_does_not_lift_the_cap_of_a_named_gpu(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    node = EnergyNode(tmp_path, components=("cpu",))
    limit = Limit(0)
    hardware = NodeHardware("", 8, gpus=(GpuInfo(0, 0, "A100", 400.0, 100.0, 400.0, None),))
    devices = NodeDevices(hardware, (), {limit.key: limit}, (), root=node.tree.root)
    manager = JobManager(Config(), devices, StateDirectory(tmp_path / "gpu-state"), HandClock())
    jobs = {1: env(1, cpus="8", gpu_cap="150") | {"SLURM_JOB_GPUS": "0"}, 2: env(2, cpus="8")}
    for job_id in order:
        manager.begin(jobs[job_id])
        living(node, job_id, pid=76 + job_id)
    manager.apply_pending_settings()
    assert limit.value == "150000"
    manager.stop()
    node.die()


def test_settings_of_the_whole_node_end_when_the_node_is_shared(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(1, policy="performance"))
    assert node.tree.policy(0, "scaling_governor") == "performance"
    title = node.tree.root / "proc/77/cmdline"
    title.parent.mkdir(parents=True)
    title.write_bytes(b"slurmstepd: [1.batch]\0")
    node.tree.put("proc/77/stat", "77 (slurmstepd) S 1 " + "0 " * 40)
    node.tree.process_ids(77)
    node.manager.begin(env(2))
    assert node.manager.has_pending_settings
    node.manager.apply_pending_settings()
    assert node.tree.snapshot() == node.original
    node.die()


def test_cpus_that_went_online_after_the_start_count(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path, components=("cpu",))
    node.tree.put("sys/devices/system/cpu/online", "0-15")
    node.begin(1, 8)
    node.begin(2, 8)
    assert running(node) == [1, 2]
