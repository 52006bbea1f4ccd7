import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint, hardware_kind

watts = st.none() | st.floats(1, 2000)
points = st.builds(
    OperatingPoint,
    gpu_limit_watts=watts,
    gpu_clock_mhz=watts,
    gpu_power_profile=st.sampled_from([None, "MAX_Q"]),
    package_limit_watts=watts,
    cpu_max_mhz=watts,
    cpu_epp=st.sampled_from([None, "balance_power"]),
    boost=st.none() | st.booleans(),
)
responses = st.builds(
    ResponsePoint,
    point=points,
    time_ratio=st.floats(0.1, 10),
    power_ratio=st.floats(0.1, 10),
    source=st.sampled_from(CurveSource),
    time_error=st.none() | st.floats(0, 1),
    count=st.integers(0, 1000),
    measured_unix_s=st.none() | st.floats(0, 2e9),
)


@given(st.lists(responses, max_size=5))
def test_curves_survive_json(items):
    curve = ResponseCurve("NVIDIA A40", "resnet50", tuple(items))
    assert ResponseCurve.from_json(json.loads(json.dumps(curve.to_json()))) == curve


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"gpu_limit_watts": -1},
        {"gpu_limit_watts": True},
        {"gpu_limit_watts": "250"},
        {"cpu_epp": "a\nb"},
        {"boost": 1},
        {"volts": 1},
    ],
)
def test_bad_points_are_refused(data):
    with pytest.raises(UsageError):
        OperatingPoint.from_json(data)


@pytest.mark.parametrize(
    "change",
    [{"time_ratio": 0}, {"power_ratio": None}, {"count": -1}, {"count": True}, {"source": "x"}, {"more": 1}],
)
def test_bad_responses_are_refused(change):
    data = ResponsePoint(UNTUNED, 1.0, 1.0, CurveSource.THIS_RUN).to_json() | change
    with pytest.raises(UsageError):
        ResponsePoint.from_json(data)


@pytest.mark.parametrize(("name", "cost"), [("energy", 0.96), ("edp", 1.152), ("ed2p", 1.3824)])
def test_cost_of_objectives(name, cost):
    assert Objective(name).cost(1.2, 0.8) == pytest.approx(cost)
    assert Objective(name).cost(1.0, 1.0) == 1.0


def test_the_slowdown_limit_is_relative_to_the_untuned_time():
    assert Objective("energy", 0.05).allows(1.05)
    assert not Objective("energy", 0.05).allows(1.0501)
    assert Objective("edp").allows(10.0)
    for bad in (("speed", None), ("edp", -0.1)):
        with pytest.raises(UsageError):
            Objective(*bad)


def test_points_for_messages():
    assert str(UNTUNED) == "untuned"
    assert str(OperatingPoint(gpu_limit_watts=250.0, boost=False)) == "GPU limit 250 W, boost off"


def test_hardware_of_a_job():
    assert hardware_kind("EPYC 7513", []) == "EPYC 7513"
    assert hardware_kind("EPYC 7513", ["NVIDIA A40", "NVIDIA A40"]) == "NVIDIA A40"
