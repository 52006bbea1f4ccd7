"""HTTP routes for the choice among clusters: state of this cluster, and chosen cluster for a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.config import Config
from slurm_energy.controller.clusters.cluster_states import ClusterStates, KnownCluster
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.errors import UsageError
from slurm_energy.protocol.cluster_state import CLUSTER_STATE_PATH, ClusterState
from slurm_energy.protocol.placement_requests import PLACEMENT_PATH, PlacementQuery
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.controller.clusters.cluster_choice import ExpectedLoads, ReservedJob

MAX_RESERVED_PER_USER: Final = 50
MAX_RESERVED: Final = 500
RESERVED_S: Final = 120.0
"""Time for which a placed job counts at most; it is then in the queue, or was not submitted."""
SUBMITTED_S: Final = 1.0
"""Time from the choice until the job is in the queue."""


class PlacementRoutes:
    """Handlers of the routes about the choice among clusters. The caller has been identified.

    Args:
        config: returns the configuration.
        states: states of all clusters.
        clock: returns Unix seconds.
    """

    def __init__(
        self, config: Callable[[], Config], states: ClusterStates, clock: Callable[[], float] = time.time
    ) -> None:
        self._config, self._states, self._clock = config, states, clock
        self._reserved: list[ReservedJob] = []
        self._loads: ExpectedLoads | None = None
        self._choosing = asyncio.Lock()

    @property
    def routes(self) -> RouteGroup:
        """The HTTP routes that this object handles."""
        return RouteGroup(light={CLUSTER_STATE_PATH: self.state}, changes={PLACEMENT_PATH: self.place})

    async def state(self, query: Mapping[str, str], _: Rights) -> dict[str, Any]:
        """Return the state of this cluster.

        Every user may request the state, because it names neither users nor jobs.
        """
        refuse_unknown(query, ())
        return (await self._states.own()).to_json()

    async def place(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Choose a cluster for a job, and return the choice with its reasons; do not submit the job.

        Every user may request the choice.

        Raises:
            UsageError: the body is malformed or names an unknown cluster.
            UnavailableError: numpy is not installed.
        """
        query = PlacementQuery.from_json(body)
        known = await self._states.known()
        unknown = [name for name in query.predictions if name not in known]
        if unknown:
            todo = f"known: {', '.join(known)}"
            raise UsageError(f"cluster '{shown(unknown[0])}'", "is not configured", todo)
        usable = {
            name: one.state
            for name, one in known.items()
            if name in query.predictions and not one.problem and one.state is not None
        }
        async with self._choosing:  # the second of two jobs must see the first one's reservation
            answer = await self._choose(query, known, usable, rights.name or "")
        left_out = [
            {"cluster": name, "problem": one.problem or "not asked for"}
            for name, one in known.items()
            if name not in usable
        ]
        config = self._config()
        policy = query.policy or config.placement.policy
        return {**answer, "home": config.cluster.name, "policy": policy, "left_out": left_out}

    async def _choose(
        self,
        query: PlacementQuery,
        known: Mapping[str, KnownCluster],
        usable: Mapping[str, ClusterState],
        user: str,
    ) -> dict[str, Any]:
        """Choose one of the usable clusters for a job and return the response to the query.

        If the query requests a reservation, the job is reserved on the chosen cluster.
        """
        from slurm_energy.controller.clusters.cluster_choice import ExpectedLoads, ReservedJob, choose_cluster

        if not usable:
            reason = "no cluster answers"
            return {"cluster": None, "reason": reason, "order": [], "clusters": [], "notes": []}
        if self._loads is None:
            self._loads = ExpectedLoads()
        now_s = self._clock()
        self._forget(known, now_s)
        arguments = (self._config(), usable, query, tuple(self._reserved), self._loads, now_s)
        answer = await asyncio.to_thread(choose_cluster, *arguments)
        if query.reserve and (cluster := answer["cluster"]) and self._may_reserve(user):
            run_s = query.predictions[cluster].run_s
            self._reserved.append(ReservedJob(user, cluster, query.cpus, query.gpus, run_s, now_s))
        return answer

    def _may_reserve(self, user: str) -> bool:
        own = sum(one.user == user for one in self._reserved)
        return own < MAX_RESERVED_PER_USER and len(self._reserved) < MAX_RESERVED

    def _forget(self, known: Mapping[str, KnownCluster], now_s: float) -> None:
        """Discard reservations of jobs that are no longer needed.

        A reservation is discarded when it is old, or when the reported state of its cluster already contains
        the job.
        """

        def counts(job: ReservedJob) -> bool:
            one = known.get(job.cluster)
            taken_s = one.state.taken_unix_s if one is not None and one.state is not None else 0.0
            return 0 <= now_s - job.placed_unix_s < RESERVED_S and taken_s < job.placed_unix_s + SUBMITTED_S

        self._reserved = [job for job in self._reserved if counts(job)]
