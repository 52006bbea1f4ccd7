"""Tests of `GET /v1/usage`.

The tests check what each user may see, how emissions and cost vary over time, and which parameters are
refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fake_controller
import period_examples as periods
import pytest
import store_examples as stored

from slurm_energy.accounting.records import job_facts, record_store
from slurm_energy.accounting.records.node_coverage import missing_node_seconds
from slurm_energy.accounting.records.periods import DeliveredPeriod, store_periods
from slurm_energy.cli.main import main
from slurm_energy.config import Config
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.records import usage_routes
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.records.usage_loop import UsageLoop
from slurm_energy.controller.records.usage_routes import UsageRoutes
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.protocol.usage_requests import UsageRequest

HOUR = 3600
T0 = 1_699_999_200
OPERATOR = Rights(0, "root", everything=True)
ALICE, BOB = Rights(1000, "alice"), Rights(1001, "bob")
COORDINATOR = Rights(7, "carol", accounts=frozenset({"biology"}))
DAY = {"edges": f"{T0},{T0 + 2 * HOUR}", "by": "account,user", "cluster": "c1"}


class Grid(GridFactorSource):
    """Stand-in for the source of the factors that turn energy into emissions and cost.

    It returns the same given factors for all times.
    """

    def __init__(self, factors: GridFactors) -> None:
        self.given = factors

    async def factors(self, start_s: float, end_s: float, zone: str = "") -> GridFactors:
        return self.given


def no_slurm(_: Any) -> str:
    raise UnavailableError("sacctmgr", "not found")


def fill(store: Store) -> None:
    """Store the energy of two nodes over two hours: one job of alice and one job of bob.

    Bob changed the Slurm account of his job.
    """

    async def write() -> None:
        for hour in range(2):
            for node, uid, job_id in (("n1", 1000, 1), ("n2", 1001, 2)):
                period = periods.period(
                    T0 + hour * HOUR,
                    node=node,
                    jobs={(job_id, 0): {"cpu": 3_600_000_000_000 * job_id}},
                    idle={"cpu": 1_800_000_000_000},
                    uid=uid,
                )
                item = DeliveredPeriod(0, period, "{}")
                await store.write(store_periods, [item], stored.NOW)
        for job_id, uid, user, account in ((1, 1000, "alice", "physics"), (2, 1001, "bob", "biology")):
            times = {"start": T0 + 1.0, "end": T0 + 2 * HOUR - 1.0}
            data = stored.item(job_id=job_id, uid=uid, user=user, node=f"n{job_id}", **times)
            items, _ = record_store.read_items([data])
            await store.write(record_store.store, items, stored.NOW)
            times["elapsed_s"] = times["end"] - times["start"]
            facts = stored.job(job_id, account=account, user=user, allocated="cpu=2", **times)
            lookups = await store.read(job_facts.pending_lookups, 0.0)
            await store.write(job_facts.store, {job_id: [facts]}, lookups, stored.NOW)

    asyncio.run(write())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = Store(tmp_path_factory.mktemp("usage") / "a.db")
    fill(store)
    yield store
    store.close()


def ask(
    store: Store,
    rights: Rights,
    query: Mapping[str, str] = DAY,
    factors: GridFactors | None = None,
    *,
    public_meter: bool = False,
) -> dict[str, Any]:
    config = Config()
    config = dataclasses.replace(
        config, controller=dataclasses.replace(config.controller, public_meter=public_meter)
    )
    usage = UsageLoop(store, RepeatedFailureLog(logging.getLogger("test")))
    routes = UsageRoutes(lambda: config, store, usage, Grid(factors or GridFactors()), no_slurm)
    return asyncio.run(routes.report(query, rights))


def energies(response: Mapping[str, Any]) -> dict[str, int]:
    return {row.get("user") or row["kind"]: row["energy_microjoules"] // 10**6 for row in response["rows"]}


def test_everyone_sees_what_he_may(store: Store) -> None:
    everything = {"alice": 7_200_000, "bob": 14_400_000, "idle": 7_200_000, "unattributed": 0}
    assert energies(ask(store, OPERATOR)) == everything
    assert energies(ask(store, ALICE)) == {"alice": 7_200_000}
    assert energies(ask(store, COORDINATOR)) == {"bob": 14_400_000}
    assert energies(ask(store, Rights(5, "eve"))) == {}
    shared = ask(store, BOB, public_meter=True)
    assert energies(shared) == {key: everything[key] for key in ("bob", "idle", "unattributed")}
    assert shared["meter_visible"] and not ask(store, BOB)["meter_visible"]
    assert ask(store, BOB)["scope"] == "own" and ask(store, COORDINATOR)["accounts"] == ["biology"]


class RouteClient(fake_controller.FakeController):
    """Client for commands of an operator, which calls the route."""

    def __init__(self, store: Store) -> None:
        super().__init__({})
        self._store = store

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        carbon = GridFactor(GridSeries.constant(SeriesSource("constant"), 360.0))
        return ask(self._store, OPERATOR, params or {}, GridFactors(carbon))


@pytest.fixture(scope="module")
def partly_measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouteClient]:
    """A job on each of three nodes: without meters, with a measured energy of 0, and with 7.2 J of a GPU."""

    async def write(store: Store) -> None:
        parts: tuple[dict[str, int], ...] = ({}, {"cpu": 0}, {"cpu": 0, "gpu[0]": 7_200_000})
        for number, energy in enumerate(parts, 1):
            more: dict[str, Any] = {"node": f"n{number}", "uid": 1000 + number}
            period = periods.period(T0, jobs={(number, 0): energy}, idle=dict.fromkeys(energy, 0), **more)
            await store.write(store_periods, [DeliveredPeriod(0, period, "{}")], stored.NOW)

    store = Store(tmp_path_factory.mktemp("partly") / "a.db")
    asyncio.run(write(store))
    yield RouteClient(store)
    store.close()


@pytest.mark.parametrize(
    ("seconds", "nodes", "jobs", "meter"),
    [
        (
            HOUR,
            "n[1-3]",
            ["", "0|0||0", "7.2|0|7.2|0.00000072"],
            ["0|0|0|0", "0|0|0|0", "7.2|0|7.2|0.00000072"],
        ),
        (
            HOUR // 2,
            "n[1-3]",
            ["", "0|0||0", "3.6|0|3.6|0.00000036"],
            ["0|0|0|0", "0|0|0|0", "3.6|0|3.6|0.00000036"],
        ),
        (HOUR, "n1", [""], ["", "", ""]),
    ],
)
def test_a_report_does_not_show_unknown_energy_as_zero(
    seconds: int,
    nodes: str,
    jobs: list[str],
    meter: list[str],
    partly_measured: RouteClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("slurm_energy.cli.connection.connect", lambda _: partly_measured)
    window = ["clusters=c1", f"nodes={nodes}", f"start=uts{T0}", f"end=uts{T0 + seconds}"]
    columns = "format=energy,energycpu,energygpu,co2e"
    assert main(["report", "-nP", "-t", "J", "-s", "name", "cluster", "ua", columns, *window]) == 0
    assert capsys.readouterr().out.splitlines() == [text or "|||" for text in (*jobs, *meter)]


def test_users_do_not_see_missing_hours_of_nodes(store: Store) -> None:
    query = DAY | {"edges": f"{T0 - HOUR},{T0 + 2 * HOUR}"}
    assert ask(store, ALICE, query)["missing_node_seconds"] is None
    assert not any("node-hours" in note for note in ask(store, ALICE, query)["notes"])


def test_missing_hours_are_computed_once_and_beside_the_event_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many nodes, the computation takes seconds, in which the event loop would answer no request."""
    threads: list[int] = []

    def counted(*args: Any) -> dict[str, int]:
        threads.append(threading.get_ident())
        return missing_node_seconds(*args)

    monkeypatch.setattr(usage_routes, "missing_node_seconds", counted)
    query = DAY | {"edges": f"{T0 - HOUR},{T0},{T0 + 2 * HOUR}"}
    ask(store, ALICE, query)
    assert not threads
    ask(store, OPERATOR, query)
    assert len(threads) == 2 and threading.get_ident() not in threads


