"""Tests of the power budgets in senergyctld, without Slurm.

The tests check the decisions, the answers to nodes that ask for decisions (poll), and limits that
operators change. They also check the stored data and a restart of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from budget_world import RESERVE_WATTS, FakeNode
from sqlalchemy.exc import OperationalError

from slurm_energy import config as configuration
from slurm_energy.accounting import budgets, engine
from slurm_energy.budget.messages import NodeDecision
from slurm_energy.controller.budgets.admission import AdmissionReport
from slurm_energy.controller.budgets.licenses import BudgetHeadroom
from slurm_energy.controller.budgets.loop import BudgetLoop
from slurm_energy.controller.budgets.routes import BudgetRoutes
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender, Verdict
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.queue.job_lookup import QueuedJob
from slurm_energy.slurm.queue.node_resources import NodeResources
from slurm_energy.slurm.queue.running_jobs import AllocatedJob

SECTION = '[cluster]\nname = "c1"\n[budget]\nmode = "enforce"\nadmission = "off"\n'
SITE = '[[budgets]]\nname = "site"\ncluster = true\n'
OPERATOR, ALICE, BOB = Rights(0, "root", everything=True), Rights(2001, "alice"), Rights(2002, "bob")
SENDER = Sender("10.0.0.1")
FULL = {"package-0": 180.0, "gpu0": 380.0, "gpu1": 300.0}


class Hosts:
    refused: frozenset[str] = frozenset()

    async def verdicts(self, nodes: Any, sender: Sender, mode: str) -> dict[str, Verdict]:
        return {n: Verdict.REFUSED if n in self.refused else Verdict.ALLOWED for n in nodes}


class Site:
    """The power budgets of senergyctld with fake nodes, for tests.

    The test decides which jobs run in Slurm.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.folder, self.config = folder, configuration.parse(text)
        self.nodes = [FakeNode(f"n{i}") for i in range(3)]
        self.jobs: dict[int, AllocatedJob] = {}
        monkeypatch.setattr(
            "slurm_energy.controller.running_jobs.read_running_jobs", lambda run: dict(self.jobs)
        )
        monkeypatch.setattr(
            "slurm_energy.controller.budgets.inputs.read_nodes",
            lambda run: [NodeResources(node.name, frozenset({"main"})) for node in self.nodes],
        )
        monkeypatch.setattr(
            "slurm_energy.controller.budgets.inputs.name_of", {2001: "alice", 2002: "bob"}.get
        )
        self.hosts = Hosts()
        self.loop: BudgetLoop

    def start(self, job_id: int, node: FakeNode, uid: int = 2001, account: str = "chem") -> None:
        node.run(job_id, FULL)
        self.jobs[job_id] = AllocatedJob(job_id, uid, 0, "main", node.name, {}, account=account)

    def run(self, story: Callable[[Site], Awaitable[Any]]) -> Any:
        """Run the test function `story` with a new budget daemon on the stored database."""

        async def main() -> Any:
            store = Store(self.folder / "db")
            failures = RepeatedFailureLog(logging.getLogger("test"))
            self.store = store
            self.loop = BudgetLoop(self.config, store, None, RunningJobCache(None), failures)  # type: ignore[arg-type]
            self.routes = BudgetRoutes(lambda: self.config, self.loop, store, self.hosts)  # type: ignore[arg-type]
            try:
                return await story(self)
            finally:
                self.loop.close()
                store.close()

        return asyncio.run(main())

    async def step(self, count: int = 1) -> None:
        """Let all nodes poll the controller, then let the controller make a budget decision.

        This is repeated `count` times.
        """
        for _ in range(count):
            for node in self.nodes:
                answer = await self.routes.poll(json.loads(json.dumps(node.poll().to_json())), SENDER)
                node.apply(NodeDecision.from_json(answer))
            if self.loop.parts is not None and self.loop.parts.is_restored:
                await self.loop._refresh_inputs(self.loop.parts)
            await self.loop.decide()

    @property
    def power(self) -> float:
        return sum(node.power for node in self.nodes)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    return lambda text=SECTION + SITE + "watts = 2000\n": Site(tmp_path, monkeypatch, text)


