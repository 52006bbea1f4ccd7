"""Tests of quotas (allowances of energy, cost or carbon).

The tests cover periods, levels, the computed use, the rights of users, the audit trail, and the effect of
quotas on the queue.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from period_examples import period
from queue_examples import NOW, Source, queue, running
from slurm_answers import fixed_width_text
from store_examples import job

from slurm_energy.accounting import engine
from slurm_energy.accounting.quotas import Quota, QuotaPeriod, QuotaResource
from slurm_energy.accounting.records import periods
from slurm_energy.accounting.schema import tables
from slurm_energy.accounting.usage import quota_usage, usage_rollup
from slurm_energy.config.loader import parse
from slurm_energy.controller.deferral.begin_holds import HOLD_S
from slurm_energy.controller.grid.quota_holds import QuotaHolds
from slurm_energy.controller.grid.quota_routes import QuotaRoutes
from slurm_energy.controller.grid.quota_watch import QuotaWatch
from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.name_check import NameCheck
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.priority import explanation
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.preemption import PreemptionRules, at_risk_jobs
from slurm_energy.priority.quota_levels import (
    QuotaLevel,
    QuotaStandings,
    QuotaUse,
    accounts_below,
    period_window,
)
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.protocol.quota_requests import QuotaKey, QuotaOrder, parse_amount
from slurm_energy.slurm.fair_share import ShareTree
from slurm_energy.slurm.queue.job_update import JobUpdater, UpdateResult

pytestmark = pytest.mark.slow
KWH = 3.6e6
HOUR = 3600
MARCH = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()
END = int(datetime(2026, 3, 1, 2, tzinfo=UTC).timestamp())
FIRST = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
ENERGY, COST, CARBON = QuotaResource.ENERGY, QuotaResource.COST, QuotaResource.CARBON
OPERATOR, ALICE, BOB = Rights(0, "root", True), Rights(1000, "alice", False), Rights(1001, "bob", False)


def quota(account: str = "physics", user: str = "", **more: object) -> Quota:
    values: dict[str, object] = {
        "resource": ENERGY,
        "period": QuotaPeriod.MONTH,
        "amount": 100 * KWH,
        "unit": "J",
        "warn_percent": 80.0,
        "hold_percent": 100.0,
    }
    return Quota(account, user, **{**values, **more})  # type: ignore[arg-type]


def use(percent: float | None, account: str = "physics", user: str = "", **more: object) -> QuotaUse:
    one = quota(account, user, **more)
    used = None if percent is None else one.amount * percent / 100.0
    return QuotaUse(one, 0.0, 1.0, used, "", frozenset({account}))


# Amounts and periods


@pytest.mark.parametrize(
    ("text", "resource", "amount", "unit"),
    [
        ("500kWh", "energy", 1.8e9, "J"),
        ("36MJ", "energy", 3.6e7, "J"),
        ("1.5 MWh", "energy", 5.4e9, "J"),
        ("200EUR", "cost", 200.0, "EUR"),
        ("50kg", "carbon", 50_000.0, "g"),
        ("1.5t", "carbon", 1.5e6, "g"),
    ],
)
def test_amounts(text: str, resource: str, amount: float, unit: str) -> None:
    parsed = parse_amount(text)
    assert (parsed.resource, parsed.amount, parsed.unit) == (resource, pytest.approx(amount), unit)


@pytest.mark.parametrize(
    "text", ["", "500", "kWh", "-5kWh", "0kWh", "5kW", "5kwh", "1e400J", "nanJ", "5 k Wh"]
)
def test_wrong_amounts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_amount(text)


@pytest.mark.parametrize(
    ("period_kind", "start", "end"),
    [
        (QuotaPeriod.MONTH, (2026, 3, 1), (2026, 4, 1)),
        (QuotaPeriod.QUARTER, (2026, 1, 1), (2026, 4, 1)),
        (QuotaPeriod.YEAR, (2026, 1, 1), (2027, 1, 1)),
    ],
)
def test_calendar_periods(
    period_kind: QuotaPeriod, start: tuple[int, int, int], end: tuple[int, int, int]
) -> None:
    for zone in (UTC, ZoneInfo("Europe/Berlin")):
        window = period_window(quota(period=period_kind), MARCH, zone)
        expected = datetime(*start, tzinfo=zone).timestamp(), datetime(*end, tzinfo=zone).timestamp()
        assert window == expected


@given(st.floats(0.0, 4e9), st.sampled_from([QuotaPeriod.MONTH, QuotaPeriod.QUARTER, QuotaPeriod.YEAR]))
def test_each_time_lies_in_exactly_one_period(now: float, kind: QuotaPeriod) -> None:
    window = period_window(quota(period=kind), now, UTC)
    assert window is not None and window[0] <= now < window[1]
    before, after = (period_window(quota(period=kind), t, UTC) for t in (window[0] - 1.0, window[1]))
    assert after is not None and after[0] == window[1]
    assert before is not None and before[1] == window[0]


def test_custom_periods_end() -> None:
    one = quota(period=QuotaPeriod.CUSTOM, start=10.0, end=20.0)
    assert period_window(one, 10.0, UTC) == (10.0, 20.0)
    assert period_window(one, 20.0, UTC) is None


def test_levels_and_unknown_use() -> None:
    assert [use(p).level for p in (79.9, 80.0, 99.9, 100.0)] == [0, 1, 1, 2]
    assert use(None).level is QuotaLevel.WITHIN
    assert use(500.0, hold_percent=None).level is QuotaLevel.WARNING
    assert use(500.0, hold_percent=None, warn_percent=None).level is QuotaLevel.WITHIN
    assert use(93.0).sentence == "account physics has used 93 % of its energy quota of 100 kWh for this month"
    assert "user bob in account physics" in use(93.0, user="bob").sentence


def test_the_strictest_quota_limits_and_only_those_it_covers() -> None:
    standings = QuotaStandings((use(90.0), use(120.0, user="bob"), use(85.0, resource=CARBON, unit="g")))
    limiting = standings.limiting("physics", "bob")
    assert limiting is not None and limiting.level is QuotaLevel.HOLD
    limiting = standings.limiting("physics", "alice")
    assert limiting is not None and limiting.percent == pytest.approx(90.0)
    assert standings.limiting("chemistry", "bob") is None


def test_accounts_below() -> None:
    parents = {"physics": "root", "optics": "physics", "lasers": "optics", "chemistry": "root"}
    assert accounts_below("physics", parents) == {"physics", "optics", "lasers"}
    assert accounts_below("physics", {"a": "b", "b": "a"}) == {"physics"}


# The order of the queue


def engine_with(*uses: QuotaUse, **settings: object) -> PriorityEngine:
    state = EngineState(DecayedUsage(7 * 86400.0))
    state.quotas = QuotaStandings(uses)
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return PriorityEngine(parse('[priority]\npolicy = "fcfs"\n' + "\n".join(lines)), state)


def jobs_of(*accounts: str, **more: Mapping[int, float]) -> Sequence[dict[str, object]]:
    return [
        {"account": account, "submit_s": NOW - 100.0 + place}
        | {k: v[place] for k, v in more.items() if place in v}
        for place, account in enumerate(accounts)
    ]


def places(engine: PriorityEngine, rows: Sequence[dict[str, object]]) -> list[int]:
    return engine.cycle(queue(*rows), NOW).place.tolist()


def test_jobs_over_the_warning_level_go_after_the_others_in_the_order_of_the_policy() -> None:
    rows = jobs_of("physics", "biology", "physics", "biology")
    assert places(engine_with(use(79.0)), rows) == [1, 2, 3, 4]
    assert places(engine_with(use(80.0)), rows) == [3, 1, 4, 2]
    assert places(engine_with(use(None)), rows) == [1, 2, 3, 4]


def test_jobs_over_the_hold_level_go_last() -> None:
    rows = jobs_of("physics", "biology", "chemistry")
    assert places(engine_with(use(100.0), use(90.0, "biology")), rows) == [3, 2, 1]


def test_the_bound_on_waiting_holds_over_the_warning_level_and_not_over_the_hold_level() -> None:
    rows = jobs_of("physics", "biology", submit_s={0: NOW - 5000.0})
    assert places(engine_with(use(90.0), wait_bound_s=1000.0), rows) == [1, 2]
    assert places(engine_with(use(101.0), wait_bound_s=1000.0), rows) == [2, 1]


def test_jobs_over_a_level_preempt_no_others() -> None:
    rows = [{"account": "physics", "deadline_s": NOW + 3700.0, "submit_s": NOW - 10.0}]
    rules = PreemptionRules(margin_s=200.0)
    assert at_risk_jobs(engine_with(use(50.0)).cycle(queue(*rows), NOW), rules) == [0]
    assert at_risk_jobs(engine_with(use(90.0)).cycle(queue(*rows), NOW), rules) == []


def test_the_explanation_names_the_quota() -> None:
    snapshot = engine_with(use(93.0)).cycle(queue(*jobs_of("physics", "biology")), NOW)
    explainer = explanation.Explainer(snapshot)
    first, second = explainer.job(0), explainer.job(1)
    assert (first["tier"], second["tier"]) == ("warned", "normal")
    assert first["quota"] == {
        "account": "physics",
        "user": None,
        "resource": "energy",
        "period": "month",
        "used_percent": pytest.approx(93.0),
        "level": "warning",
    }
    assert "account physics has used 93 % of its energy quota of 100 kWh for this month" in first["why"]
    assert "it goes before job 101 as the other is over a level of its quota" in second["why"]
    assert second["quota"] is None
    spent = explanation.Explainer(engine_with(use(130.0)).cycle(queue(*jobs_of("physics")), NOW)).job(0)
    assert spent["tier"] == "spent" and "so it goes last" in spent["why"]


@given(
    st.lists(st.sampled_from(["physics", "biology", "chemistry"]), min_size=1, max_size=12),
    st.integers(0, 130),
    st.integers(0, 130),
)
def test_quotas_keep_the_order_of_the_policy_within_each_level(
    accounts: list[str], physics: int, biology: int
) -> None:
    uses = (use(float(physics)), use(float(biology), "biology"))
    found = places(engine_with(*uses), jobs_of(*accounts))
    level = {one.quota.account: int(one.level) for one in uses}
    expected = sorted(range(len(accounts)), key=lambda row: (level.get(accounts[row], 0), row))
    assert [found[row] for row in expected] == list(range(1, len(accounts) + 1))


# Holds


class Begins(JobUpdater):
    """Stand-in for the component that changes jobs in Slurm. It records the begin times that it sets."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.calls: list[tuple[list[str], int | None]] = []

    def set_begin(
        self, jobs: Sequence[int], names: Mapping[int, str], begin_unix_s: int | None
    ) -> UpdateResult:
        if jobs:
            self.calls.append(([names[job] for job in jobs], begin_unix_s))
        return UpdateResult(done=tuple(jobs))


