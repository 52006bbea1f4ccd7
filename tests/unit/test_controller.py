"""Unit tests of senergyctld's HTTP interface, which run without munge and Slurm.

The tests in tests/cluster/ use a real munged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import grp
import json
import logging
import os
import pwd
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import open_munge
import pytest
from aiohttp.test_utils import TestClient, TestServer
from open_munge import CONTROLLER, credential, signed
from period_examples import period
from slurm_answers import fixed_width_text
from store_examples import NOW, item, job, record

from slurm_energy import __version__
from slurm_energy import config as configuration
from slurm_energy.accounting import engine
from slurm_energy.accounting.records import job_facts
from slurm_energy.controller import policy_file
from slurm_energy.controller.http import authorization, dispatcher, identity, job_routes, server
from slurm_energy.controller.http.authorization import PrivilegedUsers
from slurm_energy.controller.http.node_hosts import NodeHosts
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records import deliveries
from slurm_energy.controller.records.enrichment import Enrichment, QuerySchedule
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import (
    AlreadyRunningError,
    ConfigError,
    UnavailableError,
)
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.policies import policy_file as submission_file
from slurm_energy.protocol.response_proof import ResponseVerifier
from slurm_energy.reports.trace import encode_trace
from slurm_energy.slurm.roles import Roles

pytestmark = pytest.mark.slow

AGENT, OPERATOR, ALICE, BOB, CAROL = 0, 64001, 64002, 64003, 64004
CONFIG = f"""
[cluster]
name = "c1"
[controller]
agent_users = ["root"]
operators = ["{OPERATOR}", "nobody-of-that-name"]
[policies.night]
base = "powersave"
users = ["alice", "bob"]
cap_watts = 300
"""


class Controller:
    """HTTP server of the controller (senergyctld) on a free port, for tests.

    The tests authenticate with plain text of the form `uid:payload` instead of munge credentials, so
    munged need not run.
    """

    def __init__(self, directory: Path, text: str = CONFIG, location: str = "", groups=()) -> None:
        self.config = configuration.parse(text)
        self.store = Store(location or directory / "senergy.db")
        access, _ = PrivilegedUsers.from_config(self.config.controller)
        failures = RepeatedFailureLog(logging.getLogger("test"), ignore_numbers=True)
        self.memory = HistoryCache(self.store, failures, retention_days=365.0)
        self.server = server.ControllerServer(
            self.config, access, self.store, failures, lambda: {"enrichment": {}}, self.memory, groups=groups
        )

    def session(self, story):
        """Run a test scenario against the HTTP server of the controller.

        The scenario is the coroutine `story(self)`.
        """

        async def run():
            async with TestClient(TestServer(self.server.application())) as self.client:
                return await story(self)

        try:
            return asyncio.run(run())
        finally:
            self.memory.close()
            self.store.close()

    async def get(self, target, uid=OPERATOR):
        return await self.raw("GET", target, headers=signed(uid, "GET", target))

    async def post(self, body, uid=AGENT, target="/v1/records"):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.raw("POST", target, data=content, headers=signed(uid, "POST", target, content))

    async def raw(self, method, target, **more):
        """Return status and response without its proof. The proof is verified if there is one."""
        async with self.client.request(method, target, **more) as response:
            content = await response.read()
            answer = json.loads(content)
            if answer.pop("proof", None) is not None:
                of_request = more["headers"]["Authorization"].removeprefix("MUNGE ")
                ResponseVerifier({CONTROLLER}, None).check(content, of_request, response.status)
            else:
                assert response.status in (401, 404, 405, 503)
            return response.status, answer


@pytest.fixture
def controller(tmp_path, monkeypatch):
    open_munge.install(monkeypatch)
    return Controller(tmp_path)


def refused(answer, status, code, *words):
    got, body = answer
    assert got == status
    assert set(body) == {"error", "code"} and body["code"] == code
    assert "\n" not in body["error"] and "Traceback" not in body["error"]
    for word in words:
        assert word in body["error"]
    return True


def test_delivered_records_can_be_read(controller):
    async def story(c):
        trace = encode_trace(1000.0, 1.0, {"cpu": [5.0]})
        sent = [item(job_id=n, trace=trace) for n in (1, 2)]
        status, answer = await c.post({"items": sent, "node": "n1", "spooled": 4})
        assert (status, answer["rejected"]) == (200, [])
        assert answer["accepted"] == [e["record"]["record_id"] for e in sent]
        assert (await c.post({"items": sent}))[1] == answer
        status, answer = await c.get("/v1/records")
        assert answer["scope"] == "all"
        assert [r["job_id"] for r in answer["records"]] == [1, 2]
        assert "trace" not in answer["records"][0]
        status, answer = await c.get("/v1/jobs/2")
        assert [r["trace"] for r in answer["records"]] == [trace]
        status, answer = await c.get("/v1/status")
        assert (answer["records"], answer["traces"], answer["cluster"]) == (2, 2, "c1")
        assert answer["nodes"][0]["spooled"] == 4
        return True

    assert controller.session(story)


def test_observations_are_those_of_the_job_and_invisible_to_other_users(controller):
    """Only the owner and operators can read the observations of a job.

    A record is also stored if the observation that came with it is refused.
    """
    seen = {"node": "n1", "series": [], "ranks": [], "later": {"key": 1}}

    async def story(c):
        sent = [
            item(job_id=1, uid=ALICE) | {"observation": seen},
            item(job_id=2) | {"observation": seen | {"node": "n2"}},
        ]
        other = record(job_id=3, uid=ALICE + 1)
        status, answer = await c.post({"items": [*sent, {"record": other, "observation": [1]}]})
        assert status == 200 and len(answer["accepted"]) == 3
        assert [refused["index"] for refused in answer["observations_rejected"]] == [1, 2]
        assert "another node" in answer["observations_rejected"][0]["error"]
        status, answer = await c.get("/v1/jobs/1/observation")
        (found,) = answer["nodes"]
        assert {key: value for key, value in found.items() if key != "record"} == seen
        head = {key: found["record"][key] for key in ("record_id", "cluster", "job_id", "restart_count")}
        assert head == {"record_id": sent[0]["record"]["record_id"], "cluster": "c1", "job_id": 1} | {
            "restart_count": 0
        }
        assert (await c.get("/v1/jobs/2/observation"))[1]["nodes"] == []
        assert refused(await c.get("/v1/jobs/9/observation"), 404, 6, "no energy record")
        answer = await c.get("/v1/jobs/1/observation", uid=ALICE)
        assert answer[1].get("scope") == "own", answer
        assert refused(await c.get("/v1/jobs/3/observation", uid=ALICE), 403, 5, "another user")
        # When it is sent again with a valid observation, only the observation is added.
        await c.post({"items": [sent[1] | {"observation": seen}]})
        assert len((await c.get("/v1/jobs/2/observation"))[1]["nodes"]) == 1
        return True

    assert controller.session(story)


def test_bad_items_are_named_and_the_others_stored(controller):
    async def story(c):
        broken_trace = item(job_id=2, trace={"start": "x"})
        status, answer = await c.post(
            {"items": [item(job_id=1), {"record": {"record_id": "r"}}, broken_trace]}
        )
        assert status == 200 and len(answer["accepted"]) == 2
        assert [(r["index"], r["record_id"]) for r in answer["rejected"]] == [(1, "r")]
        return True

    assert controller.session(story)


def test_each_item_has_one_result(controller):
    async def story(c):
        hot = record(job_id=3) | {"mean_watts": 1e12}
        broken_trace = item(job_id=4, trace={"start": "x"})
        sent = [item(job_id=1), item(record(job_id=2) | {"schema": 7, "record_id": "newer"}), item(hot)]
        status, answer = await c.post({"items": [*sent, broken_trace], "node": "n1", "rejected": 3})
        assert status == 200
        assert answer["accepted"] == [sent[0]["record"]["record_id"], broken_trace["record"]["record_id"]]
        assert [(r["index"], r["record_id"]) for r in answer["retry"]] == [(1, "newer")]
        assert [r["index"] for r in answer["rejected"]] == [2]
        assert [r["index"] for r in answer["traces_rejected"]] == [3]
        assert (answer["version"], answer["schema"]) == (__version__, 1)
        assert (await c.get("/v1/status"))[1]["nodes"][0]["rejected"] == 3
        # When it is sent again with a valid trace, only the trace is added.
        again = broken_trace | {"trace": encode_trace(1000.0, 1.0, {"cpu": [5.0]})}
        await c.post({"items": [again]})
        assert (await c.get("/v1/jobs/4"))[1]["records"][0]["trace"] == again["trace"]
        return True

    assert controller.session(story)


def test_a_host_delivers_only_for_its_own_nodes(controller):
    hosts = NodeHosts(
        lambda _argv: "n1|n1|127.0.0.1\nn2|n2|192.0.2.7\nn3|n3|n3\n",
        RepeatedFailureLog(logging.getLogger("test"), ignore_numbers=True),
        lambda name: [name] if name[0].isdigit() else [],
    )
    controller.server._deliveries._hosts = hosts

    async def story(c):
        sent = [item(job_id=1, node="n1"), item(job_id=2, node="n2"), item(job_id=3, node="n3")]
        sent.append(item(job_id=4, node="nobody"))
        answer = (await c.post({"items": sent}))[1]
        assert [r["index"] for r in answer["rejected"]] == [1]
        assert [r["index"] for r in answer["retry"]] == [3]
        for word in ("127.0.0.1", "n2", "controller.record_hosts"):
            assert word in answer["rejected"][0]["error"]
        assert [r["job_id"] for r in (await c.get("/v1/records"))[1]["records"]] == [1, 3]
        c.server.config = configuration.parse(CONFIG.replace("[controller]", f'{HEAD}"strict"'))
        answer = (await c.post({"items": sent}))[1]
        assert [[r["index"] for r in answer[key]] for key in ("rejected", "retry")] == [[1], [2, 3]]
        c.server.config = configuration.parse(CONFIG.replace("[controller]", f'{HEAD}"off"'))
        assert len((await c.post({"items": sent}))[1]["accepted"]) == 4
        return True

    try:
        assert controller.session(story)
    finally:
        hosts.close()


HEAD = "[controller]\nrecord_hosts = "


def test_counts_reported_by_nodes_are_bounded(controller, monkeypatch):
    monkeypatch.setattr(deliveries, "MAX_NODES", 10)

    async def story(c):
        for name in [*(f"n{n}" for n in range(20)), "x" * 300, "n\x1b[2J", None, 5]:
            await c.post({"items": [], "node": name, "spooled": 10**400, "rejected": True})
        assert len(c.server._deliveries.pending_counts) == 10
        assert set(map(str, c.server._deliveries.pending_counts.values())) == {"{}"}
        return True

    assert controller.session(story)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"items": null}',
        b'{"items": [NaN]}',
        b'{"items": ' + b"[" * 100_000,
        b'{"items": [' + b"9" * 5000 + b"]}",
    ],
    ids=lambda body: repr(body[:14]),
)
def test_malformed_bodies_are_one_line(controller, body):
    assert controller.session(lambda c: c.post(body))[0] in (200, 400)
    # Nothing is stored.
    with engine.connect(controller.store.path) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM records").fetchone() == (0,)


def test_malformed_json_is_reported(controller):
    async def story(c):
        return refused(await c.post(b"{"), 400, 2, "body is not JSON")

    assert controller.session(story)


def test_large_bodies_are_refused(controller, monkeypatch):
    monkeypatch.setattr(server, "MAX_DELIVERY_BYTES", 1000)

    async def story(c):
        return refused(await c.post(b"x" * 2000), 413, 2, "1000 bytes")

    assert controller.session(story)


def test_predictions_of_one_user_delay_no_other_user(controller, monkeypatch):
    """A burst of prediction requests by one user delays no other user.

    One request of the user runs, and a bounded number of further requests of the user waits. The controller
    refuses the rest at once. Meanwhile it answers the requests of an operator and of another user.
    """
    monkeypatch.setattr(dispatcher, "BUSY_DELAY_S", 0.0)
    release, working, most = asyncio.Event(), [], []

    async def predict(requests, own_only):
        working.append(own_only)
        most.append(working.count(True))
        await release.wait()
        working.remove(own_only)
        return [None] * len(requests)

    monkeypatch.setattr(controller.memory, "predict", predict)
    monkeypatch.setattr(authorization, "name_of", lambda uid: f"user{uid}")

    async def story(c):
        body = {"requests": [{"name": "train"}] * 10}
        asked = [asyncio.create_task(c.post(body, uid=ALICE, target="/v1/predict")) for _ in range(24)]
        while sum(task.done() for task in asked) < 16:
            await asyncio.sleep(0.01)
        refusals = [task.result() for task in asked if task.done()]
        for refusal in refusals:
            assert refused(refusal, 503, 4, "8 of your requests are in progress", "try again")
        assert not release.is_set() and working == [True]
        assert (await c.get("/v1/status"))[0] == 200  # while all of her requests wait
        assert (await c.get("/v1/policies", uid=ALICE))[0] == 200
        others = [asyncio.create_task(c.post(body, uid=uid, target="/v1/predict")) for uid in (BOB, OPERATOR)]
        while sorted(working) != [False, True, True]:
            await asyncio.sleep(0.01)
        release.set()
        done = await asyncio.gather(*asked, *others)
        assert sorted(status for status, _ in done) == [200] * 10 + [503] * 16
        assert max(most) == 2  # her request and Bob's
        return True

    assert controller.session(story)


def test_bodies_are_decoded_outside_the_event_loop(controller, monkeypatch):
    threads, decode = [], deliveries.read_object

    def noted(body):
        threads.append(threading.current_thread())
        return decode(body)

    for module in (deliveries, server):
        monkeypatch.setattr(module, "read_object", noted)
    monkeypatch.setattr(authorization, "name_of", lambda uid: "alice")

    async def story(c):
        assert (await c.post({"items": [item(job_id=3)]}))[0] == 200
        assert (await c.post({"requests": []}, target="/v1/predict"))[0] == 200
        status, answer = await c.post({"job": "3"}, uid=OPERATOR, target="/v1/records/search")
        assert status == 200 and [r["job_id"] for r in answer["records"]] == [3]
        answer = await c.post({"job": 3}, uid=OPERATOR, target="/v1/records/search")
        assert refused(answer, 400, 2, "not a string")
        return True

    assert controller.session(story)
    assert len(threads) == 4 and threading.current_thread() not in threads


def test_energy_by_time_is_visible_with_the_records_of_the_job(controller):
    periods = [period(start, jobs={(1, 0): {"cpu": energy_uj}}) for start, energy_uj in ((0, 10), (3600, 30))]
    sent = item(job_id=1, uid=ALICE, start=1800.0, end=7200.0)
    record_id = sent["record"]["record_id"]

    async def story(c):
        delivery = {"items": [{"period": one.to_json()} for one in periods]}
        assert (await c.post(delivery, target="/v1/periods"))[1]["rejected"] == []
        assert (await c.post({"items": [sent]}))[1]["accepted"] == [record_id]
        body = {"record_ids": [record_id, "unknown"]}
        status, answer = await c.post(body, uid=ALICE, target="/v1/energy-parts")
        assert (status, answer["scope"], set(answer["parts"])) == (200, "own", {record_id})
        first, second = answer["parts"][record_id]
        assert first == pytest.approx([1800.0, 3600.0, 12.5])
        assert second == pytest.approx([3600.0, 7200.0, 37.5])
        assert (await c.post(body, uid=BOB, target="/v1/energy-parts"))[1]["parts"] == {}
        malformed = ("a", [1], ["a"] * 1001, ["a" * 257], ["a\n"])
        for wrong in ({}, *({"record_ids": ids} for ids in malformed)):
            answer = await c.post(wrong, uid=ALICE, target="/v1/energy-parts")
            assert refused(answer, 400, 2, "record_ids")
        answer = await c.post({"record_ids": [], "jobs": [1]}, uid=ALICE, target="/v1/energy-parts")
        assert refused(answer, 400, 2, "unknown key 'jobs'")
        return True

    assert controller.session(story)


@pytest.mark.parametrize("cost", ["light", "costly"])
def test_parameters_of_each_inquiry_may_be_in_a_body(tmp_path, monkeypatch, cost):
    async def ask(query, rights):
        return {"query": query, "scope": rights.scope}

    open_munge.install(monkeypatch)
    controller = Controller(tmp_path, groups=[RouteGroup(**{cost: {"/v1/example": ask}})])
    long = {"node": ",".join(f"node{number:05d}" for number in range(10_000))}

    async def story(c):
        assert (await c.get("/v1/example?node=n1"))[1] == {"query": {"node": "n1"}, "scope": "all"}
        answer = await c.post(long, uid=ALICE, target="/v1/example/search")
        assert answer == (200, {"query": long, "scope": "own"})
        return True

    assert controller.session(story)


@pytest.mark.parametrize(
    ("target", "uid", "limit"),
    [
        ("/v1/predict", ALICE, 1 << 20),
        ("/v1/predict", OPERATOR, 1 << 20),
        ("/v1/untuned-runs", ALICE, 1 << 20),
        ("/v1/energy-parts", ALICE, 1 << 20),
        ("/v1/records/search", ALICE, 256 << 10),
        ("/v1/records", AGENT, 16 << 20),
    ],
)
def test_bodies_have_bounds(controller, target, uid, limit):
    async def story(c):
        answer = await c.post(b'{"x": "' + b"a" * limit + b'"}', uid=uid, target=target)
        return refused(answer, 413, 2, f"larger than {limit} bytes")

    assert controller.session(story)


def test_only_queries_of_operators_may_take_long(controller, monkeypatch):
    monkeypatch.setattr(job_routes, "_QUERY_TIMEOUT_S", -1.0)

    async def story(c):
        await c.post({"items": [item(job_id=n, uid=ALICE) for n in range(3000)]})
        assert len((await c.get("/v1/records"))[1]["records"]) == 3000
        return refused(await c.get("/v1/records", uid=ALICE), 503, 4, "query: it takes longer")

    assert controller.session(story)


def test_simultaneous_status_requests_share_one_query(controller, monkeypatch):
    figures, calls = server.record_queries.database_figures, []

    def slowly(connection):
        calls.append(1)
        time.sleep(0.2)
        return figures(connection)

    monkeypatch.setattr(server.record_queries, "database_figures", slowly)

    async def story(c):
        answers = await asyncio.gather(*(c.get("/v1/status") for _ in range(12)))
        assert {status for status, _ in answers} == {200} and len(calls) == 1
        await c.post({"items": [item(job_id=3)]})
        assert (await c.get("/v1/status"))[1]["records"] == 1  # a delivery takes effect at once
        return True

    assert controller.session(story)


def test_credentials(controller):
    async def story(c):
        no_rights = {"Authorization": "MUNGE forged"}
        for headers, word in [
            ({}, "no munge credential"),
            ({"Authorization": "Basic abc"}, "no munge credential"),
            (no_rights, "Replayed credential"),
            (signed(0, "GET", "/v1/policies"), "another request"),
            (signed(0, "POST", "/v1/status"), "another request"),
            (signed(0, "GET", "/v1/status?x=1"), "another request"),
            ({"Authorization": f"MUNGE {credential(0, b'')}"}, "another request"),
            ({"Authorization": f"MUNGE {credential(0, b'GET /v1/status ' + b'0' * 64)}"}, "another"),
        ]:
            assert refused(await c.raw("GET", "/v1/status", headers=headers), 401, 5, word)
        other = signed(0, "POST", "/v1/records")
        body = json.dumps({"items": [item()]}).encode()
        assert refused(await c.raw("POST", "/v1/records", data=body, headers=other), 403, 5, "another body")
        assert (await c.get("/v1/records"))[1]["records"] == []
        return True

    assert controller.session(story)


def test_a_missing_munged_is_unavailable(controller, monkeypatch):
    def away(*_):
        raise UnavailableError("munge", "socket not there")

    monkeypatch.setattr(identity.munge, "open_credential", away)
    assert refused(controller.session(lambda c: c.get("/v1/status")), 503, 4, "socket not there")


def test_only_agents_deliver(controller):
    async def story(c):
        for uid in (OPERATOR, ALICE):
            assert refused(await c.post({"items": []}, uid=uid), 403, 5, "controller.agent_users")
        return True

    assert controller.session(story)


def test_users_see_their_own_records_and_why_no_others(controller):
    async def story(c):
        await c.post({"items": [item(job_id=1, uid=ALICE), item(job_id=2, uid=BOB)]})
        status, answer = await c.get("/v1/records", uid=ALICE)
        assert (status, answer["scope"]) == (200, "own")
        assert [r["job_id"] for r in answer["records"]] == [1]
        assert (await c.get(f"/v1/records?user={ALICE}", uid=ALICE))[1]["records"]
        assert (await c.get("/v1/records?job=77", uid=ALICE))[1]["records"] == []
        some = (await c.get("/v1/records?job=1,2&omit_others=1", uid=ALICE))[1]["records"]
        assert [r["job_id"] for r in some] == [1]
        for target in ("/v1/records?job=2", "/v1/records?job=1,2", "/v1/jobs/2"):
            assert refused(await c.get(target, uid=ALICE), 403, 5, "job 2", "another user")
        for users in (str(BOB), f"{ALICE},{BOB}", "root", "no-such-user", "0", "9" * 30):
            assert refused(await c.get(f"/v1/records?user={users}", uid=ALICE), 403, 5, "jobs of user")
        for target in ("/v1/records?job=1,2", f"/v1/records?user={BOB}", "/v1/jobs/2"):
            assert (await c.get(target))[1]["records"]
        return True

    assert controller.session(story)


class TestRoles:
    """Tests of the rights of coordinators, Slurm's administrators and groups of operators."""

    @pytest.fixture
    def controller(self, controller, monkeypatch):
        monkeypatch.setattr(authorization, "name_of", {ALICE: "alice", BOB: "bob", CAROL: "carol"}.get)
        monkeypatch.setattr(
            authorization, "gids_of", lambda uid: frozenset({7000}) if uid == CAROL else frozenset()
        )
        return controller

    async def filled(self, c, roles):
        c.server.roles.read = lambda: roles
        assert await c.server.roles.update()
        sent = [item(job_id=n, uid=uid) for n, uid in ((1, ALICE), (2, BOB), (3, BOB), (4, CAROL))]
        await c.post({"items": sent})
        accounts = {1: "physics", 2: "physics", 3: "bio", 4: "theory"}
        known = {n: (job(n, account=account),) for n, account in accounts.items()}
        await c.store.write(job_facts.store, known, [job_facts.JobLookup("c1", n, True) for n in known], NOW)

    async def seen(self, c, uid, query=""):
        status, answer = await c.get(f"/v1/records{query}", uid=uid)
        assert status == 200
        return answer["scope"], [r["job_id"] for r in answer["records"]]

    def test_coordinators_see_the_jobs_of_their_accounts(self, controller):
        async def story(c):
            await self.filled(c, Roles(accounts={"alice": frozenset({"physics", "theory"})}))
            assert await self.seen(c, ALICE) == ("accounts", [1, 2, 4])
            assert await self.seen(c, ALICE, "?account=physics") == ("accounts", [1, 2])
            assert await self.seen(c, ALICE, f"?user={BOB}") == ("accounts", [2])
            assert await self.seen(c, ALICE, "?account=bio") == ("accounts", [])
            assert (await c.get("/v1/records", uid=ALICE))[1]["accounts"] == ["physics", "theory"]
            assert (await c.get("/v1/jobs/2", uid=ALICE))[1]["scope"] == "accounts"
            for target in ("/v1/jobs/3", "/v1/records?job=3"):
                assert refused(await c.get(target, uid=ALICE), 403, 5, "another user")
            assert await self.seen(c, BOB) == ("own", [2, 3])
            return refused(await c.get(f"/v1/records?user={ALICE}", uid=BOB), 403, 5, "jobs of user")

        assert controller.session(story)

    def test_slurm_administrators_read_all_and_deliver_nothing(self, controller):
        async def story(c):
            await self.filled(c, Roles(frozenset({"bob"})))
            assert await self.seen(c, BOB) == ("all", [1, 2, 3, 4])
            assert (await c.post({"requests": [{"user": "alice"}]}, BOB, "/v1/predict"))[0] == 200
            return refused(await c.post({"items": []}, uid=BOB), 403, 5, "may not deliver")

        assert controller.session(story)

    def test_groups_of_operators(self, controller):
        async def story(c):
            await self.filled(c, Roles())
            assert await self.seen(c, CAROL) == ("own", [4])
            c.server.access = dataclasses.replace(c.server.access, operator_groups=frozenset({7000}))
            assert await self.seen(c, CAROL) == ("all", [1, 2, 3, 4])
            assert await self.seen(c, BOB) == ("own", [2, 3])
            return True

        assert controller.session(story)

    def test_roles_expire_without_a_new_read(self, controller, caplog):
        now = [0.0]

        def fails():
            raise UnavailableError("sacctmgr", "no slurmdbd")

        async def story(c):
            c.server.roles._clock = lambda: now[0]
            await self.filled(c, Roles(frozenset({"bob"})))
            c.server.roles.read = fails
            for _ in range(3):
                assert not await c.server.roles.update()
            now[0] = authorization.MAX_AGE_S
            assert (await self.seen(c, BOB))[0] == "all"
            now[0] += 1
            assert (await self.seen(c, BOB))[0] == "own"
            c.server.follow_roles(False)
            return await c.server.roles.update()

        assert controller.session(story)
        assert caplog.text.count("no slurmdbd") == 1

    def test_users_without_a_name_have_no_role(self, controller):
        async def story(c):
            await self.filled(c, Roles(frozenset({"None", ""}), {"": frozenset({"physics"})}))
            return await self.seen(c, 64099) == ("own", [])

        assert controller.session(story)

    def test_configured_groups(self):
        group = grp.getgrgid(0).gr_name
        lists = [f"%{group}", "%no-such-group", "root"]
        config = configuration.parse(f"[controller]\noperators = {json.dumps(lists)}").controller
        access, unknown = PrivilegedUsers.from_config(config)
        assert (access.operators, access.operator_groups) == (frozenset({0}), frozenset({0}))
        assert unknown == ["%no-such-group"]
        for text in ('operators = ["%"]', 'operators = ["%a b"]', 'agent_users = ["%energy"]'):
            with pytest.raises(ConfigError):
                configuration.parse(f"[controller]\n{text}")
        for text in ('["%energy"]', "[]"):
            with pytest.raises(ConfigError, match="controller_users"):
                configuration.parse(f"[cluster]\ncontroller_users = {text}")