def test_nodes_keep_the_limit_and_the_state_is_shown(site: Callable[..., Site]) -> None:
    async def story(s: Site) -> None:
        for job, node in enumerate(s.nodes, 1):
            s.start(job, node, uid=2000 + job)
        await s.step(12)
        assert s.power <= 2000.0
        shown = await s.routes.show({"nodes": "1", "jobs": "1"}, ALICE)
        (row,) = shown["budgets"]
        assert (row["name"], row["scope"], row["source"], row["limit_watts"]) == (
            "site",
            "cluster",
            "watts",
            2000,
        )
        assert row["measured_watts"] == pytest.approx(s.power, rel=0.1)
        assert row["committed_watts"] is not None and row["committed_watts"] <= 2000.0
        assert row["fixed_watts"] == pytest.approx(3 * RESERVE_WATTS, rel=0.05)
        assert [job["job_id"] for job in shown["jobs"]] == [1]  # the others belong to other users
        assert [node["job_ids"] for node in shown["nodes"]] == [[1], [], []]
        everything = await s.routes.show({"jobs": "1"}, OPERATOR)
        assert [job["user"] for job in everything["jobs"]] == ["alice", "bob", "2003"]
        assert json.loads(json.dumps(everything))  # no infinity, no NaN
        status = s.loop.status()
        assert status["mode"] == "enforce" and status["budgets"] == 1 and status["error"] is None

    site().run(story)


def test_an_agent_speaks_for_its_own_node_only(site: Callable[..., Site]) -> None:
    async def story(s: Site) -> None:
        s.hosts.refused = frozenset({"n1"})
        with pytest.raises(ForbiddenError):
            await s.routes.poll(s.nodes[1].poll().to_json(), SENDER)
        bodies: list[Any] = [None, [], {"node": "n0"}, {**s.nodes[0].poll().to_json(), "number": -1}]
        for bad in bodies:
            with pytest.raises(UsageError):
                await s.routes.poll(bad, SENDER)

    site().run(story)


def test_operators_change_limits_at_once_and_the_trail_names_them(site: Callable[..., Site]) -> None:
    async def story(s: Site) -> None:
        s.start(1, s.nodes[0])
        await s.step(8)
        for rights in (ALICE, Rights(5, "coord", accounts=frozenset({"chem"}))):
            with pytest.raises(ForbiddenError):
                await s.routes.set({"budget": "site", "watts": 1000.0}, rights)
        with pytest.raises(NotFoundError):
            await s.routes.set({"budget": "sit", "watts": 1000.0}, OPERATOR)
        with pytest.raises(NotFoundError):
            await s.routes.set({"budget": "site", "watts": None}, OPERATOR)
        with pytest.raises(UsageError, match="draws without any job"):
            await s.routes.set({"budget": "site", "watts": 400.0}, OPERATOR)
        with pytest.raises(UsageError):
            await s.routes.set({"budget": "site", "watts": 1e3, "until_unix_s": time.time() - 5}, OPERATOR)
        change = {"budget": "site", "watts": 1100.0, "reason": "storm"}
        answer = await s.routes.set(change, OPERATOR)
        assert (answer["limit_watts"], answer["previous_watts"]) == (1100.0, 2000.0)
        await s.step(5)
        assert s.power <= 1100.0
        (row,) = (await s.routes.show({}, ALICE))["budgets"]
        assert (row["source"], row["configured_watts"]) == ("set", 2000.0)
        assert row["override"] is not None
        assert (row["override"]["by"], row["override"]["reason"]) == ("root", "storm")
        await s.routes.set({"budget": "site", "watts": None}, OPERATOR)
        await s.step(5)
        assert s.nodes[0].power == pytest.approx(RESERVE_WATTS + sum(FULL.values()), rel=0.05)
        await s.loop._flush()
        past = await s.routes.history(
            {"begin_unix_s": "0", "end_unix_s": str(time.time() + 100), "budget": "site"}, ALICE
        )
        kinds = [(one["kind"], one["by"]) for one in past["changes"]]
        assert kinds[:3] == [("start", None), ("set", "root"), ("clear", "root")] or set(kinds) >= {
            ("set", "root"),
            ("clear", "root"),
        }
        assert any("storm" in one["text"] for one in past["changes"])

    site().run(story)


