"""Tests of the report `senergy report job DeferralSavings`.

The tests check which savings the report shows for deferred jobs, and which users may see them.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import fake_controller
import pytest
import store_examples as stored
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.accounting import decisions
from slurm_energy.accounting.decisions import DEFER, RELEASE, Decision
from slurm_energy.accounting.history import arrivals
from slurm_energy.accounting.records import job_facts, record_store
from slurm_energy.cli import connection, report
from slurm_energy.cli.main import main
from slurm_energy.config import Config, parse
from slurm_energy.controller.deferral.routes import DeferralRoutes
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import UsageError
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.protocol.deferral_requests import SAVINGS_PATH, SavingsRequest
from slurm_energy.reports.utilization import deferral_savings

HOUR = 3600.0
T0 = 1_699_999_200.0
OPERATOR = Rights(0, "root", everything=True)
ALICE, BOB = Rights(1000, "alice"), Rights(1001, "bob")
COORDINATOR = Rights(7, "carol", accounts=frozenset({"biology"}))
WINDOW = {"start": str(int(T0)), "end": str(int(T0 + 24 * HOUR))}
PRICES = (0.4, 0.4, 0.1, 0.1, 0.2, 0.2)
"""Price per kWh by hour from `T0` on."""


class Grid(GridFactorSource):
    """Stand-in for the source of prices and carbon intensities. It returns the given series."""

    def __init__(self, series: Mapping[str, GridSeries]) -> None:
        self.given = dict(series)

    async def signals(self, start_s: float, end_s: float) -> dict[str, GridSeries]:
        return self.given


def prices() -> GridSeries:
    samples = [(T0 + at * HOUR, T0 + (at + 1) * HOUR, value) for at, value in enumerate(PRICES)]
    return GridSeries(SeriesSource("csv"), samples, HOUR)


def _with_energy(record: dict[str, Any]) -> dict[str, Any]:
    cpu, _ = record["components"]
    return record | {"components": [cpu | {"energy_joules": 3.6e6}]}


async def add_job(
    store: Store, job_id: int, user: str, account: str, runs: list[tuple[float, float]]
) -> None:
    """Store a job of 3.6 MJ per run, submitted at `T0`."""
    uid = {"alice": 1000, "bob": 1001}[user]
    for count, (start, end) in enumerate(runs):
        times = {"start": T0 + start * HOUR, "end": T0 + end * HOUR}
        record = stored.record(job_id=job_id, uid=uid, user=user, node="n1", restart_count=count, **times)
        items, refused = record_store.read_items([stored.item(_with_energy(record))])
        assert not refused
        await store.write(record_store.store, items, stored.NOW)
    times = {"start": T0 + runs[0][0] * HOUR, "end": T0 + runs[-1][1] * HOUR}
    facts = stored.job(job_id, account=account, user=user, submit=T0, **times)
    lookups = await store.read(job_facts.pending_lookups, 0.0)
    await store.write(job_facts.store, {job_id: [facts]}, lookups, stored.NOW)


def decision(job_id: int, eligible: Any = T0, kind: str = DEFER, submit: float = T0) -> Decision:
    return Decision(job_id, submit, T0, kind, "x", {"eligible_s": eligible} if kind == DEFER else {})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("savings") / "a.db")

    async def fill() -> None:
        await add_job(store, 1, "alice", "physics", [(2, 3)])
        await add_job(store, 2, "bob", "biology", [(2, 3), (4, 5)])
        await add_job(store, 3, "bob", "biology", [(0.5, 1)])
        made = [decision(1), decision(1), decision(2), decision(1, kind=RELEASE), decision(3, submit=T0 - 60)]
        await store.write(decisions.save, "c1", made)

    asyncio.run(fill())
    yield store
    store.close()


def ask(store: Store, rights: Rights = OPERATOR, series: Any = None, **query: str) -> dict[str, Any]:
    config: Config = parse('[cluster]\nname = "c1"\n')
    source = Grid({"price_per_kwh": prices()} if series is None else series)
    routes = DeferralRoutes(lambda: config, store, source)
    return asyncio.run(routes.savings({**WINDOW, **query}, rights))


def test_savings_are_the_cost_at_once_less_the_actual_cost(store: Store) -> None:
    _, alice = ask(store)["rows"]
    assert (alice["account"], alice["user"], alice["jobs"]) == ("physics", "alice", 1)
    # Job 3 was not deferred and waited half an hour; so would the others. They would have run from 0.5 h on.
    assert alice["cost"] == pytest.approx({"actual": 0.1, "at_once": 0.4, "deviation": 0.0, "jobs": 1})
    assert alice["mean_delay_s"] == 2 * HOUR
    assert alice["co2e_g"] is None


def test_runs_of_a_requeued_job_count_each_at_its_time(store: Store) -> None:
    bob, _ = ask(store)["rows"]
    assert (bob["jobs"], bob["energy_joules"]) == (1, 7.2e6)
    # At once, two hours in one piece: half an hour each at the ends, at a mean of 0.25.
    expected = {"actual": 0.1 + 0.2, "at_once": 2 * (1.5 * 0.4 + 0.5 * 0.1) / 2, "deviation": 0.0, "jobs": 1}
    assert bob["cost"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rights", "users"), [(OPERATOR, {"alice", "bob"}), (ALICE, {"alice"}), (COORDINATOR, {"bob"})]
)
def test_users_see_their_jobs_and_coordinators_their_accounts(
    store: Store, rights: Rights, users: set[str]
) -> None:
    assert {row["user"] for row in ask(store, rights)["rows"]} == users


@pytest.mark.parametrize(
    ("query", "users"),
    [
        ({"user": "bob"}, {"bob"}),
        ({"account": "physics"}, {"alice"}),
        ({"partition": "nowhere"}, set()),
        ({"start": WINDOW["end"], "end": str(int(T0 + 48 * HOUR))}, set()),
    ],
)
def test_conditions_select_jobs(store: Store, query: dict[str, str], users: set[str]) -> None:
    assert {row["user"] for row in ask(store, **query)["rows"]} == users


def test_an_unknown_price_leaves_a_job_out(store: Store) -> None:
    gap = GridSeries(SeriesSource("csv"), [(T0, T0 + 2 * HOUR, 0.4)], HOUR)
    rows = ask(store, series={"price_per_kwh": gap})["rows"]
    assert [row["cost"]["jobs"] for row in rows] == [0, 0]


def test_damaged_details_do_not_break_the_report(store: Store) -> None:
    async def add() -> None:
        await add_job(store, 9, "alice", "physics", [(2, 3)])
        await store.write(decisions.save, "c1", [decision(9, "soon"), decision(9, True)])

    asyncio.run(add())
    assert sum(row["jobs"] for row in ask(store)["rows"]) == 2


@pytest.mark.parametrize("query", [{"start": "x"}, {"end": "0"}, {"what": "1"}, {"start": "1e9"}])
def test_malformed_requests_are_refused(store: Store, query: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        ask(store, **query)


def test_a_request_survives_its_parameters() -> None:
    request = SavingsRequest(1, 2, ("a", "b"), (), ("gpu",))
    assert SavingsRequest.from_query(request.parameters()) == request


ROW = {
    "account": "physics",
    "user": "=cmd",
    "jobs": 3,
    "energy_joules": 7.2e6,
    "mean_delay_s": 2 * HOUR,
    "cost": {"actual": 1.0, "at_once": 1.5, "deviation": 0.1, "jobs": 2},
    "co2e_g": None,
}


class Controller(fake_controller.FakeController):
    """A stand-in for senergyctld that returns a given table of savings by deferred jobs."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__({})
        self.rows = rows

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert path == SAVINGS_PATH
        self.asked.append((path, dict(params or {})))
        window = {name: int((params or {})[name]) for name in ("start", "end")}
        return {"cluster": "c1", "window": window, "currency": "EUR", "rows": self.rows, "scope": "all"}


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    controller = Controller([ROW])
    monkeypatch.setattr(connection, "connect", lambda args: controller)
    return controller