def test_emissions_follow_the_intensity_of_each_hour(store: Store) -> None:
    source = SeriesSource("csv", "DE", "")
    carbon = GridSeries(source, [(T0, T0 + HOUR, 100.0), (T0 + HOUR, T0 + 2 * HOUR, 500.0)])
    price = GridSeries.constant(SeriesSource("constant", "", "configured"), 0.25)
    factors = GridFactors(GridFactor(carbon), GridFactor(price), pue=1.5)
    response = ask(store, OPERATOR, factors=factors)
    rows = {row.get("user") or row["kind"]: row for row in response["rows"]}
    # 1 kWh in each hour: (100 + 500) g, 2 x 0.25 EUR, times the PUE.
    assert rows["alice"]["co2e_grams"] == pytest.approx(900)
    assert rows["alice"]["cost"] == pytest.approx(0.75)
    assert rows["idle"]["co2e_grams"] == pytest.approx(900)
    assert response["currency"] == "EUR" and "DE" in response["basis"] and "PUE 1.5" in response["basis"]
    hours = ask(store, OPERATOR, DAY | {"edges": f"{T0},{T0 + HOUR},{T0 + 2 * HOUR}"}, factors)
    grams = [row["co2e_grams"] for row in hours["rows"] if row.get("user") == "bob"]
    assert grams == [pytest.approx(300), pytest.approx(1500)]


