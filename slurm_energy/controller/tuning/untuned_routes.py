"""HTTP route that returns statistics of untuned runs of programs.

`senergy acct` compares jobs with these runs.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from slurm_energy.accounting.history.untuned_runs import find_untuned_runs
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.records.deliveries import read_object
from slurm_energy.protocol.untuned_runs import read_programs


async def find(body: bytes, rights: Rights, read: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """Return the response to `POST /v1/untuned-runs`: untuned runs of the requested programs.

    Args:
        body: JSON object in the body of the request.
        rights: records and jobs that the caller may see.
        read: runs a function on a database connection and returns its result.

    Raises:
        UsageError: the body is malformed.
    """
    programs = await asyncio.to_thread(lambda: read_programs(read_object(body)))
    ask = functools.partial(find_untuned_runs, everything=rights.everything)
    runs = await read(ask, programs, rights.name, rights.accounts)
    return rights.described() | {"untuned_runs": [run and asdict(run) for run in runs]}