def test_the_report_states_savings_and_what_is_unknown(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["start=2025-11-01", "end=2025-11-02", "acc=physics", "users=a,b", "part=gpu"]
    assert main(["report", "job", "Deferral", *words]) == 0
    printed = capsys.readouterr()
    assert "1.00        1.50      0.50 0.10" in printed.out
    assert "saved against running at once: 0.5 EUR (33.3 %), uncertain by 0.1" in printed.err
    assert "EUR: unknown for 1 of 3 jobs, which are left out" in printed.err
    query = controller.asked[0][1]
    assert (query["account"], query["user"], query["partition"]) == ("physics", "a,b", "gpu")
    assert int(query["end"]) - int(query["start"]) == 86400


def test_output_for_programs(controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json", "job", "DeferralSavings"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == [{"cluster": "c1", **ROW}]
    assert document["total"]["cost"] == ROW["cost"]
    assert main(["report", "--csv", "job", "DeferralSavings"]) == 0
    header, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert dict(zip(header, row, strict=True))["Login"] == "'=cmd"
    assert row[-1] == ""
    assert main(["report", "-nP", "job", "DeferralSavings"]) == 0
    assert capsys.readouterr().out.startswith("c1|physics|=cmd|3|120|2|1|1.5|0.5|0.1|")


@pytest.mark.parametrize(
    "words",
    [["-T", "cpu"], ["-t", "kWh"], ["-s", "name"], ["-M", "c2"], ["-a"], ["nodes=n1"], ["interval=day"]],
)
def test_options_without_meaning_are_refused(
    controller: Controller, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "job", "DeferralSavings", *words]) == 2
    assert "DeferralSavings" in capsys.readouterr().err


def test_without_deferred_jobs_the_report_says_so(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.rows = []
    midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    assert main(["report", "job", "DeferralSavings", "start=2026-01-01"]) == 0
    window = f"from 2026-01-01T00:00:00 to {midnight.isoformat()}"
    expected = f"no job that was deferred ended {window}; end=now includes the jobs that ended today\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("end", ["2026-01-02", "now"])
def test_a_given_end_is_not_called_into_question(
    controller: Controller, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    controller.rows = []
    assert main(["report", "job", "DeferralSavings", "start=2026-01-01", f"end={end}"]) == 0
    printed = capsys.readouterr().err
    assert "ended from 2026-01-01T00:00:00 to 20" in printed
    assert "end=now" not in printed


def test_amounts_below_the_smallest_unit_are_zero(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    at_once = 4e-4
    actual = at_once + 4.134e-18
    tiny = {"actual": actual, "at_once": at_once - 1e-16, "deviation": 1.8e-18, "jobs": 1}
    controller.rows = [{**ROW, "mean_delay_s": 73.0, "jobs": 1, "cost": tiny, "co2e_g": {**tiny}}]
    assert main(["report", "job", "DeferralSavings"]) == 0
    printed = capsys.readouterr()
    header, _, row = printed.out.splitlines()
    assert "Delay min" in header and row.split()[4] == "1.2"
    assert row.split()[6:10] == ["0.00", "0.00", "0.00", "0.00"]
    assert "saved against running at once: 0 EUR (0.0 %), uncertain by 0 (" in printed.err
    assert "saved against running at once: 0 kg CO2e (0.0 %), uncertain by 0 (" in printed.err
    assert main(["report", "-nP", "job", "DeferralSavings"]) == 0
    assert "-" not in capsys.readouterr().out


@given(st.floats(-1e9, 1e9), st.integers(1, 6))
def test_amounts_in_notes_are_plain_decimals(value: float, digits: int) -> None:
    text = deferral_savings.plain_amount(value, digits)
    assert re.fullmatch(r"-?\d+(\.\d{0,5}[1-9])?", text) and text != "-0"
    step = max(1e-6, min(1.0, 10.0 ** (1 - digits) * abs(value)))
    assert abs(float(text) - value) <= step


def test_the_example_of_the_help_includes_today() -> None:
    assert "job DeferralSavings start=now-30days end=now " in report.EPILOG


def test_arrivals_of_the_past_have_their_resources_and_slack(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = Store(tmp_path_factory.mktemp("arrivals") / "a.db")

    async def read() -> list[arrivals.PastArrival]:
        await add_job(store, 1, "alice", "physics", [(2, 3)])
        await add_job(store, 2, "bob", "biology", [(0.5, 1)])
        slack = Decision(1, T0, T0, DEFER, "x", {"eligible_s": T0, "latest_start_s": T0 + 4 * HOUR})
        damaged = Decision(2, T0, T0, DEFER, "x", {"eligible_s": T0, "latest_start_s": "late"})
        await store.write(decisions.save, "c1", [slack, slack, damaged])
        return await store.read(arrivals.read_arrivals, "c1", T0 - 1)

    known = asyncio.run(read())
    store.close()
    assert sorted(one.slack_s for one in known) == [0.0, 4 * HOUR]
    assert {(one.partition, one.submit_s, one.elapsed_s) for one in known} == {("cpu", T0, 100.0)}
