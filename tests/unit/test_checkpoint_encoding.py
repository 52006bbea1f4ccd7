"""Tests of the encoding of the agent's checkpoints as JSON.

Items of an `EncodedList` are encoded only once.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.agent.state import checkpoint_encoding
from slurm_energy.agent.state.checkpoint_encoding import EncodedList, EncodedValue, encode

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=20),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=9), part, max_size=3),
    max_leaves=8,
)


def encoded(items: list[Any]) -> EncodedList:
    result = EncodedList()
    for item in items:
        result.append(item)
    return result


@examples(60)
@given(VALUES, st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_encoded_lists_are_like_plain_ones(value: Any, first: list[Any], second: list[Any]) -> None:
    data = encode({"a": value, "b": {"ended": encoded(first)}, "c": [encoded(second)], "d": value})
    assert json.loads(data) == {"a": value, "b": {"ended": first}, "c": [second], "d": value}


def test_items_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    items = encoded([[job, 0, 1001, {"cpu": job}] for job in range(2000)])
    lengths = []
    real = json.dumps

    def dumps(*arguments: Any, **options: Any) -> str:
        text = real(*arguments, **options)
        lengths.append(len(text))
        return text

    monkeypatch.setattr(checkpoint_encoding.json, "dumps", dumps)
    assert len(json.loads(encode({"ended": items}))["ended"]) == 2000
    assert sum(lengths) < 100


def test_an_encoded_value_keeps_its_first_state() -> None:
    value = {"jobs": [1]}
    period = EncodedValue(value)
    value["jobs"].append(2)
    assert json.loads(encode({"closed": [period, period]})) == {"closed": [{"jobs": [1]}, {"jobs": [1]}]}


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="set cannot be stored"):
        encode({"a": set()})