@pytest.mark.skipif(not pwd.getpwuid(os.getuid()).pw_name, reason="this uid has no name")
def test_user_names_find_records_that_have_only_a_uid(controller):
    me = pwd.getpwuid(os.getuid())

    async def story(c):
        await c.post({"items": [item(job_id=1, uid=me.pw_uid), item(job_id=2, uid=BOB, user="gone")]})
        assert [r["job_id"] for r in (await c.get(f"/v1/records?user={me.pw_name}"))[1]["records"]] == [1]
        assert [r["job_id"] for r in (await c.get("/v1/records?user=gone"))[1]["records"]] == [2]
        return True

    assert controller.session(story)


def test_an_unknown_user_is_not_found(controller):
    """A query for a user name is refused only if no energy record contains the name.

    A former user with records is known, also in a time window without such records.
    """

    async def story(c):
        first, last = {"start": 100.0, "end": 200.0}, {"start": 5000.0, "end": 6000.0}
        sent = [
            item(job_id=1, uid=BOB, user="gone", **first),
            item(job_id=2, uid=BOB, user="renamed", **last),
        ]
        await c.post({"items": [*sent, item(job_id=3, uid=ALICE, user=None)]})
        for name in ("gone", "renamed", "gone,renamed", str(BOB)):
            assert await c.get(f"/v1/records?user={name}&start=7000") == (
                200,
                {"scope": "all", "records": []},
            )
        for query in ("user=nosuch", "user=gone,nosuch", "user=nosuch&start=7000"):
            assert refused(await c.get(f"/v1/records?{query}"), 404, 6, "user nosuch: ", "no energy record")
        assert (await c.get("/v1/records?user=nosuch&job=1"))[1]["records"] == []
        return True

    assert controller.session(story)


