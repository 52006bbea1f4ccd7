"""Client that keeps this node's copy of the policy file current, see `policies.policy_copy`.

Responses to live reports name the digest of the current file. The file is requested only if the copy has
another digest, or if no response has confirmed the copy recently.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from slurm_energy.agent.controller_request import request_controller
from slurm_energy.config import Config
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.policies.policy_copy import FRESH_S, confirm_copy, copy_path, update_copy
from slurm_energy.protocol.policy_file_requests import POLICY_FILE_PATH, PublishedPolicies

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 10.0
_PAUSE_S: Final = 120.0
_CONFIRMATION_AGE_S: Final = FRESH_S * 2 / 3
_SUBJECT: Final = "copy of the policy file"


class PolicyCopyClient:
    """Client of the agent that keeps the node's copy of senergyctld's policy file up to date.

    Args:
        config: returns the current configuration.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._failures = RepeatedFailureLog(log)
        self._confirmed = ""
        self._confirmed_s = -_CONFIRMATION_AGE_S
        self._copied = ""
        self._due = asyncio.Event()

    def confirm(self, digest: str) -> None:
        """Store the digest of the current policy file from a response of senergyctld."""
        self._confirmed, self._confirmed_s = digest, time.monotonic()
        if digest != self._copied:
            self._due.set()

    async def run(self) -> None:
        """Keep the local copy of the policy file current until the task is cancelled.

        The pauses between requests are random, so that the nodes do not all send requests at the same time.
        """
        pause_s = random.uniform(0.0, _FIRST_PAUSE_S)
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            await self.update()
            pause_s = _PAUSE_S * random.uniform(0.75, 1.25)

    async def update(self) -> None:
        """Keep this node's copy of the policy file valid for further use.

        If senergyctld has recently confirmed the contents of the copy, only the validity of the copy is
        extended. Otherwise the policy file is requested from senergyctld.
        """
        path = copy_path(self._config().agent.socket)
        try:
            if time.monotonic() - self._confirmed_s < _CONFIRMATION_AGE_S and await asyncio.to_thread(
                confirm_copy, path, self._confirmed
            ):
                self._copied = self._confirmed
            else:
                answer = await request_controller(
                    self._config().cluster, lambda client: client.get(POLICY_FILE_PATH)
                )
                published = PublishedPolicies.from_json(answer)
                copy = await asyncio.to_thread(update_copy, path, lambda: published)
                self._copied = copy.policies.digest
        except EnergyError as error:
            why = f"not updated, sbatch and srun check only the form of flags once it is too old: {error}"
            self._failures.report(_SUBJECT, why, logging.INFO)
            return
        self._failures.clear(_SUBJECT, "is current again")
