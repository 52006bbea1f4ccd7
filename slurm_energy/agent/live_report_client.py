"""Client with which the agent sends live reports to the controller.

A live report states the power of the node and the energy of its running jobs. Sending a report delays no
other work. A failed report is not sent again, because the next report replaces it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slurm_energy.agent.agent_facts import AgentFacts
from slurm_energy.agent.controller_request import request_controller
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.config import Config
from slurm_energy.errors import EnergyError
from slurm_energy.grid.present_factors import PresentFactors
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.protocol.controller_endpoint import NotListeningError
from slurm_energy.protocol.live_reports import LIVE_PATH, MAX_INTERVAL_S, LiveReport
from slurm_energy.quantities import is_number

log = logging.getLogger(__name__)

_OFF_PAUSE_S: Final = 10.0
_MAX_RETRY_S: Final = 240.0
_SUBJECT: Final = "live reports"


class LiveReportClient:
    """Client that sends a live report every `agent.live_report_s` seconds.

    If the controller requests a longer interval, that interval applies.

    Args:
        jobs: the job manager, which makes the reports.
        config: returns the current configuration.
        work: runs a function in the worker thread.
        facts: source of the facts and counts about this node and its agent.
        on_policies: called with the digest of the current policy file, which the responses contain.

    Attributes:
        requested_interval_s: minimum interval that the controller requested last, in seconds. The controller
            requests a longer interval if there are more nodes. Other requests that all nodes send are spread
            over this interval too.
    """

    def __init__(
        self,
        jobs: JobManager,
        config: Callable[[], Config],
        work: Callable[..., Awaitable[Any]],
        facts: AgentFacts,
        on_policies: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._jobs, self._config, self._work, self._facts = jobs, config, work, facts
        self._on_policies = on_policies
        self._wants_facts = False
        self._failures = RepeatedFailureLog(log)
        self._failed = self._unanswered = 0
        self.requested_interval_s = 0.0

    async def run(self) -> None:
        """Send live reports periodically until the task is cancelled.

        A live report states the present power of the node and the energy of its running jobs so far. The
        first pause is random, so that nodes do not all report at the same time.
        """
        await asyncio.sleep(random.uniform(0.0, self._config().agent.live_report_s))
        while True:
            interval_s = self._config().agent.live_report_s
            pause_s = await self._report(interval_s) if interval_s > 0 else _OFF_PAUSE_S
            await asyncio.sleep(pause_s)

    async def _report(self, interval_s: float) -> float:
        """Send a report and return the seconds until the next report."""
        cluster = self._config().cluster
        facts = await self._facts.facts(self._config(), requested=self._wants_facts)
        counts = await self._work(self._facts.counts) | {"failed_reports": self._unanswered}
        report: LiveReport = await self._work(self._jobs.queries.report, self._jobs.node, cluster.name)
        report = dataclasses.replace(report, counts=counts, facts=facts)
        try:
            answer = await request_controller(
                cluster, lambda client: client.post(LIVE_PATH, report.to_json())
            )
        except EnergyError as error:
            self._failures.report(_SUBJECT, f"not accepted, later ones may be: {error}", logging.INFO)
            self._failed += 1
            # If senergyctld does not run, this does not mean that it refuses the credential.
            self._unanswered += not isinstance(error, NotListeningError)
            if len(cluster.controller_url) > 1:
                return interval_s  # another controller takes over soon
            return min(max(_MAX_RETRY_S, interval_s), interval_s * 2.0 ** min(self._failed, 10))
        self._failures.clear(_SUBJECT, "accepted again")
        self._failed = self._unanswered = 0
        self._wants_facts = answer.get("wants_facts") is True
        if facts is not None:
            self._facts.mark_sent(facts)
        self._jobs.output_line.factors = PresentFactors.from_json(answer.get("grid"))
        if isinstance(digest := answer.get("policies"), str):
            self._on_policies(digest)
        requested_s = answer.get("interval_s")
        if not is_number(requested_s):
            return interval_s
        self.requested_interval_s = max(0.0, min(float(str(requested_s)), MAX_INTERVAL_S))
        return max(interval_s, self.requested_interval_s)