def test_bad_requests(controller):
    async def story(c):
        for target, word in [
            ("/v1/records?job=x", "'x' is not a job id"),
            ("/v1/records?colour=red", "unknown parameter 'colour'"),
            ("/v1/records?job=1&job=2", "twice"),
            ("/v1/jobs/x", "'x' is not a job id"),
        ]:
            assert refused(await c.get(target), 400, 2, word)
        for name in ("\ud800", "a\0b"):
            answer = await c.post({"account": name}, uid=ALICE, target="/v1/records/search")
            assert refused(answer, 400, 2, "a parameter is not text")
        assert refused(await c.get("/v1/records?node=%00"), 400, 2, "a parameter is not text")
        assert refused(await c.get("/v1/jobs/5"), 404, 6, "job 5", "no energy record")
        assert refused(await c.get("/v1/jobs/5_1"), 404, 6, "a little later")
        assert refused(await c.get("/v2/anything"), 404, 6, "/v2/anything")
        assert refused(await c.raw("DELETE", "/v1/records"), 405, 6)
        return True

    assert controller.session(story)


def test_component_ids_in_the_path(controller):
    async def story(c):
        await c.post({"items": [item(job_id=15)]})
        outcome = await c.store.write(
            job_facts.store, {15: (job(15, "14+1"),)}, [job_facts.JobLookup("c1", 15, True)], NOW
        )
        assert outcome.linked == 1
        answer = (await c.get("/v1/jobs/14+1"))[1]
        assert answer["records"][0]["job"]["display_id"] == "14+1"
        return True

    assert controller.session(story)


