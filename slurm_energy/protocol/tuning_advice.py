"""The request of an agent for tuning advice about one of its jobs: `GET /v1/tuning/advice`.

The agent builds the request and senergyctld parses it. docs/reference/protocol.md describes the response.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM

ADVICE_PATH: Final = "/v1/tuning/advice"
MAX_NAME: Final = 256
_MAX_SLOWDOWN: Final = 10.0
_MAX_WATTS: Final = 1e9
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.:/+-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class AdviceRequest:
    """A request for advice about one job on one node.

    Attributes:
        node: Slurm's name of the requesting node. The job must run on this node.
        job_id, restart_count: job id and restart count, which identify the run of the job.
        hardware: kind of hardware, see `tuning.response_curve.hardware_kind`.
        objective: `edp`, `ed2p` or `energy`; None if unknown. Without an objective the response has no
            starting point.
        slowdown_limit: maximum increase of the job's time relative to the untuned job, as a fraction; None
            for no limit.
        mode: tuning mode of the job, `advise` or `on`; None for the site's configured mode. In mode `advise`
            the job does not explore.
        fingerprint: digest of the batch script; None if this node does not know it.
        model: value of `--energy-model`; None if the job was submitted without this flag.
        watts: measured power of the untuned job in watts; None if not measured yet.
        gpu_watts: highest mean power of one GPU of the untuned job; None if unknown or without GPUs.
    """

    node: str
    job_id: int
    restart_count: int
    hardware: str
    objective: str | None = None
    slowdown_limit: float | None = None
    mode: str | None = None
    fingerprint: str | None = None
    model: str | None = None
    watts: float | None = None
    gpu_watts: float | None = None

    def parameters(self) -> dict[str, str]:
        """Return the request for tuning advice as query parameters. Unknown values are left out."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: f"{value:.6f}" if isinstance(value, float) else str(value)
            for name, value in values.items()
            if value is not None
        }

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> AdviceRequest:
        """Parse the query parameters that `parameters` returned.

        Unknown parameters, which a newer agent may send, are ignored.

        Raises:
            UsageError: a parameter is missing or malformed.
        """
        return cls(
            node=_text(query, "node"),
            job_id=int(_matched(query, "job_id", _COUNT)),
            restart_count=int(_matched(query, "restart_count", _COUNT)),
            hardware=_text(query, "hardware"),
            objective=_matched(query, "objective", _NAME) if "objective" in query else None,
            slowdown_limit=_number(query, "slowdown_limit", _MAX_SLOWDOWN),
            mode=_matched(query, "mode", _NAME) if "mode" in query else None,
            fingerprint=_matched(query, "fingerprint", FINGERPRINT_FORM) if "fingerprint" in query else None,
            model=_matched(query, "model", _NAME) if "model" in query else None,
            watts=_number(query, "watts", _MAX_WATTS),
            gpu_watts=_number(query, "gpu_watts", _MAX_WATTS),
        )


def _text(query: Mapping[str, str], key: str) -> str:
    text = query.get(key, "")
    if not (0 < len(text) <= MAX_NAME and text.isprintable()):
        raise UsageError(f"{key}: '{shown(text)}' is not a name of at most {MAX_NAME} characters")
    return text


def _matched(query: Mapping[str, str], key: str, form: re.Pattern[str]) -> str:
    text = query.get(key, "")
    if not form.fullmatch(text):
        raise UsageError(f"{key}: bad value '{shown(text)}'")
    return text


def _number(query: Mapping[str, str], key: str, high: float) -> float | None:
    if key not in query:
        return None
    value = float(_matched(query, key, _NUMBER))
    if not (math.isfinite(value) and value <= high):
        raise UsageError(f"{key}: '{shown(query[key])}' is above {high:g}")
    return value