def test_jobs_over_the_hold_level_are_held_and_released() -> None:
    rows = [
        {"account": "physics", "priority": 5, "eligible_s": NOW},
        {"account": "biology", "eligible_s": NOW},
        {"account": "physics", "priority": 9, "eligible_s": NOW},
        {"account": "physics", "held": True},
        {"account": "physics", "dependent": True, "eligible_s": NOW + 9000.0},  # begin time of its user
        running(account="physics"),
    ]
    source, begins = Source(queue(*rows)), Begins()
    holds = QuotaHolds(source, begins)
    assert holds.apply(QuotaStandings((use(99.0),)), NOW) == ()
    assert source.reads == 0  # squeue is not run while no quota is over its hold level
    holds.apply(QuotaStandings((use(100.0),)), NOW)
    assert begins.calls == [(["103", "101"], int(NOW + HOLD_S))]
    assert holds.count == 2
    held = [row | {"eligible_s": NOW + HOLD_S, "dependent": True} for row in rows[:3]]
    source.columns = queue(*held)
    holds.apply(QuotaStandings((use(100.0),)), NOW + 60.0)
    assert len(begins.calls) == 1  # still held for long enough
    holds.apply(QuotaStandings((use(100.0),)), NOW + 160.0)
    assert begins.calls[1] == (["103", "101"], int(NOW + 160.0 + HOLD_S))
    holds.apply(QuotaStandings((use(50.0),)), NOW + 200.0)
    assert begins.calls[2:] == [(["103", "101"], None)]
    assert holds.count == 0