def test_a_long_response_is_complete_and_ordered(controller):
    async def story(c):
        await c.post({"items": [item(job_id=n) for n in range(1234)]})
        answer = (await c.get("/v1/records"))[1]
        assert [r["job_id"] for r in answer["records"]] == list(range(1234))
        return True

    assert controller.session(story)


def test_a_full_disk_is_unavailable_and_nothing_is_acknowledged(controller, monkeypatch):
    with engine.connect(controller.store.path) as connection:
        (pages,) = connection.exec_driver_sql("PRAGMA page_count").fetchone()

    async def story(c):
        await c.store.write(
            lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        )
        entries = [item(job_id=n, tag="x" * 1000) for n in range(200)]
        assert refused(await c.post({"items": entries}), 503, 4, "full")
        assert (await c.get("/v1/records"))[1]["records"] == []
        await c.store.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 100000"))
        assert (await c.post({"items": entries}))[0] == 200
        return True

    assert controller.session(story)


def test_unexpected_failures_are_logged_and_hidden(controller, monkeypatch, caplog):
    def fail(*_, **__):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server, "policies_answer", fail)

    async def story(c):
        return [await c.get("/v1/policies") for _ in range(3)]

    for answer in controller.session(story):
        assert refused(answer, 500, 1, "internal error")
        assert "secret" not in answer[1]["error"]
    assert caplog.text.count("ZeroDivisionError: secret") == 1  # so that no user can fill the log


