"""Test the attribution of a node's energy to jobs that have different memory traffic.

The node counts the memory traffic of each job with the kernel's interface resctrl. The tests use an
emulated node with a virtual clock. They compare the energy attributed to each job with the job's true
energy in the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.records import EnergyRecord
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.tree.entries import Directory, File, GroupDirectory
from slurm_energy_lab.virtual_node import VirtualNode

RESCTRL = "/sys/fs/resctrl"
MONITORED = {"resctrl.num_rmids": 64}
CORE_ENERGY = {**MONITORED, "resctrl.core_energy_rmids": 64}
PROFILE = "xeon-8358"


class Lab:
    """Emulated node on which jobs run one after another, for tests of the attribution of energy.

    The true energy of each job is known from the model.
    """

    def __init__(self, folder: Path, overrides: dict[str, Any], profile: str = PROFILE) -> None:
        self.profile = load_profile(profile, overrides)
        packages = self.profile.cpu.packages
        self.idle_watts = {
            "cpu": packages * self.profile.cpu.idle_watts,
            "dram": packages * self.profile.memory.idle_watts,
        }
        agent = {"idle_watts": self.idle_watts}
        self.node = VirtualNode(folder, profile, 2.0, agent, overrides=overrides)
        self._cpus: dict[int, int] = {}
        self._next_core = 0

    def start(self, kernel: str | None, cores: int) -> int:
        """Start a job on free cores; return its id."""
        job = self.node.new_job_id()
        total, first = self.profile.cpu.cores, self._next_core
        self._next_core = (first + cores) % total
        threads = range(self.profile.cpu.threads_per_core)
        cpus = tuple(core + total * thread for core in range(first, first + cores) for thread in threads)
        self._cpus[job] = len(cpus)
        self.node.begin(job, len(cpus))
        self.node.begin_step(job)
        if kernel is not None:
            self.node.submit(kernel, "cpu", 1000.0, job, cpus=cpus)
        return job

    def end(self, *jobs: int) -> list[dict[str, float]]:
        """End several jobs at the same time.

        Return for each job how much its recorded energy differs from the true energy, by component.
        """
        truth = [self.node.dynamic_joules(job) for job in jobs]
        for job in jobs:
            self.node.end(job, self._cpus[job])
        return [self._errors(job, dynamic) for job, dynamic in zip(jobs, truth, strict=True)]

    def _errors(self, job: int, dynamic: dict[str, float]) -> dict[str, float]:
        record = self.record(job)
        share = self._cpus[job] / self.profile.cpu.cpus
        return {
            part.name: part.energy_joules
            / (dynamic[part.name] + share * self.idle_watts[part.name] * record.elapsed_s)
            - 1
            for part in record.components
            if part.name in self.idle_watts and part.energy_joules is not None
        }

    def cancel_kernels(self) -> None:
        with self.node.model.modify() as model:
            for run in model.running():
                model.forget(run)

    def record(self, job: int) -> EnergyRecord:
        return self.node.records()[job]

    def check_accounts(self) -> None:
        accounts = self.node.manager.status()["energy_accounts"]
        assert accounts["cpu"]["measured"] > 0
        for parts in accounts.values():
            assert parts["measured"] == parts["jobs"] + parts["idle"] + parts["unattributed"]

    def groups(self, control: str = "") -> set[str]:
        entry = self.node.files.get(f"{RESCTRL}{control}/mon_groups")
        assert isinstance(entry, Directory)
        return set(entry.children)

    def make_group(self, folder: str, name: str) -> None:
        entry = self.node.files.get(f"{RESCTRL}{folder}")
        assert isinstance(entry, GroupDirectory)
        entry.create(name)

    def move_job(self, job: int, group: str) -> None:
        entry = self.node.files.get(f"{RESCTRL}/{group}/tasks")
        assert isinstance(entry, File)
        assert entry.store is not None
        entry.store(str(10_000 + job).encode())


@pytest.fixture(scope="module")
def lab_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Lab]]:
    """Return a function that yields the emulated lab (node) with given properties.

    The function creates a lab at the first call with these properties. Later calls with equal properties
    return the same lab. The jobs of all tests in a lab run one after another.
    """
    labs: dict[str, Lab] = {}

    def lab(**overrides: Any) -> Lab:
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        key = repr(sorted(dotted.items()))
        if key not in labs:
            labs[key] = Lab(tmp_path_factory.mktemp("lab"), dotted)
            labs[key].node.wait(2.0)
        return labs[key]

    yield lab
    for one in labs.values():
        one.node.close()


@pytest.fixture
def lab(lab_of: Callable[..., Lab]) -> Iterator[Lab]:
    lab = lab_of(resctrl__num_rmids=8)
    yield lab
    lab.cancel_kernels()
    lab.node.wait(1.0)
    lab.check_accounts()
    assert not [name for name in lab.groups() if name.startswith("senergy-")]


def note_of(record: EnergyRecord, component: str) -> str:
    return next(note for note in record.notes if "divided by" in note and component in note)


def test_gemm_beside_triad_is_within_a_tenth_for_each_job(lab: Lab) -> None:
    jobs = lab.start("gemm", 8), lab.start("triad", 8)
    lab.node.wait(10)
    for errors in lab.end(*jobs):
        assert abs(errors["cpu"]) < 0.1
        assert abs(errors["dram"]) < 0.02
    notes = lab.record(jobs[0]).notes
    assert "dynamic energy of dram divided by memory traffic" in notes
    assert "dynamic energy of cpu divided by CPU time" in notes


@pytest.mark.slow
def test_without_resctrl_the_same_jobs_are_divided_by_cpu_time_and_labelled(
    lab_of: Callable[..., Lab],
) -> None:
    lab = lab_of()
    jobs = lab.start("gemm", 8), lab.start("triad", 8)
    lab.node.wait(10)
    gemm, triad = lab.end(*jobs)
    assert gemm["dram"] > 1
    assert triad["dram"] < -0.3
    assert "dynamic energy of cpu and dram divided by CPU time" in lab.record(jobs[0]).notes
    lab.cancel_kernels()
    lab.check_accounts()


@pytest.mark.slow
def test_core_energy_divides_the_energy_of_the_cores(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(resctrl__num_rmids=8, resctrl__core_energy_rmids=8)
    jobs = lab.start("gemm", 8), lab.start("monte_carlo", 8)
    lab.node.wait(10)
    for errors in lab.end(*jobs):
        assert abs(errors["cpu"]) < 0.02
    assert "dynamic energy of cpu divided by core energy" in lab.record(jobs[0]).notes
    lab.cancel_kernels()
    lab.check_accounts()


def test_traffic_outside_jobs_is_unattributed(lab: Lab) -> None:
    job = lab.start("gemm", 8)
    before = lab.node.manager.status()["energy_accounts"]["dram"]["unattributed"]
    lab.node.submit("triad", "cpu", 1000.0, None, cpus=tuple(range(32, 40)))
    lab.node.wait(10)
    (errors,) = lab.end(job)
    assert abs(errors["dram"]) < 0.02
    lab.node.wait(1)
    after = lab.node.manager.status()["energy_accounts"]["dram"]["unattributed"]
    assert (after - before) / 1e6 > 0.9 * 10 * 8 * 13e9 * lab.profile.memory.joules_per_byte


@pytest.mark.parametrize("text", ["Unavailable", "Unassigned", "Error"])
def test_a_count_that_is_unknown_for_a_while_is_not_zero(lab: Lab, text: str) -> None:
    jobs = lab.start("triad", 8), lab.start("triad", 8)
    group = f"senergy-{jobs[0]}.0"
    path = f"{RESCTRL}/mon_groups/{group}/mon_data/mon_L3_00/mbm_total_bytes"
    lab.node.wait(3)
    lab.node.files.texts[path] = text.encode() + b"\n"
    lab.node.wait(4)
    del lab.node.files.texts[path]
    lab.node.wait(3)
    for errors in lab.end(*jobs):
        assert abs(errors["dram"]) < 0.05  # two equal jobs: CPU time divides them well
    note = note_of(lab.record(jobs[0]), "dram")
    assert "by CPU time for" in note
    assert "by memory traffic for" in note


@pytest.mark.slow
def test_without_a_free_id_a_job_is_charged_otherwise_until_one_is_free(
    lab_of: Callable[..., Lab],
) -> None:
    lab = lab_of(resctrl__num_rmids=2)  # one of them is the root group's
    first = lab.start("triad", 8)
    second = lab.start("gemm", 8)
    third = lab.start("triad", 8)
    lab.node.wait(10)
    assert lab.groups() == {f"senergy-{first}.0"}
    (errors,) = lab.end(first)
    assert abs(errors["dram"]) < 0.02  # its own traffic is known
    assert "divided by CPU time" in note_of(lab.record(first), "cpu")
    assert "divided by memory traffic" in note_of(lab.record(first), "dram")
    assert lab.groups() == set()
    lab.node.wait(35)
    assert lab.groups() == {f"senergy-{second}.0"}
    lab.node.wait(30)
    errors = lab.end(second, third)
    assert "by CPU time for" in note_of(lab.record(second), "dram")
    assert "by memory traffic for" in note_of(lab.record(second), "dram")
    assert "dram divided by CPU time" in " ".join(lab.record(third).notes)
    lab.cancel_kernels()
    lab.check_accounts()


@pytest.mark.slow
def test_ids_in_limbo_are_waited_for(lab_of: Callable[..., Lab]) -> None:
    lab = lab_of(resctrl__num_rmids=2, resctrl__limbo_s=20.0)
    first = lab.start(None, 8)
    lab.node.wait(1)
    lab.end(first)
    job = lab.start("triad", 8)
    lab.node.wait(5)
    assert lab.groups() == set()
    lab.node.wait(35)
    assert lab.groups() == {f"senergy-{job}.0"}
    lab.end(job)
    lab.check_accounts()
    lab.cancel_kernels()


@pytest.mark.slow
def test_after_a_kill_running_jobs_keep_their_groups_and_others_lose_theirs(lab: Lab) -> None:
    jobs = lab.start("gemm", 8), lab.start("triad", 8)
    lab.make_group("/mon_groups", "site-tool")
    lab.make_group("/mon_groups", "senergy-999.0")
    lab.node.wait(12)
    lab.node.manager.housekeeping()
    lab.node.kill_agent()
    lab.node.clock.now_s += 5
    lab.node.start_agent()
    assert lab.groups() == {"site-tool", *(f"senergy-{job}.0" for job in jobs)}
    lab.node.wait(10)
    for errors in lab.end(*jobs):
        assert abs(errors["dram"]) < 0.02
    assert lab.groups() == {"site-tool"}
    lab.node.files.get(f"{RESCTRL}/mon_groups").discard("site-tool")


@pytest.mark.slow
def test_a_job_in_a_site_s_control_group_is_monitored_below_it(lab: Lab) -> None:
    lab.make_group("", "batch")
    other = lab.start("gemm", 8)
    job = lab.start(None, 8)
    lab.move_job(job, "batch")
    lab.node.wait(1)
    total = lab.profile.cpu.cores
    lab.node.submit("triad", "cpu", 1000.0, job, cpus=tuple(range(total - 8, total)))
    lab.node.wait(20)
    assert lab.groups("/batch") == {f"senergy-{job}.0"}
    for errors in lab.end(other, job):
        assert abs(errors["dram"]) < 0.1
    assert lab.groups("/batch") == set()
    lab.node.files.get(RESCTRL).discard("batch")


def test_tasks_that_others_monitor_stay_in_their_group(lab: Lab) -> None:
    job = lab.start("triad", 8)
    lab.make_group("/mon_groups", "site-tool")
    lab.move_job(job, "mon_groups/site-tool")
    lab.node.wait(10)
    assert lab.groups() == {"site-tool"}
    lab.end(job)
    assert lab.groups() == {"site-tool"}
    assert "by CPU time for 9" in note_of(lab.record(job), "dram")
    lab.node.files.get(f"{RESCTRL}/mon_groups").discard("site-tool")


@pytest.mark.slow
def test_groups_that_others_remove_are_made_again(lab: Lab) -> None:
    jobs = lab.start("gemm", 8), lab.start("triad", 8)
    lab.node.wait(3)
    lab.node.files.get(f"{RESCTRL}/mon_groups").discard(f"senergy-{jobs[1]}.0")
    lab.node.wait(3)
    assert lab.groups() == {f"senergy-{job}.0" for job in jobs}
    lab.node.wait(30)
    for errors in lab.end(*jobs):
        assert abs(errors["dram"]) < 0.1


HELD_OUT: Sequence[tuple[str, str, str]] = [
    ("random-cpu-7001", "triad", "dist"),
    ("random-cpu-7002", "stencil", "monte_carlo"),
    ("random-cpu-7003", "spmv", "stencil"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "one", "other"), HELD_OUT)
def test_memory_energy_on_unknown_hardware(tmp_path: Path, profile: str, one: str, other: str) -> None:
    """The energy of memory is divided correctly between two jobs on hardware that is held out.

    Held out means that this hardware and these pairs of programs were not used to develop the division.
    """
    lab = Lab(tmp_path, MONITORED, profile)
    try:
        lab.node.wait(2)
        cores = lab.profile.cpu.cores // 4
        jobs = lab.start(one, cores), lab.start(other, cores)
        lab.node.wait(10)
        for job, errors in itertools.zip_longest(jobs, lab.end(*jobs)):
            assert abs(errors.get("dram", 0.0)) < 0.1, job
        lab.check_accounts()
    finally:
        lab.node.close()