def test_jobs_that_wait_for_other_jobs_are_held() -> None:
    waiting = {"account": "physics", "dependent": True}
    begin_s = NOW + 100.0  # chosen by the user
    source = Source(queue(waiting | {"eligible_s": math.nan}, waiting | {"eligible_s": begin_s}))
    begins = Begins()
    holds = QuotaHolds(source, begins)
    holds.apply(QuotaStandings((use(100.0),)), NOW)
    assert begins.calls == [(["101", "102"], int(NOW + HOLD_S))]
    source.columns = queue(*[waiting | {"eligible_s": NOW + HOLD_S}] * 2)
    holds.apply(QuotaStandings((use(50.0),)), NOW + 60.0)
    assert begins.calls[1:] == [(["101"], None), (["102"], int(begin_s))]


def test_jobs_that_wait_for_other_jobs_are_held_last() -> None:
    first = {"account": "physics", "dependent": True, "priority": 9, "eligible_s": math.nan}
    begins = Begins()
    holds = QuotaHolds(Source(queue(first, {"account": "physics", "eligible_s": NOW})), begins)
    holds.apply(QuotaStandings((use(100.0),)), NOW)
    assert begins.calls == [(["102", "101"], int(NOW + HOLD_S))]


# Use, rights and audit trail


def store_periods(path: Path, *delivered: object) -> None:
    items = [periods.DeliveredPeriod(i, one, "{}") for i, one in enumerate(delivered)]  # type: ignore[arg-type]
    with engine.connect(path) as connection:
        assert not periods.store_periods(connection, items, MARCH)[1]
        rollup = usage_rollup.UsageRollup()
        while rollup.advance(connection, MARCH):
            pass


