"""Jobs that share a node: what their claims come to, whoever comes and goes, and whoever else interferes."""

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
from slurm_energy.devices.hardware import (
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
    ("kind", "original", "asked", "expected"),
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
        ("cpufreq.governor", "ondemand", ["powersave", "powersave"], "powersave"),
        ("cpufreq.governor", "ondemand", ["powersave", "performance"], "ondemand"),
    ],
)
def test_the_least_restrictive_counts(kind: str, original: str, asked: list[str], expected: str) -> None:
    assert merge_claims(kind, original, asked, affects_others=False) == expected
    assert merge_claims(kind, original, asked[::-1], affects_others=False) == expected
    assert merge_claims(kind, original, asked, affects_others=True) == original


class Node:
    """CPUs in packages, of plain files, and the jobs on them; cpufreq policies have one CPU or more each."""

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
        self.tenants: dict[str, JobAllocation] = {}

    @property
    def jobs(self) -> Arbiter:
        return Arbiter(self.tenants, KnobDomains.from_hardware(self.devices.hardware))

    def begin(self, owner: str, tenant: JobAllocation, *wishes: Setting):
        self.tenants[owner] = tenant
        return apply(self.devices, self.journal, owner, wishes, None, self.jobs)

    def end(self, owner: str):
        del self.tenants[owner]
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


