"""Test the delivery of records between agents and a controller of different releases.

Records that the controller cannot accept yet wait in the spool. Records that it refuses are kept as
rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_munge
import pytest
from period_examples import HOUR_S, period
from test_agent_daemon import TRACE, accept, record, work

from slurm_energy.agent.sockets import responses
from slurm_energy.agent.state import deferred_records, delivery, rejected_records
from slurm_energy.agent.state.deferred_records import DeferredRecords
from slurm_energy.agent.state.delivery import RecordDelivery
from slurm_energy.agent.state.spool import Spool
from slurm_energy.config import ClusterConfig
from slurm_energy.config.addresses import ControllerUrls
from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, UsageError
from slurm_energy.node_period import NodePeriod


class Controller:
    """Stand-in for the controller that stores each record id once and follows the protocol.

    The stand-in asks the agent to send records with a newer schema again later. It rejects the records whose
    ids the test has marked as bad.
    """

    def __init__(self, schema: int = 1, **answer: Any) -> None:
        self.schema, self.answer = schema, {"version": f"{schema}.0", "schema": schema} | answer
        self.records: dict[str, Any] = {}
        self.traces: dict[str, Any] = {}
        self.posts: list[list[str]] = []
        self.bad: set[str] = set()
        self.look: Callable[[list[Any]], None] = lambda _: None

    def post(self, _path: str, body: Any) -> Any:
        accepted, refusals = [], {"rejected": [], "retry": []}
        for index, item in enumerate(body["items"]):
            record_id = item["record"]["record_id"]
            entry = {"index": index, "record_id": record_id, "error": "because"}
            if item["record"]["schema"] > self.schema:
                refusals["retry"].append(entry)
            elif record_id in self.bad:
                refusals["rejected"].append(entry)
            else:
                accepted.append(record_id)
                self.records.setdefault(record_id, item["record"])
                if item["trace"] is not None:
                    self.traces.setdefault(record_id, item["trace"])
        self.posts.append([item["record"]["record_id"] for item in body["items"]])
        self.look(body["items"])
        return {"accepted": accepted, **refusals, **self.answer}


class Clock:
    """Stand-in for the monotonic clock of the delivery. The test advances it instead of waiting."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Node:
    """A node's spool and the delivery of its records, for tests.

    The test runs the delivery step by step without waiting.
    """

    def __init__(self, folder: Path, controller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.controller, self.clock = folder, controller, Clock()
        monkeypatch.setattr(delivery, "ControllerClient", lambda *_, **__: self.controller)
        monkeypatch.setattr(delivery, "time", self.clock)
        self.restart()

    def restart(self) -> None:
        self.spool = Spool(self.folder / "spool", 10**8)
        self.delivery = RecordDelivery(self.spool, ClusterConfig(), lambda: "n1", work)

    def add(self, job_id: int, schema: int = 1, trace: Any = None) -> None:
        """Add an energy record of a job to the node's spool, which holds records to be delivered.

        `schema` is the version number of the record's format. For another version than the default, the
        record is stored as a release of slurm-energy with this version would store it.
        """
        (*_, path) = self.spool.add(record(job_id), trace)
        data = json.loads(Path(path).read_text()) | {"schema": schema}
        Path(path).write_text(json.dumps(data))

    def deliver(self) -> int:
        """Deliver the records that wait on the node, until nothing is due.

        Return the number of requests.
        """

        async def run() -> int:
            before = len(self.controller.posts)
            for _ in range(100):
                if not await self.delivery._deliver_some():
                    return len(self.controller.posts) - before
            raise AssertionError("a busy loop")

        return asyncio.run(run())

    def pause_s(self) -> float | None:
        return self.delivery._pause_s()

    def files(self) -> list[str]:
        root = self.folder / "spool"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, Controller(), monkeypatch)


def test_records_of_a_newer_schema_wait_with_their_traces_and_hold_nothing_up(node: Node) -> None:
    for job_id in range(400):  # more than a batch, and the oldest of all
        node.add(job_id, schema=2, trace=TRACE)
    node.add(1000)
    assert node.deliver() == 3
    assert list(node.controller.records) == ["id1000"]
    assert len(node.files()) == 800 and not any(name.startswith("rejected") for name in node.files())
    assert node.spool.state() | {"rejected_bytes": 0} == {
        "spooled": 400,
        "deferred": 400,
        "rejected": 0,
        "rejected_bytes": 0,
        "rejected_dropped": 0,
    }
    node.add(1001)
    assert node.deliver() == 1  # new records only
    assert list(node.controller.records) == ["id1000", "id1001"]