def test_a_limit_below_the_floors_is_accepted_with_a_warning(site: Callable[..., Site]) -> None:
    async def story(s: Site) -> None:
        s.start(1, s.nodes[0])
        await s.step(8)
        answer = await s.routes.set({"budget": "site", "watts": 900.0}, OPERATOR)
        assert "no job starts until enough of them have ended" in answer["warning"]

    site(SECTION + SITE + "watts = 2000\nfloor_percent = 80\n").run(story)


def test_a_restarted_daemon_continues(site: Callable[..., Site]) -> None:
    world = site()

    async def before(s: Site) -> None:
        s.start(1, s.nodes[0])
        await s.step(8)
        await s.routes.set({"budget": "site", "watts": 1500.0}, OPERATOR)
        await s.step(3)

    async def after(s: Site) -> None:
        await s.loop.decide()
        answer = await s.routes.poll(json.loads(json.dumps(s.nodes[0].poll().to_json())), SENDER)
        limits, held = NodeDecision.from_json(answer).limits_watts, s.nodes[0].ceiling
        assert all(watts is not None and watts <= held[name] + 1 for name, watts in limits.items())
        (row,) = (await s.routes.show({}, ALICE))["budgets"]
        assert row["limit_watts"] == 1500.0
        for node in s.nodes[1:]:
            s.start(int(node.name[1:]) + 1, node)
        for _ in range(15):
            await s.step()
            assert s.power <= 1500.0

    world.run(before)
    world.run(after)


def refused_read(*_: Any) -> None:
    raise OperationalError("", {}, Exception("connection refused"))