class TestPolicies:
    def test_answer(self, controller):
        answer = controller.session(lambda c: c.get("/v1/policies", uid=ALICE))[1]
        by_name = {policy["name"]: policy for policy in answer["policies"]}
        built_in = {"monitor", "performance", "powersave", "balanced", "cap", "edp", "ed2p", "energy", "auto"}
        assert built_in | {"night"} == set(by_name)
        assert by_name["edp"]["built_in"] and not by_name["night"]["built_in"]
        assert (by_name["night"]["base"], by_name["night"]["users"]) == ("powersave", ["alice", "bob"])
        assert answer["bounds"]["cap_watts"] == [100, 10000]
        assert answer["defaults"]["policy"] == "monitor"

    def test_file(self):
        lines = submission_file.policy_file_text(configuration.parse(CONFIG)).splitlines()
        assert lines[0] == "senergy-policies 1"
        assert "policy edp tuned" in lines and "policy night users=alice,bob" in lines
        assert lines[-8:-1] == [
            "cap_watts 100 10000",
            "gpu_cap_watts 100 1000",
            "slowdown_percent 0 100",
            "cpu_freq_mhz 100 10000",
            "gpu_clock_mhz 100 10000",
            "slack_s 0 0",
            "restart_s 0 0",
        ]
        assert lines[-1].startswith("power-profiles MAX_P,MAX_Q,")

    def test_the_file_names_policies_that_exclude_or_require_a_cap(self):
        text = '[policies.monitor]\nusers = ["al"]\n[policies.low]\nbase = "cap"\n'
        text += '[policies.lowest]\nbase = "cap"\ngpu_cap_watts = 200\n[policies.site]\n'
        lines = submission_file.policy_file_text(configuration.parse(text)).splitlines()
        assert [line for line in lines if line.startswith("policy ")] == [
            "policy monitor users=al measures-only",
            "policy performance",
            "policy powersave",
            "policy balanced",
            "policy cap needs-cap",
            "policy edp tuned",
            "policy ed2p tuned",
            "policy energy tuned",
            "policy auto",
            "policy low needs-cap",
            "policy lowest",
            "policy site",
        ]
        redefined = '[policies.monitor]\nbase = "edp"\n[policies.cap]\ncap_watts = 400\n'
        lines = submission_file.policy_file_text(configuration.parse(redefined)).splitlines()
        assert "policy monitor tuned" in lines and "policy cap" in lines

    def test_numbers_have_no_exponent(self):
        text = submission_file.policy_file_text(configuration.parse("[bounds]\ncap_watts = [0.5, 10000000]"))
        assert "cap_watts 0.5 10000000\n" in text

    @pytest.mark.parametrize(
        "text",
        [
            '[policies.night]\nusers = ["a b"]',
            '[policies.night]\nusers = ["a\\npolicy root"]',
            '[policies.night]\nusers = ["a,b"]',
            '[policies.night]\nusers = [""]',
            "[policies.night]\nusers = [" + '"user-of-twenty-chars",' * 4000 + "]",
        ],
    )
    def test_values_that_the_file_cannot_hold_are_configuration_errors(self, text):
        with pytest.raises(ConfigError):
            submission_file.policy_file_text(configuration.parse(text))

    def test_the_file_is_replaced_atomically_and_readable_by_all(self, tmp_path):
        path = tmp_path / "run" / "policies"
        old = os.umask(0o077)
        try:
            policy_file.write_policy_file(path, "one\n")
            policy_file.write_policy_file(path, "two\n")
        finally:
            os.umask(old)
        assert path.read_text() == "two\n"
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.parent.stat().st_mode & 0o777 == 0o755
        assert [p.name for p in path.parent.iterdir()] == ["policies"]

    def test_no_file_where_others_could_replace_it(self, tmp_path):
        folder = tmp_path / "run"
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match="mode 0777: expected owner"):
            policy_file.write_policy_file(folder / "policies", "senergy-policies 1\n")
        assert list(folder.iterdir()) == []

    def test_an_unwritable_directory_is_unavailable(self, tmp_path):
        with pytest.raises(UnavailableError, match="policy file"):
            policy_file.write_policy_file(tmp_path / "a" / "b" / "policies", "x")