def test_what_waits_is_tried_by_one_probe_at_growing_pauses(node: Node) -> None:
    for job_id in range(50):
        node.add(job_id, schema=2)
    node.deliver()
    pauses, probes = [], []
    for _ in range(8):
        pause_s = node.pause_s()
        assert pause_s is not None and node.deliver() == 0
        node.clock.now += pause_s
        assert node.deliver() == 1
        pauses.append(pause_s)
        probes.append(node.controller.posts[-1])
    assert pauses[0] == deferred_records.FIRST_PAUSE_S
    assert pauses == sorted(pauses) and pauses[-1] == deferred_records.MAX_PAUSE_S
    assert {len(probe) for probe in probes} == {1}
    assert len({probe[0] for probe in probes}) == 8  # in turn: a record that never fits blocks no other


def test_after_the_upgrade_all_arrive_once_with_their_traces(node: Node) -> None:
    for job_id in range(5):
        node.add(job_id, schema=2, trace=TRACE | {"job": job_id})
    node.deliver()
    upgraded = Controller(schema=2)
    node.controller = upgraded
    pause_s = node.pause_s()
    assert pause_s is not None
    node.clock.now += pause_s
    node.deliver()
    assert sorted(upgraded.records) == sorted(upgraded.traces) == [f"id{n}" for n in range(5)]
    assert upgraded.traces["id3"]["job"] == 3
    assert node.files() == [] and node.pause_s() is None


@pytest.mark.parametrize("deleted_by", ["limit", "administrator"])
def test_a_deleted_record_does_not_delay_the_other_deferred_records(node: Node, deleted_by: str) -> None:
    for job_id in range(3):
        node.add(job_id, schema=2)
    node.deliver()
    node.controller.schema = 2  # accepts the records from now on, under the same version
    if deleted_by == "limit":
        node.spool.limit_bytes = sum((node.folder / "spool" / name).stat().st_size for name in node.files())
        node.add(3)
    else:
        (node.folder / "spool/000000000020-id0.json").unlink()
    for _ in range(3):
        node.deliver()
        node.clock.now += node.pause_s() or 0.0
    assert {"id1", "id2"} <= node.controller.records.keys() and "id0" not in node.controller.records
    assert node.files() == [] and node.pause_s() is None


def test_another_release_of_the_controller_is_noticed_with_any_record(node: Node) -> None:
    node.add(1, schema=2)
    node.deliver()
    node.controller = Controller(schema=2)
    node.add(2)
    node.deliver()  # no pause is over
    assert sorted(node.controller.records) == ["id1", "id2"]


def test_a_rejected_record_keeps_its_trace_and_its_reason(node: Node) -> None:
    node.controller.bad = {"id1"}
    node.add(1, trace=TRACE)
    node.add(2, trace=TRACE)
    node.deliver()
    stem = "rejected/000000000020-id1"
    assert node.files() == [f"{stem}.json", f"{stem}.reason", f"{stem}.trace"]
    (listed,) = responses.spool_response(node.spool)["rejected_records"]
    assert (listed["record_id"], listed["trace"], listed["reason"]) == ("id1", True, "because")
    assert (listed["end"], listed["refused_by"]) == (20, "1.0 (schema 1)")


@pytest.mark.parametrize("restarted", [False, True])
def test_another_release_gets_what_the_last_one_rejected(node: Node, restarted: bool) -> None:
    node.controller.bad = {"id1"}
    node.add(1, trace=TRACE)
    node.deliver()
    node.controller = Controller(schema=2)
    if restarted:
        node.restart()
    else:
        assert node.deliver() == 0
    pause_s = node.pause_s()
    assert pause_s is not None  # without new records, the controller's release is still requested
    node.clock.now += pause_s
    node.deliver()
    assert list(node.controller.traces) == list(node.controller.records) == ["id1"]
    assert node.files() == []


