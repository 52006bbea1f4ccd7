"""Client with which the agent asks the controller for advice about the tuning of jobs.

The client works in the background. No hook and no job waits for a response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slurm_energy.agent.controller_request import request_controller
from slurm_energy.agent.tuning.job_tuners import JobTuners
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.protocol.tuning_advice import ADVICE_PATH, AdviceRequest

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_POLL_S: Final = 0.5
_SUBJECT: Final = "tuning advice"


class AdviceClient:
    """Client that asks the controller for advice about tuned jobs.

    The client asks once for each job. If the request fails, the client repeats it once.

    Args:
        tuners: the tuners of the node's jobs.
        cluster: returns the current address of the controller.
        work: runs a function in the worker thread.
    """

    def __init__(
        self,
        tuners: JobTuners,
        cluster: Callable[[], ClusterConfig],
        work: Callable[..., Awaitable[Any]],
    ) -> None:
        self._tuners = tuners
        self._cluster = cluster
        self._work = work
        self._wake = asyncio.Event()
        self._failures = RepeatedFailureLog(log)

    def wake(self) -> None:
        """Let the client look soon for jobs that need advice about their tuning.

        Call this method in the event loop.
        """
        self._wake.set()

    async def run(self) -> None:
        """Send the due requests for advice to the controller each time `wake` was called.

        The task runs until it is cancelled.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while await self._work(lambda: self._tuners.awaits_advice):
                for request in await self._work(self._tuners.advice_requests):
                    await self._work(self._tuners.advise, request, await self._ask(request))
                await asyncio.sleep(_POLL_S)

    async def _ask(self, request: AdviceRequest) -> dict[str, Any] | None:
        """Return the controller's response to a request; None if the controller did not respond."""
        for attempt in range(2):
            try:
                answer = await request_controller(
                    self._cluster(), lambda client: client.get(ADVICE_PATH, request.parameters())
                )
            except UnavailableError as error:
                if attempt:
                    self._failures.report(_SUBJECT, f"jobs are tuned without it: {error}")
                    return None
                await asyncio.sleep(_RETRY_S)
            except EnergyError as error:
                self._failures.report(_SUBJECT, f"jobs are tuned without it: {error}")
                return None
            else:
                self._failures.clear(_SUBJECT, "the controller answers again")
                return answer
        return None
