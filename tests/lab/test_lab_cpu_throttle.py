"""Tests of the throttling of real programs on an emulated node by CPU quotas.

The tests also cover the measured utilisation of these programs. Regular files emulate the control groups.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_bench import Clock

from slurm_energy_lab.emulator.cpu_cgroups import find_groups
from slurm_energy_lab.emulator.cpu_throttle import (
    EMPTY_GRACE_S,
    MIN_QUOTA_US,
    PERIODS_US,
    CpuThrottle,
    quota_us,
)
from slurm_energy_lab.model import FrequencyRequest, load_profile
from slurm_energy_lab.realtime_model import RealtimeModel


@given(st.floats(0.0, 4.0))
def test_quotas_are_in_the_kernels_range(share):
    quota, period = quota_us(share)
    assert quota >= MIN_QUOTA_US and period in PERIODS_US
    if share >= 0.001:
        assert quota / period == pytest.approx(share, rel=0.001)


@pytest.mark.parametrize(
    ("share", "period_us"), [(0.4, 5_000), (0.12, 10_000), (0.06, 20_000), (0.001, 1_000_000)]
)
def test_periods_are_as_short_as_the_kernel_allows(share, period_us):
    """The lab uses the shortest periods of CPU quotas that the kernel allows.

    A quota limits the CPU time of a program in each period. After a wait, a program may use the quota of one
    period at full speed. Such a burst is short if the period is short.
    """
    assert quota_us(share)[1] == period_us


class MemoryGroups:
    """Fake of the jobs' control groups, in memory. The test sets their CPU time."""

    kind = "memory"

    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        self.limits: dict[str, tuple[int, int]] = {}
        self.occupied: set[str] = set()
        self.closed = False

    def create(self, name: str) -> list[Path]:
        self.used.setdefault(name, 0.0)
        return [Path("/groups") / name / "cgroup.procs"]

    def limit(self, name: str, quota_us: int, period_us: int) -> None:
        self.limits[name] = (quota_us, period_us)

    def cpu_seconds(self, name: str) -> float:
        return self.used[name]

    def remove(self, name: str) -> bool:
        if name in self.occupied:
            return False
        self.used.pop(name)
        return True

    def close(self) -> None:
        self.closed = True

    def cores(self, name: str) -> float:
        quota, period = self.limits[name]
        return quota / period


