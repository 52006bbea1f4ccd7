"""Test the requests about power budgets that the CLI sends to senergyctld.

senergyctld parses each request as the CLI built it. Errors name the wrong key.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.protocol.budget_requests import HistoryQuery, LimitChange, StatusQuery, explain_job_id

VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


def test_requests_are_read_as_they_were_built() -> None:
    status = StatusQuery(48.0, nodes=True)
    assert StatusQuery.from_query(status.parameters()) == status
    assert StatusQuery.from_query({}) == StatusQuery()
    for history in (HistoryQuery(5.0, 10.5, "site", 20), HistoryQuery(0.0, 1.0)):
        assert HistoryQuery.from_query(history.parameters()) == history
    for change in (LimitChange("site", 4e5, 99.0, "storm"), LimitChange("site", None)):
        assert LimitChange.from_json(change.to_json()) == change
    assert explain_job_id({"job_id": "12_3"}) == "12_3"


@pytest.mark.parametrize("watts", [0, -5, True, float("nan"), float("inf"), 4294967297, "5", 10**400])
def test_an_absurd_limit_is_refused(watts: object) -> None:
    with pytest.raises(UsageError, match="watts: must be a number from 1 to 2e\\+09"):
        LimitChange.from_json({"budget": "site", "watts": watts})


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ({"begin_unix_s": "5", "end_unix_s": "5"}, "end_unix_s"),
        ({"begin_unix_s": "nan", "end_unix_s": "5"}, "begin_unix_s"),
        ({"end_unix_s": "5"}, "begin_unix_s"),
        ({"begin_unix_s": "1", "end_unix_s": "5", "points": "1e9"}, "points"),
        ({"begin_unix_s": "1", "end_unix_s": "5", "job": "1"}, "job"),
    ],
)
def test_a_malformed_query_names_its_parameter(query: dict[str, str], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        HistoryQuery.from_query(query)


@pytest.mark.parametrize("text", ["", "x", "1;2", "1_", "-1", "9" * 11])
def test_a_malformed_job_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="job_id"):
        explain_job_id({"job_id": text})


@given(st.dictionaries(st.sampled_from([*LimitChange.__slots__, "x"]), VALUES))
def test_any_body_is_a_change_or_a_usage_error(body: dict[str, Any]) -> None:
    try:
        change = LimitChange.from_json(body)
    except UsageError:
        return
    assert change.budget and (change.watts is None or 1 <= change.watts <= 2e9)
