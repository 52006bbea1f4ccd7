"""The YAML writer produces the expected lines, and PyYAML reads the same values from them.

The comparison with PyYAML runs only if PyYAML is installed.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.reports.acct.yaml_text import yaml_lines

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | texts
    | st.floats(allow_nan=False, allow_infinity=False)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(documents)
@examples(100)
def test_pyyaml_reads_the_same_values(value: Any) -> None:
    yaml = pytest.importorskip("yaml")
    lines = list(yaml_lines(value))
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert yaml.safe_load("\n".join(lines)) == value


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"a": 1, "b": [True, None], "c": {}}, ["a: 1", "b:", "  - true", "  - null", "c: {}"]),
        ([[1, 2], {"x": "y: z"}], ["- - 1", "  - 2", '- x: "y: z"']),
        ({"no": "=1+1\n", "é": "\x1b[31m\U0001f600"}, ['"no": "=1+1\\n"', '"\\xE9": "\\x1B[31m\\U0001F600"']),
        ([1e16, 1.5e-7, math.nan, "\ud800"], ["- 1.0e+16", "- 1.5e-07", "- null", '- "\\uFFFD"']),
        ([], ["[]"]),
    ],
)
def test_block_style(value: Any, lines: list[str]) -> None:
    assert list(yaml_lines(value)) == ["---", *lines]