class TestStore:
    def test_a_second_controller_is_refused(self, tmp_path):
        first = Store(tmp_path / "a.db")
        with pytest.raises(AlreadyRunningError, match="held by another senergyctld"):
            Store(tmp_path / "a.db")
        first.close()
        Store(tmp_path / "a.db").close()

    def test_an_endless_query_is_aborted(self, tmp_path):
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        store = Store(tmp_path / "a.db")

        async def story():
            with pytest.raises(UnavailableError, match=r"longer than 0\.1 s: ask for a shorter time"):
                await store.read_within(
                    0.1, lambda connection: connection.exec_driver_sql(endless).fetchall()
                )
            return await store.read_within(30, lambda c: c.exec_driver_sql("SELECT 5").fetchone())

        assert asyncio.run(story()) == (5,)
        store.close()

    def test_a_refused_database_is_unlocked(self, tmp_path):
        (tmp_path / "a.db").write_text("nonsense " * 1000)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                Store(tmp_path / "a.db")


class TestSchedule:
    def test_new_jobs_are_due_at_once_then_at_growing_intervals(self):
        schedule, open_job = QuerySchedule(10.0), job_facts.JobLookup("c1", 1, True)
        asked = []
        for second in range(0, 400, 10):
            due = schedule.due([open_job], 1000.0 + second)
            if due:
                asked.append(second)
                schedule.record_query(due, 1000.0 + second)
        assert asked == [0, 10, 20, 30, 40, 50, 60, 70, 90, 130, 210, 370]

    def test_intervals_grow_to_an_hour(self):
        schedule, open_job = QuerySchedule(10.0), job_facts.JobLookup("c1", 1, True)
        for _ in range(50):
            schedule.record_query([open_job], 0.0)
        assert schedule.due([open_job], 3599.0) and not schedule.due([open_job], 3500.0)

    def test_a_reopened_job_counts_as_new(self):
        schedule, open_job = QuerySchedule(10.0), job_facts.JobLookup("c1", 1, True)
        schedule.record_query([open_job], 0.0)
        assert schedule.due([open_job], 1.0) == []
        assert schedule.due([], 2.0) == []
        assert schedule.due([open_job], 3.0) == [open_job]


