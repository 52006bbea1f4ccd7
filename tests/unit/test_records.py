"""The energy record is converted to JSON and back; invalid records are rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.records import AppliedSetting, ComponentEnergy, EnergyRecord, Quality
from slurm_energy.reports.labels.json_view import job_object
from slurm_energy.reports.usage import AccountedRecord, summarise

RECORD = EnergyRecord(
    cluster="lab",
    node="n1",
    job_id=12,
    uid=1000,
    policy="cap",
    start=100.0,
    end=110.5,
    components=(
        ComponentEnergy("cpu", 1500.25, "powercap:intel-rapl"),
        ComponentEnergy("gpu[0]", None, None, Quality.PARTIAL),
    ),
    applied=(AppliedSetting("powercap.power_limit[package-0]", "250000000", "150000000", "150000000", True),),
    gpus=(0,),
    requested={"policy": "cap", "cap": "300"},
)


def test_record_survives_json():
    assert EnergyRecord.from_json(json.loads(json.dumps(RECORD.to_json()))) == RECORD


def test_tuning_survives_json_with_keys_of_a_newer_release():
    point = {
        "point": {"gpu_limit_watts": 250.0},
        "time_ratio": 1.02,
        "power_ratio": 0.8,
        "source": "this run",
    }
    tuning = {
        "mode": "on",
        "objective": "energy",
        "slowdown_limit": 0.05,
        "progress": "reported",
        "reference": {"units_per_s": 3.5, "watts": 410.0},
        "points": [point],
        "chosen": {"gpu_limit_watts": 250.0},
        "chosen_source": "this run",
        "probes": 3,
        "estimated_saving": 0.16,
        "exploration": False,
        "later": {"nested": [1, None]},
    }
    record = EnergyRecord.from_json(RECORD.to_json() | {"tuning": tuning})
    assert record.tuning == tuning
    assert EnergyRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_energy_is_the_sum_of_known_components_and_node_takes_precedence():
    assert RECORD.energy_joules == 1500.25
    node = EnergyRecord.from_json(
        RECORD.to_json()
        | {"components": [{"name": "node", "energy_joules": 9.0, "source": "bmc", "quality": "measured"}]}
    )
    assert node.energy_joules == 9.0
    assert EnergyRecord.from_json(RECORD.to_json() | {"components": []}).energy_joules is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": 99}, "schema 99"),
        ({"schema": None}, "schema"),
        ({"surprise": float("inf")}, "surprise"),
        ({"tuning": "on"}, "tuning"),
        ({"tuning": {"mode": "on"}}, "objective"),
        ({"tuning": {"mode": "maybe", "objective": "edp"}}, "mode"),
        ({"tuning": {"mode": "on", "objective": "edp", "probes": -1}}, "probes"),
        ({"tuning": {"mode": "on", "objective": "edp", "slowdown_limit": float("nan")}}, "slowdown_limit"),
        ({"tuning": {"mode": "on", "objective": "edp", "points": [{"point": {}}]}}, "points"),
        ({"tuning": {"mode": "on", "objective": "edp", "reference": {"watts": 0}}}, "reference"),
        ({"tuning": {"mode": "on", "objective": "edp", "later": [0] * 300}}, "later"),
        ({"tuning": {"mode": "on", "objective": "edp", "later": "x" * 2000}}, "later"),
        ({"node": "n1\x1b[2J"}, "node"),
        ({"notes": ["x" * 20_000]}, "notes"),
        ({"requested": {"cap": "x" * 2000}}, "requested"),
        ({"gpus": [10**400]}, "gpus"),
        ({"cpus": 10**9}, "cpus"),
        ({"uid": 2**32}, "uid"),
        ({"job_id": "12"}, "job_id"),
        ({"job_id": -1}, "job_id"),
        ({"job_id": True}, "job_id"),
        ({"start": float("nan")}, "start"),
        ({"end": 99.0}, "end"),
        ({"mean_watts": float("inf")}, "mean_watts"),
        ({"user": 5}, "user"),
        ({"tag": "x" * 2000}, "tag"),
        ({"requested": {"cap": 5}}, "requested"),
        ({"gpus": [1.5]}, "gpus"),
        ({"components": 7}, "components"),
        (
            {"components": [{"name": "gpu[x]", "energy_joules": 1, "source": "s", "quality": "measured"}]},
            "gpu",
        ),
        ({"components": [{"name": "cpu", "energy_joules": -1, "source": "s", "quality": "measured"}]}, "cpu"),
        (
            {"components": [{"name": "cpu", "energy_joules": 1, "source": "s", "quality": "guessed"}]},
            "guessed",
        ),
        ({"components": ["cpu"]}, "component"),
        ({"applied": [{"setting": "x"}]}, "setting"),
        ({"applied": [{"setting": "x", "original": 5, "requested": "1", "applied": None}]}, "setting 'x'"),
        ({"components": [{"name": "cpu", "energy_joules": 1, "source": 5, "quality": "measured"}]}, "source"),
    ],
)
def test_bad_records_are_refused_by_name(change, named):
    with pytest.raises(UsageError) as caught:
        EnergyRecord.from_json(RECORD.to_json() | change)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from(sorted(RECORD.to_json())), value=JSON)
def test_any_json_is_a_record_or_a_usage_error(key, value):
    try:
        record = EnergyRecord.from_json(RECORD.to_json() | {key: value})
    except UsageError:
        return
    assert record.end >= record.start


def test_json_shows_keys_of_a_newer_release():
    data = RECORD.to_json() | {"carbon_grams": 1.5}
    data["components"][0] |= {"socket": 3}
    answer = AccountedRecord.from_json(data | {"job": None, "trace": None})
    (node,) = job_object(summarise([answer])[0])["nodes"]
    assert node["carbon_grams"] == 1.5
    assert node["components"]["cpu"]["socket"] == 3
