"""Tests of the learned power of nodes that are off, boot or shut down.

The power is learned from a program of the site that reads the power of nodes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.controller.budgets.away_power import AwayPower, parse_watts
from slurm_energy.controller.power_saving.node_boots import NodeBoots
from slurm_energy.errors import UnavailableError
from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.slurm.node_power_states import NodePowerStatus

DECLARED = NodeEnergy(150.0, 30.0, 20.0, 120.0, 10.0, 60.0)
WATTS = {"IDLE+POWERED_DOWN": 8.0, "ALLOCATED+POWERING_UP": 210.0, "IDLE+POWERING_DOWN": 140.0}
PROGRAM = Path("/bin/power")


class World:
    """Simulated nodes, with a clock, for tests of the power of nodes that are off.

    Each second, the tested class reads the power of the nodes from a stand-in for the site's program.
    """

    def __init__(self, folder: Path) -> None:
        self.boots = NodeBoots()
        self.away = AwayPower(self.boots, folder / "learned.json")
        self.now = 1000.0
        self.states = {"n1": "IDLE", "n2": "IDLE"}
        self.calls: list[list[str]] = []
        self.observe()

    def observe(self) -> None:
        self.boots.observe(
            [NodePowerStatus(n, frozenset(s.split("+")), kind="k") for n, s in self.states.items()], self.now
        )

    def program(self, argv: list[str]) -> str:
        self.calls.append(argv)
        return "".join(f"{name} {WATTS.get(state, 150.0)}\n" for name, state in self.states.items())

    def pass_s(self, seconds: int, **states: str) -> None:
        self.states |= states
        for _ in range(seconds):
            self.observe()
            self.away.learn()
            self.away.read(PROGRAM, self.program, self.now)
            self.now += 1.0


def cycle(world: World) -> None:
    """Simulate one power cycle of node n1: 12 s to shut down, 100 s switched off, 30 s to boot."""
    world.boots.power_down(["n1"], world.now)
    world.pass_s(12, n1="IDLE+POWERING_DOWN")
    world.pass_s(100, n1="IDLE+POWERED_DOWN")
    world.boots.request(["n1"], world.now)
    world.pass_s(30, n1="ALLOCATED+POWERING_UP")
    world.pass_s(2, n1="ALLOCATED")


def test_boots_shutdowns_and_power_while_off_are_learned_and_stored(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pass_s(3)
    assert world.calls == []  # no node is away
    assert world.away.energy("k", DECLARED) == DECLARED
    cycle(world)
    expected = NodeEnergy(150.0, 8.0, 30.0, 210.0, 12.0, 140.0)
    assert world.away.energy("k", DECLARED) == expected
    assert world.calls[0] == [str(PROGRAM), "n1"]
    again = AwayPower(NodeBoots(), tmp_path / "learned.json")
    assert again.energy("k", DECLARED) == expected
    assert again.energy("other", DECLARED).boot_watts == DECLARED.boot_watts


def test_measured_power_of_nodes_that_are_off_now(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pass_s(5, n2="IDLE+POWERED_DOWN")
    assert world.away.off_watts == {"n2": 8.0}
    world.pass_s(1, n2="IDLE")
    assert world.away.off_watts == {}


def test_sparse_readings_give_no_mean_power(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.states["n1"] = "IDLE+POWERED_DOWN"
    world.observe()
    world.boots.request(["n1"], world.now)
    world.pass_s(2, n1="ALLOCATED+POWERING_UP")
    world.now += 30.0
    world.observe()
    world.now += 1.0
    world.pass_s(1, n1="ALLOCATED")
    energy = world.away.energy("k", DECLARED)
    assert (energy.boot_s, energy.boot_watts) == (33.0, DECLARED.boot_watts)


def test_failure_of_the_program_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pass_s(3, n1="IDLE+POWERED_DOWN")

    def fails(argv: list[str]) -> str:
        raise UnavailableError(argv[0], "exit status 1")

    with pytest.raises(UnavailableError):
        world.away.read(PROGRAM, fails, world.now)
    assert world.away.energy("k", DECLARED).off_watts == 8.0


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"boots_s": {"k": [1e999]}, "kinds": {}}', '{"boots_s": 3, "kinds": {}}'),
        '{"boots_s": {}, "kinds": {"k": {"off_watts": ["x"], "boots": [], "shutdowns": []}}}',
        '{"boots_s": {}, "kinds": {"k": {"off_watts": [], "boots": [[1]], "shutdowns": []}}}',
    ],
)
def test_damaged_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "learned.json").write_text(text)
    world = World(tmp_path)
    assert world.away.energy("k", DECLARED) == DECLARED
    cycle(world)
    assert json.loads((tmp_path / "learned.json").read_text())["boots_s"] == {"k": [30.0]}


@given(st.text())
def test_any_output_of_the_program_is_parsed(text: str) -> None:
    assert all(0 <= watts <= 1e6 for watts in parse_watts(text).values())


def test_only_rows_of_a_node_and_a_power_count() -> None:
    assert parse_watts("n1 10.5\nn2  7\n n3 nan\nn4 -3\nn5 1e3\nn6 9999999\nn7 1 2\nn8\n") == {
        "n1": 10.5,
        "n2": 7.0,
    }
