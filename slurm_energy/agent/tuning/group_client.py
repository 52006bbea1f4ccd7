"""Client of senergyd for tuned jobs on several nodes.

The client requests decisions from the coordinators of the jobs (polls). It changes the operating points at
the agreed times.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slurm_energy.agent.controller_request import request_controller
from slurm_energy.agent.tuning.job_tuners import JobTuners, Key
from slurm_energy.config import ClusterConfig
from slurm_energy.devices.power_sensor import boottime_s
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog
from slurm_energy.tuning.group.messages import GROUP_PATH, GroupDecision, GroupPoll

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 5.0
_SUBJECT: Final = "tuning of jobs on several nodes"


class GroupClient:
    """Client of the controller's coordinators.

    The client polls the coordinator of each tuned job that runs on this node and on other nodes.

    Each job has one task that polls, and a second task that changes the operating point at the agreed time. A
    change therefore does not wait for a response of the controller.

    Args:
        tuners: the tuners of the node's jobs.
        cluster: returns the current address of the controller.
        work: runs a function in the worker thread.
        clock_s: returns seconds since boot.
    """

    def __init__(
        self,
        tuners: JobTuners,
        cluster: Callable[[], ClusterConfig],
        work: Callable[..., Awaitable[Any]],
        clock_s: Callable[[], float] = boottime_s,
    ) -> None:
        self._tuners, self._cluster, self._work, self._clock_s = tuners, cluster, work, clock_s
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._failures = RepeatedFailureLog(log)
        self._errors = UnexpectedErrorLog(log)

    def wake(self) -> None:
        """Make the client look soon for jobs that run on several nodes.

        Call this method in the event loop.
        """
        self._wake.set()

    async def run(self) -> None:
        """Request decisions for all tuned jobs that run on several nodes, until the task is cancelled."""
        try:
            while True:
                if not self._tuners.has_group_work:
                    await self._wake.wait()
                    self._wake.clear()
                for key in self._tuners.groups:
                    if key not in self._tasks or self._tasks[key].done():
                        self._tasks[key] = asyncio.create_task(self._serve(key))
                for poll in await self._work(self._tuners.left_groups):
                    await self._leave(poll)
                await asyncio.sleep(_LOOK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _serve(self, key: Key) -> None:
        """Connect a tuned job on this node to the coordinator of the job on all its nodes.

        The coordinator is polled for decisions, and the operating point is changed as decided. This
        continues until the job ends on this node.
        """
        wake, decided = asyncio.Event(), asyncio.Event()
        changing = asyncio.create_task(self._change(key, decided, wake))
        retry_s = _RETRY_S
        try:
            while (poll := await self._work(self._tuners.group_poll, key)) is not None:
                wake.clear()
                pause_s = await self._poll(key, poll)
                decided.set()
                if pause_s is None:
                    pause_s, retry_s = retry_s, min(2 * retry_s, _MAX_RETRY_S)
                else:
                    retry_s = _RETRY_S
                try:
                    await asyncio.wait_for(wake.wait(), pause_s)
                except TimeoutError:
                    continue
        except Exception as error:
            self._errors.report(error, f"{_SUBJECT} failed and starts again", context="tuning group")
        finally:
            changing.cancel()
            self._tasks.pop(key, None)

    async def _poll(self, key: Key, poll: GroupPoll) -> float | None:
        """Ask the controller once for the tuning decision of a job on several nodes, and apply it.

        Return the seconds until the next request (poll). The result is None if no decision was received.
        """
        sent_s = self._clock_s()
        try:
            decision = GroupDecision.from_json(await self._post(poll))
        except EnergyError as error:
            self._failures.report(_SUBJECT, f"they keep their settings: {error}")
            return None
        self._failures.clear(_SUBJECT, "the controller answers again")
        pause_s: float = await self._work(self._tuners.group_decided, key, decision, sent_s, self._clock_s())
        return pause_s

    async def _change(self, key: Key, decided: asyncio.Event, wake: asyncio.Event) -> None:
        """Change the operating point (hardware settings) of a job at the times that all its nodes know.

        The nodes have agreed on these times. After each change, wake the task that reports the change to the
        coordinator.
        """
        while True:
            at_s = await self._work(self._tuners.group_change_at_s, key)
            pause_s = at_s - self._clock_s()
            if pause_s > 0:
                decided.clear()
                try:
                    await asyncio.wait_for(decided.wait(), None if math.isinf(pause_s) else pause_s)
                except TimeoutError:
                    pass
                else:
                    continue
            if await self._work(self._tuners.change_group_point, key):
                wake.set()

    async def _leave(self, poll: GroupPoll) -> None:
        try:
            await self._post(poll)
        except EnergyError as error:
            log.debug("the end of a job on this node was not reported: %s", error)

    async def _post(self, poll: GroupPoll) -> dict[str, Any]:
        return await request_controller(
            self._cluster(), lambda client: client.post(GROUP_PATH, poll.to_json())
        )
