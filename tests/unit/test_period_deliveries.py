"""Tests of POST /v1/periods, with which nodes deliver their energy per period.

The tests check who may deliver which periods, and the controller's result for each period.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import open_munge
import pytest
from period_examples import period
from sqlalchemy import func, select
from test_controller import ALICE, Controller, refused

from slurm_energy import __version__
from slurm_energy.accounting.schema.tables import node_periods
from slurm_energy.agent.state.delivery import PERIOD_ROUTE
from slurm_energy.controller.http.node_hosts import NodeHosts
from slurm_energy.controller.records.period_deliveries import PERIODS_PATH
from slurm_energy.log_once import RepeatedFailureLog

pytestmark = pytest.mark.slow

START = 1_700_000_000
LISTS = ("rejected", "retry", "traces_rejected", "observations_rejected")
EMPTY: dict[str, Any] = {name: [] for name in LISTS}


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    open_munge.install(monkeypatch)
    return Controller(tmp_path)


def items(*made: Any) -> dict[str, Any]:
    return {"items": [{"period": one.to_json()} for one in made], "node": "n1", "spooled": 0}


def test_the_agent_uses_the_route() -> None:
    assert (PERIOD_ROUTE.path, PERIOD_ROUTE.key) == (PERIODS_PATH, "period")


def test_periods_are_accepted_and_stored_once(controller: Controller) -> None:
    made = [period(START), period(START + 3600)]

    async def story(c: Controller) -> None:
        answer = {"accepted": [p.period_id for p in made], **EMPTY, "version": __version__, "schema": 1}
        for _ in range(2):
            assert await c.post(items(*made), target=PERIODS_PATH) == (200, answer)
        count = await c.store.read(
            lambda connection: connection.execute(select(func.count()).select_from(node_periods)).scalar_one()
        )
        assert count == 2

    controller.session(story)


def test_bad_bodies_and_other_users(controller: Controller) -> None:
    async def story(c: Controller) -> None:
        for body in (b"[]", b"{", json.dumps({"items": 5}).encode(), b"[" * 100_000):
            assert refused(await c.post(body, target=PERIODS_PATH), 400, 2)
        assert refused(await c.post(items(period()), ALICE, PERIODS_PATH), 403, 5)
        status, answer = await c.post({"items": [None, {"period": {"period_id": "x"}}]}, target=PERIODS_PATH)
        assert (status, [entry["record_id"] for entry in answer["rejected"]]) == (200, [None, "x"])

    controller.session(story)


def test_a_node_delivers_its_own_periods_only(controller: Controller) -> None:
    hosts = NodeHosts(
        lambda _: "n1|n1|127.0.0.1\nn2|n2|192.0.2.7\n",
        RepeatedFailureLog(logging.getLogger("test"), ignore_numbers=True),
        lambda name: [name] if name[0].isdigit() else [],
    )
    controller.server._periods._hosts = hosts
    made = [period(START), period(START, node="n2"), period(START, node="absent")]

    async def story(c: Controller) -> None:
        status, answer = await c.post(items(*made), target=PERIODS_PATH)
        assert (status, answer["accepted"]) == (200, [made[0].period_id])
        (rejected,), (retry,) = answer["rejected"], answer["retry"]
        assert rejected["record_id"] == made[1].period_id and "127.0.0.1" in rejected["error"]
        assert retry["record_id"] == made[2].period_id and "has no node absent" in retry["error"]

    try:
        controller.session(story)
    finally:
        hosts.close()
