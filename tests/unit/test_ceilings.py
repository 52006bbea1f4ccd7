"""Tests of ceilings: upper bounds that a power budget sets on the power settings of jobs.

The tests cover the resulting values, restarts of the agent, values that other programs write, and the
restoration of the original values.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy import atomic_file
from slurm_energy.control.arbitration import JobAllocation
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.settings import Setting, rapl_limit_settings

ZONE = "sys/class/powercap/intel-rapl:1"
LIMIT, ENABLED, WINDOW = (
    f"{ZONE}/{name}" for name in ("constraint_0_power_limit_uw", "enabled", "constraint_0_time_window_us")
)
KEY = "powercap.power_limit[package-0]"


class CeilingNode:
    """A node with two processor packages and the settings manager of the agent, for tests.

    The test determines which jobs run on the node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = Tree(folder / "node").cpus(4).two_packages()
        self.original = self.tree.snapshot()
        self.devices: NodeDevices = discover(self.tree.root)
        self.jobs: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Simulate a restart of the agent after kill -9: load the journal again from its file."""
        self.journal = SettingsJournal.load(self.folder / "journal.json")
        self.manager = SettingsManager(self.devices, self.journal, self._allocations)
        self.manager.repair(self.jobs)

    def _allocations(self) -> dict[str, JobAllocation]:
        return {job: JobAllocation(frozenset(range(4))) for job in self.jobs}

    def claim(self, job: str, watts: float) -> None:
        self.jobs.add(job)
        self.manager.apply(job, rapl_limit_settings("package-0", watts, 1.0))

    def end(self, job: str) -> None:
        self.jobs.discard(job)
        self.manager.restore(job)

    def bound(self, watts: float | None) -> bool:
        values = (
            [None] * 3 if watts is None else [s.value for s in rapl_limit_settings("package-0", watts, 1.0)]
        )
        keys = [setting.key for setting in rapl_limit_settings("package-0", 1.0, 1.0)]
        return self.manager.set_ceilings(dict(zip(keys, values, strict=True)))

    @property
    def watts(self) -> float:
        return int(self.tree.get(LIMIT)) / 1e6


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CeilingNode]:
    made = CeilingNode(tmp_path)
    yield made
    made.devices.close()


def test_a_ceiling_bounds_a_device_without_jobs_and_lifting_it_restores_the_original(
    node: CeilingNode,
) -> None:
    assert node.bound(120)
    assert (node.watts, node.tree.get(ENABLED), node.tree.get(WINDOW)) == (120, "1", "1000000")
    node.bound(180)
    assert node.watts == 180
    node.bound(None)
    assert node.tree.snapshot() == node.original
    assert not node.journal.entries


@pytest.mark.parametrize("first", ["claim", "ceiling"])
def test_the_lower_of_claim_and_ceiling_is_in_force(node: CeilingNode, first: str) -> None:
    actions: list[Callable[[], Any]] = [lambda: node.claim("5.0", 200), lambda: node.bound(150)]
    for action in actions if first == "claim" else reversed(actions):
        action()
    assert node.watts == 150
    node.bound(230)
    assert node.watts == 200
    node.bound(100)
    node.end("5.0")
    assert node.watts == 100
    node.bound(None)
    assert node.tree.snapshot() == node.original


def test_the_end_of_a_job_and_of_the_budget_in_either_order_restores_the_original(node: CeilingNode) -> None:
    node.bound(100)
    node.claim("5.0", 200)
    node.bound(None)
    assert node.watts == 200
    node.end("5.0")
    assert node.tree.snapshot() == node.original


def test_a_job_learns_that_a_budget_lowered_its_setting(node: CeilingNode) -> None:
    node.bound(100)
    node.jobs.add("5.0")
    outcomes = node.manager.apply("5.0", [Setting(KEY, "200000000")])
    assert [(o.applied, o.note) for o in outcomes] == [("100000000", "a power budget allows 100 W")]
    node.jobs.clear()
    assert node.manager.restore("5.0")[0].note == "a power budget holds 100 W"
    assert node.manager.value_without_ceiling(KEY) == "250000000"


def test_a_ceiling_survives_kill_9_and_the_claims_of_ended_jobs_do_not(node: CeilingNode) -> None:
    node.claim("5.0", 80)
    node.bound(120)
    node.restart()
    assert node.watts == 80
    node.jobs.clear()
    node.restart()
    assert node.watts == 120
    node.bound(None)
    assert node.tree.snapshot() == node.original


def test_a_kill_between_journal_and_hardware_is_repaired(
    node: CeilingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    knob = node.devices.knobs[KEY]
    monkeypatch.setattr(knob, "write", crash)
    with pytest.raises(KeyboardInterrupt):
        node.bound(120)
    monkeypatch.undo()
    node.restart()
    assert node.watts == 120
    monkeypatch.setattr(knob, "write", crash)
    with pytest.raises(KeyboardInterrupt):
        node.bound(None)
    monkeypatch.undo()
    node.restart()
    assert node.tree.snapshot() == node.original


def test_a_value_of_another_program_stays_only_within_the_ceiling(node: CeilingNode) -> None:
    node.bound(120)
    node.tree.put(LIMIT, 90_000_000)
    node.bound(120)
    node.bound(150)
    assert node.watts == 90
    node.tree.put(LIMIT, 250_000_000)
    node.bound(150)
    assert node.watts == 150
    node.tree.put(LIMIT, 90_000_000)
    node.bound(60)
    assert node.watts == 60
    node.tree.put(LIMIT, 55_000_000)
    node.bound(None)
    assert node.watts == 55
    assert not node.journal.entries


def test_without_a_journal_nothing_is_written(node: CeilingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file, "write", refuse)
    assert not node.bound(120)
    assert node.tree.snapshot() == node.original
    monkeypatch.undo()
    assert node.bound(120)
    assert node.watts == 120


def test_restoring_all_jobs_keeps_the_ceilings(node: CeilingNode) -> None:
    node.claim("5.0", 80)
    node.bound(120)
    SettingsManager(node.devices, node.journal).repair(())
    assert node.watts == 120


def test_a_device_that_is_gone_has_no_ceiling(node: CeilingNode) -> None:
    assert node.manager.set_ceilings({"nvml.power_limit[gpu0]": "5", KEY: "120000000"})
    assert list(node.journal.entries) == [KEY]


def test_a_device_that_is_lost_gets_its_original_when_it_returns(node: CeilingNode) -> None:
    node.bound(120)
    present = node.devices
    knobs = {key: knob for key, knob in present.knobs.items() if key != KEY}
    node.devices = dataclasses.replace(present, knobs=knobs)
    node.restart()
    node.bound(None)
    assert node.journal.entries[KEY].is_orphaned
    node.devices = present
    node.restart()
    assert node.tree.snapshot() == node.original


STEP = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(["5.0", "6.0"]), st.integers(60, 240)),
    st.tuples(st.just("end"), st.sampled_from(["5.0", "6.0"]), st.just(0)),
    st.tuples(st.just("bound"), st.just(""), st.integers(60, 300)),
    st.tuples(st.sampled_from(["lift", "kill"]), st.just(""), st.just(0)),
)


@examples(25)
@given(steps=st.lists(STEP, max_size=12))
def test_every_order_of_claims_ceilings_and_kills_keeps_bound_and_original(
    steps: list[tuple[str, str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = CeilingNode(Path(folder))
        claims: dict[str, int] = {}
        ceiling: int | None = None
        for action, job, watts in steps:
            if action == "claim":
                claims[job] = watts
                node.claim(job, watts)
            elif action == "end":
                claims.pop(job, None)
                node.end(job)
            elif action == "kill":
                node.restart()
            else:
                ceiling = watts if action == "bound" else None
                node.bound(ceiling)
            wanted = min(250, max(claims.values(), default=250))
            expected = wanted if ceiling is None else min(wanted, ceiling)
            assert node.watts == expected
            assert (ceiling is not None) <= (node.tree.get(ENABLED) == "1")
        node.bound(None)
        for job in list(claims):
            node.end(job)
        assert node.tree.snapshot() == node.original
        node.devices.close()
