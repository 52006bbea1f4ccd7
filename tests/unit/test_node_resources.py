"""Tests of the parser of scontrol's output about nodes, which determines their free resources.

The tests use output of several releases, and malformed output.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.slurm.queue.node_resources import NodeResources, parse_nodes, read_nodes

A1 = (
    "NodeName=a1 Arch=x86_64 CoresPerSocket=32  CPUAlloc=2 CPUEfctv=64 CPUTot=64 CPULoad=2.15 "
    "Gres=gpu:a100:4(S:0-1),nvme:2 GresDrain=N/A GresUsed=gpu:a100:2(IDX:0,3),nvme:0 State=MIXED "
    "ThreadsPerCore=2 Partitions=all,gpu  BootTime=2026-11-21T17:54:16 Reason=old State=DOWN"
)
C1 = "NodeName=c1 CPUAlloc=64 CPUTot=64 Gres=(null) State=ALLOCATED Partitions="


def test_nodes_as_22_05_tells_them():
    asked = []
    nodes = read_nodes(lambda argv: asked.append(argv) or "\n".join([A1, C1, "", "Node x not found"]))
    assert nodes == [
        NodeResources("a1", frozenset({"all", "gpu"}), True, 64, 62, {"a100": 4}, {"a100": 2}),
        NodeResources("c1", frozenset(), True, 64, 0, {}, {}),
    ]
    assert len(asked) == 1


def test_a_node_that_takes_no_jobs_is_not_usable():
    for state in (
        "IDLE+DRAIN",
        "DOWN",
        "DOWN*",
        "IDLE*",
        "IDLE~",
        "MIXED+MAINT",
        "IDLE+POWERED_DOWN",
        "IDLE+RESERVED",
    ):
        (node,) = parse_nodes(f"NodeName=a State={state} CPUTot=4")
        assert not node.usable, state
    for state in ("IDLE", "MIXED", "MIXED+PLANNED", "IDLE+CLOUD", "ALLOCATED+COMPLETING"):
        (node,) = parse_nodes(f"NodeName=a State={state} CPUTot=4")
        assert node.usable, state


def test_kinds_are_told_apart_and_never_below_zero():
    (node,) = parse_nodes(
        "NodeName=a Gres=gpu:a:2,gpu:b:3,gpu:1 GresUsed=gpu:a:1(IDX:0),gpu:b:9(IDX:0-8),gpu:0"
    )
    assert node.gpus == {"a": 2, "b": 3, "": 1}
    assert node.gpus_free == {"a": 1, "b": 0, "": 1}


FORGED = "NodeName=h9 State=IDLE Partitions=gpu CPUTot=64 Gres=gpu:h100:8"


@pytest.mark.parametrize("key", ["Reason", "Comment", "Extra"])
@given(st.text(max_size=50))
def test_free_text_of_a_node_says_nothing_of_it_or_of_another_one(key, text):
    words = text.replace("\n", " ").replace("\0", "")
    line = f"NodeName=a State=DOWN CPUTot=4 {key}={words} Partitions=all CPUAlloc=0 {FORGED}"
    assert parse_nodes(line) == [NodeResources("a", usable=False, cpus=4, cpus_free=4)]


def test_a_node_with_two_lines_is_not_usable():
    real = "NodeName=h9 State=DOWN Partitions=gpu CPUTot=64 Gres=gpu:h100:8"
    for first, second in ((FORGED, real), (real, FORGED)):
        (node, a1) = parse_nodes(f"{first}\n{second}\n{A1}")
        assert (node.name, node.usable, a1.usable) == ("h9", False, True)


@given(st.text(alphabet="Nodeame=GrsUSt :(),gpu0123459\n-+*", max_size=200) | st.text(max_size=100))
def test_any_text_is_read(text):
    for node in parse_nodes(text):
        assert all(0 <= node.gpus_free[kind] <= count for kind, count in node.gpus.items())
