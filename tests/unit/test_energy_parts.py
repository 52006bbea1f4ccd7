"""Tests of the energy of jobs and steps by time, from which emissions and cost are computed.

The tests cover the division of the energy by the periods of the nodes, the users who may read the result, and
the figures of `senergy acct`, `senergy label` and the AdminComment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fake_controller
import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st
from period_examples import period
from sqlalchemy import event
from store_examples import NOW, Accounting, item, job

from slurm_energy.accounting.records.periods import DeliveredPeriod, store_periods
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.usage import job_parts
from slurm_energy.accounting.usage.job_parts import parts_of_records
from slurm_energy.cli import acct_query, job_footprints
from slurm_energy.cli.main import main
from slurm_energy.controller.records.admin_comments import KEY, AdminCommentWriter
from slurm_energy.errors import UnavailableError
from slurm_energy.grid.energy_parts import KnownPart, clip, divide
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.protocol.energy_parts import MAX_RECORDS, PARTS_PATH
from slurm_energy.slurm import admin_comment

HOUR = 3600
KWH = 3.6e6
T0 = 1_773_129_600  # 2026-03-10T08:00Z
FACTORS = GridFactors(
    GridFactor(GridSeries(SeriesSource("csv"), [(T0, T0 + HOUR, 300.0), (T0 + HOUR, T0 + 2 * HOUR, 250.5)])),
    GridFactor(GridSeries(SeriesSource("csv"), [(T0, T0 + HOUR, 0.3), (T0 + HOUR, T0 + 2 * HOUR, 0.2505)])),
    1.25,
)
"""The factors of the example in docs/carbon-and-price.md."""


def total(parts: Iterable[KnownPart]) -> float:
    return math.fsum(joules for _, _, joules in parts)


# Division


def test_energy_that_no_period_contains_is_spread_over_the_time_without_one() -> None:
    periods = [(0.0, 3600.0, 100.0), (3600.0, 7200.0, 200.0)]
    assert divide(1800.0, 9000.0, 360.0, periods) == [
        (1800.0, 3600.0, 100.0),
        (3600.0, 7200.0, 200.0),
        (7200.0, 9000.0, pytest.approx(60.0)),
    ]
    assert divide(0.0, 7200.0, 150.0, periods) == [(0.0, 3600.0, 50.0), (3600.0, 7200.0, 100.0)]
    assert divide(0.4, 7200.4, 330.0, periods) == [
        (0.4, 3600.0, pytest.approx(110.0)),
        (3600.0, 7200.0, pytest.approx(220.0)),
    ]
    assert divide(9000.0, 9100.0, 5.0, periods) == [(9000.0, 9100.0, 5.0)]


def test_a_step_draws_power_in_the_course_of_time_as_its_job_does() -> None:
    parts = [(0.0, 100.0, 10.0), (100.0, 200.0, 30.0)]
    assert clip(parts, 50.0, 200.0, 7.0) == [(50.0, 100.0, 1.0), (100.0, 200.0, 6.0)]
    assert clip([], 50.0, 200.0, 7.0) == [(50.0, 200.0, 7.0)]
    assert clip(parts, 250.0, 300.0, 7.0) == [(250.0, 300.0, 7.0)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0.0, 1e9)), max_size=20, unique_by=lambda one: one[0]),
    st.floats(-10.0, 20_000.0),
    st.floats(0.0, 20_000.0),
    st.floats(0.0, 1e10),
)
def test_parts_lie_in_the_time_of_the_job_and_add_up_to_its_energy(
    rows: list[tuple[int, float]], start: float, length: float, joules: float
) -> None:
    parts = divide(start, start + length, joules, [(n * 360.0, (n + 1) * 360.0, j) for n, j in rows])
    assert total(parts) == pytest.approx(joules, rel=1e-9, abs=1e-6)
    assert all(start <= begin <= until <= start + length and part >= 0 for begin, until, part in parts)
    assert all(before[1] <= after[0] for before, after in pairwise(parts))


# Records and periods in the database


def store_hours(
    store: Accounting, node: str, *kilowatt_hours: float, start: int = T0, job_id: int = 1
) -> None:
    items = [
        DeliveredPeriod(
            0, period(begin, node=node, jobs={(job_id, 0): {"cpu": round(kwh * KWH * 1e6)}}), "{}"
        )
        for begin, kwh in zip(range(start, start + 9 * HOUR, HOUR), kilowatt_hours, strict=False)
    ]
    with store.connect() as connection:
        store_periods(connection, items, NOW)


def delivered(
    store: Accounting,
    node: str,
    kwh: float,
    end: float = T0 + 2 * HOUR,
    *,
    start: float = T0,
    job_id: int = 1,
    **more: Any,
) -> str:
    energy = (examples.component("cpu", kwh * KWH),)
    times = {"start": float(start), "end": float(end)}
    record = examples.record(job_id, node, cluster="c1", components=energy, **times, **more)
    return store.deliver(item(record.to_json()))[0]


def parts_of(store: Accounting, *ids: str, visible: Visibility | None = None) -> dict[str, list[KnownPart]]:
    with store.connect(read_only=True) as connection:
        return parts_of_records(connection, ids, visible)


@pytest.fixture
def store(store_location: Path | str) -> Accounting:
    """Return a database with a job on two nodes with the energy of the example in carbon-and-price.md."""
    store = Accounting(store_location)
    for node in ("n1", "n2"):
        store_hours(store, node, 0.6, 0.4)
    return store


def test_parts_are_the_sums_over_the_nodes_of_a_job(store: Accounting) -> None:
    job_record, other = delivered(store, "n1", 1.0), delivered(store, "n2", 1.0)
    step = delivered(store, "n1", 0.5, T0 + HOUR + HOUR // 2, step="0")
    store_hours(store, "n1", 5.0, 5.0, start=T0 - 90 * 24 * HOUR)  # an earlier job with the same id
    found = parts_of(store, job_record, other, step, "unknown")
    assert found == {
        job_record: [
            (T0, T0 + HOUR, pytest.approx(1.2 * KWH)),
            (T0 + HOUR, T0 + 2 * HOUR, pytest.approx(0.8 * KWH)),
        ],
        step: [
            (T0, T0 + HOUR, pytest.approx(0.375 * KWH)),
            (T0 + HOUR, T0 + HOUR + HOUR // 2, pytest.approx(0.125 * KWH)),
        ],
    }


def test_parts_are_visible_with_their_records_only(store: Accounting) -> None:
    record_id = delivered(store, "n1", 1.0, uid=1000)
    assert set(parts_of(store, record_id, visible=Visibility(1000, frozenset()))) == {record_id}
    assert not parts_of(store, record_id, visible=Visibility(1001, frozenset()))


def test_jobs_without_periods_have_no_parts(store_location: Path | str) -> None:
    store = Accounting(store_location)
    assert not parts_of(store, delivered(store, "n1", 1.0))


def test_the_parts_of_many_jobs_need_few_queries(
    store_location: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Accounting(store_location)
    ids = []
    for job_id in range(1, 61):
        store_hours(store, f"n{job_id}", 0.6, 0.4, job_id=job_id)
        ids.append(delivered(store, f"n{job_id}", 1.0, job_id=job_id))
    statements = []
    with store.connect(read_only=True) as connection:
        event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
        parts = parts_of_records(connection, ids, None)
        with pytest.raises(UnavailableError, match=r"it takes longer than 0 s.*ask for fewer jobs"):
            parts_of_records(connection, ids, None, limit_s=0.0)
        assert set(parts_of_records(connection, ids[:1], None, limit_s=0.0)) == set(ids[:1])
    assert set(parts) == set(ids)
    assert {tuple(joules for _, _, joules in some) for some in parts.values()} == {(0.6 * KWH, 0.4 * KWH)}
    assert len([statement for statement in statements if "FROM periods" in statement]) < 10
    monkeypatch.setattr(job_parts, "_MAX_NODE_HOURS", 9)
    assert parts_of(store, *ids) == parts
    monkeypatch.setattr(job_parts, "_MAX_PARTS", 2 * len(ids) - 1)
    with pytest.raises(UnavailableError, match=r"more than 119 parts.*ask for fewer jobs"):
        parts_of(store, *ids)


def test_nodes_that_start_at_slightly_different_times_share_parts(
    store_location: Path | str,
) -> None:
    store = Accounting(store_location)
    ids = []
    for node in range(5):
        store_hours(store, f"n{node}", 0.6, 0.4)
        ids.append(delivered(store, f"n{node}", 1.0, T0 + 2 * HOUR - 0.1 * node, start=T0 + 0.1 * node))
    (parts,) = parts_of(store, *ids).values()
    assert parts == [
        (T0, T0 + HOUR, pytest.approx(3.0 * KWH)),
        (T0 + HOUR, T0 + 2 * HOUR, pytest.approx(2.0 * KWH)),
    ]


def test_periods_shorter_than_an_hour_remain_separate_parts(store_location: Path | str) -> None:
    store, quarter = Accounting(store_location), HOUR // 4
    energies = [round(share * KWH * 1e6) for share in (0.4, 0.3, 0.2, 0.1)]
    items = [
        DeliveredPeriod(0, period(begin, begin + quarter, node="n1", jobs={(1, 0): {"cpu": energy}}), "{}")
        for begin, energy in zip(range(T0, T0 + HOUR, quarter), energies, strict=True)
    ]
    with store.connect() as connection:
        store_periods(connection, items, NOW)
    (parts,) = parts_of(store, delivered(store, "n1", 1.0, T0 + HOUR)).values()
    assert parts == [
        (T0 + quarter * place, T0 + quarter * (place + 1), pytest.approx(energy / 1e6))
        for place, energy in enumerate(energies)
    ]


# Figures


def test_the_admin_comment_has_the_figures_of_the_example_on_the_page(store: Accounting) -> None:
    for node in ("n1", "n2"):
        delivered(store, node, 1.0)
    store.learn(job(1, nodes=2, start=float(T0), end=float(T0 + 2 * HOUR)), now=time.time())
    figures = written_comment(store, FACTORS)[0]
    assert (figures["co2e_grams"], figures["cost"]) == (700.5, pytest.approx(0.7005))


@pytest.mark.parametrize(
    ("factors", "comment", "is_read"),
    [(FACTORS, "", True), (GridFactors(), "", False), (FACTORS, "own", False)],
)
def test_parts_are_read_only_if_the_comment_depends_on_them(
    store: Accounting, factors: GridFactors, comment: str, is_read: bool
) -> None:
    delivered(store, "n1", 1.0)
    store.learn(job(1, start=float(T0), end=float(T0 + 2 * HOUR)), now=time.time())
    assert (parts_of_records in written_comment(store, factors, comment)[1]) == is_read


def written_comment(
    store: Accounting, factors: GridFactors, comment: str = ""
) -> tuple[dict[str, Any], list[object]]:
    """Return the figures written to the AdminComment of job 1, and the functions called to read data.

    Args:
        store: database that contains the job.
        factors: factors of emissions and cost.
        comment: present AdminComment of the job.
    """
    reads: list[object] = []
    written: list[str] = []

    class Reader:
        async def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
            reads.append(function)
            with store.connect(read_only=True) as connection:
                return function(connection, *arguments)

    async def factors_between(start: float, end: float) -> GridFactors:
        return factors

    def run(argv: Sequence[str]) -> str:
        if argv[0] == "sacct":
            return f"{1:<20} {900:<24} {comment:<{admin_comment.MAX_LENGTH}} \n"
        written.append(argv[-1].partition("=")[2])
        return ""

    failures = RepeatedFailureLog(logging.getLogger())
    writer = AdminCommentWriter(lambda: True, Reader(), run, factors_between, failures)  # type: ignore[arg-type]
    asyncio.run(writer.write())
    return json.loads(written[0])[KEY] if written else {}, reads


def two_hours(job_id: int) -> list[dict[str, Any]]:
    """Return records of a job and its batch step with the energy of the example in carbon-and-price.md."""
    times = {"start": float(T0), "end": float(T0 + 2 * HOUR)}
    energy = (examples.component("cpu", 2.0 * KWH),)
    info = examples.job_info(job_id, submit=T0 - 5.0, elapsed_s=2.0 * HOUR, **times)
    return [
        examples.answer(examples.record(job_id, components=energy, step=step, **times), info)
        for step in (None, "batch")
    ]


def parts_response(*job_ids: int) -> dict[str, Any]:
    parts = [[T0, T0 + HOUR, 1.2 * KWH], [T0 + HOUR, T0 + 2 * HOUR, 0.8 * KWH]]
    return {"scope": "all", "parts": {f"{n}-n1-{step}-0": parts for n in job_ids for step in (None, "batch")}}


def acct(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    assert main(["acct", "-a", "-nP", "-o", "jobid,co2eraw,cost", *arguments]) == 0
    output = capsys.readouterr()
    return output.out.splitlines(), output.err


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    monkeypatch.setattr(acct_query, "installed_release", lambda: None)
    answers = {
        "/v1/records": {"scope": "all", "records": two_hours(1)},
        "/v1/jobs/1": {"records": two_hours(1)},
        "/v1/grid": FACTORS.to_json(),
        PARTS_PATH: parts_response(1),
    }
    return fake_controller.install(monkeypatch, answers)


def test_acct_and_label_have_the_figures_of_the_example_on_the_page(controller, capsys) -> None:
    rows, notes = acct(capsys)
    assert rows == ["1|700.5|0.7005", "1.batch|700.5|0.7005"] and not notes
    assert main(["label", "1", "--json"]) == 0
    footprint = json.loads(capsys.readouterr().out)["footprint"]
    assert (footprint["co2e_grams"], footprint["cost"]) == (
        pytest.approx(700.5),
        pytest.approx(0.7005),
    )


def test_without_parts_the_power_of_a_job_counts_as_constant(controller, capsys) -> None:
    controller.answers[PARTS_PATH] = UnavailableError("controller", "path not found")
    rows, notes = acct(capsys)
    assert rows[0].startswith("1|688.125|")
    assert "as if the power of each job were constant: controller: path not found" in notes


def test_parts_are_requested_only_where_a_factor_changes(controller, capsys) -> None:
    constant = GridFactor(GridSeries.constant(SeriesSource("yearly"), 400.0))
    controller.answers["/v1/grid"] = GridFactors(constant, None).to_json()
    assert acct(capsys)[0][0].startswith("1|800|")
    hour = GridSeries(SeriesSource("csv"), [(T0 - HOUR, T0, 500.0), (T0, T0 + 2 * HOUR, 100.0)])
    controller.answers["/v1/grid"] = GridFactors(GridFactor(hour), None).to_json()
    assert acct(capsys)[0][0].startswith("1|200|")
    assert not controller.posted


def test_the_parts_of_many_jobs_are_requested_in_portions(controller, capsys) -> None:
    ids = range(1, MAX_RECORDS + 1)
    controller.answers["/v1/records"] = {"scope": "all", "records": [r for n in ids for r in two_hours(n)]}
    controller.answers[PARTS_PATH] = parts_response(*ids)
    rows, _ = acct(capsys)
    assert {row.partition("|")[2] for row in rows} == {"700.5|0.7005"}
    assert [len(body["record_ids"]) for _, body in controller.posted] == [MAX_RECORDS, MAX_RECORDS]


def test_a_command_makes_at_most_twenty_requests(controller, capsys, monkeypatch) -> None:
    monkeypatch.setattr(job_footprints, "MAX_RECORDS", 1)
    ids = range(1, 13)
    controller.answers["/v1/records"] = {"scope": "all", "records": [r for n in ids for r in two_hours(n)]}
    controller.answers[PARTS_PATH] = parts_response(*ids)
    _, notes = acct(capsys)
    assert len(controller.posted) == 20
    assert "emissions and cost of 4 jobs and steps are computed as if the power" in notes


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(0, 3)), max_size=9)


@given(SPANS, st.integers(-5, 80), st.integers(0, 40))
def test_a_factor_is_constant_if_all_seconds_have_the_same_value(
    rows: list[tuple[int, int, int]], start: int, length: int
) -> None:
    series = GridSeries(SeriesSource("csv"), [(float(a), float(a + n), float(v)) for a, n, v in rows])
    values = {series.at(start + second + 0.5) for second in range(length)}
    if GridFactors(GridFactor(series)).are_constant(float(start), float(start + length)):
        assert len(values) <= 1
