"""Tests of live reports about running jobs.

The tests cover the contents of a node's report, and which users see which running job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import open_munge
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from shared_node import SharedNode
from store_examples import record
from test_controller import ALICE, BOB, OPERATOR, Controller, refused

from slurm_energy.agent import live_report_client
from slurm_energy.agent.live_report_client import LiveReportClient
from slurm_energy.config import AgentConfig, Config
from slurm_energy.controller import live_reports
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import NodeHosts, Sender, Verdict
from slurm_energy.controller.http.node_routes import NodeRoutes, SlurmNodeCache
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.errors import ForbiddenError, UnavailableError, UsageError
from slurm_energy.grid.present_factors import PresentFactors
from slurm_energy.protocol.controller_endpoint import NotListeningError
from slurm_energy.protocol.live_reports import LIVE_PATH, MAX_LIVE_RECORDS, RUNNING_PATH, LiveReport
from slurm_energy.protocol.node_states import NODES_PATH
from slurm_energy.records import EnergyRecord
from slurm_energy.slurm.roles import Roles

POWER = {"cpu": 90.0, "dram": 11.0, "other": 33.0}


def report(node: str = "n1", *jobs: int, uid: int = ALICE, **more: Any) -> dict[str, Any]:
    """Return a live report of a node about running jobs of a user, as JSON data."""
    records = [record(job_id=job, node=node, uid=uid) | {"watts": {"cpu": 7.0}} for job in jobs]
    return {
        "cluster": "c1",
        "node": node,
        "time": 1100.0,
        "watts": {"cpu": 50.0, "dram": None},
        "records": records,
    } | more


class TestAgent:
    def test_a_report_has_the_energy_so_far_and_changes_nothing(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        node.begin(2, 2)
        node.manager.step("start", 1, "0")
        node.use(20, POWER, {1: 3, 2: 1})
        node.manager.step("end", 1, "0")
        node.manager.step("start", 1, "1")
        node.use(10, POWER, {1: 3, 2: 1})
        before = json.dumps(node.manager._sessions[1, 0].dump(), default=str)
        made = node.manager.queries.report("n1", "other")
        assert json.dumps(node.manager._sessions[1, 0].dump(), default=str) == before
        assert LiveReport.from_json(json.loads(json.dumps(made.to_json()))) == made
        assert (made.cluster, made.node, made.time) == ("lab", "n1", node.clock.unix())
        assert made.watts == pytest.approx({**POWER, "node": sum(POWER.values())})
        assert [(r.job_id, r.step) for r in made.records] == [(1, None), (2, None), (1, "1")]
        whole, step = made.records[0], made.records[2]
        assert whole.elapsed_s == pytest.approx(30) and step.elapsed_s == pytest.approx(10)
        assert whole.energy_joules and step.energy_joules
        assert step.energy_joules < whole.energy_joules / 2
        assert dict(whole.extra)["watts"]["cpu"] > 0
        node.end(1)
        final = node.records()[1]
        assert (final.record_id, final.start, final.uid) == (whole.record_id, whole.start, whole.uid)
        assert final.energy_joules == pytest.approx(whole.energy_joules)

    @pytest.mark.parametrize("clock_step_s", [3600.0, -3600.0])
    def test_a_step_of_the_wall_clock_changes_no_elapsed_time(
        self, tmp_path: Path, clock_step_s: float
    ) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        node.manager.step("start", 1, "0")
        node.use(20, POWER, {1: 3})
        before = node.manager.queries.report("n1", "lab").records
        node.clock.wall_step = clock_step_s
        made = node.manager.queries.report("n1", "lab")
        assert made.time == node.clock.unix()
        assert [record.elapsed_s for record in made.records] == pytest.approx([20, 20])
        assert made.records[0].mean_watts == pytest.approx(before[0].mean_watts)

    def test_an_idle_node_reports_its_power(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.use(20, POWER)
        made = node.manager.queries.report("n1", "c9")
        assert (made.cluster, made.records) == ("c9", ())
        assert made.watts["cpu"] == pytest.approx(90)

    def test_there_is_a_bound_on_records_and_jobs_come_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("slurm_energy.agent.jobs.live_queries.MAX_LIVE_RECORDS", 3)
        node = SharedNode(tmp_path)
        for job in (1, 2):
            node.begin(job, 2)
            for step in ("batch", "0"):
                node.manager.step("start", job, step)
        made = node.manager.queries.report("n1", "c1")
        assert [(r.job_id, r.step) for r in made.records] == [(1, None), (2, None), (1, "batch")]


class Facts:
    """Fake of `AgentFacts` that returns constant facts and records the calls."""

    def __init__(self) -> None:
        self.requested: list[bool] = []
        self.sent: list[str] = []

    def counts(self) -> dict[str, float]:
        return {"rejected": 2}

    async def facts(self, _: Config, *, requested: bool) -> str | None:
        self.requested.append(requested)
        return None if self.sent and not requested else '{"version":"1"}'

    def mark_sent(self, facts: str) -> None:
        self.sent.append(facts)


class TestClient:
    def client(self, monkeypatch: pytest.MonkeyPatch, answers: list[Any], **agent: Any) -> LiveReportClient:
        self.sent: list[Any] = []

        async def request(_: Any, send: Any) -> Any:
            def post(path: str, body: Any) -> Any:
                self.sent.append((path, body))
                answer = answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            return send(SimpleNamespace(post=post))

        async def work(function: Any, *arguments: Any) -> Any:
            return function(*arguments)

        made = LiveReport("c1", "n1", 5.0)
        jobs: Any = SimpleNamespace(
            queries=SimpleNamespace(report=lambda *_: made), node="n1", output_line=SimpleNamespace()
        )
        monkeypatch.setattr(live_report_client, "request_controller", request)
        return LiveReportClient(jobs, lambda: Config(agent=AgentConfig(**agent)), work, Facts())

    def test_the_controller_may_stretch_the_interval_within_bounds(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = [{"interval_s": s} for s in (1.0, 77, 10**400, -5, True, None)] + [{}]
        client = self.client(monkeypatch, answers)
        pauses = [asyncio.run(client._report(30.0)) for _ in range(7)]
        assert pauses == [30.0, 77.0, 30.0, 30.0, 30.0, 30.0, 30.0]
        first = LiveReport(
            "c1", "n1", 5.0, counts={"rejected": 2, "failed_reports": 0}, facts='{"version":"1"}'
        )
        assert self.sent[0] == (LIVE_PATH, first.to_json())

    def test_facts_are_sent_until_they_arrive_and_on_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = [UnavailableError("c", "gone"), {}, {"wants_facts": True}, {}]
        client = self.client(monkeypatch, answers)
        for _ in range(4):
            asyncio.run(client._report(30.0))
        assert ["facts" in body for _, body in self.sent] == [True, True, False, True]
        assert [body["counts"]["failed_reports"] for _, body in self.sent] == [0, 1, 0, 0]

    def test_refused_connections_are_no_reports_without_a_valid_response(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = self.client(monkeypatch, [NotListeningError("c", "Connection refused"), {}])
        assert [asyncio.run(client._report(30.0)) for _ in range(2)] == [60.0, 30.0]
        assert [body["counts"]["failed_reports"] for _, body in self.sent] == [0, 0]

    def test_failures_are_logged_once_and_slow_it_down(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        client = self.client(monkeypatch, [UnavailableError("c", "gone")] * 8 + [{"interval_s": 0}])
        pauses = [asyncio.run(client._report(30.0)) for _ in range(9)]
        assert pauses == [60.0, 120.0, 240.0, 240.0, 240.0, 240.0, 240.0, 240.0, 30.0]
        assert caplog.text.count("gone") == 1

    def test_zero_turns_reports_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = self.client(monkeypatch, [], live_report_s=0.0)

        async def sleep(seconds: float) -> None:
            if seconds:
                raise asyncio.CancelledError

        monkeypatch.setattr(live_report_client.asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(client.run())
        assert self.sent == []


class TestMessage:
    @pytest.mark.parametrize(
        "bad",
        [
            None,
            [],
            report() | {"node": ""},
            report() | {"cluster": "a\x1b"},
            report() | {"time": True},
            report() | {"time": 10**400},
            report() | {"watts": []},
            report() | {"watts": {"cpu": -1.0}},
            report() | {"watts": {"": 1.0}},
            report() | {"watts": {"cpu": "1"}},
            report() | {"records": None},
            report() | {"records": [1]},
            report() | {"records": [None] * (MAX_LIVE_RECORDS + 1)},
            report("n1", 1) | {"node": "n2"},
            report() | {"facts": []},
            report() | {"facts": {"a": "x" * 8200}},
            report() | {"facts": {"a": float("nan")}},
            report() | {"counts": {"a": "1"}},
            report() | {"counts": dict.fromkeys(map(str, range(17)), 1)},
            report() | {"records": [record() | {"watts": 5}]},
        ],
    )
    def test_bad_reports(self, bad: Any) -> None:
        with pytest.raises(UsageError):
            LiveReport.from_json(bad)

    @given(st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists))
    @examples(50)
    def test_no_value_causes_another_error(self, value: Any) -> None:
        for key in report():
            try:
                LiveReport.from_json(report("n1", 1) | {key: value})
            except UsageError:
                continue


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    open_munge.install(monkeypatch)
    return Controller(tmp_path)


@pytest.mark.slow
class TestController:
    @staticmethod
    async def seen(c: Controller, uid: int, query: str = "") -> tuple[str, list[int]]:
        status, answer = await c.get(RUNNING_PATH + query, uid)
        assert status == 200
        return answer["scope"], [one["job_id"] for one in answer["records"]]

    def test_owners_and_operators_see_running_jobs(self, controller: Controller) -> None:
        async def story(c: Controller) -> None:
            answer = (await c.post(report("n1", 1, 2), target=LIVE_PATH))[1]
            factors = PresentFactors().to_json()
            assert answer == {"interval_s": 0.01, "grid": factors, "wants_facts": True}
            await c.post(report("n2", 3, uid=BOB), target=LIVE_PATH)
            assert await self.seen(c, OPERATOR) == ("all", [1, 2, 3])
            assert await self.seen(c, ALICE) == ("own", [1, 2])
            assert await self.seen(c, BOB) == ("own", [3])
            assert await self.seen(c, 64099) == ("own", [])
            assert await self.seen(c, OPERATOR, "?job=3,1") == ("all", [1, 3])
            assert await self.seen(c, OPERATOR, "?node=n2") == ("all", [3])
            assert refused(await c.get(f"{RUNNING_PATH}?job=1_2"), 400, 2)
            assert refused(await c.get(f"{RUNNING_PATH}?nodes=n1"), 400, 2)
            _, answer = await c.get(f"{RUNNING_PATH}?job=1", ALICE)
            (one,) = answer["records"]
            assert EnergyRecord.from_json(one).energy_joules == 50.0
            assert (one["watts"], one["state"], one["job"]) == ({"cpu": 7.0}, "RUNNING", None)
            assert one["age_s"] < 60
            assert [(n["node"], n["watts"]) for n in answer["nodes"]] == [
                (name, {"cpu": 50.0, "dram": None}) for name in ("n1", "n2")
            ]

        controller.session(story)

    def test_records_of_a_newer_schema_leave_the_others_in_place(self, controller: Controller) -> None:
        mixed = report("n1", 1, 2)
        mixed["records"][0]["schema"] = 10**6

        async def story(c: Controller) -> None:
            await c.post(mixed, target=LIVE_PATH)
            _, answer = await c.get(f"{RUNNING_PATH}?job=2", OPERATOR)
            assert [one["job_id"] for one in answer["records"]] == [2]

        controller.session(story)

    def test_the_last_report_of_a_node_counts(self, controller: Controller) -> None:
        async def story(c: Controller) -> None:
            for jobs in ((1, 2), (2,), ()):
                await c.post(report("n1", *jobs), target=LIVE_PATH)
                assert await self.seen(c, OPERATOR) == ("all", list(jobs))

        controller.session(story)

    def test_users_and_false_energies_are_refused(self, controller: Controller) -> None:
        hot = report("n1", 1)
        hot["records"][0]["components"][0]["energy_joules"] = 1e12

        async def story(c: Controller) -> None:
            assert refused(await c.post(report(), ALICE, LIVE_PATH), 403, 5)
            assert refused(await c.post(hot, target=LIVE_PATH), 400, 2, "implausible")
            assert refused(await c.post(b"[]", target=LIVE_PATH), 400, 2)
            assert await self.seen(c, OPERATOR) == ("all", [])

        controller.session(story)

    def test_coordinators_see_jobs_of_their_accounts(self, controller: Controller) -> None:
        job = SimpleNamespace(job_id=3, restart_count=0, account="physics")
        other = SimpleNamespace(job_id=4, restart_count=1, account="physics")

        class Running:
            async def read(self, _: float) -> Any:
                if failing:
                    raise UnavailableError("squeue", "no answer")
                return {3: job, 4: other}

        failing: list[bool] = []
        controller.server._live._running = Running()
        controller.server.roles._roles = Roles(accounts={"bob": frozenset({"physics"})})

        async def story() -> None:
            live = controller.server._live
            for name, jobs in (("n1", (3, 4)), ("n2", (5,))):
                await live.receive(json.dumps(report(name, *jobs)).encode(), Sender())
            elsewhere = report("n9", 3, cluster="other")  # another cluster has the same job ids
            elsewhere["records"][0]["cluster"] = "other"
            await live.receive(json.dumps(elsewhere).encode(), Sender())
            rights = Rights(BOB, "bob", accounts=frozenset({"physics"}))
            for expected in ([3], []):  # of job 4 another run is in the account
                text = "".join(await live.running({}, rights)) + "}"
                answer = json.loads(text)
                assert (answer["scope"], answer["accounts"]) == ("accounts", ["physics"])
                assert [one["job_id"] for one in answer["records"]] == expected
                failing.append(True)

        asyncio.run(story())
        controller.store.close()


@pytest.mark.slow
class TestNodes:
    """Tests of the response to `GET /v1/nodes`, on which `senergy doctor --cluster` is based."""

    SINFO = "n1|mixed|22.05.8|all*\nn2|idle|22.05.8|all*\nn3|idle~||all*\n"

    def test_operators_see_all_nodes_and_users_who_reports(self, controller: Controller) -> None:
        runs: list[Any] = []

        def sinfo(argv: Any) -> str:
            runs.append(argv)
            return self.SINFO

        live = controller.server._live
        routes = NodeRoutes(lambda: controller.config, live, sinfo)
        controller.server._route_groups = (*controller.server._route_groups, routes.routes)

        async def story(c: Controller) -> None:
            facts = {"version": "1.2", "sources": {"cpu": "rapl"}}
            ahead = report("n1", 1, counts={"rejected": 2}, facts=facts) | {"time": time.time() + 30}
            assert (await c.post(ahead, target=LIVE_PATH))[1]["wants_facts"] is False
            await c.post(report("n2", facts=facts), target=LIVE_PATH)
            assert (await c.post(report("n2"), target=LIVE_PATH))[1]["wants_facts"] is False
            status, answer = await c.get(NODES_PATH, OPERATOR)
            assert (status, answer["scope"], answer["facts"]) == (200, "all", [facts])
            one, two, three = answer["nodes"]
            assert one["clock_offset_s"] == pytest.approx(30, abs=20)
            assert (one["counts"], one["facts"], two["facts"]) == ({"rejected": 2}, 0, 0)
            assert (one["slurm_state"], one["is_busy"], three["is_expected"]) == ("mixed", True, False)
            assert "age_s" not in three
            live._refusals.add("n3", "10.0.0.9 is not an address of it")
            _, answer = await c.get(NODES_PATH, ALICE)
            assert (answer["scope"], answer["facts"]) == ("own", [{"version": "1.2"}])
            keys = {"node", "slurm_state", "is_expected", "is_busy", "partition", "slurmd"}
            assert [set(n) for n in answer["nodes"]] == [keys | {"age_s", "facts"}] * 2 + [keys]
            _, answer = await c.get(NODES_PATH, OPERATOR)
            assert answer["nodes"][2]["refusal"] == "10.0.0.9 is not an address of it"
            assert len(runs) == 1
            assert refused(await c.get(f"{NODES_PATH}?node=n1"), 400, 2)

        controller.session(story)

    def test_a_refused_report_is_remembered_until_one_is_accepted(self) -> None:
        class Hosts:
            verdict = Verdict.REFUSED

            async def verdicts(self, nodes: Any, *_: Any) -> dict[str, Verdict]:
                return dict.fromkeys(nodes, self.verdict)

        now, hosts = [0.0], Hosts()
        live = LiveReports(Config, cast("NodeHosts", hosts), clock=lambda: now[0])
        for _ in range(2):
            with pytest.raises(ForbiddenError):
                asyncio.run(live.receive(json.dumps(report("n1")).encode(), Sender("10.0.0.9")))
        assert live.refusals() == {"n1": "10.0.0.9 is not an address of it"}
        hosts.verdict = Verdict.ALLOWED
        asyncio.run(live.receive(json.dumps(report("n1")).encode(), Sender("10.0.0.9")))
        assert live.refusals() == {}

    def test_slurm_that_does_not_answer(self) -> None:
        now, answers = (
            [100.0],
            [self.SINFO, UnavailableError("sinfo", "gone"), UnavailableError("sinfo", "x")],
        )

        def sinfo(_: Any) -> str:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        cache = SlurmNodeCache(sinfo, lambda: now[0])
        read = []
        for seconds in (0.0, 4.0, 10.0, 200.0):
            now[0] += seconds
            nodes, error = asyncio.run(cache.read())
            read.append((len(nodes), error))
        assert read == [(3, ""), (3, ""), (3, "sinfo: gone"), (0, "sinfo: x")]


class TestBounds:
    def make(self) -> tuple[LiveReports, list[float]]:
        now = [0.0]
        return LiveReports(Config, clock=lambda: now[0]), now

    def put(self, live: LiveReports, body: dict[str, Any]) -> None:
        asyncio.run(live.receive(json.dumps(body).encode(), Sender()))

    def test_silent_nodes_expire(self) -> None:
        live, now = self.make()
        self.put(live, report("n1", 1))
        now[0] = 119.0
        self.put(live, report("n2", 2))
        assert [state.node for state in live.nodes()] == ["n1", "n2"]
        now[0] = 121.0
        assert [state.node for state in live.nodes()] == ["n2"]
        now[0] = 200.0
        self.put(live, report("n3"))
        assert [node for _, node in live._nodes] == ["n2", "n3"]

    def test_equal_facts_are_stored_once_and_dropped_with_the_nodes(self) -> None:
        live, now = self.make()
        for node, version in (("n1", "1"), ("n2", "1"), ("n3", "2")):
            self.put(live, report(node, facts={"version": version}))
        first, second, _ = live.nodes()
        assert first.facts is second.facts and len(live._facts) == 2
        now[0] = 500.0
        self.put(live, report("n4", facts={"version": "2"}))
        assert list(live._facts) == ['{"version":"2"}']
        assert live._bytes == live.nodes()[0].size_bytes

    def test_bounded_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        live, _ = self.make()
        monkeypatch.setattr(live_reports, "MAX_NODES", 2)
        for node in ("n1", "n2", "n1"):
            self.put(live, report(node, 1))
        with pytest.raises(UnavailableError):
            self.put(live, report("n3"))
        monkeypatch.setattr(live_reports, "MAX_BYTES", 1000)
        with pytest.raises(UnavailableError):
            self.put(live, report("n1", *range(1, 10)))
        self.put(live, report("n1"))

    def test_a_checked_node_has_one_report_whatever_cluster_it_names(self) -> None:
        class Hosts:
            async def verdicts(self, nodes: Any, *_: Any) -> dict[str, Verdict]:
                return dict.fromkeys(nodes, Verdict.ALLOWED)

        live = LiveReports(Config, cast("NodeHosts", Hosts()))
        for number in range(5):
            self.put(live, report("n1", cluster=f"c{number}"))
        assert [(state.cluster, state.node) for state in live.nodes()] == [("c4", "n1")]

    def test_many_nodes_report_less_often(self) -> None:
        live, _ = self.make()
        self.put(live, report("n1"))
        state = live.nodes()[0]
        for number in range(6000):
            live._nodes["c1", f"m{number}"] = replace(state, node=f"m{number}")
        assert live.interval_s == pytest.approx(60, rel=0.01)
