"""Tests of Slurm host lists such as `n[1-4]`.

They cover folding and expanding, the position of a node in a list, and lists with one count per node.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.slurm.hostlist import contains_node, count_at, expand_hostlist, fold_hostlist, node_position


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["b", "a"], "a,b"),
        (["n01", "n02"], "n[01-02]"),
    ],
)
def test_folding_and_expanding(names: list[str], folded: str) -> None:
    assert fold_hostlist(names) == folded
    if names:
        assert sorted(expand_hostlist(folded)) == sorted(names)


@pytest.mark.parametrize("text", ["", ",", "n[1-", "n[1-2]]", "@all", "n[1-2]&n1", "n*[1]"])
def test_malformed_lists_are_refused_with_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--nodelist"):
        expand_hostlist(text, "--nodelist")


@pytest.mark.parametrize("text", ["n[0-99999999]", "n[0-" + "9" * 400 + "]"])
def test_a_list_that_would_fill_the_memory_is_not_expanded(text: str) -> None:
    with pytest.raises(UsageError, match="more than 1000000 nodes"):
        expand_hostlist(text)


def test_text_that_is_no_node_name_stays_in_the_folded_list() -> None:
    assert fold_hostlist(["n1", "n2", "not a node"]) == "n[1-2],not a node"


@given(
    st.sets(
        st.from_regex(r"[a-c]{0,2}[0-9]{1,3}", fullmatch=True) | st.just("login-1"), min_size=1, max_size=30
    )
)
def test_a_folded_list_has_exactly_these_nodes(names: set[str]) -> None:
    text = fold_hostlist(names)
    assert all(node_position(name, text) is not None and contains_node(name, text) for name in names)
    assert node_position("zz9", text) is None and not contains_node("zz9", text)


@pytest.mark.parametrize(
    ("nodes", "index"), [("n5", 0), ("n[1-4],n5", 4), ("a,b[01-02],n[3,5]", 4), ("n[1-4]", None), ("x", None)]
)
def test_position_of_a_node_in_a_list(nodes: str, index: int | None) -> None:
    assert node_position("n5", nodes) == index
    assert contains_node("n5", nodes) == (index is not None)


def test_parts_that_begin_otherwise_are_not_parsed() -> None:
    assert contains_node("n5", "m[1-x], n[4-6]") and not contains_node("n5", "m[1-x],n[6-7],n,n55")
    with pytest.raises(UsageError, match="host list"):
        contains_node("n5", "n[1-")


def test_malformed_list_is_refused() -> None:
    with pytest.raises(UsageError, match="host list"):
        node_position("n5", "n[1-")


def test_groups_are_not_expanded() -> None:
    assert node_position("n5", "@all") is None


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(1, 9)), min_size=1, max_size=20))
def test_counts_per_node(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    flat = [count for count, times in runs for _ in range(times)]
    assert [count_at(text, index) for index in range(len(flat))] == flat
    assert count_at(text, len(flat)) is None


@pytest.mark.parametrize("node", ["\t\t", "n[1-2]", "a,b", "@all", "n5!n5", "", "\r", "n*"])
def test_text_that_is_no_node_name_is_in_no_list(node: str) -> None:
    """A text that is not the name of a node is not found in any host list.

    The tested texts contain special characters, for example brackets or commas. The parser reads them as
    separate host lists. Fuzzing found these texts.
    """
    assert node_position(node, f"n[1-9],{node}" if "[" not in node else "n[1-9]") is None


@pytest.mark.parametrize("nodes", ["n[0-99999999]", "n[1-2],m[0-1000001]", "n[0-" + "9" * 400 + "]"])
def test_a_list_that_would_fill_the_memory_is_refused(nodes: str) -> None:
    with pytest.raises(UsageError, match="more than 1000000 nodes"):
        node_position("n5", nodes)


@pytest.mark.parametrize("digits", [16, 100, 250])
def test_names_with_long_numbers_stay_in_the_list(digits: int) -> None:
    long = ["9" * digits, "9" * (digits - 1) + "7", "n" + "8" * digits + "x1"]
    assert fold_hostlist([*long, "n1", "n2"]) == ",".join(["n[1-2]", *sorted(long)])