def test_the_highest_cap_holds_and_each_job_takes_its_own_along(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    outcomes = {o.key: o for o in node.begin("2.0", JobAllocation(frozenset({1})), *watts(120))}
    assert (outcomes[LIMIT].failed, outcomes[LIMIT].applied) == (False, "150000000")
    assert outcomes[LIMIT].note == "other jobs on the node require 150 W"
    (kept,) = [result for result in node.end("1.0") if result.key == LIMIT]
    assert (kept.done, kept.note) == (True, "other jobs on the node hold 120 W")
    assert node.limit() == 120
    assert all(result.done and not result.note for result in node.end("2.0"))
    assert node.tree.snapshot() == node.before


def test_a_job_that_asks_for_nothing_lifts_others_caps_on_its_packages(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    node.begin("2.0", JobAllocation(frozenset({2, 3})))
    assert node.limit() == 150
    node.begin("3.0", JobAllocation(None))  # CPUs not known yet: may be anywhere
    assert node.limit() == 250
    assert node.tree.get("sys/class/powercap/intel-rapl:1/enabled") == "0"
    node.begin("3.0", JobAllocation(frozenset({3})))
    assert node.limit() == 150
    node.begin("4.0", JobAllocation(frozenset({1})))
    assert node.limit() == 250
    node.end("4.0")
    assert node.limit() == 150


def test_boost_is_off_only_if_all_want_it_off_and_others_bounds_survive_it(node: Node, monkeypatch) -> None:
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


def test_a_limit_that_somebody_else_changed_is_not_touched_by_later_jobs(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(150))
    node.tree.put(LIMIT_FILE, 100_000_000)
    outcomes = {o.key: o for o in node.begin("2.0", JobAllocation(frozenset({1})), *watts(180))}
    assert (outcomes[LIMIT].failed, outcomes[LIMIT].note) == (True, "left alone: another program set 100 W")
    node.end("1.0")
    node.end("2.0")
    assert node.limit() == 100
    assert not node.journal.entries


def test_a_leaving_job_does_not_take_over_what_somebody_else_set(node: Node) -> None:
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
    assert len(count) == 2  # it changes nothing for the others
    node.end("2.0")
    assert len(count) == 4


def test_a_dead_job_s_claim_does_not_count(node: Node) -> None:
    node.begin("1.0", JobAllocation(frozenset({0})), *watts(200))
    del node.tenants["1.0"]  # its epilog never came, and it could not be restored
    node.begin("2.0", JobAllocation(frozenset({1})), *watts(150))
    assert node.limit() == 150
    node.end("2.0")
    assert node.tree.snapshot() == node.before


POLICIES = st.sampled_from(["performance", "powersave"])
CAPS = st.one_of(st.none(), st.integers(100, 260))


class Jobs(RuleBasedStateMachine):
    """Jobs come, tell their CPUs, go or are killed; somebody interferes; the agent dies and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.wishes: dict[str, list[Setting]] = {}
        self.caps: dict[str, int | None] = {}
        self.foreign: int | None = None
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
            for owner in list(self.node.tenants):
                self.node.end(owner)
            assert not self.node.path.exists()
            expected = dict(self.node.before)
            if self.foreign is not None:
                expected[LIMIT_FILE] = str(self.foreign)
            self.node.devices.close()
            assert self.node.tree.snapshot() == expected

    def free(self) -> set[int]:
        taken = [tenant.cpus or () for tenant in self.node.tenants.values()]
        return self.node.cpus - {cpu for cpus in taken for cpu in cpus}

    def cpus_for_a_job(self, data: st.DataObject) -> frozenset[int]:
        free = sorted(self.free())
        return data.draw(st.frozensets(st.sampled_from(free))) if free else frozenset()

    def ask(self, owner: str, cpus: frozenset[int] | None, name: str) -> None:
        cap = self.caps[owner]
        wishes = [*watts(cap)] if cap is not None and cpus and cpus & self.node.near else []
        for number, members in enumerate(self.node.policies):
            if cpus and cpus.issuperset(members):
                wishes.append(governor_setting(f"policy{number}", name))
                if f"cpufreq.epp[policy{number}]" in self.node.devices.knobs:
                    wishes.append(epp_setting(f"policy{number}", name[:5]))
        self.wishes[owner] = wishes
        outcomes = self.node.begin(owner, JobAllocation(cpus), *wishes)
        assert {outcome.key for outcome in outcomes} == {wish.key for wish in wishes}

    def killed(self, writes: int, function, *arguments) -> bool:
        """Do something, but be killed when it has written so often; returns whether that was so."""
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
        """A job begins; the agent may be killed at that, and then begins it again."""
        owner = f"{next(self.ids)}.0"
        self.caps[owner] = cap
        cpus = self.cpus_for_a_job(data) if known else None
        if self.killed(writes, self.ask, owner, cpus, name):
            self.ask(owner, cpus, name)

    @precondition(lambda self: any(t.cpus is None for t in self.node.tenants.values()))
    @rule(name=POLICIES, data=st.data())
    def step(self, name: str, data: st.DataObject) -> None:
        waiting = [owner for owner, tenant in self.node.tenants.items() if tenant.cpus is None]
        self.ask(data.draw(st.sampled_from(waiting)), self.cpus_for_a_job(data), name)

    @precondition(lambda self: self.node.tenants)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.node.end(data.draw(st.sampled_from(sorted(self.node.tenants))))

    @precondition(lambda self: self.node.tenants)
    @rule(data=st.data(), writes=st.integers(0, 12))
    def die_while_ending(self, data: st.DataObject, writes: int) -> None:
        """The agent is killed after some writes; the next one goes on with what it finds on disk."""
        owner = data.draw(st.sampled_from(sorted(self.node.tenants)))
        self.killed(writes, self.node.end, owner)
        if owner in self.node.journal.owners():
            restore(self.node.devices, self.node.journal, owner, None, self.node.jobs)
        reconcile(self.node.devices, self.node.journal, self.node.jobs)

    @rule()
    def restart(self) -> None:
        self.node.journal = SettingsJournal.load(self.node.path)
        assert not self.node.journal.load_error
        reconcile(self.node.devices, self.node.journal, self.node.jobs)

    @precondition(lambda self: self.foreign is None and LIMIT in self.node.journal.entries)
    @rule(value=st.integers(40, 90))
    def interfere(self, value: int) -> None:
        self.foreign = value * 1_000_000
        self.node.tree.put(LIMIT_FILE, self.foreign)

    @invariant()
    def the_limit_is_what_the_claims_come_to(self) -> None:
        if self.foreign is not None:
            assert int(self.node.tree.get(LIMIT_FILE)) == self.foreign
            return
        there = {o: t for o, t in self.node.tenants.items() if t.cpus is None or t.cpus & self.node.near}
        claims = [self.caps[owner] if tenant.cpus else None for owner, tenant in there.items()]
        expected = 250 if not claims or None in claims else min(250, max(c for c in claims if c is not None))
        assert self.node.limit() == expected

    @invariant()
    def each_core_is_as_its_job_wants_it(self) -> None:
        wanted = {wish.key: wish.value for owner in self.node.tenants for wish in self.wishes[owner]}
        for number in range(len(self.node.policies)):
            expected = wanted.get(f"cpufreq.governor[policy{number}]", "powersave")
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
