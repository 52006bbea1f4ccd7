"""State of a job's tuning, which the agent stores with the job.

At the end of the job, the state becomes the key `tuning` of the job's record.
"""

from __future__ import annotations

from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import ResponsePoint
from slurm_energy.tuning_record import check_tuning


def new_state(mode: str, objective: str, slowdown_limit: float | None) -> dict[str, Any]:
    """Return the initial tuning state of a job that starts."""
    return {
        "mode": mode,
        "objective": objective,
        "slowdown_limit": slowdown_limit,
        "progress": "none",
        "reference": None,
        "points": [],
        "chosen": None,
        "chosen_source": None,
        "probes": 0,
        "estimated_saving": None,
        "exploration": False,
    }


def checked_state(data: Any) -> dict[str, Any]:
    """Check the tuning state from a session file and return it.

    The file may be damaged or written by another release.

    Raises:
        UsageError: the state is malformed.
    """
    state = check_tuning(data)
    if state is None:
        raise UsageError("tuning: no state")
    state = new_state(state["mode"], state["objective"], None) | state
    Objective(state["objective"], state["slowdown_limit"])
    for point in state["points"]:
        ResponsePoint.from_json(point)
    return state