class TestEnrichment:
    ROW = (
        "1",
        "1",
        "c1",
        "physics",
        "cpu",
        "alice",
        "COMPLETED",
        "900",
        "1000",
        "1100",
        "100",
        "1",
        "60",
        "cpu=1",
        "cpu=2",
        "normal",
        "1:0",
        "0:11",
        "name",
    )

    def cycles(self, directory, answers, entries, count=1, interval_s=0.001):
        """Deliver records to a controller, and let the controller look up their jobs in a fake Slurm.

        The commands of the fake Slurm return `answers`, one after another. The controller looks up the jobs
        `count` times. Return the job facts of the records, the commands that were called, the errors, and
        the status.
        """
        calls = []

        def run(argv):
            calls.append(argv[0])
            if argv[0] == "sinfo":
                return "slurm-wlm 22.05.8"
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return fixed_width_text(argv, answer)

        async def story(c):
            log = RepeatedFailureLog(logging.getLogger("test"), ignore_numbers=True)
            enrichment = Enrichment(c.store, run, log, interval_s)
            if entries:
                await c.post({"items": entries})
            errors = []
            for _ in range(count):
                try:
                    await enrichment.cycle()
                except UnavailableError as error:
                    errors.append(str(error))
                await asyncio.sleep(0.002)
            found = (await c.get("/v1/records"))[1]["records"]
            return [r["job"] for r in found], calls, errors, enrichment.status()

        return directory.session(story)

    def test_facts_arrive(self, controller):
        jobs, calls, _, state = self.cycles(controller, [[self.ROW]], [item()])
        assert jobs[0]["name"] == "name" and jobs[0]["state"] == "COMPLETED"
        assert (jobs[0]["exit_code"], jobs[0]["step_exit_code"]) == ("1:0", "0:11")
        assert calls == ["sinfo", "sacct"]
        assert (state["slurm_release"], state["last_error"]) == ("22.05.8", None)

    def test_without_open_jobs_slurm_is_not_queried(self, controller):
        assert self.cycles(controller, [], [], count=3)[1] == []

    def test_final_jobs_are_not_queried_again(self, controller):
        assert self.cycles(controller, [[self.ROW]], [item()], count=4)[1] == ["sinfo", "sacct"]

    def test_unknown_jobs_are_queried_ever_less_often(self, controller):
        jobs, calls, _, state = self.cycles(controller, [[]], [item()], count=3, interval_s=100.0)
        assert (jobs, calls) == ([None], ["sinfo", "sacct"])
        assert state["open_jobs"] == 1

    def test_setting_the_clock_back_causes_no_pause(self, controller, monkeypatch):
        times = iter([time.time() - 3600.0 * hour for hour in range(9)])
        clocks = SimpleNamespace(time=lambda: next(times), monotonic=time.monotonic)
        monkeypatch.setattr("slurm_energy.controller.records.enrichment.time", clocks)
        _, calls, _, _ = self.cycles(controller, [[], []], [item()], count=2)
        assert calls == ["sinfo", "sacct", "sacct"]

    def test_unfinished_states_are_queried_again(self, controller):
        running = [*self.ROW[:6], "RUNNING", "900", "1000", "Unknown", "50", *self.ROW[11:]]
        jobs, calls, _, _ = self.cycles(controller, [[running], [self.ROW]], [item()], count=2)
        assert calls == ["sinfo", "sacct", "sacct"]
        assert (jobs[0]["state"], jobs[0]["end"]) == ("COMPLETED", 1100.0)

    def test_a_failure_is_reported_and_retried(self, controller):
        down = UnavailableError("sacct", "Problem talking to the database")
        jobs, _, errors, _ = self.cycles(controller, [down, [self.ROW]], [item()], count=2)
        assert errors == ["sacct: Problem talking to the database"]
        assert jobs[0]["name"] == "name"

    def test_a_wrong_cluster_name_shows_in_the_status(self, controller):
        row = ["1", "1", "other", *self.ROW[3:]]
        jobs, _, _, state = self.cycles(controller, [[row]], [item()])
        assert jobs == [None]
        assert "'other'" in state["last_error"] and "cluster.name" in state["last_error"]


def test_access_by_name_and_number():
    access, unknown = PrivilegedUsers.from_config(configuration.parse(CONFIG).controller)
    assert access == PrivilegedUsers(frozenset({0}), frozenset({OPERATOR}))
    assert unknown == ["nobody-of-that-name"]


def test_record_helper_is_a_valid_record():
    assert record()["schema"] == 1


REQUEST = {"name": "solve", "partition": "cpu", "nodes": 1, "cpus": 1, "gpus": 0}