def test_the_same_release_is_not_asked_again_and_again(node: Node) -> None:
    node.controller.bad = {"id1"}
    node.add(1)
    node.deliver()
    node.restart()
    for _ in range(5):
        node.clock.now += 10_000
        assert node.deliver() == 1
        assert node.controller.posts[-1] == []


def test_two_releases_behind_one_address_do_not_send_records_in_circles(node: Node) -> None:
    releases = [Controller(1), Controller(2)]
    for controller in releases:
        controller.bad = {"id0"}
    node.add(0)
    for turn in range(40):
        node.controller = releases[turn % 2]
        node.add(turn + 1)
        node.deliver()
    assert sum(post.count("id0") for controller in releases for post in controller.posts) <= 3


def test_resend_by_hand(node: Node) -> None:
    node.controller.bad = {"id1", "id2"}
    for job_id in (1, 2):
        node.add(job_id, trace=TRACE)
    node.deliver()
    with pytest.raises(NotFoundError, match="id9"):
        responses.resend_response(node.spool, ["id9"])
    assert responses.resend_response(node.spool, ["id2"]) == {"resent": 1}
    node.controller.bad = set()
    node.deliver()
    assert list(node.controller.traces) == ["id2"]
    assert responses.resend_response(node.spool, None) == {"resent": 1}
    node.deliver()
    assert node.files() == []


OBSERVATION = {"node": "n1", "series": [], "ranks": []}


def test_an_observation_is_delivered_with_its_record(node: Node) -> None:
    sent: list[Any] = []
    node.controller.look = sent.extend
    node.spool.add(record(1), TRACE, OBSERVATION)
    node.spool.add(record(2), None)
    node.deliver()
    assert sent[0]["observation"] == OBSERVATION
    assert "observation" not in sent[1]  # nothing new for a node without signals
    assert node.files() == []  # also with an older controller, which ignores observations


def test_a_record_survives_an_observation_that_is_refused(node: Node) -> None:
    """If the controller stores a record but refuses its observation, the node keeps both.

    An observation is additional data that is sent with an energy record. When both are sent again to a
    controller that accepts the observation, only the observation is added.
    """
    node.spool.add(record(1), TRACE, OBSERVATION)
    refusal = {"index": 0, "record_id": "id1", "error": "new kind"}
    node.controller.answer |= {"observations_rejected": [refusal]}
    node.deliver()
    assert list(node.controller.records) == ["id1"]
    assert len(node.files()) == 4  # record, trace, observation, reason
    assert "its observation: new kind" in next(node.spool.rejected.listing()).reason
    node.restart()
    assert node.spool.resend() == 1
    node.controller.answer["observations_rejected"] = []
    node.deliver()
    assert node.files() == []


def test_a_body_that_is_too_large_is_delivered_without_attachments(node: Node) -> None:
    node.spool.add(record(1), None, OBSERVATION)

    def post(path: str, body: Any) -> Any:
        if any("observation" in item for item in body["items"]):
            raise UsageError("body too long")
        return Controller.post(node.controller, path, body)

    node.controller.post = post
    node.deliver()
    assert list(node.controller.records) == ["id1"]
    assert node.spool.rejected.count() == 1


def test_observations_are_dropped_before_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", 40_000)
    for job_id in range(20):
        spool.add(record(job_id), None, {**OBSERVATION, "x": "y" * 5000})
    assert spool.count() == 20
    observed = [item for item in spool.items(10**9, 100) if item.observation]
    assert 0 < len(observed) < 20
    spool.expire(1e12, 0.0)
    assert not [item for item in spool.items(10**9, 100) if item.observation]


def test_a_trace_that_is_refused_is_kept_with_its_record(node: Node) -> None:
    """If the controller refuses only the power trace of a record, the spool keeps the record.

    The record is kept together with its trace, although the controller has stored the record. When both are
    sent again to a release that accepts the trace, the controller adds only the trace.
    """
    node.add(1, trace=TRACE)
    node.controller.answer |= {"traces_rejected": [{"index": 0, "record_id": "id1", "error": "new kind"}]}
    node.deliver()
    assert node.spool.rejected.count() == 1 and len(node.files()) == 3
    assert "new kind" in next(node.spool.rejected.listing()).reason
    assert node.spool.resend() == 1
    node.controller.answer["traces_rejected"] = []
    node.deliver()
    assert node.files() == []


