"""Requests of `senergy where` to senergyctld, which the CLI builds and senergyctld parses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.config.cluster_tables import MAX_CLUSTERS, PLACEMENT_POLICIES
from slurm_energy.errors import UsageError
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.quantities import is_number, shown

PLACEMENT_PATH: Final = "/v1/placement"
_MAX_BYTES: Final = 1e18
_MAX_COUNT: Final = 1e9
_MAX_S: Final = 1e9
_MAX_WATTS: Final = 1e12


@dataclass(frozen=True, slots=True)
class ClusterPrediction:
    """Predicted run time and mean power of a job on one cluster."""

    run_s: float
    watts: float

    @property
    def is_in_range(self) -> bool:
        """Whether senergyctld accepts the predicted time and power."""
        return 0 <= self.run_s <= _MAX_S and 0 <= self.watts <= _MAX_WATTS  # False for NaN


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """A query for the cluster on which a job should run.

    Attributes:
        cpus, gpus: total number of CPUs and total number of GPUs on all nodes of the job.
        predictions: predictions by name of the cluster. The job is placed only on a cluster that is listed
            here.
        data_bytes: bytes of data that must be transferred if the job runs on another cluster.
        policy: placement policy; empty for the configured policy.
        reserve: whether the job is about to be submitted. If so, the job counts in the expected load of the
            chosen cluster.
    """

    cpus: int
    gpus: int
    predictions: Mapping[str, ClusterPrediction] = field(default_factory=dict)
    data_bytes: float = 0.0
    policy: str = ""
    reserve: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {
            "cpus": self.cpus,
            "gpus": self.gpus,
            "predictions": {
                name: {"run_s": one.run_s, "watts": one.watts} for name, one in self.predictions.items()
            },
            "data_bytes": self.data_bytes,
            "policy": self.policy,
            "reserve": self.reserve,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> PlacementQuery:
        """Parse the body of a request.

        Raises:
            UsageError: a key is unknown, missing or malformed.
        """
        refuse_unknown({str(key): "" for key in body}, cls.__slots__)
        predictions, policy, reserve = (body.get(name) for name in ("predictions", "policy", "reserve"))
        if not isinstance(predictions, dict) or not 0 < len(predictions) <= MAX_CLUSTERS:
            raise UsageError("predictions", f"must be an object with 1 to {MAX_CLUSTERS} clusters")
        if policy not in ("", *PLACEMENT_POLICIES):
            raise UsageError(
                f"policy '{shown(str(policy))}'", "unknown", f"one of {', '.join(PLACEMENT_POLICIES)}"
            )
        if not isinstance(reserve, bool):
            raise UsageError("reserve", "must be true or false")
        return cls(
            cpus=int(_number(body, "cpus", _MAX_COUNT)),
            gpus=int(_number(body, "gpus", _MAX_COUNT)),
            predictions={str(name): _prediction(one) for name, one in predictions.items()},
            data_bytes=_number(body, "data_bytes", _MAX_BYTES),
            policy=str(policy),
            reserve=reserve,
        )


def _prediction(value: Any) -> ClusterPrediction:
    if not isinstance(value, dict):
        raise UsageError("predictions", "must be objects with run_s and watts")
    return ClusterPrediction(_number(value, "run_s", _MAX_S), _number(value, "watts", _MAX_WATTS))


def _number(body: Mapping[str, Any], name: str, high: float) -> float:
    value: Any = body.get(name)
    if not is_number(value) or not 0 <= value <= high:  # False for NaN
        raise UsageError(name, f"must be a number from 0 to {high:g}")
    return float(value)
