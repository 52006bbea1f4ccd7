"""Tests of the parser of stored records, which the controller sends in its responses.

This parser is faster than the parser of records that nodes deliver. Both parsers must return the same
values.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.records import (
    AppliedSetting,
    ComponentEnergy,
    EnergyRecord,
    JobDevice,
    NewerSchemaError,
    Quality,
)
from slurm_energy.reports.stored_records import parse_stored_record
from slurm_energy.reports.usage import AccountedRecord, JobInfo

TEXT = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=20)
NUMBER = st.floats(0.0, 1e9)
COMPONENTS = st.lists(
    st.builds(
        ComponentEnergy,
        st.sampled_from(["cpu", "dram", "other", "node", "gpu[0]"]),
        st.none() | NUMBER,
        st.none() | TEXT,
        st.sampled_from(Quality),
        st.just(()) | st.just((("new", [1, {"a": None}]),)),
    ),
    unique_by=lambda component: component.name,
)
SETTINGS = st.lists(
    st.builds(AppliedSetting, TEXT, st.none() | TEXT, TEXT, st.none() | TEXT, st.none() | st.booleans(), TEXT)
)
DEVICES = st.lists(st.builds(JobDevice, st.just("cpu"), TEXT, st.none() | NUMBER, st.none() | NUMBER))
RECORDS = st.builds(
    EnergyRecord,
    cluster=TEXT,
    node=TEXT,
    job_id=st.integers(0, 2**40),
    uid=st.integers(0, 2**32 - 1),
    policy=TEXT,
    start=st.just(100.0),
    end=st.floats(100.0, 1e9),
    components=COMPONENTS.map(tuple),
    step=st.none() | TEXT,
    requested=st.dictionaries(TEXT, TEXT, max_size=3),
    applied=SETTINGS.map(tuple),
    devices=DEVICES.map(tuple),
    gpus=st.lists(st.integers(0, 7)).map(tuple),
    mean_watts=st.none() | NUMBER,
    notes=st.lists(TEXT).map(tuple),
    extra=st.just(()) | st.just((("watts", {"cpu": 1.0}),)),
)


@examples(50)
@given(RECORDS)
def test_stored_records_equal_delivered_ones(record: EnergyRecord) -> None:
    data = json.loads(json.dumps(record.to_json()))
    parsed = parse_stored_record(data | {"job": None, "trace": None}, ("job", "trace"))
    assert parsed == EnergyRecord.from_json(data) == record


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"schema": 2}, NewerSchemaError),
        ({"schema": None}, UsageError),
        ({"components": [{"name": "cpu"}]}, UsageError),
        ({"components": 5}, UsageError),
        ({"end": -1.0}, UsageError),
        ({"end": "x"}, UsageError),
    ],
)
def test_what_is_no_record_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    data = EnergyRecord("c1", "n1", 1, 0, "edp", 100.0, 200.0, ()).to_json()
    with pytest.raises(error):
        AccountedRecord.from_json(data | change)


def test_facts_of_a_newer_release_are_ignored() -> None:
    assert JobInfo.from_json({"name": "a", "new": 1}) == JobInfo(name="a")
    assert JobInfo.from_json(None) == JobInfo()