def test_a_restarted_daemon_decides_only_with_the_live_limits(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = site()

    async def before(s: Site) -> None:
        await s.step(3)
        await s.routes.set({"budget": "site", "watts": 1500.0}, OPERATOR)

    async def after(s: Site) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(budgets, "overrides", refused_read)
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await s.loop.decide()
            assert not s.loop.states
        await s.loop.decide()
        assert [status.limit_watts for status in s.loop.states] == [1500.0]

    world.run(before)
    world.run(after)


def test_a_stored_live_limit_applies_as_soon_as_it_can_be_read(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Site) -> None:
        s.start(1, s.nodes[0])
        await s.step(8)
        for watts, limit in ((1100.0, 1100.0), (None, 2000.0)):
            with monkeypatch.context() as patch:
                patch.setattr(budgets, "overrides", refused_read)
                answer = await s.routes.set({"budget": "site", "watts": watts}, OPERATOR)
                assert answer["limit_watts"] == limit
                ceiling = dict(s.nodes[0].ceiling)
                with pytest.raises(UnavailableError):
                    await s.step()
                with pytest.raises(UnavailableError):
                    await s.step()
                assert all(s.nodes[0].ceiling[name] <= held for name, held in ceiling.items())
            await s.step(5)
            assert [status.limit_watts for status in s.loop.states] == [limit]
            assert s.power <= limit

    site().run(story)


def test_no_raise_is_sent_while_the_database_refuses(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Site) -> None:
        await s.step(3)

        def refuse(*_: Any) -> None:
            raise OperationalError("", {}, Exception("disk I/O error"))

        monkeypatch.setattr(budgets, "save_nodes", refuse)
        s.start(1, s.nodes[0])
        for _ in range(5):
            with contextlib.suppress(UnavailableError):
                await s.step()
        assert s.nodes[0].ceiling == {"package-0": 60.0, "gpu0": 100.0, "gpu1": 100.0}

    site().run(story)


def test_nodes_that_slurm_no_longer_has_are_forgotten(site: Callable[..., Site]) -> None:
    async def story(s: Site) -> None:
        await s.step(3)
        s.nodes.pop()
        assert s.loop.parts is not None
        s.loop.parts.inputs._next_s.clear()
        await s.step(2)
        assert sorted(await s.store.read(budgets.nodes, "c1")) == ["n0", "n1"]
        assert (await s.routes.show({}, ALICE))["budgets"][0]["nodes"] == 2

    site().run(story)


def test_polls_are_refused_while_no_decision_succeeds(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Site) -> None:
        await s.step(3)
        clock = time.monotonic()
        monkeypatch.setattr("slurm_energy.controller.budgets.loop.time.monotonic", lambda: clock + 60.0)
        with pytest.raises(UnavailableError, match="no decision for"):
            await s.routes.poll(json.loads(json.dumps(s.nodes[0].poll().to_json())), SENDER)

    site().run(story)


def test_a_reload_changes_budgets_and_off_releases_nodes(site: Callable[..., Site]) -> None:
    async def story(s: Site) -> None:
        s.start(1, s.nodes[0])
        await s.step(8)
        ceilings = dict(s.nodes[0].ceiling)
        s.config = configuration.parse(SECTION + SITE + "watts = 1100\n")
        s.loop.adopt(s.loop.prepare(s.config))
        await s.step(5)
        assert s.power <= 1100.0
        assert s.nodes[0].ceiling != ceilings
        s.config = configuration.parse('[cluster]\nname = "c1"\n')
        s.loop.adopt(s.loop.prepare(s.config))
        await s.step(1)
        assert s.nodes[0].ceiling == {}
        assert (await s.routes.show({}, ALICE))["mode"] == "off"

    site().run(story)


def test_a_live_limit_applies_again_if_a_reload_restores_its_budget(site: Callable[..., Site]) -> None:
    def reload(s: Site, tables: str) -> None:
        s.config = configuration.parse(SECTION + tables)
        s.loop.adopt(s.loop.prepare(s.config))

    async def story(s: Site) -> None:
        await s.step(3)
        await s.routes.set({"budget": "site", "watts": 1100.0}, OPERATOR)
        reload(s, SITE.replace("site", "other") + "watts = 2000\n")
        await s.routes.set({"budget": "other", "watts": 1300.0}, OPERATOR)
        await s.step(2)
        assert [(one.name, one.limit_watts) for one in s.loop.states] == [("other", 1300.0)]
        reload(s, SITE + "watts = 2000\n")
        await s.step(2)
        assert [(one.name, one.limit_watts) for one in s.loop.states] == [("site", 1100.0)]

    site().run(story)


def test_the_admission_uses_the_last_decision_with_budgets_that_were_reloaded_since(
    site: Callable[..., Site],
) -> None:
    async def story(s: Site) -> None:
        await s.step(2)
        cycle = s.loop.cycle
        row = '[[budgets]]\nname = "row"\nnodes = "n0"\nwatts = 900\n'
        s.config = configuration.parse(SECTION + row + SITE + "watts = 2000\n")
        s.loop.adopt(s.loop.prepare(s.config))
        parts = s.loop.parts
        assert parts is not None and cycle is not None
        # The next decision has begun, but is not complete yet.
        parts.engine.set_budgets(parts.limits.in_force(time.time(), 1.0))
        request = parts.admission_request(cycle, time.time())
        assert [(one.name, one.scope.kind) for one in request.headrooms] == [("site", "cluster")]

    site().run(story)


def test_no_job_is_admitted_after_a_reload_before_the_new_budgets_are_decided(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reservations of licenses would be removed if the only budget has another name after the reload."""

    async def story(s: Site) -> None:
        await s.step(2)
        names: list[list[str]] = []
        parts = s.loop.parts
        assert parts is not None

        def update(now_s: float, budgets: Sequence[BudgetHeadroom], *others: object) -> AdmissionReport:
            names.append([one.name for one in budgets])
            return AdmissionReport()

        monkeypatch.setattr(parts.admission, "update", update)
        for _ in range(2):
            parts, cycle = s.loop.parts, s.loop.cycle
            assert parts is not None and cycle is not None
            await s.loop._admit(parts, cycle)
            s.config = configuration.parse(SECTION + SITE.replace("site", "other") + "watts = 2000\n")
            s.loop.adopt(s.loop.prepare(s.config))
        await s.step()
        assert s.loop.parts is not None and s.loop.cycle is not None
        await s.loop._admit(s.loop.parts, s.loop.cycle)
        assert names == [["site"], ["other"]]

    site().run(story)


def test_jobs_are_explained_to_their_owners(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = {
        "1": QueuedJob(1, 2001, "chem", is_pending=False),
        "9": QueuedJob(9, 2002, "bio", is_pending=True),
    }

    def find(text: str, run: Any) -> QueuedJob:
        if text not in queue:
            raise NotFoundError(f"job {text}", "is not in Slurm's queue")
        return queue[text]

    monkeypatch.setattr("slurm_energy.controller.budgets.routes.find_queued_job", find)

    async def story(s: Site) -> None:
        for job, node in enumerate(s.nodes, 1):
            s.start(job, node)
        await s.step(10)
        told = await s.routes.explain({"job_id": "1"}, ALICE)
        assert told["state"] == "running" and told["budget"] == "site"
        assert told["explanation"].startswith("budget 'site' lowers")
        assert told["details"][0].startswith("budget 'site' has a limit of 2000 W, of which")
        told = await s.routes.explain({"job_id": "9"}, BOB)
        assert (told["state"], told["budget"]) == ("pending", None)
        assert s.loop.parts is not None
        s.loop.parts.admission_report = AdmissionReport(waiting={9: "it waits for 500 W"})
        told = await s.routes.explain({"job_id": "9"}, BOB)
        assert (told["budget"], told["explanation"]) == ("site", "it waits for 500 W")
        s.loop.parts.admission_report = AdmissionReport(waiting={9: "40 W are free under budget 'grid'"})
        assert (await s.routes.explain({"job_id": "9"}, BOB))["budget"] == "grid"
        with pytest.raises(ForbiddenError):
            await s.routes.explain({"job_id": "1"}, BOB)
        with pytest.raises(NotFoundError):
            await s.routes.explain({"job_id": "77"}, OPERATOR)

    site(SECTION + SITE + "watts = 2000\n" + SITE.replace("site", "grid") + "watts = 9000\n").run(story)


def test_power_over_time_is_stored(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(s: Site) -> None:
        begin, now = 1.7e9, [1.7e9]
        monkeypatch.setattr("slurm_energy.controller.budgets.loop.time.time", lambda: now[0])
        monkeypatch.setattr("slurm_energy.controller.budgets.loop.time.monotonic", lambda: now[0])
        await s.loop.decide()
        for _ in range(25):
            now[0] += 1.0
            await s.step()
        await s.loop._flush()
        (series,) = (
            await s.routes.history({"begin_unix_s": str(begin), "end_unix_s": str(begin + 100)}, ALICE)
        )["series"]
        assert len(series["unix_s"]) == 2
        assert series["limit_watts"] == [2000.0, 2000.0]
        assert all(watts is not None and watts > 500.0 for watts in series["measured_watts"])
        assert series["over_s"] == [0.0, 0.0]

    world = site()
    world.run(story)
    with engine.connect(world.folder / "db") as connection:
        assert budgets.names(connection, "c1") == ["site"]


def test_a_signal_lowers_the_limit_and_its_loss_falls_back(site: Callable[..., Site], tmp_path: Path) -> None:
    file = tmp_path / "signal"
    file.write_text("1700\n")
    file.chmod(0o644)

    async def story(s: Site) -> None:
        await s.loop.signals.read_all()
        await s.step(2)
        (row,) = (await s.routes.show({}, ALICE))["budgets"]
        assert (row["limit_watts"], row["problem"]) == (1700.0, "")
        for text in ("-5", "1e400", "nan", "{}", "x" * 5000, "9e9"):
            file.write_text(text)
            await s.loop.signals.read_all()
            await s.step()
            (row,) = (await s.routes.show({}, ALICE))["budgets"]
            assert row["limit_watts"] == 1700.0
        file.write_text('{"watts": 1800, "unix_s": 5}')  # written long ago: the signal is lost
        await s.loop.signals.read_all()
        await s.step()
        (row,) = (await s.routes.show({}, ALICE))["budgets"]
        assert (row["limit_watts"], row["problem"]) == (1200.0, "the signal is lost")

    site(SECTION + SITE + f'signal = "{file}"\nfallback_watts = 1200\n').run(story)


def test_reservations_of_an_earlier_run_are_removed_where_no_budget_applies(tmp_path, monkeypatch):
    calls: list[dict[str, Any]] = []

    class Reservations:
        def __init__(self, prefix: str, run: Any) -> None:
            assert prefix == "senergy_budget"

        def apply(self, wanted: dict[str, Any], now_unix_s: float) -> int:
            calls.append(wanted)
            if len(calls) == 1:
                raise UnavailableError("scontrol", "slurmctld does not answer")
            return 1

    monkeypatch.setattr("slurm_energy.controller.budgets.loop.LicenseReservations", Reservations)
    monkeypatch.setattr("slurm_energy.controller.budgets.loop._RELEASE_RETRY_S", 0.0)

    async def story(site: Site) -> None:
        site.loop.policy_lines = ("license watts 1000",)  # before a reload
        task = asyncio.create_task(site.loop.loop())
        async with asyncio.timeout(30.0):
            while len(calls) < 2 or site.loop.policy_lines:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    Site(tmp_path, monkeypatch, SECTION.replace("enforce", "off") + SITE + "watts = 500\n").run(story)
    assert calls == [{}, {}]


def test_lines_of_former_budgets_are_removed_later_if_the_policy_file_cannot_be_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("slurm_energy.controller.budgets.loop.LicenseReservations", MagicMock())
    monkeypatch.setattr("slurm_energy.controller.budgets.loop._RELEASE_RETRY_S", 0.0)
    written: list[tuple[str, ...]] = []

    async def story(site: Site) -> None:
        site.loop.policy_lines = ("license watts 1000",)  # before a reload
        fail_once(site, written)
        task = asyncio.create_task(site.loop.loop())
        async with asyncio.timeout(30.0):
            while len(written) < 2 and not task.done():
                await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    Site(tmp_path, monkeypatch, SECTION.replace("enforce", "off") + SITE + "watts = 500\n").run(story)
    assert written == [(), ()]


def test_lines_of_budgets_are_added_later_if_the_policy_file_cannot_be_written(site: Callable[..., Site]):
    written: list[tuple[str, ...]] = []
    parts = MagicMock()
    parts.admission.policy_lines.return_value = ["license watts 1000"]

    async def story(s: Site) -> None:
        fail_once(s, written)
        for _ in range(3):
            await s.loop._guarded("admission", s.loop._admit(parts, MagicMock()))

    site().run(story)
    assert written == [("license watts 1000",)] * 2


def fail_once(site: Site, written: list[tuple[str, ...]]) -> None:
    """Let the first attempt to write the policy file fail, and note the lines of all attempts."""

    def write() -> None:
        written.append(site.loop.policy_lines)
        if len(written) == 1:
            raise UnavailableError("/etc/slurm/energy.policies", "No space left on device")

    site.loop._on_policy_lines = write
