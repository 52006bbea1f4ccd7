"""Assembly of the observation of a job on one node, which is stored with the job's energy record.

An observation consists of the recorded signals of the job and the steps that the job has reported.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from slurm_energy.agent.signals.recording import SignalRecording
from slurm_energy.agent.signals.step_reports import StepReports
from slurm_energy.diagnosis.json_codec import node_to_json
from slurm_energy.diagnosis.observation import NodeObservation

log = logging.getLogger(__name__)

MAX_BYTES: Final = 6_000_000
"""Maximum size of an observation as JSON. The controller accepts 16 MiB with record and power trace."""


def node_observation(
    node: str,
    recording: SignalRecording | None,
    reports: StepReports,
    unix_at: Callable[[float], float],
) -> NodeObservation | None:
    """Return the observation of a job on a node; None if nothing was observed.

    Args:
        node: Slurm's name of the node.
        recording: the job's signals; None if no signals were sampled.
        reports: the steps that the job's processes reported.
        unix_at: converts seconds since boot to Unix seconds.
    """
    ranks, malformed = reports.ranks(node)
    if malformed:
        log.info("observation: %d malformed reports of steps are left out", malformed)
    series = recording.series(node, unix_at) if recording else ()
    return NodeObservation(node, series, tuple(ranks)) if series or ranks else None


def observation_json(observation: NodeObservation | None) -> dict[str, Any] | None:
    """Return an observation as a JSON object of limited size; None if there is no observation.

    If the observation is too large, parts are left out in this order: steps over time, series of single CPUs,
    processes.
    """
    if observation is None:
        return None
    for smaller in _reduced(observation):
        data: dict[str, Any] | None = node_to_json(smaller)
        if len(json.dumps(data)) <= MAX_BYTES:
            return data
        data = None  # two large texts must not be in memory at the same time
    return None


def _reduced(observation: NodeObservation) -> Iterator[NodeObservation]:
    yield observation
    ranks = tuple(dataclasses.replace(rank, intervals=None) for rank in observation.ranks)
    observation = dataclasses.replace(observation, ranks=ranks)
    yield observation
    series = tuple(one for one in observation.series if not one.part.startswith("cpu["))
    observation = dataclasses.replace(observation, series=series)
    yield observation
    while observation.ranks:
        half = observation.ranks[: len(observation.ranks) // 2]
        observation = dataclasses.replace(observation, ranks=half)
        yield observation
