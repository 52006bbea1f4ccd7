"""HTTP requests about adjustments: their URL paths, and an agent's request for the values of a job.

The agent builds this request and senergyctld parses it. docs/reference/protocol.md describes the responses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.adjustment import (
    PROGRAM_KINDS,
    AdjustmentKind,
    checked_value,
    kind_named,
)
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM

ADJUSTMENTS_PATH: Final = "/v1/adjustments"
VALUES_PATH: Final = "/v1/adjustments/values"
_MAX_NAME: Final = 256
_COUNT = re.compile(r"\d{1,15}", re.ASCII)
_MODEL = re.compile(r"[A-Za-z0-9_.:/+-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValuesRequest:
    """A request for the adjusted values of one job on one node.

    Attributes:
        node: Slurm's name of the requesting node. The job must run on this node.
        job_id, restart_count: job id and restart count, which identify the run of the job.
        requested: kinds of values that the program has requested on this node.
        fingerprint: digest of the batch script; None if this node does not know it.
        model: value of `--energy-model`; None if the job was submitted without this flag.
    """

    node: str
    job_id: int
    restart_count: int
    requested: frozenset[AdjustmentKind]
    fingerprint: str | None = None
    model: str | None = None

    def parameters(self) -> dict[str, str]:
        """Return the query parameters. Unknown values are left out."""
        optional = {"fingerprint": self.fingerprint, "model": self.model}
        return {
            "node": self.node,
            "job_id": str(self.job_id),
            "restart_count": str(self.restart_count),
            "requested": ",".join(sorted(kind.value for kind in self.requested)),
            **{name: value for name, value in optional.items() if value is not None},
        }

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> ValuesRequest:
        """Parse the query parameters that `parameters` returned.

        Unknown parameters, which a newer agent may send, are ignored. Requested values are left out if this
        release does not know their kind.

        Raises:
            UsageError: a parameter is missing or malformed.
        """
        node = query.get("node", "")
        if not (0 < len(node) <= _MAX_NAME and node.isprintable()):
            raise UsageError(f"node: '{shown(node)}' is not a name of at most {_MAX_NAME} characters")
        names = {kind.value: kind for kind in PROGRAM_KINDS}
        requested = query.get("requested", "")[:_MAX_NAME].split(",")
        return cls(
            node=node,
            job_id=int(_matched(query, "job_id", _COUNT)),
            restart_count=int(_matched(query, "restart_count", _COUNT)),
            requested=frozenset(names[name] for name in requested if name in names),
            fingerprint=_matched(query, "fingerprint", FINGERPRINT_FORM) if "fingerprint" in query else None,
            model=_matched(query, "model", _MODEL) if "model" in query else None,
        )


def program_values(response: Mapping[str, Any]) -> dict[str, int]:
    """Return the adjusted values of a program from senergyctld's response, by kind of adjustment.

    Kinds or values that this release does not accept are left out.
    """
    raw = response.get("values")
    values: dict[str, int] = {}
    for name, value in raw.items() if isinstance(raw, Mapping) else ():
        try:
            kind = kind_named(name)
        except UsageError:
            continue
        checked = checked_value(kind, value)
        if kind in PROGRAM_KINDS and checked is not None:
            values[kind.value] = checked
    return values


def _matched(query: Mapping[str, str], key: str, form: re.Pattern[str]) -> str:
    text = query.get(key, "")
    if not form.fullmatch(text):
        raise UsageError(f"{key}: bad value '{shown(text)}'")
    return text