def store_jobs(path: Path, *facts: object) -> None:
    with engine.connect(path) as connection:
        for one in facts:
            row = {name: getattr(one, name) for name in ("cluster", "job_id", "submit", "display_id", "name")}
            row |= {name: getattr(one, name) for name in ("account", "user", "state", "start", "end")}
            connection.execute(tables.jobs.insert().values(**row, finished=True, updated=MARCH))


def site(folder: Path, toml: str, test: Callable[[QuotaRoutes, QuotaWatch, Store], Awaitable[None]]) -> None:
    async def main() -> None:
        config = parse('[cluster]\nname = "c1"\n[quota]\ntimezone = "UTC"\n' + toml)
        store = Store(folder / "senergy.db")
        try:
            source = GridFactorSource(lambda: config, store)
            log = RepeatedFailureLog(_NoLog())
            watch = QuotaWatch(lambda: config, store, source, log, clock=lambda: MARCH)
            watch._shares = _Shares()  # type: ignore[assignment]
            names = NameCheck(lambda: config, store, run=_share_output)
            await test(QuotaRoutes(lambda: config, store, watch, names, clock=lambda: MARCH), watch, store)
        finally:
            store.close()

    asyncio.run(main())


def _share_output(argv: Sequence[str]) -> str:
    """Return the output of sacctmgr for a test: the associations of a cluster with three accounts."""
    return fixed_width_text(argv, [(name, "", "", "root", "1") for name in ("physics", "optics", "biology")])


