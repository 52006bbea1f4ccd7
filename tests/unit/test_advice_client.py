"""Tests of the agent's client that asks the controller for tuning advice for a job.

The client asks once per job and in the background. If the controller does not answer, it asks a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from slurm_energy.agent import controller_request
from slurm_energy.agent.tuning import advice_client
from slurm_energy.agent.tuning.advice_client import AdviceClient
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import NotFoundError, UnavailableError
from slurm_energy.protocol.tuning_advice import ADVICE_PATH, AdviceRequest

REQUEST = AdviceRequest("n1", 5, 0, "NVIDIA H100", "edp", None, "0123456789abcdef")


class Tuners:
    """Fake tuners of jobs. They request advice once, and store the responses."""

    def __init__(self) -> None:
        self.awaits_advice = True
        self.answers: list[dict[str, Any] | None] = []

    def advice_requests(self) -> list[AdviceRequest]:
        self.awaits_advice = False
        return [REQUEST]

    def advise(self, request: AdviceRequest, answer: dict[str, Any] | None) -> None:
        assert request is REQUEST
        self.answers.append(answer)


def answers_of(monkeypatch: pytest.MonkeyPatch, outcomes: list[dict[str, Any] | Exception]) -> Tuners:
    """Let a client ask the controller for tuning advice until one job has its advice.

    The fake controller gives the elements of `outcomes` as responses or errors, one per request.
    """
    tuners = Tuners()

    class Controller:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            assert options["total_timeout_s"] == 2.0

        def get(self, path: str, parameters: dict[str, str]) -> dict[str, Any]:
            assert (path, parameters) == (ADVICE_PATH, REQUEST.parameters())
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    async def work(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def main() -> None:
        client = AdviceClient(tuners, ClusterConfig, work)  # type: ignore[arg-type]
        task = asyncio.create_task(client.run())
        client.wake()
        while not tuners.answers:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(controller_request, "ControllerClient", Controller)
    monkeypatch.setattr(advice_client, "_RETRY_S", 0.0)
    asyncio.run(main())
    assert not outcomes
    return tuners


def test_the_answer_reaches_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers_of(monkeypatch, [{"mode": "on"}]).answers == [{"mode": "on"}]


def test_an_unreachable_controller_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    away = UnavailableError("controller", "no route")
    assert answers_of(monkeypatch, [away, {"mode": "on"}]).answers == [{"mode": "on"}]
    assert answers_of(monkeypatch, [away, away]).answers == [None]


def test_a_controller_without_advice_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert answers_of(monkeypatch, [NotFoundError("no such path")]).answers == [None]
    assert sum("tuned without it" in line for line in caplog.messages) == 1
