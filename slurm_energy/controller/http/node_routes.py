"""State of all nodes for `senergy doctor --cluster`: the reports of the agents and the states in Slurm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.config import Config
from slurm_energy.config.section_digests import section_digests
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.live_reports import LiveReports
from slurm_energy.errors import EnergyError
from slurm_energy.protocol.node_states import NODES_PATH
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.records import SCHEMA_VERSION
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.node_states import NodeInSlurm, read_slurm_nodes

MIN_AGE_S: Final = 5.0
"""Requests within this time share one sinfo command."""
MAX_STALE_S: Final = 120.0
"""Age up to which states are used while Slurm does not answer."""


class SlurmNodeCache:
    """Cache of the nodes that Slurm knows. Requests at the same time share one command.

    Args:
        run: function that runs sinfo.
        clock: function that returns monotonic seconds.
    """

    def __init__(self, run: Runner, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._nodes: Mapping[str, NodeInSlurm] = {}
        self._read_s = -MAX_STALE_S
        self._tried_s = -MIN_AGE_S
        self._error = ""
        self._lock = asyncio.Lock()

    async def read(self) -> tuple[Mapping[str, NodeInSlurm], str]:
        """Return the nodes that Slurm knows, by name, and the reason why Slurm did not answer.

        The reason is empty if Slurm answered.
        """
        async with self._lock:
            if self._clock() - self._tried_s >= MIN_AGE_S:
                await self._refresh()
        valid = self._clock() - self._read_s < MAX_STALE_S
        return self._nodes if valid else {}, self._error

    async def _refresh(self) -> None:
        try:
            self._nodes = await asyncio.to_thread(read_slurm_nodes, self._run)
            self._read_s, self._error = self._clock(), ""
        except EnergyError as error:
            self._error = str(error)
        self._tried_s = self._clock()


class NodeRoutes:
    """Routes about the state of nodes.

    Args:
        config: returns the current configuration.
        live: receiver that keeps the last live report of each node.
        run: runs sinfo.
    """

    def __init__(self, config: Callable[[], Config], live: LiveReports, run: Runner) -> None:
        self._config, self._live = config, live
        self._slurm = SlurmNodeCache(run)
        self._started_s = time.monotonic()

    @property
    def routes(self) -> RouteGroup:
        """The HTTP route that this object handles."""
        return RouteGroup(costly={NODES_PATH: self.nodes})

    async def nodes(self, query: dict[str, str], rights: Rights) -> Mapping[str, Any]:
        """Return the state of all nodes.

        Users who are not operators see only the state of each node in Slurm, whether its agent reports, and
        the agent's release.

        Raises:
            UsageError: the request has parameters.
        """
        refuse_unknown(query, ())
        in_slurm, error = await self._slurm.read()
        config = self._config()
        answer: dict[str, Any] = {
            **rights.described(),
            "time": time.time(),
            "cluster": config.cluster.name,
            "version": __version__,
            "schema": SCHEMA_VERSION,
            "slurm_error": error or None,
            "report_interval_s": self._live.interval_s,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
        }
        if rights.everything:
            answer["config"] = section_digests(config)
        return answer | await asyncio.to_thread(self._node_list, in_slurm, rights.everything)

    def _node_list(self, in_slurm: Mapping[str, NodeInSlurm], everything: bool) -> dict[str, Any]:
        """Return the lists `nodes` and `facts` for the response about the nodes of the cluster.

        Facts are properties of a node that its agent has reported. Equal facts of several nodes are listed
        only once: the field `facts` of a node is an index into the list `facts`.
        """
        cluster = self._config().cluster.name
        states = {state.node: state for state in self._live.nodes()}
        refusals = self._live.refusals() if everything else {}
        numbers: dict[str, int] = {}
        nodes = []
        for name in sorted(in_slurm.keys() | states.keys()):
            node: dict[str, Any] = {"node": name}
            if (slurm := in_slurm.get(name)) is not None:
                node |= {"slurm_state": slurm.state, "is_expected": slurm.is_expected_up}
                node |= {"is_busy": slurm.is_busy, "partition": slurm.partition}
                node |= {"slurmd": slurm.version or None}
            if (state := states.get(name)) is not None:
                node["age_s"] = round(self._live.age_s(state), 1)
                if state.cluster != cluster:
                    node["cluster"] = state.cluster
                if state.facts is not None:
                    facts = state.facts if everything else _public_facts(state.facts)
                    node["facts"] = numbers.setdefault(facts, len(numbers))
                if everything:
                    node |= {"clock_offset_s": round(state.clock_offset_s, 3), "counts": dict(state.counts)}
            if name in refusals:
                node["refusal"] = refusals[name]
            nodes.append(node)
        return {"facts": [json.loads(text) for text in numbers], "nodes": nodes}


def _public_facts(facts: str) -> str:
    return json.dumps({"version": json.loads(facts).get("version")})