class TestPrediction:
    """Predictions for users who have run jobs, for users without runs, and for operators.

    alice and bob have run jobs. The host knows alice's uid. An operator queries the jobs of all
    users, alice only her own.
    """

    def predict(self, controller, monkeypatch, uid, *requests):
        names = {ALICE: "alice", BOB: "bob", CAROL: "carol"}
        monkeypatch.setattr(authorization, "name_of", names.get)

        async def story(c):
            for number, user in enumerate(["alice"] * 5 + ["bob"], 1):
                await c.post({"items": [item(job_id=number, uid=ALICE)]})
                known = {number: (job(number, name="solve", user=user, requested="cpu=1,node=1"),)}
                await c.store.write(job_facts.store, known, [job_facts.JobLookup("c1", number, True)], NOW)
            await c.memory.load()
            assert await c.memory.learn() == 6
            assert await c.memory.learn() == 0
            return await c.post({"requests": list(requests)}, uid, "/v1/predict")

        return controller.session(story)

    def test_users_get_predictions_of_their_own_jobs(self, controller, monkeypatch):
        status, body = self.predict(controller, monkeypatch, ALICE, REQUEST)
        assert (status, body["scope"]) == (200, "own")
        (answer,) = body["predictions"]
        assert (answer["source"], answer["observations"]) == ("history", 5)
        assert answer["duration_s"]["mean"] == pytest.approx(100, rel=0.1)
        assert answer["power_watts"]["mean"] == pytest.approx(0.5, rel=0.1)

    def test_predictions_reveal_nothing_of_other_users(self, controller, monkeypatch):
        """The controller does not predict a job from the runs of other users.

        The user carol has no runs. She gets no prediction from the runs of other users in her partition.
        """
        status, body = self.predict(controller, monkeypatch, CAROL, REQUEST)
        assert (status, body) == (200, {"scope": "own", "predictions": [None]})

    def test_a_new_job_is_predicted_from_the_users_others(self, controller, monkeypatch):
        body = self.predict(controller, monkeypatch, BOB, REQUEST | {"name": "new"})[1]
        assert [(a["observations"], a["basis"]) for a in body["predictions"]] == [(1, "1 run: same user")]

    def test_untuned_runs_of_others_are_hidden(self, controller, monkeypatch):
        async def story(c):
            for number, user in enumerate(("alice", "bob"), 1):
                await c.post(
                    {"items": [item(job_id=number, uid=ALICE, fingerprint="f" * 16, policy="monitor")]}
                )
                known = {number: (job(number, name="solve", user=user, requested="cpu=1,node=1"),)}
                await c.store.write(job_facts.store, known, [job_facts.JobLookup("c1", number, True)], NOW)
            await c.memory.learn()
            program = {"fingerprint": "f" * 16, "name": "solve", "nodes": 1, "cpus": 1, "gpus": 0}
            body = {"programs": [program | {"user": "alice"}, program | {"user": "bob"}]}
            answers = [(await c.post(body, uid, "/v1/untuned-runs"))[1] for uid in (ALICE, OPERATOR)]
            malformed = {"programs": [{"user": "alice"}]}
            assert refused(
                await c.post(malformed, ALICE, "/v1/untuned-runs"), 400, 2, "'fingerprint' is missing"
            )
            return [[one and one["runs"] for one in answer["untuned_runs"]] for answer in answers]

        monkeypatch.setattr(authorization, "name_of", {ALICE: "alice", BOB: "bob"}.get)
        assert controller.session(story) == [[1, None], [1, 1]]

    def test_caps_of_job_and_policy_apply(self, controller, monkeypatch):
        controller.memory.policy_caps = {"tight": (0.2, None)}
        asked = [REQUEST, REQUEST | {"cap_watts": 0.3}, REQUEST | {"policy": "tight"}]
        status, body = self.predict(controller, monkeypatch, ALICE, *asked)
        assert status == 200
        free, own, site = body["predictions"]
        assert own["power_watts"]["high"] <= 0.3 and site["power_watts"]["high"] <= 0.2
        times = [answer["duration_s"]["mean"] for answer in (free, own, site)]
        assert times[0] < times[1] < times[2]

    def test_predictions_during_learning_use_whole_runs(self, controller, monkeypatch):
        """Check that predictions while runs are being learned are complete.

        Every request is answered, and each prediction is based on whole runs only.
        """
        monkeypatch.setattr(authorization, "name_of", {ALICE: "alice"}.get)
        total, at_once = 60, 4

        async def learns(c):
            for number in range(1, total + 1):
                await c.post({"items": [item(job_id=number, uid=ALICE)]})
                known = {number: (job(number, name="solve", requested="cpu=1,node=1"),)}
                await c.store.write(job_facts.store, known, [job_facts.JobLookup("c1", number, True)], NOW)
                await c.memory.learn()

        async def asks(c):
            seen = []
            while not seen or (seen[-1] or 0) < total:
                body = (await c.post({"requests": [REQUEST]}, ALICE, "/v1/predict"))[1]
                seen.append(body["predictions"][0] and body["predictions"][0]["observations"])
            return seen

        async def story(c):
            async with asyncio.timeout(120):
                return (await asyncio.gather(learns(c), *(asks(c) for _ in range(at_once))))[1:]

        for seen in controller.session(story):
            counts = [count or 0 for count in seen]
            assert counts == sorted(counts) and counts[-1] == total

    def test_predictions_for_other_users_are_refused(self, controller, monkeypatch):
        answer = self.predict(controller, monkeypatch, BOB, REQUEST | {"user": "alice"})
        assert refused(answer, 403, 5, "alice", "your own")

    def test_operators_get_predictions_for_all(self, controller, monkeypatch):
        asked = [REQUEST | {"user": user} for user in ("alice", "carol")]
        status, body = self.predict(controller, monkeypatch, OPERATOR, *asked, {"partition": "none"})
        assert (status, body["scope"]) == (200, "all")
        assert [a and a["observations"] for a in body["predictions"]] == [5, 6, None]

    @pytest.mark.parametrize(
        "bad",
        [
            "x",
            {"colour": "red"},
            {"nodes": "two"},
            {"nodes": -1},
            {"nodes": 1.5},
            {"cap_watts": True},
            {"name": "x" * 5000},
            {"time_limit_s": 1e300},
        ],
    )
    def test_bad_requests(self, controller, monkeypatch, bad):
        assert refused(self.predict(controller, monkeypatch, OPERATOR, bad), 400, 2, "request")

    def test_the_history_survives_a_restart(self, controller, tmp_path, monkeypatch):
        self.predict(controller, monkeypatch, OPERATOR)
        again = Controller(tmp_path)

        async def story(c):
            await c.memory.load()
            assert await c.memory.learn() == 0
            return await c.post({"requests": [REQUEST | {"user": "alice"}]}, OPERATOR, "/v1/predict")

        assert again.session(story)[1]["predictions"][0]["observations"] == 5


@pytest.mark.timeout(120)
def test_a_slow_directory_service_blocks_one_thread_per_user(controller, monkeypatch):
    answer, asked = threading.Event(), []

    def name_of(uid):
        asked.append(uid)
        if uid == ALICE:
            answer.wait()
        return f"user{uid}"

    monkeypatch.setattr(authorization, "name_of", name_of)

    async def story(c):
        hostile = [asyncio.create_task(c.get("/v1/status", uid=ALICE)) for _ in range(60)]
        try:
            while ALICE not in asked:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(30):
                for _ in range(20):
                    assert (await c.get("/v1/status"))[0] == 200
            assert asked.count(ALICE) == 1
        finally:
            answer.set()
            await asyncio.gather(*hostile)

    controller.session(story)


@pytest.mark.timeout(120)
def test_a_hung_directory_service_blocks_no_delivery(controller, monkeypatch):
    """If lookups of many users hang, these users receive one line, and agents still deliver records."""
    monkeypatch.setattr(dispatcher, "RIGHTS_TIMEOUT_S", 0.5)
    answer, asked = threading.Event(), []

    def name_of(uid):
        asked.append(uid)
        answer.wait()
        return f"user{uid}"

    monkeypatch.setattr(authorization, "name_of", name_of)

    async def story(c):
        users = [asyncio.create_task(c.get("/v1/status", uid=ALICE + n)) for n in range(60)]
        try:
            async with asyncio.timeout(30):
                for response in await asyncio.gather(*users):
                    assert refused(response, 503, 4, "directory service", "no answer")
                assert refused(await c.get("/v1/status", uid=asked[0]), 503, 4, "directory service")
                assert asked.count(asked[0]) == 1
                assert len((await c.post({"items": [item(job_id=1)]}))[1]["accepted"]) == 1
        finally:
            answer.set()
        assert (await c.get("/v1/status", uid=ALICE + 59))[0] == 200
        return True

    assert controller.session(story)


def test_only_operators_see_whose_quota_is_used(controller):
    shown = {"quotas": {"quotas": 2, "over_level": 1, "over": ["user bob has used 93 %"], "held_jobs": 0}}
    controller.server._status = lambda: shown

    async def story(c):
        assert (await c.get("/v1/status"))[1]["quotas"] == shown["quotas"]
        quotas = (await c.get("/v1/status", ALICE))[1]["quotas"]
        assert quotas == shown["quotas"] | {"over": []}
        return True

    assert controller.session(story)
