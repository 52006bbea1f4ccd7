"""Tests of the choice among several sources of a node's energy (source priority).

No part of a node may be counted twice on any node. The table in the documentation must match the rules in
the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.devices.source_priority import (
    ALL_PARTS,
    COMPONENT_SOURCES,
    NODE_SOURCES,
    NodePart,
    SourceSelection,
    priority_tables,
    select_sources,
)
from slurm_energy.errors import UsageError

DOCUMENT = Path(__file__).parents[2] / "docs/power-sources.md"
TOGETHER = {"power_meter:grace-cpu", "power_meter:grace-sysio"}


@dataclass(frozen=True)
class Found:
    key: str
    component: str
    source: str


def found(*names: str) -> list[Found]:
    """Return example counters for tests of the choice of energy sources.

    Each argument describes counters in the form `SOURCE[/COMPONENT[/COUNT]]`.
    """
    counters = []
    for name in names:
        source, _, rest = name.partition("/")
        component, _, count = rest.partition("/")
        component = component or next(
            s.component for s in (*COMPONENT_SOURCES, *NODE_SOURCES) if s.name == source
        )
        for number in range(int(count or 1)):
            label = f"{component}[{number}]" if component == "gpu" else component
            counters.append(Found(f"{source}.{component}.{number}", label, source))
    return counters


def sources(choice: SourceSelection, keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(key.partition(".")[0] for key in keys))


def test_a_common_server_uses_rapl_nvml_and_the_bmc_for_the_node() -> None:
    choice = select_sources(
        found(
            "powercap:intel-rapl/cpu/2", "powercap:intel-rapl/dram/2", "nvml:total_energy/gpu/8", "ipmi:dcmi"
        )
    )
    assert len(choice.components) == 12
    assert choice.node == ("ipmi:dcmi.node.0",)
    assert (choice.added_parts, choice.missing_parts, choice.excluded) == (frozenset(), frozenset(), {})


def test_psys_never_counts_beside_its_packages() -> None:
    choice = select_sources(found("powercap:intel-rapl/cpu/2", "powercap:psys"))
    assert choice.node == ("powercap:psys.node.0",)
    assert choice.added_parts == frozenset()  # the packages are in it


def test_several_psys_zones_are_excluded() -> None:
    choice = select_sources(found("powercap:psys/node/2"))
    assert choice.node == ()
    assert set(choice.excluded.values()) == {"2 of them: the coverage of each is unknown"}


def test_the_bmc_precedes_psys_and_follows_the_blade_controller() -> None:
    assert select_sources(found("powercap:psys", "redfish:power")).node == ("redfish:power.node.0",)
    choice = select_sources(found("powercap:psys", "redfish:power", "pm_counters:node"))
    assert choice.node == ("pm_counters:node.node.0",)
    assert set(choice.excluded.values()) == {"the node is counted by pm_counters:node"}


def test_gpus_in_a_box_of_their_own_are_added_to_the_bmc_s_figure() -> None:
    counters = found("powercap:intel-rapl/cpu", "nvml:total_energy/gpu/4", "ipmi:dcmi")
    assert select_sources(counters, node_excludes=frozenset({NodePart.GPU})).added_parts == {NodePart.GPU}
    without = select_sources(found("ipmi:dcmi"), node_excludes=frozenset({NodePart.GPU}))
    assert (without.added_parts, without.missing_parts) == (frozenset(), {NodePart.GPU})


def test_the_administrator_may_select_the_node_s_source_or_none() -> None:
    counters = found("ipmi:dcmi", "power_meter:acpi")
    assert select_sources(counters).node == ("power_meter:acpi.node.0",)
    assert select_sources(counters, "ipmi:dcmi").node == ("ipmi:dcmi.node.0",)
    none = select_sources(counters, "none")
    assert (none.node, none.missing_parts) == ((), frozenset())
    with pytest.raises(UsageError, match="node source 'bmc' is unknown: use one of pm_counters:node"):
        select_sources(counters, "bmc")


def test_measured_memory_precedes_the_model() -> None:
    choice = select_sources(found("powercap:intel-rapl/dram", "model:dram"))
    assert sources(choice, choice.components) == ["powercap:intel-rapl"]


def test_a_grace_socket_includes_its_memory_and_its_rails() -> None:
    names = ("power_meter:grace-grace", "power_meter:grace-cpu", "power_meter:grace-sysio", "model:dram")
    choice = select_sources(found(*names))
    assert sources(choice, choice.components) == ["power_meter:grace-grace"]
    rails = select_sources(found(*names[1:]))
    assert sources(rails, rails.components) == [
        "model:dram",
        "power_meter:grace-cpu",
        "power_meter:grace-sysio",
    ] or set(sources(rails, rails.components)) == set(names[1:])


def test_an_unknown_source_does_not_count() -> None:
    choice = select_sources([Found("mystery", "cpu", "some:thing")])
    assert choice == SourceSelection(excluded={"mystery": "a source without a place in the source priority"})


EVERYTHING = [(source.name, source.component) for source in (*COMPONENT_SOURCES, *NODE_SOURCES)]


@given(
    st.sets(st.sampled_from(EVERYTHING)),
    st.integers(1, 4),
    st.randoms(),
    st.sets(st.sampled_from(list(NodePart))),
)
def test_no_part_is_ever_counted_twice(
    present: set[tuple[str, str]], count: int, random: object, excluded: set[NodePart]
) -> None:
    counters = found(*(f"{name}/{component}/{count}" for name, component in sorted(present)))
    choice = select_sources(counters, node_excludes=frozenset(excluded))
    parts = {(s.name, s.component): s.parts for s in (*COMPONENT_SOURCES, *NODE_SOURCES)}
    used = {(c.source, c.component.partition("[")[0]) for c in counters if c.key in choice.components}
    for part in NodePart:
        holders = [name for name, component in used if part in parts[name, component]]
        assert len(holders) <= 1 or set(holders) == TOGETHER
    node = {(c.source, "node") for c in counters if c.key in choice.node}
    assert len(node) <= 1
    if node:
        (winner,) = node
        assert not (parts[winner] - excluded) & choice.added_parts
        covered = parts[winner] - excluded | choice.added_parts | choice.missing_parts
        assert covered == ALL_PARTS
    chosen = {*choice.components, *choice.node}
    assert chosen | set(choice.excluded) == {c.key for c in counters}
    assert not chosen & set(choice.excluded)
    random.shuffle(counters)  # type: ignore[attr-defined]
    assert select_sources(counters, node_excludes=frozenset(excluded)) == choice


@given(st.sets(st.sampled_from(EVERYTHING), min_size=1))
def test_without_the_selected_source_the_next_one_counts(present: set[tuple[str, str]]) -> None:
    counters = found(*(f"{name}/{component}" for name, component in sorted(present)))
    choice = select_sources(counters)
    order = [source.name for source in NODE_SOURCES]
    others = [c for c in counters if c.key not in choice.node]
    if choice.node:
        first, then = choice.node[0].partition(".")[0], select_sources(others).node
        assert not then or order.index(then[0].partition(".")[0]) > order.index(first)


def test_the_document_shows_the_table() -> None:
    assert priority_tables() in DOCUMENT.read_text()
