"""Limits on how many requests senergyctld handles at the same time, for each kind of request."""

from __future__ import annotations

from typing import Final

from slurm_energy.controller.http.request_limiter import RequestLimiter

_REST_FACTOR: Final = 3.0  # an ordinary user uses at most about a quarter of a core


class RequestLimits:
    """Limits on the number of simultaneous requests, one `RequestLimiter` per kind of request.

    Attributes:
        costly: inquiries that read many rows or need much computation. All costly inquiries of ordinary
            users together occupy only a part of the threads for requests and of the threads for reading.
        light: inquiries that are answered from memory, and requests that change something.
        ingest: deliveries of energy records and of periods (the energy of a node in an interval). Many
            deliveries wait for one database transaction; `ByteBudget` limits the memory for waiting
            deliveries.
        advice: inquiries of agents about settings and values of a starting job.
        groups: polls of agents that tune jobs on several nodes.
        power: polls of agents for the power limits that budgets set.
        live: reports of agents about running jobs.
    """

    def __init__(self) -> None:
        self.costly = RequestLimiter(
            concurrent=1,
            waiting=7,
            shared=4,
            trusted_concurrent=4,
            trusted_waiting=60,
            rest_factor=_REST_FACTOR,
        )
        self.light = RequestLimiter(
            concurrent=2, waiting=14, shared=8, trusted_concurrent=16, trusted_waiting=240
        )
        self.ingest = _of_agents(concurrent=256, waiting=4000)
        self.advice = _of_agents(concurrent=8, waiting=960)
        self.groups = _of_agents(concurrent=16, waiting=960)
        self.power = _of_agents(concurrent=16, waiting=4000)
        self.live = _of_agents(concurrent=4, waiting=4000)


def _of_agents(concurrent: int, waiting: int) -> RequestLimiter:
    """Return a limiter that admits agents and operators only."""
    return RequestLimiter(0, 0, 0, trusted_concurrent=concurrent, trusted_waiting=waiting)
