"""Tests of power budgets whose limit comes from a signal (a file or URL outside slurm-energy).

The tests check how signals are read, the limits over time, and the stored limits. Some inputs are hostile or
malformed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slurm_energy import config as configuration
from slurm_energy.accounting.budgets import LimitOverride
from slurm_energy.controller.budgets import budget_limits, budget_signals
from slurm_energy.controller.budgets.budget_limits import BudgetLimits, accounts_below
from slurm_energy.controller.budgets.budget_signals import (
    SignalLocation,
    SignalReader,
    SignalText,
    read_signal_file,
)
from slurm_energy.controller.budgets.facts import BudgetCycle, BudgetStatus, ScopeKind
from slurm_energy.controller.budgets.recorder import MAX_CHANGES, BudgetRecorder
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog

FAILURES = RepeatedFailureLog(logging.getLogger("test"))
NOON = 1_795_000_000.0


def limits(text: str) -> BudgetLimits:
    return BudgetLimits(configuration.parse(text), FAILURES)


@pytest.mark.parametrize("kind", ["missing", "fifo", "folder", "long", "writable", "binary"])
def test_a_signal_file_that_is_no_small_trusted_text_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "signal"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes({"long": b"1" * 5000, "binary": b"\xff\xfe"}.get(kind, b"100"))
        path.chmod(0o666 if kind == "writable" else 0o644)
    with pytest.raises(UnavailableError):
        read_signal_file(path)


def test_a_signal_file_from_the_future_counts_as_of_now(tmp_path: Path) -> None:
    path = tmp_path / "signal"
    path.write_text("100")
    os.utime(path, (time.time() + 1e6, time.time() + 1e6))
    assert read_signal_file(path).unix_s <= time.time()


def serve(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], story: Callable[[str], Any]
) -> Any:
    async def main() -> Any:
        application = web.Application()
        application.router.add_get("/limit", handler)
        async with TestServer(application) as server:
            return await story(str(server.make_url("/limit")))

    return asyncio.run(main())


def test_a_signal_is_read_from_a_url() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text='{"watts": 400000}')

    assert serve(handler, budget_signals.fetch_url) == b'{"watts": 400000}'


@pytest.mark.parametrize("kind", ["error", "redirect", "endless", "silent", "closed"])
def test_a_url_that_misbehaves_is_refused_within_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_signals, "HTTP_TIMEOUT_S", 0.3)
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        if kind == "error":
            return web.Response(status=500, text="100")
        if kind == "redirect":
            raise web.HTTPFound("http://127.0.0.1:1/limit")
        if kind == "silent":
            await asyncio.sleep(5)
        if kind == "closed":
            assert request.transport is not None
            request.transport.abort()
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 1 << 24:
            sent += 1000
            await response.write(b"1" * 1000)
        return response

    async def story(url: str) -> None:
        reader = SignalReader(FAILURES)
        reader.follow({"site": SignalLocation(url, 1.0)})
        await reader.read_all()
        assert reader.texts == {}

    serve(handler, story)
    assert sent < 1 << 24


def test_a_changed_location_drops_the_old_text(tmp_path: Path) -> None:
    async def story() -> None:
        changes: list[int] = []
        (tmp_path / "a").write_text("100")
        reader = SignalReader(FAILURES, lambda: changes.append(1))
        reader.follow({"site": SignalLocation(str(tmp_path / "a"), 1.0)})
        await reader.read_all()
        await reader.read_all()
        assert reader.texts["site"].text == "100" and changes == [1]
        reader.follow({"site": SignalLocation(str(tmp_path / "b"), 1.0)})
        assert reader.texts == {}

    asyncio.run(story())


def test_signals_are_read_after_the_loop_was_started_again(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "a").write_text("100")
        reader = SignalReader(FAILURES)
        reader.follow({"site": SignalLocation(str(tmp_path / "a"), 0.01)})
        for text in ("100", "200"):
            (tmp_path / "a").write_text(text)
            task = asyncio.create_task(reader.loop())
            async with asyncio.timeout(60):
                while "site" not in reader.texts or reader.texts["site"].text != text:
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        reader.close()

    asyncio.run(story())


def test_drops_apply_ahead_and_rises_do_not() -> None:
    at = NOON - NOON % 86400
    one = limits(
        '[budget]\ntimezone = "UTC"\n[[budgets]]\nname = "a"\ncluster = true\n'
        'schedule = [{from = "08:00", watts = 900}, {from = "20:00", watts = 500}]\n'
    )
    (day,) = one.in_force(at + 20 * 3600 - 100, 4.0)
    (ahead,) = one.in_force(at + 20 * 3600 - 3, 4.0)
    (night,) = one.in_force(at + 8 * 3600 - 3, 4.0)
    assert (day.limit_watts, ahead.limit_watts, night.limit_watts) == (900.0, 500.0, 500.0)
    assert day.lowest_watts == 500.0


def test_a_live_limit_replaces_the_configured_one_until_its_end() -> None:
    one = limits('[[budgets]]\nname = "a"\ncluster = true\nwatts = 900\n')
    one.set_overrides({"a": LimitOverride("a", 700.0, NOON + 60, "root", NOON), "b": None})  # type: ignore[dict-item]
    assert one.in_force(NOON, 4.0)[0].limit_watts == 700.0
    assert one.in_force(NOON + 61, 4.0)[0].limit_watts == 900.0
    assert one.override("a", NOON + 61) is None


def test_a_lost_signal_never_raises_the_limit() -> None:
    one = limits(
        '[[budgets]]\nname = "a"\ncluster = true\nsignal = "/x"\nfallback_watts = 800\nmax_age_s = 60\n'
    )
    assert one.in_force(NOON, 4.0)[0].limit_watts == 800.0
    assert one.problem("a", NOON) == "the signal is lost"
    for watts, lost in ((1000.0, 800.0), (300.0, 300.0)):
        one.set_signals({"a": SignalText(str(watts), NOON)})
        assert one.in_force(NOON + 59, 4.0)[0].limit_watts == watts
        assert one.in_force(NOON + 61, 4.0)[0].limit_watts == lost
        # The clock was set back by an hour: the age of the value is unknown.
        assert one.in_force(NOON - 3600, 4.0)[0].limit_watts == lost
    one.set_signals({"a": SignalText("no", NOON + 50)})
    assert one.in_force(NOON + 55, 4.0)[0].limit_watts == 300.0
    assert "neither a number" in one.problem("a", NOON + 55)


def test_signals_and_live_limits_survive_a_reload() -> None:
    text = '[[budgets]]\nname = "a"\ncluster = true\nsignal = "/x"\nfallback_watts = 800\n'
    before, after = limits(text), limits(text + "floor_percent = 20\n")
    before.set_signals({"a": SignalText("600", NOON)})
    after.adopt(before)
    assert after.in_force(NOON, 4.0)[0].limit_watts == 600.0
    elsewhere = limits(text.replace("/x", "/y"))
    elsewhere.adopt(before)
    assert elsewhere.in_force(NOON, 4.0)[0].limit_watts == 800.0


def test_a_reload_keeps_the_last_valid_value_of_a_malformed_signal() -> None:
    text = '[[budgets]]\nname = "a"\ncluster = true\nsignal = "/x"\nfallback_watts = 800\nmax_age_s = 60\n'
    before, after = limits(text), limits(text)
    before.set_signals({"a": SignalText("600", NOON)})
    before.set_signals({"a": SignalText("oops", NOON + 1.0)})
    after.adopt(before)
    assert after.in_force(NOON + 50.0, 4.0)[0].limit_watts == 600.0
    assert "neither a number" in after.problem("a", NOON + 50.0)
    assert after.source("a").limit_at(NOON + 70.0) == 600.0  # lost: the lower one of both values
    narrow = limits(text + "accept_watts = [700, 900]\n")
    narrow.adopt(before)
    assert narrow.in_force(NOON + 50.0, 4.0)[0].limit_watts == 800.0


def test_a_calendar_is_read_again_and_a_bad_one_keeps_the_limits(tmp_path: Path) -> None:
    path, clock = tmp_path / "calendar.csv", [0.0]
    path.write_text(f"time,watts\n{NOON - 10:.0f},500\n")
    text = f'[[budgets]]\nname = "a"\ncluster = true\ncalendar = "{path}"\n'
    one = BudgetLimits(configuration.parse(text), FAILURES, lambda: clock[0])
    for content, watts, problem in (("time,watts\n1,400\n", 400.0, ""), ("nonsense\n", 400.0, "line 1")):
        path.write_text(content)
        clock[0] += 60.0
        one.read_calendars()
        assert one.in_force(NOON, 4.0)[0].limit_watts == watts
        assert problem in one.problem("a", NOON)
    path.unlink()
    with pytest.raises(ConfigError):
        limits(text)


def test_accounts_count_with_those_below_them() -> None:
    parents = {"chem": "root", "org": "chem", "bio": "root", "lab": "org", "loop": "loop"}
    assert accounts_below("chem", parents) == {"chem", "org", "lab"}
    assert accounts_below("loop", parents) == {"loop"}
    one = limits('[[budgets]]\nname = "a"\naccount = "chem"\nwatts = 900\n')
    one.set_parents(parents)
    scope = one.in_force(NOON, 4.0)[0].scope
    assert scope.kind is ScopeKind.ACCOUNT
    assert scope.names == {"chem", "org", "lab"}


@pytest.mark.parametrize(
    ("scope", "names"),
    [
        ('account = "Chem"', {"chem", "org"}),
        ('qos = "High"', {"high"}),
        ('user = "Alice"', {"Alice"}),
        ('partition = "GPU"', {"GPU"}),
    ],
)
def test_a_budget_ignores_the_case_of_its_account_or_qos(scope: str, names: set[str]) -> None:
    one = limits(f'[[budgets]]\nname = "a"\n{scope}\nwatts = 900\n')
    one.set_parents({"chem": "root", "org": "chem"})
    assert one.in_force(NOON, 4.0)[0].scope.names == names


def test_reserves_are_given_by_node_list() -> None:
    config = configuration.parse('[budget]\nnode_reserve_watts = {"n[1-2]" = 150.0}\n')
    assert budget_limits.node_reserves(config) == {"n1": 150.0, "n2": 150.0}


def cycle(measured: float | None, limit: float = 1000.0) -> BudgetCycle:
    status = BudgetStatus("a", limit, measured, 900.0, 100.0, capped_watts=10.0, headroom_watts=50.0)
    return BudgetCycle(0.0, [status], 1.0, dict, dict)


def test_spans_hold_means_and_maxima_and_time_above_the_limit() -> None:
    recorder = BudgetRecorder()
    for second in range(31):
        watts = 1400.0 if 10 <= second < 20 else 800.0
        recorder.add(cycle(None if second == 25 else watts), float(second), NOON + second)
    samples, changes = recorder.take()
    assert [sample.time - NOON for sample in samples] == [0.0, 10.0, 20.0]
    assert [sample.measured_watts for sample in samples] == [800.0, 1400.0, 800.0]
    assert [sample.max_measured_watts for sample in samples] == [800.0, 1400.0, pytest.approx(1300.0)]
    assert [sample.over_s for sample in samples] == [0.0, 8.0, 3.0]  # the mean over 5 s follows later
    assert [change.kind for change in changes] == ["over", "over"]


def test_a_jump_of_a_second_is_not_recorded_as_above_the_limit() -> None:
    recorder = BudgetRecorder()
    for second in range(31):
        watts = {12: 1500.0, 13: 100.0}.get(second, 800.0)
        recorder.add(cycle(watts), float(second), NOON + second)
    samples, changes = recorder.take()
    assert [sample.over_s for sample in samples] == [0.0] * 3
    assert changes == []
    recorder.add(cycle(800.0, math.inf), 32.0, NOON + 32)
    assert recorder.take()[1] == []


def test_what_the_database_refuses_is_kept_within_bounds() -> None:
    recorder = BudgetRecorder()
    for second in range(20 * MAX_CHANGES):
        recorder.add(cycle(2000.0 if second // 10 % 2 else 1.0), float(second), NOON + second)
        if second % 500 == 0:
            recorder.put_back(*recorder.take())
    samples, changes = recorder.take()
    assert len(samples) <= MAX_CHANGES + 100 and len(changes) <= MAX_CHANGES + 1
