"""One request of the agent to the controller, with limits on time and size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from slurm_energy.config import ClusterConfig
from slurm_energy.protocol.controller_client import ControllerClient

_TIMEOUT_S: Final = 2.0
_MAX_RESPONSE_BYTES: Final = 1 << 20


async def request_controller(
    cluster: ClusterConfig, send: Callable[[ControllerClient], dict[str, Any]]
) -> dict[str, Any]:
    """Send one request in a thread and return the response of the controller.

    Args:
        cluster: address of the controller, and the users whose responses are accepted.
        send: sends the request with a client and returns the response.

    Raises:
        EnergyError: the controller did not respond or refused the request.
    """
    client = ControllerClient(
        *(cluster.controller_url, cluster.munge_socket, _TIMEOUT_S, cluster.controller_users),
        total_timeout_s=_TIMEOUT_S,
        max_response_bytes=_MAX_RESPONSE_BYTES,
    )
    try:
        return await asyncio.to_thread(send, client)
    except asyncio.CancelledError:
        client.cancel()  # otherwise senergyd would wait for the controller when it stops
        raise
