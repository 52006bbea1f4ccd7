"""Tests of the priority engine in senergyctld, which ranks the queue.

The tests check ranking cycles, failures, reloads of the configuration, and HTTP responses. They need no
Slurm.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from types import SimpleNamespace

import numpy as np
import open_munge
import pytest
from queue_examples import Source, queue, running
from queue_files import snapshot
from store_examples import Accounting, item, job
from test_controller import ALICE, BOB, OPERATOR, Controller, refused
from test_slurm_queue import Squeue, row

from slurm_energy import config as configuration
from slurm_energy.accounting import decisions
from slurm_energy.accounting.decisions import Decision
from slurm_energy.accounting.records import job_facts
from slurm_energy.accounting.records.job_facts import JobLookup
from slurm_energy.controller import daemon
from slurm_energy.controller.http import authorization
from slurm_energy.controller.http.server import ControllerServer
from slurm_energy.controller.queue import priority_pipeline
from slurm_energy.controller.queue.priority_loop import PriorityLoop, make_pipeline
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.priority import table_file
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.publisher import (
    MAX_REFRESHED_JOBS,
    NullPublisher,
    ScontrolPublisher,
    TablePublisher,
)
from slurm_energy.priority.site_factors import MIN_SITE_FACTOR
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.scheduling import registry
from slurm_energy.slurm.fair_share import FairShare, ShareCache, ShareTree
from slurm_energy.slurm.queue.squeue_source import SqueueSource

HOUR = 3600.0


def text(directory, mode="plugin", **more):
    lines = [f'mode = "{mode}"', "refresh_new_jobs = false", f'table = "{directory}/out/priority.table"'] + [
        f"{key} = {json.dumps(value)}" for key, value in more.items()
    ]
    return f'[controller]\noperators = ["{OPERATOR}"]\n[priority]\n' + "\n".join(lines)


def jobs():
    now = time.time()
    return queue(
        {"time_limit_s": 3 * HOUR, "uid": ALICE, "user": str(ALICE)},
        {"time_limit_s": HOUR, "uid": BOB, "user": str(BOB)},
        {"time_limit_s": 2 * HOUR, "uid": ALICE, "user": str(ALICE)},
        now=now,
    )


class Queueing:
    """A controller whose priority engine reads a queue defined by the test."""

    def __init__(self, directory, **settings):
        self.directory = directory
        self.controller = Controller(directory)
        self.source = Source(jobs())
        self.publisher, self.share_tree, self.share_fails = None, ShareTree(), False
        self.failures = RepeatedFailureLog(logging.getLogger("slurm_energy.controller"), ignore_numbers=True)
        config = configuration.parse(text(directory, **settings))
        self.loop = PriorityLoop(
            config, self.controller.store, self.controller.memory, self.failures, self.make
        )
        access, _ = authorization.PrivilegedUsers.from_config(config.controller)
        self.controller.server = ControllerServer(
            config, access, self.controller.store, self.failures,
            lambda: {"priority": self.loop.status()}, self.controller.memory, self.loop,
        )  # fmt: skip

    def make(self, config, memory, engine_state):
        made = priority_pipeline.build_pipeline(config, memory, engine_state)
        made.source = self.source
        made.publisher, made.read_shares = self.publisher or made.publisher, self.shares
        return made

    def shares(self):
        if self.share_fails:
            raise UnavailableError("sacctmgr", "no slurmdbd")
        return self.share_tree

    def reconfigure(self, **settings):
        self.loop.adopt(self.loop.prepare(configuration.parse(text(self.directory, **settings))))

    def session(self, story):
        try:
            return self.controller.session(story)
        finally:
            self.loop.close()


@pytest.fixture
def make(tmp_path, monkeypatch):
    open_munge.install(monkeypatch)
    (tmp_path / "out").mkdir(mode=0o755)
    (tmp_path / "out").chmod(0o755)
    return lambda **settings: Queueing(tmp_path, **settings)


def entries(path):
    data = path.read_bytes()
    header = np.frombuffer(data, table_file.HEADER, 1)[0]
    rows = np.frombuffer(data, table_file.ENTRY, int(header["count"]), table_file.HEADER.itemsize)
    return header, dict(rows.tolist())


def test_a_cycle_writes_the_table_and_serves_the_order(make):
    queueing = make(policy="zeus")

    async def story(c):
        status, before = await c.get("/v1/priority")
        assert (status, before["jobs"], before["computed"], before["mode"]) == (200, [], None, "plugin")
        await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority?state=1")
        assert [(found["job_id"], found["place"]) for found in answer["jobs"]] == [
            (102, 1),
            (103, 2),
            (101, 3),
        ]
        assert (answer["pending"], answer["ranked"], answer["error"], answer["scope"]) == (3, 3, None, "all")
        assert answer["state"]["order"] == [102, 103, 101]
        header, numbers = entries(queueing.directory / "out/priority.table")
        assert sorted(numbers, key=numbers.get, reverse=True) == [102, 103, 101]
        assert {found["job_id"]: found["site_factor"] for found in answer["jobs"]} == numbers
        assert header["default"] == numbers[103]
        _, answer = await c.get("/v1/status")
        assert answer["priority"]["ranked"] == 3
        return True

    assert queueing.session(story)


def test_users_see_their_own_jobs_and_shares(make):
    queueing = make(policy="zeus")

    async def story(c):
        await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority", uid=ALICE)
        assert [found["job_id"] for found in answer["jobs"]] == [103, 101]
        assert (answer["scope"], answer["ranked"], answer["jobs"][0]["place"]) == ("own", 3, 2)
        for query in (f"user={BOB}", "job=102", "state=1"):
            assert refused(await c.get(f"/v1/priority?{query}", uid=ALICE), 403, 5, "ask an operator")
        assert refused(await c.get("/v1/priority?job=x"), 400, 2, "not a job id")
        assert refused(await c.get("/v1/priority?job=1&job=2"), 400, 2, "twice")
        _, answer = await c.get("/v1/shares", uid=ALICE)
        assert [row["user"] for row in answer["rows"]] == [None, str(ALICE)]
        _, answer = await c.get("/v1/shares")
        assert [row["user"] for row in answer["rows"]] == [None, str(ALICE), str(BOB)]
        return True

    assert queueing.session(story)


def test_an_unknown_user_is_not_found(make):
    """The controller answers a query for an unknown user with an error.

    A user is known if the database has energy records of the user, even if no host has the user's name
    any more.
    """
    queueing = make(policy="zeus")

    async def story(c):
        begun = time.time() - 9
        await c.post({"items": [item(job_id=1, uid=99999, user="gone", start=begun, end=begun + 1)]})
        await queueing.loop.cycle()
        assert (await c.get("/v1/priority?user=gone"))[1]["jobs"] == []
        return refused(await c.get("/v1/priority?user=gone,nosuch"), 404, 6, "user nosuch: ", "pending")

    assert queueing.session(story)


def test_owners_of_preempted_jobs_do_not_see_the_urgent_job(make):
    queueing = make()
    made = Decision(7, 900.0, 950.0, "requeue", "least energy lost", {"for_job": 99, "lost_joules": 5.0})

    async def story(c):
        await c.post({"items": [item(job_id=7, uid=ALICE)]})
        seven = JobLookup("c1", 7, True)
        await queueing.controller.store.write(job_facts.store, {7: (job(7),)}, [seven], time.time())
        await queueing.controller.store.write(decisions.save, "c1", [made])
        found = [(await c.get("/v1/jobs/7", uid=uid))[1]["decisions"][0] for uid in (ALICE, OPERATOR)]
        assert found[0] | {"for_job": 99} == found[1]
        return "for_job" in found[0]

    assert queueing.session(story) is False


def test_failures_are_logged_once_and_the_order_stays(make, caplog):
    caplog.set_level(logging.INFO, "slurm_energy.controller")
    queueing = make()

    async def story(c):
        await queueing.loop.cycle()
        before = queueing.loop.snapshot
        queueing.source.fails = "torn"
        for _ in range(3):
            await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority")
        assert answer["error"] == "queue: torn" and len(answer["jobs"]) == 3
        assert queueing.loop.snapshot is before
        queueing.source.fails = None
        await queueing.loop.cycle()
        assert (await c.get("/v1/priority"))[1]["error"] is None
        return True

    assert queueing.session(story)
    assert [record.getMessage() for record in caplog.records] == [
        "priority: plugin, by blend from squeue",
        "priority: queue: torn",
        "priority: works again",
    ]


def test_a_table_that_cannot_be_written_does_not_stop_the_ranking(make):
    queueing = make()
    (queueing.directory / "out").rmdir()
    (queueing.directory / "out").write_text("")

    async def story(c):
        await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority")
        assert len(answer["jobs"]) == 3 and "priority" in answer["error"]
        return True

    assert queueing.session(story)


def test_a_reload_changes_policy_and_mode_and_keeps_usage(make):
    queueing = make(policy="zeus")
    path = queueing.directory / "out/priority.table"

    async def story(c):
        await c.post({"items": [item(job_id=1, start=time.time() - 9, end=time.time())]})
        await queueing.loop.cycle()
        engine_state = queueing.loop.engine_state
        assert engine_state.usage.last_row == 1
        queueing.reconfigure(policy="fcfs", age_weight=0.5)
        await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority")
        assert [found["job_id"] for found in answer["jobs"]] == [101, 102, 103]
        assert (answer["policy"], answer["age_weight"]) == ("fcfs", 0.5)
        assert queueing.loop.engine_state is engine_state
        assert path.exists()
        queueing.reconfigure(mode="off")
        await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority")
        assert (answer["mode"], answer["jobs"], path.exists()) == ("off", [], False)
        queueing.reconfigure(mode="plugin", half_life_s=60.0)
        await queueing.loop.cycle()
        assert queueing.loop.engine_state is not engine_state and path.exists()
        factors = queueing.loop.engine_state.applied_factors
        queueing.reconfigure(mode="plugin", half_life_s=90.0)
        await queueing.loop.cycle()
        assert queueing.loop.engine_state.applied_factors is factors
        return True

    assert queueing.session(story)


@pytest.mark.parametrize(("mode", "fixed"), [("plugin", 0), ("shadow", 1)])
def test_site_factors_of_the_plugin_are_not_taken_for_explicit_priorities(make, mode, fixed):
    queueing = make(mode="shadow", policy="zeus")

    async def story(_):
        await queueing.loop.cycle()
        queueing.loop.engine_state.applied_factors[7] = 7000
        queueing.reconfigure(mode=mode)
        await queueing.loop.cycle()
        read = SqueueSource(
            Squeue(row(PriorityLong="9000")), queueing.loop.engine_state.applied_factors
        ).read()
        return int(read.fixed.sum())

    assert queueing.session(story) == fixed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": "zeuss"}, "'zeuss' is not known"),
        ({"policy_file": "/nowhere/policy.py"}, "No such file"),
        ({"weights.edpp": 1.0}, "'edpp' belongs to no policy: known: age, "),
    ],
)
def test_a_bad_reload_is_refused(make, settings, words):
    queueing = make()

    async def story(c):
        with pytest.raises(ConfigError, match=words):
            queueing.reconfigure(**settings)
        await queueing.loop.cycle()
        return queueing.loop.snapshot is not None

    assert queueing.session(story)


@pytest.mark.parametrize(
    ("age_s", "problem"),
    [
        (60, None),
        (2400, "queue.table is 40 minutes old"),
        (-2400, "queue.table is 40 minutes ahead"),
    ],
)
def test_an_outdated_queue_table_is_reported(tmp_path, age_s, problem):
    path = tmp_path / "queue" / "queue.table"
    path.parent.mkdir(mode=0o755)
    path.write_bytes(snapshot([{"job_id": 7}], taken_unix_ns=int((time.time() - age_s) * 1e9)))
    path.chmod(0o600)
    made = priority_pipeline.build_pipeline(
        configuration.parse(text(tmp_path, queue_table=str(path))), None, None
    )
    made.read_shares = ShareTree
    found = made.publish(made.rank())
    assert found == problem or found.startswith(problem)
    assert (tmp_path / "out" / "priority.table").exists()


def test_a_policy_file_that_others_can_write_is_not_run(make, tmp_path):
    path = tmp_path / "policy.py"
    path.write_text("raise SystemExit(9)")
    path.chmod(0o666)
    queueing = make()

    async def story(c):
        with pytest.raises(ConfigError, match="expected owner"):
            queueing.reconfigure(policy_file=str(path))
        return True

    assert queueing.session(story)


@pytest.mark.parametrize(
    ("code", "words"),
    [("raise SystemExit(9)", "SystemExit: 9"), ("1 +", "SyntaxError"), ("", "registers no policy")],
)
def test_a_policy_file_ends_no_daemon(make, tmp_path, code, words):
    path = tmp_path / "policy.py"
    path.write_text(code)
    path.chmod(0o600)
    queueing = make()

    async def story(c):
        with pytest.raises(ConfigError, match=words):
            queueing.reconfigure(policy_file=str(path))
        return True

    assert queueing.session(story)


def test_a_sites_policy_that_fails_is_one_line(make, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    path = folder / "own_policy.py"
    path.write_text(
        "from slurm_energy.scheduling import register\n"
        "@register('fails')\ndef rank(queue, options):\n    return 1 / 0\n"
    )
    path.chmod(0o600)
    queueing = make(policy="fails", policy_file=str(path))

    async def story(c):
        await queueing.loop.cycle()
        return (await c.get("/v1/priority"))[1]["error"]

    assert queueing.session(story) == f"policy 'fails' ({path}:4): ZeroDivisionError: division by zero"


def test_shadow_changes_nothing_and_compares(make, caplog):
    caplog.set_level(logging.INFO, "slurm_energy.controller")
    queueing = make(mode="shadow", policy="zeus", queue_table=str(os.devnull))
    queueing.source.columns.priority[:] = [3, 2, 1]

    async def story(c):
        for _ in range(3):
            await queueing.loop.cycle()
        return (await c.get("/v1/status"))[1]["priority"]["rank_correlation"]

    found = queueing.session(story)
    assert (found["jobs"], found["moved_jobs"]) == (3, 1) and found["kendall_tau"] == pytest.approx(-1 / 3)
    assert not (queueing.directory / "out/priority.table").exists()
    messages = [record.getMessage() for record in caplog.records][1:]
    assert ["of 3 jobs free to start zeus would move 1" in message for message in messages] == [True]


def test_usage_follows_the_records(make):
    queueing = make()

    async def story(c):
        end = time.time()
        await c.post({"items": [item(job_id=n, user="carol", start=end - 10, end=end) for n in range(3)]})
        await queueing.loop.cycle()
        rows = {(row["account"], row["user"]): row for row in (await c.get("/v1/shares"))[1]["rows"]}
        assert rows["", "carol"]["energy_joules"] == pytest.approx(150.0, rel=1e-3)
        Accounting(str(queueing.controller.store.path)).learn(
            *(job(n, start=end - 10, end=end, user="carol") for n in range(3)),
            now=end,
        )
        for _ in range(2):
            await queueing.loop.cycle()
        rows = {(row["account"], row["user"]): row for row in (await c.get("/v1/shares"))[1]["rows"]}
        assert rows["physics", "carol"]["energy_joules"] == pytest.approx(150.0, rel=1e-3)
        assert ("", "carol") not in rows
        return True

    assert queueing.session(story)


def test_usage_is_restored_once_the_clock_is_right_again(make, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "slurm_energy.controller")
    ahead_s = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s[0], monotonic=time.monotonic)
    for module in ("priority_loop", "priority_pipeline"):
        monkeypatch.setattr(f"slurm_energy.controller.queue.{module}.time", clock)
    queueing = make(policy="zeus")

    async def story(c):
        end = time.time()
        await c.post({"items": [item(job_id=1, uid=ALICE, user="alice", start=end - 9, end=end)]})
        found = []
        for ahead_s[0] in (0.0, 30 * 86400.0, 0.0, 0.0):
            await queueing.loop.cycle()
            found.append(float(queueing.loop.engine_state.usage.decayed(clock.time())[0].sum()))
        return found

    right, ahead, *again = queueing.session(story)
    assert ahead < right / 10
    assert again == pytest.approx([right, right], rel=0.01)
    assert caplog.text.count("the clock was set by") == 2


def test_shares_come_from_sacctmgr_and_stay_during_its_outage(make, caplog):
    caplog.set_level(logging.INFO, "slurm_energy.controller")
    queueing = make()
    queueing.share_tree = ShareTree(
        {"physics": FairShare(3, 0.5)}, {("physics", str(ALICE)): FairShare(7, 0.375)}
    )
    queueing.source.columns.shares_norm[:] = 0.9  # of one level only, as under Fair Tree

    async def story(c):
        for queueing.share_fails in (False, True, True, False):
            await queueing.loop.cycle()
            rows = {row["user"]: row for row in (await c.get("/v1/shares"))[1]["rows"]}
            assert (rows[str(ALICE)]["norm_shares"], rows[str(ALICE)]["shares"]) == (0.375, 7)
            assert (rows[None]["norm_shares"], rows[str(BOB)]["norm_shares"]) == (0.5, None)
            pipeline = queueing.loop._pipeline
            pipeline._shares = ShareCache(pipeline._read_shares, max_age_s=0.0)
        return True

    assert queueing.session(story)
    messages = [record.getMessage() for record in caplog.records]
    assert [message for message in messages if "shares" in message] == [
        "priority, shares: sacctmgr: no slurmdbd",
        "priority, shares: works again",
    ]


def test_a_reload_during_an_outage_of_sacctmgr_keeps_the_shares(make):
    queueing = make()
    queueing.share_tree = ShareTree({}, {("physics", str(ALICE)): FairShare(7, 0.375)})

    async def story(c):
        await queueing.loop.cycle()
        queueing.share_fails = True
        queueing.reconfigure(interval_s=20)
        for _ in range(3):
            await queueing.loop.cycle()
            assert queueing.loop.engine_state.configured_shares == queueing.share_tree
        return True

    assert queueing.session(story)


class Setter:
    """Stand-in for the object that sets site factors (priority terms) of jobs in Slurm.

    In each call, only the first `most` changes are made, as if the rate of changes were limited. The change
    of job 999 is refused.
    """

    def __init__(self, most):
        self.most, self.asked = most, []

    def set_site_factors(self, changes):
        some = dict(list(changes.items())[: self.most])
        self.asked.append(some)
        return SimpleNamespace(refused={999: "Access denied"} if 999 in some else {}, left=())


def test_changes_are_published_in_portions_until_none_is_left():
    config = configuration.parse('[priority]\nmode = "portable"\npolicy = "zeus"')
    engine, setter = PriorityEngine(config, EngineState(DecayedUsage(HOUR))), Setter(4)
    target, numbers = ScontrolPublisher(setter), {}
    for cycle in range(5):
        rows = [
            {"job_id": 1 + n, "time_limit_s": HOUR * (1 + n * 7 % 10), "site_factor": numbers.get(1 + n, 0)}
            for n in range(10)
        ]
        assert target.publish(engine.cycle(queue(*rows), 1e9 + cycle)) is None
        numbers |= setter.asked[-1]
    assert [len(some) for some in setter.asked] == [4, 4, 2]
    places = sorted(numbers, key=numbers.get, reverse=True)
    assert [HOUR * (1 + (place - 1) * 7 % 10) for place in places] == [HOUR * n for n in range(1, 11)]


def test_new_jobs_are_refreshed_once(tmp_path):
    config = configuration.parse('[priority]\nmode = "plugin"\npolicy = "zeus"')
    engine, setter = PriorityEngine(config, EngineState(DecayedUsage(HOUR))), Setter(9)
    tmp_path.chmod(0o755)
    target = TablePublisher(tmp_path / "t", 300.0, setter)
    first = [
        {"job_id": 1, "site_factor": 7 * MIN_SITE_FACTOR},
        {"job_id": 2, "site_factor": 6 * MIN_SITE_FACTOR},
    ]
    for rows in (first, [*first, {"job_id": 7, "time_limit_s": 9.0}, {"job_id": 8, "held": True}]):
        for _ in range(2):
            snapshot = engine.cycle(queue(*rows), 1e9)
            assert target.publish(snapshot) is None
    assert setter.asked == [{7: int(snapshot.site_factors[2])}]
    again = TablePublisher(tmp_path / "t", 300.0, setter)
    again.publish(PriorityEngine(config, EngineState(DecayedUsage(HOUR))).cycle(queue(*rows), 1e9))
    assert list(setter.asked[1]) == [7]


def test_of_many_new_jobs_the_first_to_start_are_refreshed(tmp_path):
    config = configuration.parse('[priority]\nmode = "plugin"\npolicy = "sjf"')
    engine, setter = PriorityEngine(config, EngineState(DecayedUsage(HOUR))), Setter(9999)
    tmp_path.chmod(0o755)
    engine.cycle(queue(), 1e9)
    many = [{"job_id": 1000 - n, "time_limit_s": 60.0 + n} for n in range(MAX_REFRESHED_JOBS + 50)]
    TablePublisher(tmp_path / "t", 300.0, setter).publish(engine.cycle(queue(*many), 1e9))
    assert list(setter.asked[0]) == [1000 - n for n in range(MAX_REFRESHED_JOBS)]


def test_refused_changes_are_reported():
    config = configuration.parse('[priority]\nmode = "portable"')
    snapshot = PriorityEngine(config, EngineState(DecayedUsage(HOUR))).cycle(queue({"job_id": 999}), 1e9)
    assert (
        ScontrolPublisher(Setter(9)).publish(snapshot)
        == "1 jobs keep their old place, job 999: Access denied"
    )


def test_running_jobs_and_jobs_not_ranked_in_the_table(tmp_path):
    config = configuration.parse('[priority]\npartitions = ["cpu"]')
    snapshot = PriorityEngine(config, EngineState(DecayedUsage(HOUR))).cycle(
        queue({}, {"partition": "x"}, running()), 1e9
    )
    tmp_path.chmod(0o755)
    TablePublisher(tmp_path / "t", 300.0).publish(snapshot)
    header, numbers = entries(tmp_path / "t")
    assert sorted(numbers) == [101, 102] and numbers[102] == 0
    assert (header["stale_s"], header["written_unix_s"]) == (300, 1_000_000_000)


@pytest.mark.parametrize(("partitions", "given"), [([], True), (["cpu"], False)])
def test_new_jobs_begin_last_if_some_partitions_are_not_ranked(tmp_path, partitions, given):
    """New jobs get a default site factor only if slurm-energy ranks all partitions.

    A site factor is the part of Slurm's job priority that slurm-energy sets. The plugin in slurmctld
    cannot know whether the partition of a new job is ranked. The default site factor applies until the
    job is ranked.
    """
    config = configuration.parse(text(tmp_path, partitions=partitions))
    target = priority_pipeline.build_pipeline(config, None, None).publisher
    target.publish(
        PriorityEngine(config, EngineState(DecayedUsage(HOUR))).cycle(
            queue({"partition": "cpu"}), time.time()
        )
    )
    header, _ = entries(tmp_path / "out" / "priority.table")
    assert (header["default"] > 0) == given


def test_the_check_names_missing_dependencies(tmp_path, monkeypatch):
    config = configuration.parse('[priority]\nmode = "plugin"\npolicy = "nosuch"')
    with pytest.raises(ConfigError, match="nosuch"):
        daemon.check(config)
    monkeypatch.delattr("slurm_energy.controller.queue.priority_pipeline")
    monkeypatch.setitem(sys.modules, "slurm_energy.controller.queue.priority_pipeline", None)
    with pytest.raises(ConfigError, match=r"slurm-energy\[scheduling\]"):
        make_pipeline(config, None, None)


def test_the_loop_ranks_after_a_write_of_slurmctld(make, monkeypatch):
    """The controller ranks the queue again as soon as slurmctld has changed its state files.

    In the test, the regular interval between two rankings is an hour. Only the change can cause the second
    ranking.
    """
    monkeypatch.setattr("slurm_energy.controller.queue.priority_loop._POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("slurm_energy.controller.queue.priority_loop._MIN_PAUSE_S", 0.0)
    queueing = make(interval_s=3600.0, stale_s=86400.0)

    async def until(condition):
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    async def story(c):
        task = asyncio.create_task(queueing.loop.loop())
        await asyncio.sleep(0.1)
        assert queueing.source.reads == 0, "it waits for the history"
        await c.memory.load()
        try:
            await until(lambda: queueing.loop.snapshot is not None)
            before = queueing.source.reads
            monkeypatch.setattr(priority_pipeline.PriorityPipeline, "signature", lambda parts: (7,))
            await until(lambda: queueing.source.reads > before)
        finally:
            task.cancel()
        return True

    assert queueing.session(story)


def test_a_missing_queue_at_the_start(make):
    queueing = make()
    queueing.source.fails = "away"

    async def story(c):
        await queueing.loop.cycle()
        _, answer = await c.get("/v1/priority")
        assert (answer["jobs"], answer["error"]) == ([], "queue: away")
        _, answer = await c.get("/v1/shares")
        assert (answer["rows"], answer["computed"]) == ([], None)
        return True

    assert queueing.session(story)


def test_the_pipeline_of_each_mode(tmp_path):
    found = priority_pipeline.build_pipeline(configuration.parse(text(tmp_path)), None, None)
    assert isinstance(found.publisher, TablePublisher) and found.source_name == "queue.table"
    with pytest.raises(UnavailableError):
        found.rank()
    for mode, kind in (("portable", ScontrolPublisher), ("shadow", NullPublisher)):
        config = configuration.parse(text(tmp_path, mode, queue_table=str(tmp_path / "queue.table")))
        found = priority_pipeline.build_pipeline(config, None, None)
        assert isinstance(found.publisher, kind) and found.source_name == "squeue"
        found.stop()
        with pytest.raises(UnavailableError):
            found.rank()
