"""Test how hardware settings are chosen for jobs that share a node.

The requests (claims) of the jobs are merged into one value. The tests begin and end jobs, let other programs
change values, and kill the agent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hardware_tree import Tree
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property_examples import examples

from slurm_energy import atomic_file
from slurm_energy.control.apply import apply, reconcile
from slurm_energy.control.arbitration import Arbiter, JobAllocation, KnobDomains, merge_claims
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.control.restore import restore
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.settings import (
    Setting,
    boost_off_setting,
    epp_setting,
    frequency_range_setting,
    governor_setting,
    rapl_limit_settings,
)

LIMIT = "powercap.power_limit[package-0]"
LIMIT_FILE = "sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw"


@pytest.mark.parametrize(
    ("name", "original", "requested", "expected"),
    [
        ("powercap.power_limit", "250000000", ["150000000", "180000000"], "180000000"),
        ("powercap.power_limit", "250000000", ["150000000", "300000000"], "250000000"),
        ("intel_gpu.power_limit", "0", ["150000000", "180000000"], "180000000"),
        ("nvml.power_limit", "400000", ["99000", "100000"], "100000"),
        ("powercap.time_window", "28000000", ["1000000", "2000000"], "2000000"),
        ("powercap.enabled", "0", ["1", "1"], "1"),
        ("powercap.enabled", "0", ["1", "0"], "0"),
        ("cpufreq.boost", "1", ["0", "0"], "0"),
        ("cpufreq.boost", "1", ["0", "1"], "1"),
        ("nvml.persistence", "0", ["1"], "1"),
        ("nvml.locked_clocks", "default", ["210-1005", "300-1200"], "210-1200"),
        ("nvml.locked_clocks", "default", ["210-1005", "default"], "default"),
        ("nvml.power_profile", "NETWORK", ["MAX_Q", "MAX_Q"], "MAX_Q"),
        ("nvml.power_profile", "NETWORK", ["MAX_Q", "HPC"], "NETWORK"),
        ("cpufreq.governor", "ondemand", ["powersave", "powersave"], "powersave"),
        ("cpufreq.governor", "ondemand", ["powersave", "performance"], "ondemand"),
    ],
)
def test_claims_merge_to_the_least_restrictive_value(
    name: str, original: str, requested: list[str], expected: str
) -> None:
    assert merge_claims(name, original, requested, affects_others=False) == expected
    assert merge_claims(name, original, requested[::-1], affects_others=False) == expected
    assert merge_claims(name, original, requested, affects_others=True) == original


class Node:
    """A node for tests, whose hardware is represented by plain files, and the jobs on the node.

    The CPUs are divided among packages. The CPUs are also divided into cpufreq policies of `width` CPUs
    each.
    """

    def __init__(
        self, folder: Path, cpus: int = 4, packages: int = 2, width: int = 1, driver: str = "intel_pstate"
    ) -> None:
        (folder / "state").mkdir()
        self.tree = Tree(folder / "node").cpus(cpus).two_packages().cores(cpus, packages)
        self.tree.cpufreq(cpus // width, driver, "powersave")
        self.policies = [range(width * n, width * (n + 1)) for n in range(cpus // width)]
        for number, members in enumerate(self.policies):
            self.tree.put(
                f"sys/devices/system/cpu/cpufreq/policy{number}/affected_cpus", " ".join(map(str, members))
            )
        self.cpus, self.near = frozenset(range(cpus)), frozenset(range(cpus // packages))
        self.tree.put("sys/devices/system/cpu/cpufreq/boost", 1)
        self.before = self.tree.snapshot()
        self.devices: NodeDevices = discover(self.tree.root)
        self.path = folder / "state/journal.json"
        self.journal = SettingsJournal.load(self.path)
        self.allocations: dict[str, JobAllocation] = {}

    @property
    def jobs(self) -> Arbiter:
        return Arbiter(self.allocations, KnobDomains.from_hardware(self.devices.hardware))

    def begin(self, owner: str, allocation: JobAllocation, *requests: Setting):
        self.allocations[owner] = allocation
        return apply(self.devices, self.journal, owner, requests, None, self.jobs)

    def end(self, owner: str):
        del self.allocations[owner]
        return restore(self.devices, self.journal, owner, None, self.jobs)

    def limit(self) -> int:
        return int(self.tree.get(LIMIT_FILE)) // 1_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.devices.close()


def watts(value: float) -> tuple[Setting, ...]:
    return rapl_limit_settings("package-0", value, 1.0)


def test_the_highest_cap_holds_and_each_claim_ends_with_its_job(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    outcomes = {o.key: o for o in node.begin("2.0", JobAllocation(frozenset({1})), *watts(120))}
    assert (outcomes[LIMIT].failed, outcomes[LIMIT].applied) == (False, "150000000")
    assert outcomes[LIMIT].note == "other jobs on the node require 150 W"
    (shared,) = [result for result in node.end("1.0") if result.key == LIMIT]
    assert (shared.done, shared.note) == (True, "other jobs on the node hold 120 W")
    assert node.limit() == 120
    assert all(result.done and not result.note for result in node.end("2.0"))
    assert node.tree.snapshot() == node.before


def test_a_job_without_requests_lifts_other_caps_on_its_packages(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    node.begin("2.0", JobAllocation(frozenset({2, 3})))
    assert node.limit() == 150
    node.begin("3.0", JobAllocation(None))  # its CPUs are unknown and may be anywhere
    assert node.limit() == 250
    assert node.tree.get("sys/class/powercap/intel-rapl:1/enabled") == "0"
    node.begin("3.0", JobAllocation(frozenset({3})))
    assert node.limit() == 150
    node.begin("4.0", JobAllocation(frozenset({1})))
    assert node.limit() == 250
    node.end("4.0")
    assert node.limit() == 150


def test_boost_is_off_only_if_all_request_it_and_other_bounds_survive(node: Node, monkeypatch) -> None:
    boost = node.devices.knobs["cpufreq.boost[all]"]
    write = boost.write

    def overwriting(value: str) -> None:
        write(value)
        for number in range(4):
            path = f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_max_freq"
            node.tree.put(path, 3400000 if value == "1" else 2600000)

    monkeypatch.setattr(boost, "write", overwriting)
    node.begin("1.0", JobAllocation(frozenset({0})), boost_off_setting())
    node.begin(
        "2.0",
        JobAllocation(frozenset({1})),
        boost_off_setting(),
        frequency_range_setting("policy1", 800000, 2100000),
    )
    assert node.tree.get("sys/devices/system/cpu/cpufreq/boost") == "0"
    node.begin("3.0", JobAllocation(frozenset({2})))
    assert node.tree.get("sys/devices/system/cpu/cpufreq/boost") == "1"
    assert [node.tree.policy(n, "scaling_max_freq") for n in range(3)] == ["3400000", "2100000", "3400000"]
    node.end("3.0")
    assert node.tree.get("sys/devices/system/cpu/cpufreq/boost") == "0"
    node.end("1.0")
    assert [node.tree.policy(n, "scaling_max_freq") for n in range(3)] == ["2600000", "2100000", "2600000"]
    node.end("2.0")
    assert node.tree.snapshot() == node.before


def test_a_limit_changed_by_another_program_is_not_touched_by_later_jobs(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    node.tree.put(LIMIT_FILE, 100_000_000)
    outcomes = {o.key: o for o in node.begin("2.0", JobAllocation(frozenset({1})), *watts(180))}
    assert (outcomes[LIMIT].failed, outcomes[LIMIT].note) == (True, "left alone: another program set 100 W")
    node.end("1.0")
    node.end("2.0")
    assert node.limit() == 100
    assert not node.journal.entries


def test_a_finished_job_does_not_overwrite_the_change_of_another_program(node: Node) -> None:
    node.begin("1.0", JobAllocation(None))
    node.begin("2.0", JobAllocation(frozenset({0})), *watts(150))
    node.begin("3.0", JobAllocation(frozenset({1})), *watts(150))
    node.tree.put(LIMIT_FILE, 100_000_000)
    for owner in ("2.0", "1.0", "3.0"):
        node.end(owner)
    assert node.limit() == 100


def test_a_lower_cap_that_failed_for_one_job_is_raised_again_later(node: Node, monkeypatch) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    knob = node.devices.knobs[LIMIT]
    with monkeypatch.context() as patch:
        patch.setattr(knob, "write", lambda _value: None)
        node.begin("2.0", JobAllocation(frozenset({1})))
    assert node.limit() == 150
    reconcile(node.devices, node.journal, node.jobs)
    assert node.limit() == 250


def test_one_write_of_the_journal_before_and_one_after(node: Node, monkeypatch) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150), governor_setting("policy0", "performance"))
    count = []
    write = atomic_file.write
    monkeypatch.setattr(atomic_file, "write", lambda *a, **k: (count.append(1), write(*a, **k)))
    node.begin("2.0", JobAllocation(frozenset({1})), *watts(180), governor_setting("policy1", "performance"))
    assert len(count) == 2
    node.begin("3.0", JobAllocation(frozenset({2, 3})))
    assert len(count) == 2  # the job changes no merged value
    node.end("2.0")
    assert len(count) == 4


def test_the_claim_of_a_finished_job_does_not_count(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(200))
    del node.allocations["1.0"]  # its epilog never ran, and its settings were not restored
    node.begin("2.0", JobAllocation(frozenset({1})), *watts(150))
    assert node.limit() == 150
    node.end("2.0")
    assert node.tree.snapshot() == node.before


POLICIES = st.sampled_from(["performance", "powersave"])
CAPS = st.one_of(st.none(), st.integers(100, 260))


class Jobs(RuleBasedStateMachine):
    """State machine for random tests of the hardware settings of a node.

    Its actions: jobs begin, report CPUs and end; other programs interfere; the agent is killed and restarts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.requests: dict[str, list[Setting]] = {}
        self.caps: dict[str, int | None] = {}
        self.external_value: int | None = None
        self.ids = iter(range(1, 10_000))

    @initialize(
        cpus=st.sampled_from([2, 4, 8]),
        packages=st.sampled_from([1, 2]),
        width=st.sampled_from([1, 2]),
        driver=st.sampled_from(["intel_pstate", "acpi-cpufreq"]),
    )
    def install(self, **hardware) -> None:
        self.node = Node(Path(self.folder.name), **hardware)

    def teardown(self) -> None:
        with self.folder:
            for owner in list(self.node.allocations):
                self.node.end(owner)
            assert not self.node.path.exists()
            expected = dict(self.node.before)
            if self.external_value is not None:
                expected[LIMIT_FILE] = str(self.external_value)
            self.node.devices.close()
            assert self.node.tree.snapshot() == expected

    def free(self) -> set[int]:
        allocated = [allocation.cpus or () for allocation in self.node.allocations.values()]
        return self.node.cpus - {cpu for cpus in allocated for cpu in cpus}

    def cpus_for_a_job(self, data: st.DataObject) -> frozenset[int]:
        free = sorted(self.free())
        return data.draw(st.frozensets(st.sampled_from(free))) if free else frozenset()

    def request_settings(self, owner: str, cpus: frozenset[int] | None, name: str) -> None:
        cap = self.caps[owner]
        requests = [*watts(cap)] if cap is not None and cpus and cpus & self.node.near else []
        for number, members in enumerate(self.node.policies):
            if cpus and cpus.issuperset(members):
                requests.append(governor_setting(f"policy{number}", name))
                if f"cpufreq.epp[policy{number}]" in self.node.devices.knobs:
                    requests.append(epp_setting(f"policy{number}", name[:5]))
        self.requests[owner] = requests
        outcomes = self.node.begin(owner, JobAllocation(cpus), *requests)
        assert {outcome.key for outcome in outcomes} == {request.key for request in requests}

    def killed(self, writes: int, function, *arguments) -> bool:
        """Call a function and kill the agent in the middle of the function.

        The agent is killed at the write to the hardware that follows the first `writes` writes.

        Returns:
            Whether the agent was killed; False if the function needed no more than `writes` writes.
        """
        left = iter(range(writes))

        class Killed(BaseException):
            pass

        def dying(write):
            def one(value: str) -> None:
                if next(left, None) is None:
                    raise Killed
                write(value)

            return one

        with pytest.MonkeyPatch.context() as patch:
            for knob in self.node.devices.knobs.values():
                patch.setattr(knob, "write", dying(knob.write))
            try:
                function(*arguments)
            except Killed:
                self.node.journal = SettingsJournal.load(self.node.path)
                return True
        return False

    @rule(cap=CAPS, name=POLICIES, known=st.booleans(), data=st.data(), writes=st.integers(0, 20))
    def begin(self, cap: int | None, name: str, known: bool, data: st.DataObject, writes: int) -> None:
        """Let a job request its settings. The agent may be killed meanwhile and then requests them again."""
        owner = f"{next(self.ids)}.0"
        self.caps[owner] = cap
        cpus = self.cpus_for_a_job(data) if known else None
        if self.killed(writes, self.request_settings, owner, cpus, name):
            self.request_settings(owner, cpus, name)

    @precondition(lambda self: any(t.cpus is None for t in self.node.allocations.values()))
    @rule(name=POLICIES, data=st.data())
    def step(self, name: str, data: st.DataObject) -> None:
        waiting = [owner for owner, allocation in self.node.allocations.items() if allocation.cpus is None]
        self.request_settings(data.draw(st.sampled_from(waiting)), self.cpus_for_a_job(data), name)

    @precondition(lambda self: self.node.allocations)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.node.end(data.draw(st.sampled_from(sorted(self.node.allocations))))

    @precondition(lambda self: self.node.allocations)
    @rule(data=st.data(), writes=st.integers(0, 12))
    def die_while_ending(self, data: st.DataObject, writes: int) -> None:
        """Rule of the test: the agent is killed while it ends a job, after some writes.

        The next agent continues from the files on disk.
        """
        owner = data.draw(st.sampled_from(sorted(self.node.allocations)))
        self.killed(writes, self.node.end, owner)
        if owner in self.node.journal.owners():
            restore(self.node.devices, self.node.journal, owner, None, self.node.jobs)
        reconcile(self.node.devices, self.node.journal, self.node.jobs)

    @rule()
    def restart(self) -> None:
        self.node.journal = SettingsJournal.load(self.node.path)
        assert not self.node.journal.load_error
        reconcile(self.node.devices, self.node.journal, self.node.jobs)

    @precondition(lambda self: self.external_value is None and LIMIT in self.node.journal.entries)
    @rule(value=st.integers(40, 90))
    def interfere(self, value: int) -> None:
        self.external_value = value * 1_000_000
        self.node.tree.put(LIMIT_FILE, self.external_value)

    @invariant()
    def the_limit_is_the_merged_value(self) -> None:
        if self.external_value is not None:
            assert int(self.node.tree.get(LIMIT_FILE)) == self.external_value
            return
        near_jobs = {
            o: t for o, t in self.node.allocations.items() if t.cpus is None or t.cpus & self.node.near
        }
        claims = [self.caps[owner] if allocation.cpus else None for owner, allocation in near_jobs.items()]
        expected = 250 if not claims or None in claims else min(250, max(c for c in claims if c is not None))
        assert self.node.limit() == expected

    @invariant()
    def each_core_has_the_value_of_its_job(self) -> None:
        requested = {
            request.key: request.value for owner in self.node.allocations for request in self.requests[owner]
        }
        for number in range(len(self.node.policies)):
            expected = requested.get(f"cpufreq.governor[policy{number}]", "powersave")
            assert self.node.tree.policy(number, "scaling_governor") == expected

    @invariant()
    def the_journal_can_be_read(self) -> None:
        if self.node.path.exists():
            entries = json.loads(self.node.path.read_text())["entries"]
            assert {entry["key"] for entry in entries} == set(self.node.journal.entries)
        else:
            assert not self.node.journal.entries


TestJobs = Jobs.TestCase
TestJobs.settings = examples(40, stateful_step_count=25)