def test_an_old_controller_that_knows_no_third_outcome(node: Node) -> None:
    """A record with a newer schema is not lost if an old controller rejects it.

    The old controller does not know the outcome `retry`, and names no release in its response. When a
    newer controller has replaced it, the agent delivers the record again.
    """

    class Old(Controller):
        def post(self, path: str, body: Any) -> Any:
            answer = super().post(path, body)
            return {"accepted": answer["accepted"], "rejected": answer["rejected"] + answer["retry"]}

    node.controller = Old()
    node.add(1, schema=2, trace=TRACE)
    node.add(2)
    node.deliver()
    assert node.spool.rejected.count() == 1
    node.controller = Controller(schema=2)
    node.restart()
    node.add(3)
    node.deliver()
    assert sorted(node.controller.records) == ["id1", "id3"] and list(node.controller.traces) == ["id1"]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"accepted": ["other"]},
        {"accepted": "id1", "rejected": 5, "retry": {"index": 0}},
        {"rejected": [None, {"index": 99}, {"index": "0"}]},
        {"accepted": [{"x": 1}]},
    ],
)
def test_answers_that_name_none_of_the_records_change_nothing(
    node: Node, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(1, trace=TRACE)
    monkeypatch.setattr(node.controller, "post", lambda *_: answer)
    with pytest.raises(Exception, match="names none of the records"):
        node.deliver()
    assert len(node.files()) == 2


def test_a_record_that_the_answer_leaves_out_waits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add(1)
    node.add(2)
    posts = node.controller.posts

    def forgetful(_path: str, body: Any) -> Any:
        posts.append(body)
        return {"accepted": ["id1"]}

    monkeypatch.setattr(node.controller, "post", forgetful)
    assert node.deliver() == 1
    assert node.spool.state()["deferred"] == 1


def test_a_request_that_is_refused_as_a_whole_loses_neither_record_nor_trace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in (1, 2):
        node.add(job_id, trace=TRACE)
    kept = node.controller.post

    def too_large(path: str, body: Any) -> Any:
        if body["items"]:
            raise UsageError("body", "larger than 5 bytes")
        return kept(path, body)

    monkeypatch.setattr(node.controller, "post", too_large)
    node.deliver()
    assert node.spool.rejected.count() == 2
    assert sum(record.has_trace for record in node.spool.rejected.listing()) == 2


def test_one_record_at_which_the_controller_fails_holds_no_other_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in range(5):
        node.add(job_id, trace=TRACE)
    real = node.controller.post

    def failing(path: str, body: Any) -> Any:
        if any(item["record"]["job_id"] == 2 for item in body["items"]):
            node.controller.posts.append(["failed"])
            raise EnergyError("internal error", todo="see senergyctld's log")
        return real(path, body)

    monkeypatch.setattr(node.controller, "post", failing)
    node.deliver()
    assert sorted(node.controller.records) == ["id0", "id1", "id3", "id4"]
    assert node.spool.state()["deferred"] == node.spool.count() == 1
    assert "internal error" in node.spool.deferred.reason
    assert node.deliver() == 0


def test_a_controller_that_goes_away_between_single_records(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in range(5):
        node.add(job_id, trace=TRACE)
    real, calls = node.controller.post, [0]

    def leaving(path: str, body: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise UsageError("body", "too large")
        if calls[0] > 3:
            raise UnavailableError("controller", "Connection refused")
        return real(path, body)

    monkeypatch.setattr(node.controller, "post", leaving)
    with pytest.raises(UnavailableError):
        node.deliver()
    assert len(node.controller.records) == 2
    assert node.spool.count() == 3 and node.spool.rejected.count() == 0


class TestBounds:
    def test_oldest_traces_go_first_then_oldest_records(self, tmp_path: Path) -> None:
        spool = Spool(tmp_path / "spool", 10**6)
        size = len(json.dumps(record(10).to_json(), separators=(",", ":")))
        trace = TRACE | {"columns": {"cpu": "A" * 1000}}
        for job_id in range(10, 40):
            spool.add(replace(record(job_id), end=float(job_id + 100)), trace)
        spool.rejected.limit_bytes = 12 * (size + 100)
        for item in spool.items(10**9, 100):
            spool.reject(item.name, "r", "1")
        left = list(spool.rejected.listing())
        assert spool.rejected.bytes <= spool.rejected.limit_bytes
        assert spool.rejected.bytes == sum(
            path.stat().st_size for path in (tmp_path / "spool/rejected").iterdir()
        )
        assert [entry.name for entry in left] == sorted(entry.name for entry in left)
        assert left[-1].name.endswith("id39.json") and spool.rejected.dropped == 30 - len(left)
        assert 5 <= len(left) <= 14

    def test_number_of_records(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rejected_records, "MAX_RECORDS", 5)
        spool = Spool(tmp_path / "spool", 10**8)
        for job_id in range(10, 20):
            spool.add(replace(record(job_id), end=float(job_id + 100)), TRACE)
        for item in spool.items(10**9, 100):
            spool.reject(item.name, "r", "1")
        assert [entry.name[-7:-5] for entry in spool.rejected.listing()] == ["15", "16", "17", "18", "19"]
        assert len(list((tmp_path / "spool/rejected").iterdir())) == 15

    def test_rejected_records_make_room_for_records_that_were_not_seen(self, tmp_path: Path) -> None:
        spool = Spool(tmp_path / "spool", 10**8)
        for job_id in range(20):
            spool.add(replace(record(job_id), end=float(job_id)), TRACE)
        for item in spool.items(10**9, 100):
            spool.reject(item.name, "r", "1")
        used = spool.rejected.bytes
        spool.limit_bytes = used
        for job_id in range(100, 110):
            spool.add(replace(record(job_id), end=float(job_id)), None)
        assert spool.count() == 10 and spool.rejected.count() < 20
        assert sum(path.stat().st_size for path in spool.folder.rglob("*") if path.is_file()) <= used

    def test_is_logged_once(self, node: Node, caplog: pytest.LogCaptureFixture) -> None:
        node.controller.bad = {f"id{n}" for n in range(50)}
        for job_id in range(50):
            node.add(job_id)
            node.deliver()
        told = [entry for entry in caplog.records if "rejected" in entry.getMessage()]
        assert 1 <= len(told) <= 2
        assert "because" in told[0].getMessage() and "senergy spool" in told[0].getMessage()

    def test_a_link_in_place_of_the_directory_is_not_followed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (tmp_path / "spool").mkdir()
        (tmp_path / "spool/rejected").symlink_to(outside)
        spool = Spool(tmp_path / "spool", 10**8)
        spool.add(record(1), None)
        spool.reject(spool.items(10**9, 1)[0].name, "r", "1")
        assert list(outside.iterdir()) == [] and spool.rejected.count() == 1


class CrashError(Exception):
    """Exception that simulates a crash of the process at the place where it is raised."""


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], None]:
    """Simulate a crash: prevent the N-th change of a file from now on, and all later ones."""
    calls = [0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] >= number:
                raise CrashError
            return function(*arguments, **more)

        return call

    originals = {name: getattr(rejected_records.os, name) for name in ("replace", "unlink", "write")}
    for name, function in originals.items():
        monkeypatch.setattr(rejected_records.os, name, counted(function))

    def undo() -> None:
        for name, function in originals.items():
            monkeypatch.setattr(rejected_records.os, name, function)

    return undo


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 60))]
)
def test_a_crash_at_any_change_of_a_file_loses_and_doubles_nothing(
    node: Node, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record is lost or doubled if senergyd crashes before any change of a file.

    In the test, an old controller rejects some records, senergyd sends records again, and the controller is
    upgraded.
    """
    chance = random.Random(seed)
    node.controller.bad = {"id1", "id2"}
    for job_id in range(4):
        node.add(job_id, schema=2 if job_id == 3 else 1, trace=TRACE | {"job": job_id})
    stored: dict[str, Any] = {}
    for _ in range(8):
        undo = crash_at(monkeypatch, chance.randint(1, 14))
        try:
            node.deliver()
            node.spool.resend()
            node.deliver()
        except CrashError:
            pass
        finally:
            undo()
        stored |= node.controller.traces
        node.restart()
        assert node.spool.count() + node.spool.rejected.count() + len(stored) >= 4
    upgraded = Controller(schema=2)
    upgraded.records, upgraded.traces = node.controller.records, node.controller.traces
    node.controller = upgraded
    node.spool.resend()
    node.deliver()
    assert node.files() == []
    assert {name: trace["job"] for name, trace in upgraded.traces.items()} == {f"id{n}": n for n in range(4)}


def test_accept_helper_of_an_old_controller_names_no_release(node: Node) -> None:
    node.controller.post = lambda _path, body: accept(body)
    node.add(1)

    async def run() -> bool:
        return await node.delivery._deliver_some()

    assert asyncio.run(run()) and node.files() == []


def test_the_probe_goes_round() -> None:
    waiting = DeferredRecords()
    for name in "abc":
        waiting.add(name, "why", 0.0)
    assert waiting.withheld(1.0) == {"a", "b", "c"}
    assert waiting.withheld(30.0) == {"b", "c"}
    waiting.add("a", "why", 31.0)
    assert waiting.pause_s(31.0) == 60.0
    assert waiting.withheld(91.0) == {"a", "c"}
    waiting.forget("b")  # it was accepted, so the others may be too
    assert len(waiting) == 0 and waiting.pause_s(0.0) is None


@pytest.mark.timeout(60)
def test_the_end_of_the_agent_does_not_wait_for_a_controller_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_munge.install(monkeypatch)
    monkeypatch.setattr(delivery, "_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(delivery, "_TOTAL_TIMEOUT_S", 3600.0)
    spool, held = Spool(tmp_path / "spool", 10**8), []
    spool.add(record(1), None)

    async def run(listening: socket.socket) -> None:
        cluster = ClusterConfig(
            controller_url=ControllerUrls([f"http://127.0.0.1:{listening.getsockname()[1]}"])
        )
        task = asyncio.create_task(RecordDelivery(spool, cluster, lambda: "n1", work).run())
        held.append((await asyncio.to_thread(listening.accept))[0])
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(run(listening))  # waits for the threads
    assert len(held) == 1 and spool.count() == 1
    held[0].close()


class PeriodController(Controller):
    """Stand-in for the controller that accepts periods of energy.

    If `release` is None, it behaves like an older release that does not know periods.
    """

    release: str | None = "2.0"

    def post(self, path: str, body: Any) -> Any:
        if self.release is None:
            self.posts.append([])
            raise UnavailableError("controller http://c:1", "POST /v1/periods: not found")
        assert path == "/v1/periods"
        ids = [item["period"]["period_id"] for item in body["items"]]
        self.posts.append(ids)
        self.records |= {item["period"]["period_id"]: item["period"] for item in body["items"]}
        return {"accepted": ids, "version": self.release, "schema": 1}


def test_periods_wait_for_a_controller_that_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, controller := PeriodController(), monkeypatch)
    node.delivery = RecordDelivery(node.spool, ClusterConfig(), lambda: "n1", work, delivery.PERIOD_ROUTE)
    made = [period(start=HOUR_S * n) for n in range(3)]
    for one in made:
        node.spool.add(one, None)
    controller.release = None
    with pytest.raises(UnavailableError):
        node.deliver()
    assert len(node.files()) == 3
    controller.release = "2.0"
    assert node.deliver() == 1
    assert node.files() == []
    assert [NodePeriod.from_json(controller.records[one.period_id]) for one in made] == made


@pytest.mark.parametrize(("requested_s", "pause_s"), [(0.0, 15.0), (10.0, 15.0), (200.0, 100.0)])
def test_the_nodes_spread_their_periods_over_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requested_s: float, pause_s: float
) -> None:
    node = Node(tmp_path, controller := PeriodController(), monkeypatch)
    node.delivery = RecordDelivery(
        node.spool, ClusterConfig(), lambda: "n1", work, delivery.PERIOD_ROUTE, lambda: requested_s
    )
    monkeypatch.setattr(delivery.random, "uniform", lambda low, high: low + 0.5 * high)
    pauses: list[float] = []

    async def story() -> None:
        running = asyncio.create_task(node.delivery.run())
        pause = asyncio.sleep

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await pause(0)

        monkeypatch.setattr(delivery.asyncio, "sleep", sleep)
        for _ in range(100):
            await pause(0)
        node.spool.add(period(), None)
        node.delivery.wake()
        while not controller.posts:
            await pause(0.001)
        running.cancel()

    asyncio.run(story())
    assert pauses == [pause_s]
