"""Test the order of concurrent requests and the limits on their number.

The tests count requests and do not measure times.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from slurm_energy.controller.http import request_limiter
from slurm_energy.controller.http.request_limiter import BusyError, ByteBudget, RequestLimiter

ALICE, BOB, CAROL, ROOT = 1001, 1002, 1003, 0


class Office:
    """Test fixture in which requests to the controller run until `release` is set.

    It records the running requests, the highest number of concurrent requests of each user, and the refused
    requests.
    """

    def __init__(self, **bounds) -> None:
        self.limiter = RequestLimiter(
            **{"concurrent": 1, "waiting": 3, "shared": 2, "trusted_concurrent": 2, "trusted_waiting": 5}
            | bounds
        )
        self.release = asyncio.Event()
        self.working: list[int] = []
        self.most: dict[int, int] = {}
        self.refused: list[int] = []

    async def request(self, uid: int) -> None:
        trusted = uid == ROOT
        try:
            async with (
                self.limiter.user_slot(uid, trusted=trusted),
                self.limiter.shared_slot(trusted=trusted),
            ):
                self.working.append(uid)
                self.most[uid] = max(self.most.get(uid, 0), self.working.count(uid))
                await self.release.wait()
                self.working.remove(uid)
        except BusyError:
            self.refused.append(uid)


async def settled() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_a_user_has_one_turn_at_a_time_and_too_many_are_refused():
    async def story():
        office = Office()
        tasks = [asyncio.create_task(office.request(ALICE)) for _ in range(24)]
        await settled()
        assert office.working == [ALICE] and office.refused == [ALICE] * 20
        bob = asyncio.create_task(office.request(BOB))
        root = [asyncio.create_task(office.request(ROOT)) for _ in range(2)]
        await settled()
        assert sorted(office.working) == [ROOT, ROOT, ALICE, BOB]
        carol = asyncio.create_task(office.request(CAROL))
        await settled()
        assert CAROL not in office.working  # at most two of ordinary users at a time
        office.release.set()
        await asyncio.gather(*tasks, bob, carol, *root)
        assert office.most == {ALICE: 1, BOB: 1, CAROL: 1, ROOT: 2}
        assert office.limiter._queues == {}

    asyncio.run(story())


def test_requests_of_one_user_are_served_in_order():
    async def story():
        office = Office(concurrent=1, waiting=100)
        order = []

        async def one(number):
            async with office.limiter.user_slot(ALICE, trusted=False):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(number) for number in range(50)))
        assert order == list(range(50))

    asyncio.run(story())


def test_a_cancelled_request_releases_its_turn():
    async def story():
        office = Office()
        tasks = [asyncio.create_task(office.request(ALICE)) for _ in range(4)]
        await settled()
        for task in tasks[:2]:  # the running request and the next
            task.cancel()
        office.working.clear()
        await settled()
        assert office.working == [ALICE]
        office.release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert office.limiter._queues == {}

    asyncio.run(story())


def test_a_user_pauses_between_turns_and_others_do_not():
    async def story():
        office = Office(rest_factor=1e9)
        office.release.set()
        await office.request(ALICE)
        waits = asyncio.create_task(office.request(ALICE))
        root = [asyncio.create_task(office.request(ROOT)) for _ in range(5)]
        await office.request(BOB)
        await asyncio.gather(*root)
        assert set(office.most) == {ALICE, BOB, ROOT} and not waits.done()
        await waits

    asyncio.run(story())


def test_a_request_without_a_turn_in_time_is_refused(monkeypatch):
    monkeypatch.setattr(request_limiter, "WAIT_S", 0.01)

    async def story():
        office = Office()
        first, second = (asyncio.create_task(office.request(ALICE)) for _ in range(2))
        await second
        assert office.refused == [ALICE]
        office.release.set()
        await first

    asyncio.run(story())


def test_bodies_wait_for_memory():
    async def story():
        budget = ByteBudget(100)
        held, release, most = [], asyncio.Event(), []

        async def body(count):
            async with budget.reserve(count):
                held.append(count)
                most.append(sum(held))
                try:
                    await release.wait()
                finally:
                    held.remove(count)

        tasks = [asyncio.create_task(body(40)) for _ in range(5)]
        await settled()
        assert held == [40, 40]
        tasks[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]
        await settled()
        assert held == [40, 40]
        release.set()
        await asyncio.gather(*tasks[1:])
        assert max(most) == 80
        async with budget.reserve(1000):  # one larger than the budget is admitted alone
            pass

    asyncio.run(story())


def test_a_body_without_free_memory_is_refused(monkeypatch):
    monkeypatch.setattr(request_limiter, "WAIT_S", 0.01)

    async def story():
        budget = ByteBudget(100)
        async with budget.reserve(80):
            with pytest.raises(BusyError):
                async with budget.reserve(80):
                    pass
        async with budget.reserve(100):
            pass

    asyncio.run(story())