class Setup:
    def __init__(self) -> None:
        self.clock = Clock()
        overrides = {"cpufreq.driver": "acpi-cpufreq"}
        self.realtime_model = RealtimeModel(load_profile("xeon-8358", overrides), self.clock)
        self.groups = MemoryGroups()
        self.throttle = CpuThrottle(self.realtime_model, self.groups, share_cores=0.64, clock=self.clock)

    def let_run(self, seconds: float, name: str = "tasks_of_7", busy: float = 1.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.now_s += 0.1
            if name in self.groups.used:
                self.groups.used[name] += busy * self.groups.cores(name) * 0.1
            self.throttle.tick()

    def set_all(self, governor: str) -> None:
        with self.realtime_model.modify() as model:
            model.set_cpufreq_all(FrequencyRequest(governor, 800_000, 3_400_000))

    def watts(self) -> float:
        with self.realtime_model.now() as model:
            return model.power_watts("cpu")


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_register_names_the_files_for_the_processes(setup):
    assert setup.throttle.register(7, None) == ["/groups/tasks_of_7/cgroup.procs"]
    assert setup.throttle.busy


def test_quota_is_the_jobs_share_of_cpus_at_the_effective_frequency(setup):
    setup.set_all("performance")
    setup.throttle.register(7, None)
    setup.throttle.register(8, (0, 1, 64, 65))
    setup.groups.occupied |= {"tasks_of_7", "tasks_of_8"}
    setup.clock.now_s += 0.2
    setup.throttle.tick()
    assert setup.groups.cores("tasks_of_7") == pytest.approx(0.64, rel=0.15)
    assert setup.groups.cores("tasks_of_8") == pytest.approx(
        setup.groups.cores("tasks_of_7") * 4 / 128, rel=0.1
    )


def test_powersave_slows_programs_and_the_model_sees_them_busy(setup):
    setup.groups.occupied.add("tasks_of_7")
    setup.set_all("performance")
    setup.throttle.register(7, None)
    idle_watts = setup.watts()
    setup.let_run(2)
    fast, fast_watts = setup.groups.cores("tasks_of_7"), setup.watts()
    assert setup.throttle.status()["jobs"] == {"7": pytest.approx(1.0, abs=0.05)}
    assert fast_watts > idle_watts + 100
    setup.set_all("powersave")
    setup.let_run(2)
    slow, slow_watts = setup.groups.cores("tasks_of_7"), setup.watts()
    assert slow == pytest.approx(0.64 * 800 / 3400, rel=0.02)
    assert fast / slow > 3
    assert slow_watts < fast_watts - 100


def test_a_power_limit_slows_programs(setup):
    setup.groups.occupied.add("tasks_of_7")
    setup.set_all("performance")
    setup.throttle.register(7, None)
    setup.let_run(5)
    before = setup.groups.cores("tasks_of_7")
    with setup.realtime_model.modify() as model:
        for package in range(2):
            model.set_package_limit(package, "long_term", 120, 1.0, True)
    setup.let_run(20)
    assert setup.groups.cores("tasks_of_7") < 0.9 * before


def test_small_changes_leave_the_quota_alone(setup):
    setup.groups.occupied.add("tasks_of_7")
    setup.set_all("powersave")
    setup.throttle.register(7, None)
    setup.let_run(1)
    setup.groups.limits.clear()
    setup.throttle.tick()
    assert setup.groups.limits == {}


def test_empty_groups_and_their_load_are_removed_after_a_grace(setup):
    setup.groups.occupied.add("tasks_of_7")
    setup.set_all("performance")
    setup.throttle.register(7, None)
    setup.let_run(EMPTY_GRACE_S + 1)
    assert setup.throttle.busy
    busy_watts = setup.watts()
    setup.let_run(1, busy=0.0)
    assert setup.throttle.busy, "somebody is still in there"
    setup.groups.occupied.clear()
    setup.let_run(0.3, busy=0.0)
    assert not setup.throttle.busy
    assert setup.groups.used == {}
    assert setup.watts() < busy_watts - 100


def test_a_group_without_processes_is_removed_after_the_grace(setup):
    setup.throttle.register(7, None)
    setup.let_run(EMPTY_GRACE_S - 1, busy=0.0)
    assert setup.throttle.busy
    setup.throttle.register(7, (0, 1))
    setup.let_run(EMPTY_GRACE_S - 1, busy=0.0)
    assert setup.throttle.busy, "a new step has asked again"
    setup.let_run(2, busy=0.0)
    assert not setup.throttle.busy


def test_new_cpus_of_a_job_take_over_its_load(setup):
    setup.groups.occupied.add("tasks_of_7")
    setup.throttle.register(7, tuple(range(16)))
    setup.let_run(1, busy=1.1)
    setup.throttle.register(7, tuple(range(64, 80)))
    setup.let_run(1, busy=1.1)
    with setup.realtime_model.now() as model:
        busy = model.usage().busy_seconds(model.now_s)
        used = model.usage().cpu_seconds(7, model.now_s)
    assert busy[0] == pytest.approx(1.0, abs=0.15)
    assert busy[64] == pytest.approx(0.9, abs=0.15)
    assert used == pytest.approx(16 * (busy[0] + busy[64]))
    setup.throttle.register(7, tuple(range(4)))
    setup.let_run(1, busy=0.0)
    with setup.realtime_model.now() as model:
        assert model.usage().busy_cpus() == 0


def test_jobs_of_removed_groups_are_dropped(setup):
    class Gone(MemoryGroups):
        def cpu_seconds(self, name: str) -> float:
            if self.limits:
                raise FileNotFoundError(2, "gone")
            return 0.0

    setup.throttle._groups = setup.groups = Gone()
    setup.throttle.register(7, None)
    setup.clock.now_s += 1
    setup.throttle.tick()
    assert not setup.throttle.busy


def test_without_groups_nothing_is_throttled_and_status_says_why(setup):
    throttle = CpuThrottle(setup.realtime_model, None, "no cpu controller is mounted")
    assert throttle.register(7, None) == []
    assert not throttle.busy
    status = throttle.status()
    assert (status["mode"], status["reason"]) == ("none", "no cpu controller is mounted")
    throttle.close()


def mountinfo(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text("".join(f"30 20 0:26 / {line}\n" for line in lines))
    return path


def test_version_1_is_found_together_or_apart(tmp_path):
    package_registers = tmp_path / "cpu,cpuacct"
    package_registers.mkdir()
    info = mountinfo(tmp_path, f"{package_registers} rw - cgroup cgroup rw,cpu,cpuacct")
    groups, reason = find_groups("lab/n1", info)
    assert groups is not None and reason == ""
    (package_registers / "lab/n1/job_1").mkdir()
    for name in ("cgroup.procs", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuacct.usage"):
        (package_registers / "lab/n1/job_1" / name).write_text(
            "2500000000" if name == "cpuacct.usage" else ""
        )
    assert [str(path) for path in groups.create("job_1")] == [
        f"{package_registers}/lab/n1/job_1/cgroup.procs"
    ]
    groups.limit("job_1", 5000, 20000)
    assert (package_registers / "lab/n1/job_1/cpu.cfs_quota_us").read_text().endswith("5000")
    assert groups.cpu_seconds("job_1") == 2.5


@pytest.mark.parametrize("back", [False, True], ids=["gone", "gone while it is looked at"])
def test_another_node_may_remove_the_labs_group_while_it_is_empty(tmp_path, monkeypatch, back):
    """A node can create its control groups although another node removes the common parent group.

    The nodes of a lab share one parent group. The emulators of the nodes start concurrently, and each
    emulator removes the groups of an earlier run.
    """
    info = mountinfo(tmp_path, f"{tmp_path} rw - cgroup cgroup rw,cpu,cpuacct")
    make, removed = os.mkdir, []

    def mkdir(path, *arguments):
        lab_group = Path(path) == tmp_path / "lab"
        if back and lab_group and not removed:
            removed.append(path)
            raise FileExistsError(17, "File exists", str(path))
        make(path, *arguments)
        if lab_group and not removed:
            removed.append(path)
            Path(path).rmdir()

    monkeypatch.setattr(os, "mkdir", mkdir)
    groups, reason = find_groups("lab/n1", info)
    assert (groups is not None, reason, len(removed)) == (True, "", 1)
    assert (tmp_path / "lab/n1").is_dir()


def test_version_2_needs_its_cpu_controller(tmp_path):
    root = tmp_path / "unified"
    base = root / "lab/n1"
    (root / "lab").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("memory\n")
    info = mountinfo(tmp_path, f"{root} rw - cgroup2 cgroup2 rw")
    assert find_groups("lab/n1", info) == (None, "no cpu controller is mounted")
    (root / "cgroup.controllers").write_text("cpu memory\n")
    groups, reason = find_groups("lab/n1", info)
    assert groups is None and "No such file" in reason, "plain folders have no subtree_control"
    assert base.exists()
