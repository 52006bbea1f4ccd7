"""Tests of the progress messages that programs send to the agent.

The tests check the form of the messages, who may send them, and which reports the agent keeps.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sampler import HandClock

from slurm_energy.agent.jobs import progress_reports
from slurm_energy.agent.jobs.progress_reports import ProgressReport, ProgressReports
from slurm_energy.agent.jobs.sessions import Session, SessionTable
from slurm_energy.agent.sockets import messages
from slurm_energy.errors import ForbiddenError, NotFoundError, UsageError

OWNER = 1000


class Reports:
    """Receiver of progress reports on a node on which one job (job 5) runs, for tests.

    The clock of the receiver shows the time that the test sets.
    """

    def __init__(self) -> None:
        self.clock = HandClock()
        self.sessions = SessionTable()
        self.start(5)
        self.reports = ProgressReports(self.sessions, cast(Any, self.clock))

    def start(self, job_id: int, restart_count: int = 0) -> None:
        key = (job_id, restart_count)
        session = SimpleNamespace(job_id=job_id, uid=OWNER, key=key, restart_count=restart_count)
        session.tuning = {"mode": "on"}
        self.sessions[key] = cast(Session, session)

    def send(self, reader: int | None = OWNER, **fields: Any) -> dict[str, Any]:
        message = messages.progress({"op": "progress", "job_id": 5, "process": "0", **fields})
        return self.reports.receive(message, reader)


@pytest.mark.parametrize(
    "fields",
    [
        {"units": -1},
        {"units": math.nan},
        {"units": math.inf},
        {"units": 1e16},
        {"units": True},
        {"units": "3"},
        {"units": None},
        {"units": 10**400},
        {"units": 1, "add": 1},
        {},
        {"units": 1, "process": "a b"},
        {"units": 1, "process": "x" * 65},
        {"units": 1, "process": None},
        {"units": 1, "job_id": 0},
        {"units": 1, "total": -1},
        {"units": 1, "time_s": []},
    ],
)
def test_malformed_reports_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="message: "):
        messages.progress({"job_id": 5, "process": "0", **fields})


@given(
    st.dictionaries(
        st.sampled_from(("job_id", "process", "units", "add", "total", "time_s")),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=80)
        | st.lists(st.integers()),
    )
)
def test_every_message_is_a_report_or_refused(fields: dict[str, Any]) -> None:
    try:
        report = messages.progress(fields)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert 0 <= report.units <= 1e15
        json.dumps(report.process)


def test_owner_and_root_report_and_nobody_else() -> None:
    node = Reports()
    assert node.send(units=1)["units"] == 1
    assert node.send(reader=None, units=2)["units"] == 2
    with pytest.raises(ForbiddenError, match="another user"):
        node.send(reader=1001, units=3)
    with pytest.raises(NotFoundError):
        node.send(job_id=6, units=3)


def test_reports_are_collected_once_with_the_time_of_the_unit() -> None:
    node = Reports()
    now = node.clock.boottime()
    node.send(units=3, time_s=now - 0.25)
    node.send(units=4, time_s=now + 5)  # the clock of a container
    node.send(units=5, time_s=now - 20)
    assert node.reports.collect((5, 0)) == [
        ProgressReport(3, now - 0.25, "0"),
        ProgressReport(4, now, "0"),
        ProgressReport(5, now, "0"),
    ]
    assert node.reports.collect((5, 0)) == []
    assert node.reports.collect((7, 0)) == []


def test_increments_add_up_by_process() -> None:
    node = Reports()
    node.send(process="script.0", add=2)
    node.send(process="script.1", add=10)
    assert node.send(process="script.0", add=3)["units"] == 5


def test_the_remaining_time_follows_from_rate_and_total() -> None:
    node = Reports()
    assert node.send(units=10, total=100)["remaining_s"] is None
    node.clock.now += 20
    assert node.send(units=20, total=100)["remaining_s"] == pytest.approx(160)
    assert node.reports.remaining_s((5, 0)) == pytest.approx(160)
    assert node.send(units=20)["remaining_s"] is None


def test_the_remaining_time_is_unknown_after_a_process_has_exceeded_its_total() -> None:
    node = Reports()
    for units, remaining_s in ((50, None), (100, 100), (150, 50), (200, 0)):
        assert node.send(units=units, total=200)["remaining_s"] == remaining_s
        node.clock.now += 50
    assert node.reports.remaining_s((5, 0)) is None  # the second epoch has begun
    assert node.send(units=250, total=200)["remaining_s"] is None
    assert node.reports.remaining_s((5, 0)) is None


def test_many_processes_report_less_often_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_reports, "MAX_PROCESSES", 100)
    node = Reports()
    assert node.send(units=1)["interval_s"] == 0.5
    intervals = [node.send(process=str(rank), units=1)["interval_s"] for rank in range(100)]
    assert intervals[-1] == pytest.approx(5.0)
    with pytest.raises(UsageError, match="more than 100 processes"):
        node.send(process="one-more", units=1)
    assert node.send(process="7", units=2)["units"] == 2
    node.clock.now += 301
    assert node.send(process="one-more", units=1, total=3)["interval_s"] == 0.5  # the others have ended
    assert node.send(process="7", add=1)["units"] == 3


@pytest.mark.parametrize("tuning", [None, {"mode": "off"}])
def test_jobs_without_tuning_report_rarely(tuning: dict[str, str] | None) -> None:
    node = Reports()
    node.sessions[5, 0].tuning = tuning
    assert node.send(units=1)["interval_s"] == 30.0


def test_pending_reports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Reports()
    for unit in range(progress_reports.MAX_PENDING + 10):
        node.send(units=unit)
    reports = node.reports.collect((5, 0))
    assert len(reports) == progress_reports.MAX_PENDING
    assert reports[-1].units == progress_reports.MAX_PENDING + 9


def test_ended_jobs_are_forgotten() -> None:
    node = Reports()
    node.send(units=1)
    del node.sessions[5, 0]
    node.start(8)
    node.send(job_id=8, units=1)
    assert node.reports.collect((5, 0)) == []
