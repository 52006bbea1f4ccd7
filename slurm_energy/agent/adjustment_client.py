"""Client in senergyd that asks the controller for the adjusted values of jobs.

An adjusted value is a value that the diagnosis changes, such as the number of loader processes. The
client works in the background, so that no prolog or other hook waits for a response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slurm_energy.agent.controller_request import request_controller
from slurm_energy.agent.jobs.adjusted_values import AdjustedValues
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.protocol.adjustment_requests import VALUES_PATH, ValuesRequest

log = logging.getLogger(__name__)

_SUBJECT: Final = "adjusted values"


class AdjustmentClient:
    """Client that asks the controller for adjusted values of jobs.

    Only those jobs get adjusted values whose programs request them.

    Args:
        values: stores the adjusted values of the node's jobs, and returns the requests that are due.
        cluster: returns the current address of the controller.
        work: runs a function in the worker thread.
    """

    def __init__(
        self,
        values: AdjustedValues,
        cluster: Callable[[], ClusterConfig],
        work: Callable[..., Awaitable[Any]],
    ) -> None:
        self._values, self._cluster, self._work = values, cluster, work
        self._wake = asyncio.Event()
        self._failures = RepeatedFailureLog(log)

    def wake(self) -> None:
        """Make `run` send the requests that are due. Call this method in the event loop."""
        self._wake.set()

    async def run(self) -> None:
        """Request the adjusted values of jobs from senergyctld until the task is cancelled.

        An adjusted value is a program parameter that the diagnosis changed. After each call of `wake`, all
        requests that are due are sent.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            requests = await self._work(self._values.requests)
            await asyncio.gather(*map(self._answer, requests))

    async def _answer(self, request: ValuesRequest) -> None:
        await self._work(self._values.answer, request, await self._ask(request))

    async def _ask(self, request: ValuesRequest) -> dict[str, Any] | None:
        """Return the controller's response to a request; None if the controller did not respond."""
        try:
            response = await request_controller(
                self._cluster(), lambda client: client.get(VALUES_PATH, request.parameters())
            )
        except EnergyError as error:
            self._failures.report(_SUBJECT, f"programs keep their own values: {error}")
            return None
        self._failures.clear(_SUBJECT, "the controller answers again")
        return response
