"""Request for the untuned runs of programs. `senergy acct` compares jobs with these runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.known_fields import known_fields
from slurm_energy.quantities import shown

UNTUNED_PATH: Final = "/v1/untuned-runs"
MAX_PROGRAMS: Final = 1000
"""Maximum number of programs in a request."""
_MAX_TEXT: Final = 1024
_MAX_COUNT: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class ComparableProgram:
    """A program of one user on given resources, so that its runs are comparable.

    Attributes:
        user: login name.
        fingerprint: digest of the batch script and its arguments.
        name: name of the job; None if the job has no name.
        nodes, cpus, gpus: requested numbers of nodes, CPUs and GPUs; None if unknown.
        gpu_kind: Slurm's GRES type of the GPUs; None if the job requested no type.
    """

    user: str
    fingerprint: str
    name: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_kind: str | None = None

    @classmethod
    def from_json(cls, data: Any) -> ComparableProgram:
        """Parse an element of a request, which describes a program.

        Keys that only a newer release knows are ignored.

        Raises:
            UsageError: the element is malformed.
        """
        if not isinstance(data, dict):
            raise UsageError("program: not a JSON object")
        data = known_fields(cls, data)
        for key, value in data.items():
            if key in ("nodes", "cpus", "gpus"):
                good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
            else:
                good = isinstance(value, str) and len(value) <= _MAX_TEXT
            if not good and not (value is None and key not in _REQUIRED):
                raise UsageError(f"program: bad value for '{shown(str(key))}'")
        if not all(data.get(key) for key in _REQUIRED):
            raise UsageError("program: 'user' or 'fingerprint' is missing")
        return cls(**data)


_REQUIRED: Final = ("user", "fingerprint")


@dataclass(frozen=True, slots=True)
class UntunedRuns:
    """Statistics of the completed runs of a program that ran without power settings of slurm-energy.

    Attributes:
        runs: number of runs.
        energy_joules: mean energy of a run on all its nodes.
        elapsed_s: mean duration of a run in seconds.
    """

    runs: int
    energy_joules: float
    elapsed_s: float


def request_body(programs: Sequence[ComparableProgram]) -> dict[str, Any]:
    """Return the body of a request."""
    return {"programs": [asdict(program) for program in programs]}


def read_programs(body: Mapping[str, Any]) -> list[ComparableProgram]:
    """Return the programs that are listed in the body of a request for untuned runs.

    `senergy acct` sends the request. It compares jobs with the untuned runs of these programs.

    Raises:
        UsageError: the body is malformed.
    """
    items = body.get("programs")
    if set(body) != {"programs"} or not isinstance(items, list) or len(items) > MAX_PROGRAMS:
        raise UsageError(f"'programs' is not a list of at most {MAX_PROGRAMS}")
    return [ComparableProgram.from_json(item) for item in items]


def read_response(response: Mapping[str, Any]) -> list[UntunedRuns | None]:
    """Return the statistics of untuned runs in a response, one per program.

    The result for a program without untuned runs is None.
    """
    items = response.get("untuned_runs")
    return [None if item is None else UntunedRuns(**item) for item in items or []]
