"""Tests of the resctrl driver on a plain directory tree.

The tests also cover the tasks of jobs, and the sum of the monitored use over joined intervals.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent import offline_commands
from slurm_energy.agent.metering.occupancy import GONE, MonitoredUse
from slurm_energy.config import AgentConfig, Config
from slurm_energy.devices.cpu import resctrl
from slurm_energy.devices.cpu.cpu_time import PROCESS_TREE, JobProcesses
from slurm_energy.devices.cpu.job_tasks import job_tasks
from slurm_energy.devices.cpu.resctrl import CORE_ENERGY, ROOT_GROUP, TRAFFIC, MonitoringFiles, parse_count
from slurm_energy.devices.driver import DeviceError

MOUNTED = {
    "info/L3_MON/num_rmids": "176\n",
    "info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
    "mon_data/mon_L3_00/mbm_total_bytes": "900\n",
    "tasks": "1\n2\n",
}


def put(root: Path, files: dict[str, str], below: str = "sys/fs/resctrl") -> None:
    for name, text in files.items():
        path = root / below / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def files_of(root: Path) -> MonitoringFiles:
    return MonitoringFiles(root, [TRAFFIC, CORE_ENERGY])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("12345\n", 12_345_000_000),
        ("0", 0),
        ("1.5", 1_500_000),
        ("3.1415926535", 3_141_592),
        ("18446744073709551615", 18446744073709551615 * 10**6),
        ("Unavailable\n", None),
        ("Unassigned", None),
        ("Error", None),
        ("", None),
        ("-5", None),
        ("1e5", None),
        ("0x10", None),
        ("1.", None),
        ("nan", None),
        ("²", None),
        ("1 2", None),
    ],
)
def test_counts_may_have_decimals_and_words_are_unknown(text: str, count: int | None) -> None:
    assert parse_count(text) == count


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    count = parse_count(text)
    assert count is None or count >= 0


@given(st.integers(0, 10**19), st.integers(0, 999_999))
def test_decimals_are_exact(whole: int, millionths: int) -> None:
    assert parse_count(f"{whole}.{millionths:06d}") == whole * 10**6 + millionths


def test_support_tells_a_missing_mount_from_missing_hardware(tmp_path: Path) -> None:
    assert resctrl.find_support(tmp_path) == resctrl.ResctrlSupport(False, False, False)
    put(tmp_path, {"cpuinfo": "processor\t: 0\nflags\t\t: fpu cqm_llc cqm_mbm_total aes\nbugs\t:\n"}, "proc")
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    assert resctrl.find_support(tmp_path) == resctrl.ResctrlSupport(True, True, False)
    put(tmp_path, MOUNTED)
    assert resctrl.find_support(tmp_path).quantities == (TRAFFIC,)
    put(tmp_path, {"info/PERF_PKG_MON/mon_features": "core_energy\nactivity\n"})
    assert resctrl.find_support(tmp_path) == resctrl.ResctrlSupport(True, True, True, (TRAFFIC, CORE_ENERGY))


def test_only_quantities_that_divide_measured_energy_are_read(tmp_path: Path) -> None:
    put(tmp_path, {**MOUNTED, "info/PERF_PKG_MON/mon_features": "core_energy\n"})
    for components, quantities in (({"cpu", "dram"}, (TRAFFIC, CORE_ENERGY)), ({"cpu"}, (CORE_ENERGY,))):
        opened = resctrl.open_monitoring(tmp_path, "auto", components)
        assert opened is not None
        assert opened.quantities == quantities
    assert resctrl.open_monitoring(tmp_path, "auto", {"gpu[0]"}) is None
    assert resctrl.open_monitoring(tmp_path, "off", {"cpu", "dram"}) is None


def test_a_file_system_that_is_not_mounted_is_mounted_on_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    monkeypatch.setattr(resctrl, "mount", lambda root: put(root, MOUNTED))
    assert resctrl.open_monitoring(tmp_path, "auto", {"dram"}) is None
    assert resctrl.open_monitoring(tmp_path, "mount", {"dram"}) is not None


def test_the_unit_mounts_before_the_agent_starts_on_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    mounted: list[Path] = []

    def mount(root: Path) -> None:
        mounted.append(root)
        put(root, MOUNTED)

    monkeypatch.setattr(resctrl, "mount", mount)
    monkeypatch.setattr(offline_commands, "Path", lambda _root: tmp_path)
    for mode, times in (("auto", 0), ("off", 0), ("mount", 1), ("mount", 1)):
        assert offline_commands.mount_resctrl(Config(agent=AgentConfig(resctrl=mode))) == 0
        assert mounted == [tmp_path] * times


def test_a_refused_mount_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    with pytest.raises(DeviceError, match=r"sys/fs/resctrl.*not mounted"):
        resctrl.mount(tmp_path / "missing")


def test_counts_are_read_by_cache_and_gaps_in_their_numbers_do_not_matter(tmp_path: Path) -> None:
    """Counters of resctrl are read for each L3 cache, even if numbers of caches are missing.

    AMD processors have one L3 cache per core complex. Numbers of disabled core complexes are missing.
    """
    group = "mon_groups/a/mon_data"
    put(
        tmp_path,
        {
            f"{group}/mon_L3_00/mbm_total_bytes": "10\n",
            f"{group}/mon_L3_09/mbm_total_bytes": "40\n",
            f"{group}/mon_L3_09/llc_occupancy": "Error\n",
            f"{group}/mon_PERF_PKG_01/core_energy": "1.25\n",
            f"{group}/mon_SOMETHING_01/mbm_total_bytes": "7\n",
        },
    )
    assert files_of(tmp_path).read("mon_groups/a") == {TRAFFIC: {0: 10, 9: 40}, CORE_ENERGY: {1: 1_250_000}}
    assert MonitoringFiles(tmp_path, [TRAFFIC]).read("mon_groups/a") == {TRAFFIC: {0: 10, 9: 40}}


def test_a_cache_with_parts_counts_once(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "mon_data/mon_L3_00/mbm_total_bytes": "30\n",
            "mon_data/mon_L3_00/mon_sub_L3_00/mbm_total_bytes": "10\n",
            "mon_data/mon_L3_00/mon_sub_L3_01/mbm_total_bytes": "20\n",
        },
    )
    assert files_of(tmp_path).read(ROOT_GROUP)[TRAFFIC] == {0: 30}


@pytest.mark.parametrize("text", ["Unavailable\n", "Unassigned\n", "Error\n", "", None])
def test_a_count_without_number_is_unknown(tmp_path: Path, text: str | None) -> None:
    put(tmp_path, MOUNTED)
    path = tmp_path / "sys/fs/resctrl/mon_data/mon_L3_01"
    path.mkdir()
    if text is not None:
        (path / "mbm_total_bytes").write_text(text)
    assert files_of(tmp_path).read(ROOT_GROUP) == {TRAFFIC: {0: 900, 1: None}, CORE_ENERGY: {}}


def test_groups_and_tasks(tmp_path: Path) -> None:
    put(
        tmp_path,
        {**MOUNTED, "site/tasks": "7\n8\n", "site/mon_groups/other/tasks": "8\n", "locked/tasks": ""},
    )
    files = files_of(tmp_path)
    (tmp_path / "sys/fs/resctrl/mon_groups").mkdir()
    assert files.control_groups() == [ROOT_GROUP, "site"]
    assert files.monitoring_groups("site") == ["site/mon_groups/other"]
    assert resctrl.control_of("site/mon_groups/other") == "site"
    assert resctrl.control_of("mon_groups/a") == ROOT_GROUP
    assert files.tasks("site") == {7, 8}
    group = files.create(ROOT_GROUP, "a")
    assert files.create(ROOT_GROUP, "a") == group == "mon_groups/a"
    with pytest.raises(DeviceError, match="No such file"):
        files.add_tasks(group, [5])  # a plain directory has no file `tasks`
    files.remove(group)
    files.remove(group)
    assert files.monitoring_groups(ROOT_GROUP) == []


def test_an_unmounted_file_system_is_one_error(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    for read in (files.control_groups, lambda: files.read(ROOT_GROUP), lambda: files.tasks("mon_groups/a")):
        with pytest.raises(DeviceError):
            read()


def test_the_tasks_of_a_job_are_all_threads_in_its_control_group(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    put(
        tmp_path,
        {
            "cpu.stat": "usage_usec 5\n",
            "cgroup.procs": "",
            "step_0/slurm/cgroup.procs": "100\n",
            "step_0/user/task_0/cgroup.procs": "101\n0\nnonsense\n",
            "step_0/user/task_1/cgroup.procs": "102\n103\n",
        },
        folder,
    )
    for pid, tids in ((100, (100,)), (101, (101,)), (102, (102, 112, 122))):
        for tid in tids:
            (tmp_path / f"proc/{pid}/task/{tid}").mkdir(parents=True)
    job = JobProcesses(7)
    tasks = job_tasks(tmp_path, {job: str(tmp_path / folder / "cpu.stat")})
    assert tasks == {7: {100, 101, 102, 112, 122}}


def test_without_a_list_of_processes_the_tree_of_slurmstepd_is_taken(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for pid, parent, title in ((50, 1, "slurmstepd: [7.0]"), (51, 50, "bash"), (60, 1, "slurmstepd: [8.0]")):
        tree.put(f"proc/{pid}/stat", f"{pid} (x) S {parent}" + " 0" * 17 + " 5 0\n")
        tree.process_ids(pid).put(f"proc/{pid}/cmdline", title)
        (tmp_path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
    (tmp_path / "proc/51/task/52").mkdir()
    group = tree.put("sys/fs/cgroup/job_7/cpu.stat", "usage_usec 5\n")
    for source in (None, PROCESS_TREE, str(group)):
        assert job_tasks(tmp_path, {JobProcesses(7): source}) == {7: {50, 51, 52}}
    assert job_tasks(tmp_path, {JobProcesses(9): None}) == {9: set()}


AMOUNTS = st.none() | st.integers(0, 10**15)
USES = st.builds(
    MonitoredUse,
    total=AMOUNTS,
    jobs=st.dictionaries(st.sampled_from(["1.0", "2.0", "3.0"]), AMOUNTS),
    uncounted=st.frozensets(st.sampled_from(["1.0", "2.0"])),
)


@given(USES, USES)
def test_joined_use_is_the_sum_and_unknown_stays_unknown(one: MonitoredUse, other: MonitoredUse) -> None:
    both = one.joined_with(other)
    assert (both.total is None) == (one.total is None or other.total is None)
    for job in {**one.jobs, **other.jobs}:
        first, second = one.jobs.get(job, 0), other.jobs.get(job, 0)
        expected = None if first is None or second is None else first + second
        assert both.jobs[job] == expected


@given(USES)
def test_use_survives_a_checkpoint_and_an_ended_job_keeps_its_use(use: MonitoredUse) -> None:
    assert MonitoredUse.load(json.loads(json.dumps(use.dump()))) == use
    for job, used in use.jobs.items():
        rest = use.without(job)
        assert job not in rest.jobs
        assert rest.jobs[GONE] == used
        assert (GONE in rest.uncounted) == (job in use.uncounted)
