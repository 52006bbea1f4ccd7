"""Tests of the emulated files of resctrl.

resctrl counts memory traffic and energy by groups of tasks. The tests check the groups, their inheritance by
child processes, and the exhaustion of monitoring ids. They also check that the counts follow the model.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_bench import Clock

from slurm_energy_lab.model import KernelRequest, load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import Directory, File, GroupDirectory, Tree
from slurm_energy_lab.tree.process_groups import ProcessGroups
from slurm_energy_lab.tree.resctrl import ROOT, ResctrlFiles, l3_domains

MON = f"{ROOT}/mon_groups"


class Resctrl:
    """The emulated resctrl file tree, with the files of its processes in a folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        settings = {"num_rmids": 4, **settings}
        profile = load_profile("xeon-8358", {f"resctrl.{key}": value for key, value in settings.items()})
        self.clock = Clock()
        self.model = RealtimeModel(profile, self.clock)
        self.tree = Tree()
        self.proc = folder
        self.files = ResctrlFiles(self.tree, self.model, ProcessGroups(folder, self.clock))

    def process(self, pid: int, parent: int = 1, threads: tuple[int, ...] = ()) -> None:
        started = int(self.clock() * 100)
        for tid in (pid, *threads):
            (self.proc / f"{pid}/task/{tid}").mkdir(parents=True)
            home = self.proc / str(tid)
            home.mkdir(exist_ok=True)
            (home / "stat").write_text(f"{tid} (a) b) S {parent}" + " 0" * 17 + f" {started}\n")
            (home / "status").write_text(f"Name:\tx\nTgid:\t{pid}\n")

    def group(self, name: str, parent: str = MON) -> str:
        above = self.tree.get(parent)
        assert isinstance(above, GroupDirectory)
        above.create(name)
        return f"{parent}/{name}"

    def remove(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        above = self.tree.get(parent)
        assert isinstance(above, GroupDirectory)
        above.discard(name)

    def read(self, path: str) -> str:
        entry = self.tree.get(path)
        assert isinstance(entry, File)
        return entry.render().decode()

    def move(self, group: str, tids: str) -> None:
        entry = self.tree.get(f"{group}/tasks")
        assert isinstance(entry, File)
        assert entry.store is not None
        entry.store(tids.encode())

    def run(self, pid: int, cpus: tuple[int, ...]) -> int:
        with self.model.modify() as model:
            run = model.submit(KernelRequest("triad", "cpu", full_speed_s=1e4, cpus=cpus), model.now_s)
        self.files.start_task(run, lambda: [pid])
        return run

    def traffic(self, group: str, domain: int = 0) -> int:
        return int(self.read(f"{group}/mon_data/mon_L3_{domain:02d}/mbm_total_bytes"))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Resctrl]:
    resctrl = Resctrl(tmp_path, core_energy_rmids=8)
    yield resctrl
    resctrl.model.close()


def test_traffic_and_energy_count_in_the_group_of_the_process(made: Resctrl) -> None:
    group = made.group("a")
    made.process(10)
    made.process(11)
    made.move(group, "10\n")
    for pid, cpus in ((10, (0, 1)), (11, (2, 3))):
        made.run(pid, cpus)
    made.clock.now_s += 10
    assert made.traffic(group) == pytest.approx(10 * 2 * 13e9, rel=0.01)
    assert made.traffic(ROOT) == pytest.approx(2 * made.traffic(group), rel=1e-4)
    assert made.traffic(group, 1) == made.traffic(ROOT, 1) == 0
    core, package = (float(made.read(f"{g}/mon_data/mon_PERF_PKG_00/core_energy")) for g in (group, ROOT))
    with made.model.now() as model:
        assert package == pytest.approx(model.energy_joules("core[0]"), rel=1e-4)
    assert core == pytest.approx(package / 2, rel=1e-4)


def test_children_and_threads_inherit_the_group_that_was_theirs_at_creation(made: Resctrl) -> None:
    made.process(10)
    made.clock.now_s += 1
    made.process(11, parent=10)
    group = made.group("a")
    made.clock.now_s += 1
    made.move(group, "10")
    made.clock.now_s += 1
    made.process(12, parent=10, threads=(13,))
    made.process(14, parent=12)
    made.process(15, parent=11)
    assert made.read(f"{group}/tasks").split() == ["10", "12", "13", "14"]
    assert made.read(f"{ROOT}/tasks").split() == ["10", "11", "12", "13", "14", "15"]
    made.remove(group)
    assert made.read(f"{ROOT}/tasks").split() == ["10", "11", "12", "13", "14", "15"]
    assert made.tree.get(group) is None


def test_a_task_that_moves_counts_in_its_new_group_from_then_on(made: Resctrl) -> None:
    group = made.group("a")
    made.process(10)
    made.run(10, (0, 1))
    made.clock.now_s += 5
    made.move(group, "10")
    made.clock.now_s += 5
    assert made.traffic(group) == pytest.approx(made.traffic(ROOT) / 2, rel=1e-3)
    made.remove(group)
    assert made.traffic(ROOT) == pytest.approx(5 * 2 * 13e9, rel=0.01)  # the group's part is gone


def test_ids_run_out_and_stay_in_limbo(tmp_path: Path) -> None:
    made = Resctrl(tmp_path, limbo_s=20.0)
    for name in "abc":
        made.group(name)
    with pytest.raises(OSError, match="No space") as full:
        made.group("d")
    assert full.value.errno == errno.ENOSPC
    made.remove(f"{MON}/a")
    with pytest.raises(OSError, match="busy") as busy:
        made.group("d")
    assert busy.value.errno == errno.EBUSY
    made.clock.now_s += 21
    made.group("d")
    made.model.close()


def test_a_task_enters_a_monitoring_group_of_its_own_control_group_only(made: Resctrl) -> None:
    below_root, control = made.group("a"), made.group("site", ROOT)
    below_control = made.group("b", f"{control}/mon_groups")
    made.process(10)
    made.move(control, "10")
    with pytest.raises(OSError, match="Invalid"):
        made.move(below_root, "10")
    made.move(below_control, "10")
    for wrong in ("x", "999", ""):
        with pytest.raises(OSError, match=r"Invalid|No such process"):
            made.move(below_control, wrong)
    assert made.traffic(ROOT) == 0
    made.run(10, (0,))
    made.clock.now_s += 5
    assert made.traffic(below_control) == made.traffic(control) > 0
    assert made.traffic(ROOT) == 0  # control groups are not below the root group


def test_reports_of_failure_replace_the_count_and_leave_the_sum(made: Resctrl) -> None:
    group = made.group("a")
    made.process(10)
    made.move(group, "10")
    made.run(10, (0, 1))
    made.clock.now_s += 5
    assert made.traffic(ROOT) > 0
    made.tree.texts[f"{group}/mon_data/mon_L3_00/mbm_total_bytes"] = b"Unavailable\n"
    assert made.traffic(ROOT) == 0


def test_an_unmounted_file_system_is_an_empty_directory(tmp_path: Path) -> None:
    made = Resctrl(tmp_path, mounted=False)
    entry = made.tree.get(ROOT)
    assert isinstance(entry, Directory)
    assert not entry.children
    made.run(10, (0,))  # counted nowhere
    made.model.close()


def test_each_l3_cache_is_a_domain() -> None:
    assert l3_domains(load_profile("xeon-8358"), 1) == [1]
    epyc = load_profile("epyc-7513-a100")
    assert l3_domains(epyc, 0) + l3_domains(epyc, 1) == list(range(2 * len(l3_domains(epyc, 0))))