class _NoLog:
    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


class _Shares:
    def current(self) -> ShareTree:
        return ShareTree(parents={"optics": "physics", "physics": "root", "biology": "root"})


def order(account: str = "physics", amount: str = "10kWh", **more: object) -> dict[str, object]:
    parsed = parse_amount(amount)
    key = {"account": account, "user": "", "resource": parsed.resource, "period": "month"}
    body = {**key, "amount": parsed.amount, "unit": parsed.unit, "warn_percent": 80.0, "hold_percent": None}
    return {**body, **more}


def month_of_jobs(path: Path) -> None:
    """Store the energy of three example jobs over two hours in a database.

    Alice in account physics uses 4 kWh. Bob in account optics (a child account of physics) uses 2 kWh. Carol
    in account biology uses 8 kWh.
    """
    store_jobs(
        path,
        job(1, account="physics", user="alice", submit=FIRST, start=FIRST, end=END),
        job(2, account="optics", user="bob", submit=FIRST, start=FIRST, end=END),
        job(3, account="biology", user="carol", submit=FIRST, start=FIRST, end=END),
        job(1, account="biology", user="carol", submit=FIRST - 90 * 86400),  # an earlier job of the same id
    )
    for hour in (0, 1):
        start = FIRST + hour * HOUR
        shares = {(one, 0): {"cpu": int(kwh * KWH * 1e6)} for one, kwh in ((1, 2), (2, 1), (3, 4))}
        store_periods(path, period(start=start, end=start + HOUR, jobs=shares))


def test_use_counts_accounts_below_and_each_job_once(tmp_path: Path) -> None:
    async def test(_: QuotaRoutes, __: QuotaWatch, store: Store) -> None:
        month_of_jobs(tmp_path / "senergy.db")

        async def kwh(accounts: set[str], user: str = "", end: float = MARCH) -> float:
            parts = await store.read(quota_usage.energy_parts, "c1", accounts, user, float(FIRST), end)
            return sum(joules or 0.0 for _, _, joules in parts) / KWH

        assert await kwh({"physics", "optics"}) == pytest.approx(6.0)
        assert await kwh({"physics", "optics"}, "bob") == pytest.approx(2.0)
        assert await kwh({"biology"}) == pytest.approx(8.0)
        assert await kwh({"biology"}, end=FIRST + HOUR * 1.5) == pytest.approx(6.0)
        assert await kwh({"unknown"}) == 0.0

    site(tmp_path, "", test)


def test_an_unreadable_price_file_leaves_quotas_of_energy_in_force(tmp_path: Path) -> None:
    async def test(routes: QuotaRoutes, watch: QuotaWatch, _: Store) -> None:
        month_of_jobs(tmp_path / "senergy.db")
        await routes.set(order(amount="6kWh", hold_percent=100.0), OPERATOR)
        await routes.set(order("biology", "3EUR"), OPERATOR)
        await watch.update()
        energy, cost = sorted(watch.standings.uses, key=lambda use: use.quota.account, reverse=True)
        assert energy.level is QuotaLevel.HOLD
        assert (cost.used, cost.level) == (None, QuotaLevel.WITHIN)
        assert cost.basis == "price and carbon intensity cannot be read"

    site(tmp_path, f'[price]\nprovider = "csv"\nfile = "{tmp_path}/absent.csv"\n', test)


