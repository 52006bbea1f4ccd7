"""Test the messages about the power of nodes (polls of agents, decisions of the controller).

The tests check the JSON form of the messages, the bounds of their values, and that every malformed message
is refused.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.budget.messages import DeviceReport, JobReport, NodeDecision, NodePoll
from slurm_energy.errors import UsageError

CURVE = {"hardware": "H100", "workload": "w", "points": []}
POLL = NodePoll(
    "n1",
    "0b1e-7",
    3,
    (
        DeviceReport("package-0", "Xeon", 90.0, 350.0, 200.0, 180.5, (7,), 200.0),
        DeviceReport("gpu0", "H100", None, None, None, None),
    ),
    700.0,
    None,
    (JobReport(7, 0, 0.05, {"package-0": 200.0}, CURVE),),
    True,
)
DECISION = NodeDecision(
    4, {"package-0": 150.0, "gpu0": None}, {"package-0": 90.0}, {"gpu0": 100.0}, 30.0, 1.0
)
WRONG: list[Any] = [None, True, -1, 1e9, float("nan"), float("inf"), 10**400, "1", "", [], {}, "a\nb"]


def test_messages_survive_json() -> None:
    assert NodePoll.from_json(json.loads(json.dumps(POLL.to_json()))) == POLL
    assert NodeDecision.from_json(json.loads(json.dumps(DECISION.to_json()))) == DECISION


def _with(message: NodePoll | NodeDecision, path: tuple[Any, ...], value: Any) -> Any:
    data = json.loads(json.dumps(message.to_json()))
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("node",), ""),
        (("node",), "a\x1b[0m"),
        (("node",), "n" * 257),
        (("boot_id",), "../x"),
        (("number",), -1),
        (("number",), True),
        (("number",), 1.5),
        (("devices",), None),
        (("devices",), [None]),
        (("devices",), {}),
        (("devices", 1, "name"), "package-0"),
        (("devices", 0, "name"), "package-0]"),
        (("devices", 0, "name"), "gpu\u0661"),
        (("devices", 0, "kind"), 5),
        (("devices", 0, "min_watts"), None),
        (("devices", 0, "min_watts"), 351.0),
        (("devices", 0, "limit_watts"), -1.0),
        (("devices", 0, "limit_watts"), "200"),
        (("devices", 0, "watts"), float("nan")),
        (("devices", 0, "watts"), 1e7),
        (("devices", 0, "watts"), 10**400),
        (("devices", 0, "job_ids"), [7, 7]),
        (("devices", 0, "job_ids"), [True]),
        (("devices", 0, "job_ids"), "7"),
        (("devices", 0, "ceiling_watts"), float("inf")),
        (("node_watts",), -5),
        (("dram_watts",), []),
        (("jobs",), [POLL.to_json()["jobs"][0]] * 2),
        (("jobs", 0, "job_id"), "7"),
        (("jobs", 0, "slowdown_limit"), -0.1),
        (("jobs", 0, "requested_watts"), {"cpu": 5.0}),
        (("jobs", 0, "requested_watts"), {"gpu0": None}),
        (("jobs", 0, "requested_watts"), []),
        (("jobs", 0, "curve"), []),
        (("jobs", 0, "curve"), {"points": [0] * 257}),
        (("is_safe",), 1),
    ],
)
def test_a_malformed_poll_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(UsageError):
        NodePoll.from_json(_with(POLL, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("number",), -1),
        (("limits_watts",), None),
        (("limits_watts", "gpu0"), -1.0),
        (("limits_watts", "gpu0"), True),
        (("limits_watts", "all"), 5.0),
        (("safe_watts", "package-0"), None),
        (("safe_watts", "package-0"), float("nan")),
        (("start_watts",), [1]),
        (("lease_s",), 0.5),
        (("lease_s",), float("inf")),
        (("poll_s",), 0),
        (("poll_s",), None),
    ],
)
def test_a_malformed_decision_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(UsageError):
        NodeDecision.from_json(_with(DECISION, path, value))


@pytest.mark.parametrize("data", [None, [], "x", 5, {}, {"number": 1}])
def test_other_json_is_refused(data: Any) -> None:
    for message in (NodePoll, NodeDecision, DeviceReport, JobReport):
        with pytest.raises(UsageError):
            message.from_json(data)


def test_a_decision_of_a_newer_controller_is_accepted() -> None:
    assert NodeDecision.from_json({**DECISION.to_json(), "new": 1}) == DECISION


@given(
    path=st.sampled_from(
        [
            *((key,) for key in POLL.to_json()),
            *(("devices", 0, key) for key in POLL.to_json()["devices"][0]),
            *(("jobs", 0, key) for key in POLL.to_json()["jobs"][0]),
        ]
    ),
    value=st.sampled_from(WRONG),
)
def test_a_poll_is_either_refused_or_valid(path: tuple[Any, ...], value: Any) -> None:
    try:
        poll = NodePoll.from_json(_with(POLL, path, value))
    except UsageError:
        return
    assert NodePoll.from_json(json.loads(json.dumps(poll.to_json()))) == poll
