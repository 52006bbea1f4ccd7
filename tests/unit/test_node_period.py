"""Tests of the JSON form of a node's energy periods.

A period that is written to JSON and read back is unchanged. Malformed data are refused.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from period_examples import period, period_parts
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.node_period import MAX_PERIOD_JOBS, NodePeriod, grouped
from slurm_energy.records import NewerSchemaError

GOOD = period().to_json()


@given(period_parts())
@examples(100)
def test_a_period_survives_json(parts: NodePeriod) -> None:
    assert NodePeriod.from_json(json.loads(json.dumps(parts.to_json()))) == parts


def test_unknown_keys_are_kept() -> None:
    data = GOOD | {"later": {"a": [1, None]}}
    assert NodePeriod.from_json(data).to_json() == data


def test_a_newer_schema_is_told_apart() -> None:
    with pytest.raises(NewerSchemaError):
        NodePeriod.from_json(GOOD | {"schema": 2})


def _changed(*path: Any, to: Any) -> dict[str, Any]:
    data: Any = copy.deepcopy(GOOD)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return dict(data)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        GOOD | {"schema": True},
        GOOD | {"schema": 0},
        GOOD | {"cluster": ""},
        GOOD | {"node": "a\nb"},
        GOOD | {"node": "n" * 256},
        GOOD | {"period_id": 5},
        GOOD | {"start": 1.5},
        GOOD | {"start": -1},
        GOOD | {"end": GOOD["start"]},
        GOOD | {"end": 2**63},
        GOOD | {"late_seconds": -1.0},
        GOOD | {"uncertain_seconds": float("nan")},
        GOOD | {"components": {}},
        GOOD | {"components": []},
        GOOD | {"jobs": None},
        GOOD | {"jobs": GOOD["jobs"] * 2},
        GOOD | {"jobs": [{**GOOD["jobs"][0], "job_id": n} for n in range(MAX_PERIOD_JOBS + 1)]},
        GOOD | {f"key{n}": 0 for n in range(65)},
        GOOD | {"deep": json.loads("[" * 20 + "]" * 20)},
        _changed("components", "cpu", "measured_uj", to=True),
        _changed("components", "cpu", "measured_uj", to=-5),
        _changed("components", "cpu", "measured_uj", to=2**63),
        _changed("components", "cpu", "idle_uj", to=None),
        _changed("components", "cpu", "idle_uj", to=1),
        _changed("components", "node", to=GOOD["components"]["cpu"]),
        _changed("components", "cpu", to=5),
        _changed("jobs", 0, to="job"),
        _changed("jobs", 0, "job_id", to=1.0),
        _changed("jobs", 0, "job_id", to=2**63),
        _changed("jobs", 0, "uid", to=2**32),
        _changed("jobs", 0, "energy_uj", to=[]),
        _changed("jobs", 0, "energy_uj", "cpu", to=0),
        _changed("jobs", 0, "energy_uj", "dram", to=0),
        _changed("jobs", 0, "energy_uj", "gpu[1000]", to=0),
    ],
)
def test_bad_periods(bad: Any) -> None:
    with pytest.raises(UsageError, match="energy period") as caught:
        NodePeriod.from_json(bad)
    assert len(str(caught.value)) < 300


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
@examples(100)
def test_no_value_of_a_key_causes_another_error(value: Any) -> None:
    for key in GOOD:
        data = GOOD | {key: value}
        try:
            NodePeriod.from_json(data)
        except (UsageError, NewerSchemaError):
            continue


def test_gpus_are_added_up_and_unknown_components_are_not_zero() -> None:
    columns = grouped({"cpu": 5, "gpu[0]": 2, "gpu[11]": 3})
    assert columns == {"cpu": 5, "dram": None, "gpu": 5, "other": None, "total": 10}