def test_quotas_of_energy_cost_and_carbon_by_hand(tmp_path: Path) -> None:
    """The used amounts of quotas equal a calculation by hand.

    Jobs use 6 kWh, and the PUE is 1.5. The energy quota counts 6 kWh. Cost and carbon count 9 kWh:
    1.80 EUR at 0.20 EUR/kWh, and 900 g at 100 g/kWh.
    """

    async def test(routes: QuotaRoutes, watch: QuotaWatch, _: Store) -> None:
        month_of_jobs(tmp_path / "senergy.db")
        for amount in ("10kWh", "3EUR", "1kg"):
            await routes.set(order(amount=amount), OPERATOR)
        await watch.update()
        found = {str(use.quota.resource): use for use in watch.standings.uses}
        assert found["energy"].used == pytest.approx(6 * KWH)
        assert found["cost"].used == pytest.approx(1.80)
        assert found["carbon"].used == pytest.approx(900.0)
        assert found["carbon"].percent == pytest.approx(90.0)
        assert found["carbon"].basis == "constant (configured); PUE 1.5"
        limiting = watch.standings.limiting("optics", "bob")
        assert limiting is not None and limiting.quota.resource is CARBON
        assert watch.standings.limiting("biology", "carol") is None

    toml = '[carbon]\nprovider = "constant"\ng_per_kwh = 100\npue = 1.5\n'
    site(tmp_path, toml + '[price]\nprovider = "constant"\nper_kwh = 0.2\n', test)


def test_unknown_use_has_no_effect(tmp_path: Path) -> None:
    """A quota whose use is unknown limits no job.

    The use is unknown, because the provider of carbon intensity has delivered nothing and there is no
    fallback.
    """

    async def test(routes: QuotaRoutes, watch: QuotaWatch, _: Store) -> None:
        month_of_jobs(tmp_path / "senergy.db")
        await routes.set(order(amount="1g", hold_percent=100.0), OPERATOR)
        assert [use.used for use in watch.standings.uses] == [None]
        assert watch.standings.limiting("physics", "alice") is None
        shown = (await routes.show({}, OPERATOR))["quotas"]
        assert shown[0]["used"] is None and shown[0]["level"] == "within"

    site(tmp_path, '[carbon]\nprovider = "uk"\n', test)


def test_a_database_that_does_not_answer_limits_nobody(tmp_path: Path) -> None:
    async def test(routes: QuotaRoutes, watch: QuotaWatch, _: Store) -> None:
        month_of_jobs(tmp_path / "senergy.db")
        await routes.set(order(amount="1kWh"), OPERATOR)
        assert watch.standings.limiting("physics", "alice") is not None

        async def fail(*_: object) -> None:
            raise UnavailableError("database", "down")

        watch._store = type("Broken", (), {"read": staticmethod(fail)})()  # type: ignore[assignment]
        await watch.update()
        assert watch.standings.limiting("physics", "alice") is None

    site(tmp_path, "", test)


def test_a_quota_of_an_unknown_account_is_refused(tmp_path: Path) -> None:
    """A quota of an unknown account is refused.

    Such a quota would limit nobody, and nobody would notice the mistake.
    """

    async def test(routes: QuotaRoutes, _: QuotaWatch, __: Store) -> None:
        with pytest.raises(NotFoundError, match=r"account phsyics: neither Slurm .* did you mean physics"):
            await routes.set(order("phsyics"), OPERATOR)
        assert (await routes.show({}, OPERATOR))["quotas"] == []

    site(tmp_path, "", test)


def test_only_operators_change_quotas_and_changes_are_noted(tmp_path: Path) -> None:
    async def test(routes: QuotaRoutes, _: QuotaWatch, __: Store) -> None:
        key = {"account": "physics", "user": "", "resource": "energy", "period": "month"}
        for change in (routes.set(order(), ALICE), routes.remove(key, ALICE)):
            with pytest.raises(ForbiddenError):
                await change
        await routes.set(order(reason="budget of 2026"), OPERATOR)
        answer = await routes.set(order(amount="20kWh", hold_percent=100.0), OPERATOR)
        assert answer["text"] == (
            "account physics: energy quota of 20 kWh per month, warning at 80 %, hold at 100 %"
        )
        assert len((await routes.show({}, OPERATOR))["quotas"]) == 1
        await routes.remove(key, OPERATOR)
        with pytest.raises(NotFoundError):
            await routes.remove(key, OPERATOR)
        changes = (await routes.changes({}, OPERATOR))["changes"]
        assert [change["actor"] for change in changes] == ["root"] * 3
        assert "(budget of 2026)" in changes[0]["why"] and "removed" in changes[2]["why"]
        assert (await routes.show({}, OPERATOR))["quotas"] == []

    site(tmp_path, "", test)


