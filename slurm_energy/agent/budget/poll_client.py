"""Client with which the agent asks the controller for the power limits of this node.

It asks regularly (polls). No hook and no job waits for a poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slurm_energy.agent.controller_request import request_controller
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.budget.messages import BUDGET_PATH, NodeDecision, NodePoll
from slurm_energy.config import ClusterConfig
from slurm_energy.devices.power_sensor import boottime_s
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

_MIN_PAUSE_S: Final = 0.5
_MAX_RETRY_S: Final = 10.0
_OFF_PAUSE_S: Final = 5.0
_SUBJECT: Final = "power budget"


class BudgetPollClient:
    """Client that polls the controller for decisions about power, while there are power budgets.

    Args:
        jobs: the job manager, which returns the node's state and applies decisions.
        cluster: returns the current address of the controller.
        work: runs a function in the worker thread.
        clock_s: returns seconds since boot.
    """

    def __init__(
        self,
        jobs: JobManager,
        cluster: Callable[[], ClusterConfig],
        work: Callable[..., Awaitable[Any]],
        clock_s: Callable[[], float] = boottime_s,
    ) -> None:
        self._jobs, self._cluster, self._work, self._clock_s = jobs, cluster, work, clock_s
        self._wake = asyncio.Event()
        self._failures = RepeatedFailureLog(log)
        self._failed_polls = 0

    def wake(self) -> None:
        """Poll soon, because jobs started or ended. Call this method in the event loop."""
        self._wake.set()

    async def run(self) -> None:
        """Poll the controller for budget decisions until the task is cancelled.

        While no budget is active, the method only waits.
        """
        while True:
            if not self._jobs.budget.is_active:
                await asyncio.sleep(_OFF_PAUSE_S)
                continue
            self._wake.clear()
            pause_s = await self._poll()
            await asyncio.sleep(min(_MIN_PAUSE_S, pause_s))
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, pause_s - _MIN_PAUSE_S))
            except TimeoutError:
                continue

    async def _poll(self) -> float:
        """Send the node's power report to senergyctld and apply the decision in the response.

        Return the seconds until the next report.
        """
        poll: NodePoll = await self._work(self._jobs.poll_budget)
        sent_s = self._clock_s()
        try:
            answer = await request_controller(
                self._cluster(), lambda client: client.post(BUDGET_PATH, poll.to_json())
            )
            decision = NodeDecision.from_json(answer)
        except EnergyError as error:
            self._failures.report(
                _SUBJECT, f"no decision of the controller, safe limits will follow: {error}"
            )
            self._failed_polls += 1
            # The pauses vary, so that the nodes do not all poll a restarted controller at once.
            pause_s = min(_MAX_RETRY_S, self._jobs.budget.poll_s * 2.0 ** min(self._failed_polls, 10))
            return pause_s * random.uniform(0.7, 1.0)
        self._failures.clear(_SUBJECT, "the controller decides again")
        self._failed_polls = 0
        await self._work(self._jobs.budget.apply, decision, sent_s)
        return self._jobs.budget.poll_s
