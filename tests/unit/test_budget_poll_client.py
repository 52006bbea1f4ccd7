"""Test the client by which the agent polls the controller for power decisions.

Decisions are applied. Repeated failures are logged once, and the pauses between polls grow. Without budgets
the client does not poll.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_node_budget import ENFORCED, IDLE, OFF, SAFE, START, BudgetNode

from slurm_energy.agent import controller_request
from slurm_energy.agent.budget import poll_client
from slurm_energy.agent.budget.poll_client import BudgetPollClient
from slurm_energy.budget.messages import BUDGET_PATH, NodeDecision, NodePoll
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import NotFoundError, UnavailableError

DECISION = NodeDecision(1, dict.fromkeys(IDLE, 150.0), SAFE, START, 30.0, 2.0).to_json()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BudgetNode]:
    made = BudgetNode(tmp_path)
    yield made
    made.die()


def run_client(
    node: BudgetNode, monkeypatch: pytest.MonkeyPatch, outcomes: list[dict[str, Any] | Exception]
) -> list[float]:
    """Run the client of the power budget and return the lengths of its pauses in seconds.

    Each request of the client gets the next element of `outcomes` as its response or error. The client is
    stopped when no element is left.
    """
    pauses: list[float] = []

    class Controller:
        def __init__(self, *_arguments: Any, **options: Any) -> None:
            assert options["total_timeout_s"] == 2.0

        def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            assert path == BUDGET_PATH
            NodePoll.from_json(json.loads(json.dumps(body)))
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    async def work(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def wait_for(waiting: Any, seconds: float) -> None:
        waiting.close()
        pauses[-1] += seconds
        if not outcomes or len(pauses) > 20:
            raise asyncio.CancelledError
        raise TimeoutError

    async def main() -> None:
        client = BudgetPollClient(node.manager, ClusterConfig, work, node.clock.boottime)
        with pytest.raises(asyncio.CancelledError):
            await client.run()

    loop = SimpleNamespace(Event=asyncio.Event, sleep=sleep, wait_for=wait_for)
    monkeypatch.setattr(controller_request, "ControllerClient", Controller)
    monkeypatch.setattr(poll_client, "asyncio", loop)
    asyncio.run(main())
    return pauses


def test_decisions_are_applied_and_state_the_pause(node: BudgetNode, monkeypatch: pytest.MonkeyPatch) -> None:
    later = {**DECISION, "number": 2, "poll_s": 7.0}
    assert run_client(node, monkeypatch, [DECISION, later]) == [2.0, 7.0]
    assert node.limits() == dict.fromkeys(IDLE, 150.0)
    assert node.poll().number == 2


def test_failures_are_logged_once_and_pauses_grow_to_ten_seconds(
    node: BudgetNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    away = UnavailableError("controller", "no route")
    pauses = run_client(node, monkeypatch, [DECISION, *[away] * 6, DECISION])
    assert pauses[0] == pauses[-1] == 2.0
    assert all(2.0 < pause <= 10.0 for pause in pauses[1:-1])
    assert max(pauses) > 5.0
    assert caplog.text.count("no route") == 1
    assert caplog.text.count("the controller decides again") == 1


@pytest.mark.parametrize(
    "outcome",
    [
        {},
        {**DECISION, "lease_s": -1},
        {**DECISION, "limits_watts": {"gpu0": "5"}},
        {**DECISION, "limits_watts": {"gpu0": float("nan")}},
        NotFoundError("no such page"),
    ],
)
def test_a_useless_response_changes_nothing(
    node: BudgetNode, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any] | Exception
) -> None:
    run_client(node, monkeypatch, [DECISION, outcome])
    assert node.limits() == dict.fromkeys(IDLE, 150.0)
    node.use(31.0)
    assert node.limits() == SAFE


def test_without_budgets_nothing_is_polled(node: BudgetNode) -> None:
    node.manager.reconfigure(OFF)

    async def work(*_arguments: Any) -> Any:
        raise AssertionError("polled")

    async def main() -> None:
        client = BudgetPollClient(node.manager, ClusterConfig, work)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.run(), 0.05)

    asyncio.run(main())
    node.manager.reconfigure(ENFORCED)