def test_users_see_the_quotas_of_their_accounts_and_their_own(tmp_path: Path) -> None:
    async def test(routes: QuotaRoutes, _: QuotaWatch, __: Store) -> None:
        month_of_jobs(tmp_path / "senergy.db")
        await routes.set(order("physics"), OPERATOR)
        await routes.set(order("physics", user="alice"), OPERATOR)
        await routes.set(order("optics", user="bob"), OPERATOR)
        await routes.set(order("biology"), OPERATOR)

        async def seen(rights: Rights) -> set[tuple[str, str | None]]:
            shown = (await routes.show({}, rights))["quotas"]
            return {(one["account"], one["user"]) for one in shown}

        assert await seen(ALICE) == {("physics", None), ("physics", "alice")}
        assert await seen(BOB) == {("physics", None), ("optics", "bob")}  # optics counts towards physics
        assert await seen(Rights(1, "dora", False)) == set()
        coordinator = Rights(2, "erin", False, frozenset({"physics"}))
        assert await seen(coordinator) == {("physics", None), ("physics", "alice")}
        of_child_account = Rights(3, "fred", False, frozenset({"optics"}))
        assert await seen(of_child_account) == {("physics", None), ("optics", "bob")}
        assert len(await seen(OPERATOR)) == 4
        changes = (await routes.changes({}, BOB))["changes"]
        assert {change["account"] for change in changes} == {"optics"}

    site(tmp_path, "", test)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"account": "a b"}, "account"),
        ({"account": ""}, "account"),
        ({"user": "x,y"}, "user"),
        ({"resource": "time"}, "resource"),
        ({"period": "week"}, "period"),
        ({"amount": 0}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": "5"}, "amount"),
        ({"amount": 10**400}, "amount"),
        ({"unit": "kWh"}, "unit"),
        ({"warn_percent": -1}, "warn_percent"),
        ({"warn_percent": None}, "warn_percent"),
        ({"hold_percent": 50}, "below the warning level"),
        ({"start": 5.0}, "custom"),
        ({"period": "custom"}, "custom"),
        ({"period": "custom", "start": 9.0, "end": 5.0}, "not after start"),
        ({"reason": "a\nb"}, "reason"),
        ({"reason": "x" * 201}, "reason"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_malformed_orders_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        QuotaOrder.from_json(order() | change)


def test_orders_survive_the_way() -> None:
    key = QuotaKey("physics", "bob", "cost", "custom")
    one = QuotaOrder(key, 5.0, "EUR", None, 90.0, 1.0, 2.0, "why")
    assert QuotaOrder.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert QuotaKey.from_json(key.to_json()) == key


@pytest.mark.parametrize(
    ("amount", "toml", "words"),
    [
        ("5EUR", "", "the site has no price"),
        ("5USD", '[price]\nprovider = "constant"\nper_kwh = 0.2\n', "USD is not price.currency, EUR"),
        ("5kg", "", "the site has no carbon intensity"),
    ],
)
def test_quotas_without_a_factor_are_refused(tmp_path: Path, amount: str, toml: str, words: str) -> None:
    async def test(routes: QuotaRoutes, _: QuotaWatch, __: Store) -> None:
        with pytest.raises(UsageError, match=words):
            await routes.set(order(amount=amount), OPERATOR)

    site(tmp_path, toml, test)
