"""HTTP route that returns the energy of jobs and steps by time.

`senergy acct` and `senergy label` compute emissions and cost from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from slurm_energy.accounting.usage.job_parts import parts_of_records
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.records.deliveries import read_object
from slurm_energy.protocol.energy_parts import read_record_ids


async def find(body: bytes, rights: Rights, read: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """Return the response to `POST /v1/energy-parts`: the energy by time of jobs and steps.

    Args:
        body: JSON object in the body of the request.
        rights: records and jobs that the caller may see.
        read: runs a function on a database connection and returns its result.

    Raises:
        UsageError: the body is malformed.
        UnavailableError: the request takes too long, or the response is too large.
    """
    record_ids = await asyncio.to_thread(lambda: read_record_ids(read_object(body)))
    return rights.described() | {"parts": await read(parts_of_records, record_ids, rights.visibility)}
