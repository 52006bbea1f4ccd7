"""Tests of the states that clusters report, and of the choice of a cluster for a job.

The tests check the messages between clusters. They also check that hostile or slow clusters do no harm. The
state of the local cluster is tested too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import open_munge
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.config import Config
from slurm_energy.config.cluster_tables import OtherCluster, PlacementConfig
from slurm_energy.controller.clusters import cluster_states
from slurm_energy.controller.clusters.cluster_queue import ClusterQueue, _grouped, _with_rest
from slurm_energy.controller.clusters.cluster_signals import signal_columns, signal_values
from slurm_energy.controller.clusters.cluster_states import ClusterStates, KnownCluster
from slurm_energy.controller.clusters.placement_routes import (
    MAX_RESERVED_PER_USER,
    RESERVED_S,
    SUBMITTED_S,
    PlacementRoutes,
)
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.protocol import controller_endpoint
from slurm_energy.protocol.cluster_state import (
    CLUSTER_STATE_PATH,
    MAX_JOBS,
    MAX_SLOTS,
    ClusterState,
    SignalValues,
)
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.placement_requests import ClusterPrediction, PlacementQuery
from slurm_energy.protocol.response_proof import ResponseSeal
from slurm_energy.slurm.queue.columns import queue_columns

NOW = 1_800_000_000.0
HOUR = 3600.0
ALICE, BOB = Rights(1000, "alice"), Rights(1001, "bob")
DEADLINE_S = 60.0


def state(cluster: str, price: float | None = None, **more: Any) -> ClusterState:
    """Return the state of an empty cluster of 8 CPUs with a constant price."""
    signals = {} if price is None else {"price_per_kwh": SignalValues((price,) * 96, (0.0,) * 96)}
    values = {"cpus": 8, "currency": "EUR", "start_unix_s": NOW, "signals": signals, "taken_unix_s": NOW}
    return ClusterState(cluster, **(values | more))


numbers = st.floats(0, 1e14, allow_nan=False)
triples = st.lists(st.tuples(numbers, numbers, numbers), max_size=4).map(tuple)


def columns(slots: int) -> st.SearchStrategy[SignalValues]:
    """Return a Hypothesis strategy that generates the values of a signal in `slots` intervals."""
    values = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=slots, max_size=slots).map(tuple)
    return st.builds(SignalValues, values, values, st.text("abc ", max_size=9))


states = st.builds(
    ClusterState,
    cluster=st.text("abc-", min_size=1, max_size=20),
    taken_unix_s=numbers,
    cpus=st.integers(0, 10**9),
    gpus=st.integers(0, 10**9),
    running=triples,
    pending=triples,
    pue=st.floats(1, 3),
    signals=st.integers(0, 4).flatmap(
        lambda slots: st.dictionaries(st.sampled_from(["price_per_kwh", "carbon_g_per_kwh"]), columns(slots))
    ),
)


@given(states)
@examples(10)
def test_a_state_survives_json(one: ClusterState) -> None:
    assert ClusterState.from_json(json.loads(json.dumps(one.to_json()))) == one


hostile_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**400), 10**400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@examples(40)
@given(st.sampled_from(list(state("a", 1.0).to_json())), hostile_values)
def test_no_hostile_state_raises_another_error(key: str, value: Any) -> None:
    data = state("a", 1.0).to_json() | {key: value}
    with contextlib.suppress(UsageError):
        ClusterState.from_json(data)


@pytest.mark.parametrize(
    "change",
    [
        {"cpus": 10**400},
        {"cpus": -1},
        {"cpus": True},
        {"pue": 0.5},
        {"step_s": 0},
        {"running": [[1, 2]]},
        {"running": [[1, 2, math.inf]]},
        {"pending": [[1, 1, 1]] * (MAX_JOBS + 1)},
        {"cluster": None},
        {"problem": "x" * 301},
        {"signals": {"price_per_kwh": {"mean": [0] * (MAX_SLOTS + 1), "deviation": [], "source": ""}}},
        {"signals": {"price_per_kwh": {"mean": [0], "deviation": [], "source": ""}}},
        {"signals": {"price_per_kwh": {"mean": [10**400], "deviation": [0], "source": ""}}},
        {
            "signals": {
                "price_per_kwh": {"mean": [0], "deviation": [0], "source": ""},
                "carbon_g_per_kwh": {"mean": [0, 0], "deviation": [0, 0], "source": ""},
            }
        },
    ],
)
def test_states_out_of_bounds_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="state of a cluster"):
        ClusterState.from_json(state("a", 1.0).to_json() | change)


def test_many_jobs_with_huge_time_limits_make_no_state_that_others_refuse() -> None:
    pending = _with_rest(np.tile([1.0, 0.0, 6e10], (20_000, 1)))
    assert len(ClusterState.from_json(state("a", pending=pending).to_json()).pending) == MAX_JOBS


QUERY = PlacementQuery(2, 0, {"east": ClusterPrediction(HOUR, 100.0)}).to_json()


@examples(40)
@given(st.sampled_from([*QUERY, "other"]), hostile_values)
def test_no_hostile_request_raises_another_error(key: str, value: Any) -> None:
    with contextlib.suppress(UsageError):
        PlacementQuery.from_json(QUERY | {key: value})


def test_requests_survive_json() -> None:
    query = PlacementQuery(2, 1, {"a": ClusterPrediction(5.0, 2.0)}, 1e9, "cleanest", reserve=True)
    assert PlacementQuery.from_json(json.loads(json.dumps(query.to_json()))) == query
    bad = {"predictions": {"a": {"run_s": 10**400, "watts": 1}}}
    with pytest.raises(UsageError, match="run_s"):
        PlacementQuery.from_json(QUERY | bad)


# Other clusters


class Grid(GridFactorSource):
    """Test substitute for the source of carbon intensity and price; it returns given values."""

    def __init__(self, factors: GridFactors) -> None:
        self.given = factors

    async def factors(self, start_s: float, end_s: float, zone: str = "") -> GridFactors:
        return self.given


class NoSlurm:
    """Stand-in for the function that runs Slurm commands. Every command fails.

    If the attribute `event` holds an event, a command waits for the event before it fails.
    """

    def __init__(self) -> None:
        self.event: threading.Event | None = None
        self.commands = 0

    def __call__(self, argv: Sequence[str]) -> str:
        self.commands += 1
        if self.event is not None:
            assert self.event.wait(DEADLINE_S)
        raise UnavailableError("squeue", "no slurmctld")

    def stop(self) -> None:
        if self.event is not None:
            self.event.set()


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW

    def __call__(self) -> float:
        return self.now_s


def config_of(urls: dict[str, str], **placement: Any) -> Config:
    users = [str(open_munge.CONTROLLER)]
    others = {name: OtherCluster(controller_url=(url,), controller_users=users) for name, url in urls.items()}
    config = Config()
    cluster = dataclasses.replace(config.cluster, name="east")
    return dataclasses.replace(
        config, cluster=cluster, clusters=others, placement=PlacementConfig(**placement)
    )


def states_of(config: Config, clock: Clock, run: NoSlurm | None = None) -> ClusterStates:
    failures = RepeatedFailureLog(logging.getLogger("test"))
    source = GridSeries.constant(SeriesSource("constant"), 0.3)
    grid = Grid(GridFactors(price=GridFactor(source), currency="EUR"))
    return ClusterStates(lambda: config, grid, run or NoSlurm(), lambda: None, failures, clock)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


class Peer:
    """A test server that sends the same response to every request and keeps the connection open."""

    def __init__(self, response: Callable[[str], bytes], *, drip: bool = False) -> None:
        self._response, self._drip = response, drip
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            credential = head.decode().partition("MUNGE ")[2].partition("\r\n")[0]
            content = self._response(credential)
            if self._drip:
                while True:
                    connection.sendall(b"HTTP/1.0 200 OK\r\n" if not content else b"X: 1\r\n")
                    content = b"sent"
                    time.sleep(0.02)
            connection.sendall(content)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self.listener.close()
        for connection in self.connections:
            connection.close()


def proven(document: str) -> Callable[[str], bytes]:
    """Return a fake HTTP server that responds with the JSON object `document`.

    Each response has a seal, which proves that senergyctld sent the response.
    """

    def response(credential: str) -> bytes:
        seal, content = ResponseSeal(credential, 200), document[:-1].encode()
        seal.update(content)
        content += seal.tail(None)
        return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content

    return response


def told(**change: Any) -> Callable[[str], bytes]:
    return proven(json.dumps(state("west", 0.1).to_json() | change))


def unproven(_: str) -> bytes:
    content = json.dumps(state("west", 0.1).to_json()).encode()
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content


HOSTILE: dict[str, Callable[[], Peer]] = {
    "silent": lambda: Peer(lambda _: b""),
    "dripping": lambda: Peer(lambda _: b"", drip=True),
    "without proof": lambda: Peer(unproven),
    "too large": lambda: Peer(lambda _: b"HTTP/1.0 200 OK\r\n\r\n" + bytes(3 << 20)),
    "not http": lambda: Peer(lambda _: b"\x00\xff" * 100),
    "another cluster": lambda: Peer(told(cluster="north")),
    "numbers beyond floats": lambda: Peer(
        proven(json.dumps(state("west").to_json())[:-1] + ', "cpus": 1' + "0" * 400 + "}")
    ),
    "many digits": lambda: Peer(
        proven(json.dumps(state("west").to_json())[:-1] + ', "cpus": 1' + "0" * 5000 + "}")
    ),
    "deep": lambda: Peer(proven('{"running": ' + "[" * 100_000 + "]" * 100_000 + "}")),
    "no object": lambda: Peer(proven("[1]")),
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits for responses of clusters far above the deadlines of the tests.

    A cluster then responds in time on a busy machine, too.
    """
    open_munge.install(monkeypatch)
    monkeypatch.setattr(cluster_states, "TIMEOUT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(cluster_states, "TOTAL_TIMEOUT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(controller_endpoint, "_RETRY_PAUSES_S", (0.0, 0.0, 0.0))


def limit_time_of(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time limit for the response of one cluster to 0.4 s."""
    make_client = cluster_states._client

    def limited(config: Config, name: str) -> ControllerClient:
        with monkeypatch.context() as patch:
            if name == cluster:
                patch.setattr(cluster_states, "TIMEOUT_S", 0.2)
                patch.setattr(cluster_states, "TOTAL_TIMEOUT_S", 0.4)
            return make_client(config, name)

    monkeypatch.setattr(cluster_states, "_client", limited)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_cluster_is_left_out_and_harms_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_time_of("west", monkeypatch)
    good, bad = Peer(proven(json.dumps(state("north", 0.1).to_json()))), HOSTILE[name]()
    with contextlib.closing(good), contextlib.closing(bad):
        states = states_of(config_of({"west": bad.url, "north": good.url}), Clock())
        states.ask_others()

        def known() -> dict[str, KnownCluster]:
            return dict(asyncio.run(states.known()))

        wait_for(lambda: known()["west"].problem not in ("", "not asked yet"))
        wait_for(lambda: known()["north"].state is not None)
        assert known()["west"].state is None
        assert known()["north"].problem == ""
        states.close()


@pytest.mark.usefixtures("patient")
def test_a_slow_cluster_delays_neither_others_nor_the_end() -> None:
    silent = [Peer(lambda _: b"") for _ in range(20)]
    good = Peer(proven(json.dumps(state("north", 0.1).to_json())))
    with contextlib.ExitStack() as stack:
        for peer in (*silent, good):
            stack.callback(peer.close)
        urls = {f"s{at}": peer.url for at, peer in enumerate(silent)}
        clock = Clock()
        states = states_of(config_of({**urls, "north": good.url}), clock)
        states.ask_others()
        wait_for(lambda: asyncio.run(states.known())["north"].state is not None)
        assert asyncio.run(states.known())["s3"].problem == "not asked yet"
        wait_for(lambda: all(peer.connections for peer in silent))
        clock.now_s += 31.0
        states.ask_others()  # a cluster that has not answered yet is not asked again
        assert [len(peer.connections) for peer in silent] == [1] * len(silent)
        states.close()
        wait_for(lambda: not [one for one in threading.enumerate() if one.name == "cluster"])


@pytest.mark.usefixtures("patient")
def test_a_cluster_counts_until_its_state_is_old() -> None:
    peer, clock = Peer(told()), Clock()
    states = states_of(config_of({"west": peer.url}, refresh_s=30.0), clock)

    def problem() -> str:
        return asyncio.run(states.known())["west"].problem

    states.ask_others()
    wait_for(lambda: not problem())
    peer.close()
    clock.now_s += 99.0
    assert problem() == ""
    clock.now_s += 2.0
    assert problem() == "no answer; last state 101 s old"
    states.ask_others()
    wait_for(lambda: "refused" in problem())
    clock.now_s -= 300.0  # the clock of this host was set back
    assert "old" in problem()


# The state of this cluster


def test_the_own_state_has_prices_while_slurmctld_is_down() -> None:
    states = states_of(config_of({}), Clock())
    own = asyncio.run(states.own())
    assert own.problem == "squeue: no slurmctld"
    assert set(own.signals["price_per_kwh"].mean) == {0.3} and own.currency == "EUR"
    assert asyncio.run(states.known())["east"].problem == own.problem


def test_a_slow_slurmctld_delays_a_request_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_states, "OWN_WAIT_S", 0.01)
    clock, run = Clock(), NoSlurm()
    states = states_of(config_of({}), clock, run)

    async def requests() -> None:
        run.event = threading.Event()
        before = await states.own()
        assert before.problem == "slurmctld does not answer in time"
        run.event.set()
        while (await states.own()).problem != "squeue: no slurmctld":
            await asyncio.sleep(0.01)
        last = await states.own()
        run.event = threading.Event()
        clock.now_s += 50.0
        assert await states.own() is last  # younger than the time for which states count
        assert run.commands == 2
        clock.now_s += 51.0
        assert (await states.own()).problem == "slurmctld does not answer in time"
        states.close()

    asyncio.run(requests())


def series(values: Sequence[float], first_s: float) -> GridSeries:
    samples = [(first_s + at * HOUR, first_s + (at + 1) * HOUR, value) for at, value in enumerate(values)]
    return GridSeries(SeriesSource("entsoe", "DE"), samples, HOUR)


def test_known_prices_are_sent_as_they_are_and_later_ones_are_uncertain() -> None:
    first_s = NOW - NOW % HOUR - 72 * HOUR
    prices = [0.1 + 0.01 * (at % 24) for at in range(96)]
    factors = GridFactors(price=GridFactor(series(prices, first_s)))
    values = signal_values(signal_columns(factors, NOW, 21 * 86400.0))["price_per_kwh"]
    assert values.mean[:24] == pytest.approx(prices[72:])
    assert values.deviation[:24] == (0.0,) * 24
    assert len(values.mean) == 96 and None not in values.mean
    ClusterState.from_json(
        ClusterState("a", NOW, signals=signal_values(signal_columns(factors, NOW, 1.0))).to_json()
    )


def test_the_fallback_stands_for_a_stale_source() -> None:
    constant = GridSeries.constant(SeriesSource("yearly", "DE"), 380.0)
    stale = series([100.0] * 24, NOW - 400 * HOUR)
    values = signal_values(signal_columns(GridFactors(GridFactor(stale, constant)), NOW, 86400.0))
    assert set(values["carbon_g_per_kwh"].mean) == {380.0} and "yearly" in values["carbon_g_per_kwh"].source
    assert signal_values(signal_columns(GridFactors(GridFactor(stale)), NOW, 86400.0)) == {}


rows = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 8), st.integers(1, 10**6)), max_size=1200)


@given(rows)
@examples(12)
def test_many_jobs_keep_their_units_and_work(jobs: list[tuple[int, int, int]]) -> None:
    table = np.array(jobs, np.float64).reshape(-1, 3)
    running = _grouped(table[:, [2, 0, 1]])
    assert len(running) <= MAX_JOBS
    assert sum(cpus for _, cpus, _ in running) == table[:, 0].sum()
    assert sum(gpus for _, _, gpus in running) == table[:, 1].sum()
    pending = _with_rest(table)
    assert len(pending) <= MAX_JOBS
    assert sum(cpus * run_s for cpus, _, run_s in pending) == pytest.approx((table[:, 0] * table[:, 2]).sum())


# The choice


class States(ClusterStates):
    """States of other clusters that the test provides."""

    def __init__(self, known: dict[str, KnownCluster]) -> None:
        self.known_clusters = known

    async def own(self) -> ClusterState:
        found = self.known_clusters["east"].state
        assert found is not None
        return found

    async def known(self) -> dict[str, KnownCluster]:
        return self.known_clusters


class Site:
    """The HTTP routes of the controller of cluster `east`, for tests of the choice among clusters.

    This controller also knows a second, cheaper cluster `west`.
    """

    def __init__(self, **placement: Any) -> None:
        self.clock = Clock()
        self.states = States(
            {"east": KnownCluster(state("east", 0.4), NOW), "west": KnownCluster(state("west", 0.1), NOW)}
        )
        config = config_of({"west": "http://127.0.0.1:1"}, **placement)
        self.routes = PlacementRoutes(lambda: config, self.states, self.clock)

    def place(self, rights: Rights = ALICE, **change: Any) -> dict[str, Any]:
        figures = {name: ClusterPrediction(HOUR, 1000.0) for name in ("east", "west")}
        query = {"cpus": 8, "gpus": 0, "predictions": figures} | change
        return asyncio.run(self.routes.place(PlacementQuery(**query).to_json(), rights))

    def change(self, name: str, problem: str = "", **values: Any) -> None:
        known = self.states.known_clusters[name].state
        assert known is not None
        changed = dataclasses.replace(known, **values)
        self.states.known_clusters[name] = KnownCluster(changed, self.clock.now_s, problem)


def test_the_cheaper_cluster_is_chosen_with_all_figures() -> None:
    answer = Site().place()
    assert (answer["cluster"], answer["home"], answer["policy"]) == ("west", "east", "cheapest")
    assert answer["order"] == ["west", "east"] and answer["left_out"] == []
    east, west = answer["clusters"]
    assert (east["kwh"], east["cost"], west["cost"]) == pytest.approx((1.0, 0.4, 0.1))
    assert (west["wait_s"], west["start"], west["end"]) == (0.0, NOW, NOW + HOUR)
    assert json.loads(json.dumps(answer)) == answer


def test_a_burst_spreads_because_placed_jobs_count() -> None:
    site = Site()
    assert [site.place(reserve=True)["cluster"] for _ in range(4)] == ["west", "west", "east", "west"]
    waits = [row["wait_s"] for row in site.place()["clusters"]]
    assert waits == [HOUR, 3 * HOUR]
    assert Site().place(reserve=False)["clusters"][1]["wait_s"] == 0.0


def test_placed_jobs_are_forgotten_when_the_state_contains_them() -> None:
    site = Site()
    site.place(reserve=True)
    assert site.place()["clusters"][1]["wait_s"] == HOUR
    site.clock.now_s += 10
    site.change("west", taken_unix_s=NOW + SUBMITTED_S)
    assert site.place()["clusters"][1]["wait_s"] == 0.0
    site.place(reserve=True)
    site.clock.now_s += RESERVED_S
    assert site.place()["clusters"][1]["wait_s"] == 0.0


def test_one_user_cannot_reserve_everything() -> None:
    site = Site(max_delay_s=1e9)
    for _ in range(MAX_RESERVED_PER_USER + 5):
        site.place(ALICE, cpus=8, reserve=True)
    assert site.place(BOB)["clusters"][1]["wait_s"] == MAX_RESERVED_PER_USER * HOUR
    site.place(BOB, reserve=True)
    assert site.place(BOB)["clusters"][1]["wait_s"] == (MAX_RESERVED_PER_USER + 1) * HOUR


def test_a_cluster_with_a_problem_is_left_out() -> None:
    site = Site()
    site.change("west", "no answer; last state 101 s old")
    answer = site.place()
    assert answer["cluster"] == "east"
    assert answer["left_out"] == [{"cluster": "west", "problem": "no answer; last state 101 s old"}]
    site.change("east", "squeue: no slurmctld")
    answer = site.place()
    assert (answer["cluster"], answer["reason"], answer["clusters"]) == (None, "no cluster answers", [])


def test_data_are_transferred_also_from_a_home_that_cannot_be_chosen() -> None:
    site = Site()
    figures = {"west": ClusterPrediction(HOUR, 1000.0)}
    transfer_s = site.place(data_bytes=1e12)["clusters"][1]["transfer_s"]
    assert transfer_s == pytest.approx(8000.0)
    answer = site.place(data_bytes=1e12, predictions=figures)
    assert (answer["cluster"], answer["clusters"][0]["transfer_s"]) == ("west", transfer_s)
    assert answer["left_out"] == [{"cluster": "east", "problem": "not asked for"}]
    site.change("east", "squeue: no slurmctld")
    assert site.place(data_bytes=1e12)["clusters"][0]["transfer_s"] == transfer_s


def test_prices_in_another_currency_are_not_compared() -> None:
    site = Site()
    site.change("west", currency="USD")
    answer = site.place()
    assert (answer["cluster"], answer["clusters"][1]["cost"]) == ("east", None)
    assert answer["notes"] == ["the price of cluster west is in USD and not compared"]
    assert Site().place()["notes"] == []


def test_a_job_that_fits_nowhere() -> None:
    answer = Site().place(cpus=9)
    assert (answer["cluster"], answer["reason"], answer["order"]) == (None, "no cluster can run it", [])
    assert answer["clusters"][0]["end"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predictions": {"north": ClusterPrediction(1, 1)}}, "cluster 'north': is not configured"),
        ({"policy": "weighted"}, "weight"),
        ({"policy": "x"}, "policy 'x'"),
    ],
)
def test_wrong_requests(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Site().place(**change)


def test_jobs_in_a_queue_count_and_are_computed_once_per_state() -> None:
    site = Site()
    site.change("west", running=((NOW + 600.0, 8.0, 0.0),), pending=((8.0, 0.0, 300.0),) * 3)
    assert site.place()["clusters"][1]["wait_s"] == 1500.0
    site.clock.now_s += 60.0
    assert site.place()["clusters"][1]["wait_s"] == 1440.0
    site.change("west", pending=())
    assert site.place()["clusters"][1]["wait_s"] == 540.0


def test_the_state_of_this_cluster_names_no_user() -> None:
    site = Site()
    answer = asyncio.run(site.routes.state({}, ALICE))
    assert ClusterState.from_json(answer) == state("east", 0.4)
    with pytest.raises(UsageError, match="unknown parameter 'x'"):
        asyncio.run(site.routes.state({"x": "1"}, ALICE))
    assert site.routes.routes.light.keys() == {CLUSTER_STATE_PATH}


def test_jobs_on_draining_nodes_take_nothing_from_other_nodes() -> None:
    nodes = (
        "NodeName=a CPUTot=64 CPUAlloc=48 Gres=gpu:a100:4 GresUsed=gpu:a100:2 State=MIXED+DRAIN\n"
        "NodeName=b CPUTot=64 CPUAlloc=16 Gres=gpu:a100:4 GresUsed=gpu:a100:2 State=MIXED"
    )
    running = {"state": [1, 1], "start_s": [NOW, NOW], "time_limit_s": [7200.0, 7200.0]}
    queue = queue_columns(NOW, [1, 2], cpus=[48, 16], gpus=[2, 2], **running)
    predicted = SimpleNamespace(time_s=[7200.0] * 2)
    snapshot = cast("Snapshot", SimpleNamespace(queue=queue, predicted=predicted, place=np.zeros(2)))
    load = ClusterQueue(lambda argv: nodes, lambda: snapshot, lambda: 60.0, lambda: NOW).read()
    assert (load.cpus, load.gpus) == (64, 4)
    assert np.sum(load.running, axis=0)[1:].tolist() == [16.0, 2.0]


@pytest.fixture(autouse=True)
def _no_thread_remains() -> Iterator[None]:
    yield
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "cluster"])
