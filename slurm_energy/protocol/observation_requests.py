"""The request for the observations of a job, and its response.

Each element of `nodes` in the response is a node observation as JSON, see `diagnosis.json_codec`. A job
without observations has an empty list. Users who may see the job's records may see its observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slurm_energy.errors import UnavailableError

OBSERVATION_ROUTE: Final = "/v1/jobs/{id}/observation"
NODES_KEY: Final = "nodes"


def observation_path(job_id: str) -> str:
    """Return the path of the request for the observations of a job.

    Args:
        job_id: id as Slurm shows it: `12`, `12_3` or `14+0`.
    """
    return OBSERVATION_ROUTE.format(id=job_id)


def node_documents(response: Mapping[str, Any]) -> list[Any]:
    """Return the observations of a job on its nodes from a response, as JSON objects.

    An observation contains the sampled signals and the reported steps of the job on one node.

    Raises:
        UnavailableError: the response has another form.
    """
    nodes = response.get(NODES_KEY)
    if not isinstance(nodes, list):
        raise UnavailableError("controller's answer: the observation of a job has no list of nodes")
    return nodes