def test_emissions_are_unknown_where_the_intensity_is(store: Store) -> None:
    carbon = GridSeries(SeriesSource("csv", "DE", ""), [(T0, T0 + HOUR, 100.0)])
    response = ask(store, OPERATOR, factors=GridFactors(GridFactor(carbon)))
    rows = {row.get("user") or row["kind"]: row["co2e_grams"] for row in response["rows"]}
    assert rows["alice"] is None
    assert response["currency"] == ""


def test_energy_of_chosen_nodes(store: Store) -> None:
    response = ask(store, OPERATOR, DAY | {"node": "n1,n9"})
    assert energies(response) == {"alice": 7_200_000, "idle": 3_600_000, "unattributed": 0}
    assert {row["cpu_seconds"] for row in response["rows"]} == {None}


def test_cpu_time_and_jobs_are_counted(store: Store) -> None:
    query = DAY | {"by": "cpus", "jobs": "1"}
    rows = [row for row in ask(store, OPERATOR, query)["rows"] if row["kind"] == "job"]
    assert [(row["cpus"], row["cpu_seconds"], row["jobs"]) for row in rows] == [(2, 4 * (2 * HOUR - 2), 2)]


def test_edges_inside_a_period_are_noted(store: Store) -> None:
    response = ask(store, OPERATOR, DAY | {"edges": f"{T0 + 1800},{T0 + HOUR}"})
    assert energies(response)["alice"] == 1_800_000
    assert any("in proportion to time" in note for note in response["notes"])


def test_other_clusters_are_left_out(store: Store) -> None:
    assert ask(store, OPERATOR, DAY | {"cluster": "c2"})["rows"] == []
    everywhere = {key: value for key, value in DAY.items() if key != "cluster"} | {"all_clusters": "1"}
    assert energies(ask(store, OPERATOR, everywhere))["alice"] == 7_200_000


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"edges": "5"},
        {"edges": "5,5"},
        {"edges": "6,5"},
        {"edges": "-1,5"},
        {"edges": "1.5,5"},
        {"edges": "1,999999999999"},
        {"edges": ",".join(map(str, range(600)))},
        {"edges": "1,2", "by": "node; DROP TABLE jobs"},
        {"edges": "1,2", "jobs": "yes"},
        {"edges": "1,2", "user": "alice"},
    ],
)
def test_bad_parameters_are_refused(query: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        UsageRequest.from_query(query)


def test_parameters_survive() -> None:
    request = UsageRequest((1, 2, 3), ("account", "cpus"), ("c1", "c2"), True, ("n1",), True)
    assert UsageRequest.from_query(request.parameters()) == request
    assert UsageRequest.from_query(UsageRequest((1, 2)).parameters()) == UsageRequest((1, 2))
