"""A controller that answers from a dict and remembers what it was asked; anything else fails the test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from slurm_energy.cli import connection
from slurm_energy.errors import EnergyError

DEFAULTS: dict[str, dict[str, Any]] = {
    "/v1/running": {"scope": "all", "nodes": [], "records": []},
    "/v1/priority": {"jobs": []},
    "/v1/grid": {"carbon": None, "price": None, "pue": None, "embodied": None, "currency": "EUR"},
}
"""Answers about a cluster without jobs in its queue, whose site has configured neither carbon nor price."""


class FakeController:
    def __init__(self, answers: Mapping[str, dict[str, Any] | EnergyError]) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.posted: list[tuple[str, dict[str, Any]]] = []

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.asked.append((path, dict(params or {})))
        return self._answer(path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.posted.append((path, dict(body)))
        return self._answer(path)

    def _answer(self, path: str) -> dict[str, Any]:
        answer = self.answers.get(path) or DEFAULTS[path]
        if isinstance(answer, EnergyError):
            raise answer
        return answer


def install(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, dict[str, Any] | EnergyError]
) -> FakeController:
    fake = FakeController(answers)
    monkeypatch.setattr(connection, "connect", lambda args, **options: fake)
    return fake


@contextlib.contextmanager
def timezone(name: str) -> Iterator[None]:
    """Context manager that sets the local time zone to `name` during the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()
