"""Requests of `senergy report`, which the CLI builds and senergyctld parses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown, switch, words
from slurm_energy.quantities import shown

USAGE_PATH: Final = "/v1/usage"
DIMENSIONS: Final = ("account", "user", "qos", "partition", "policy", "tag", "gpu_kind", "cpus")
MAX_INTERVALS: Final = 500
_MAX_UNIX_S: Final = 2**36
_EDGE = re.compile(r"\d{1,11}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UsageRequest:
    """Query of `GET /v1/usage`.

    Attributes:
        edges: ascending times in Unix seconds. They are the start and end of the time window, and the
            boundaries of the intervals between them.
        by: dimensions by which energy is grouped, from `DIMENSIONS`.
        clusters: names of clusters; empty for the controller's own cluster.
        all_clusters: whether every cluster of the database is included.
        nodes: names of nodes to which the energy is restricted; empty for all nodes.
        count_jobs: whether the response also contains the number of jobs that ran.
    """

    edges: tuple[int, ...]
    by: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    all_clusters: bool = False
    nodes: tuple[str, ...] = ()
    count_jobs: bool = False

    def parameters(self) -> dict[str, str]:
        """Return the query parameters."""
        values = {
            "edges": ",".join(map(str, self.edges)),
            "by": ",".join(self.by),
            "cluster": ",".join(self.clusters),
            "all_clusters": "1" if self.all_clusters else "",
            "node": ",".join(self.nodes),
            "jobs": "1" if self.count_jobs else "",
        }
        return {key: value for key, value in values.items() if value}

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> UsageRequest:
        """Parse the query parameters that `parameters` returned.

        Raises:
            UsageError: a parameter is unknown, malformed or missing.
        """
        refuse_unknown(query, ("edges", "by", "cluster", "all_clusters", "node", "jobs"))
        texts = words(query, "edges")
        if not all(_EDGE.fullmatch(text) and int(text) <= _MAX_UNIX_S for text in texts):
            raise UsageError("edges", "not a list of Unix seconds")
        edges = tuple(int(text) for text in texts)
        if len(edges) < 2 or any(after <= before for before, after in itertools.pairwise(edges)):
            raise UsageError("edges", "not two or more ascending times")
        if len(edges) > MAX_INTERVALS + 1:
            raise UsageError("edges", f"more than {MAX_INTERVALS} intervals", "ask for longer intervals")
        by = words(query, "by")
        for name in by:
            if name not in DIMENSIONS:
                raise UsageError(f"by: '{shown(name)}'", "not a dimension", f"known: {', '.join(DIMENSIONS)}")
        return cls(
            edges,
            tuple(dict.fromkeys(by)),
            words(query, "cluster"),
            switch(query, "all_clusters"),
            words(query, "node"),
            switch(query, "jobs"),
        )
