"""Value of the key `tuning` in the energy record of a job.

The value contains the measured responses to settings, and the chosen operating point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.phase_knowledge import PhaseKnowledge
from slurm_energy.tuning.progress_window import ProgressSource
from slurm_energy.tuning.response_curve import CurveSource, ResponsePoint


def summary(
    points: Sequence[OperatingPoint],
    objective: Objective,
    phases: Sequence[PhaseKnowledge],
    source: ProgressSource | None,
    static: tuple[OperatingPoint, CurveSource] | None,
) -> dict[str, Any]:
    """Return the summary of a job's tuning, which the job's energy record contains as key `tuning`.

    Args:
        points: candidate points. The first point is the untuned point.
        objective: objective of the job.
        phases: phases of the job. The longest phase is reported.
        source: signal from which the job's progress was measured; None means that no progress was measured.
        static: operating point of a job whose progress cannot be measured, with the origin of the point.
            None means that a search has found the operating point.
    """
    main = _main_phase(phases)
    reference = main.track.blocks[0] if main.ensemble is not None else None
    index = main.chosen or 0
    return {
        "mode": "on",
        "objective": objective.name,
        "slowdown_limit": objective.slowdown_limit,
        "progress": (source or ProgressSource.NONE).value,
        "reference": reference and {"units_per_s": reference.units_per_s, "watts": reference.watts},
        "points": [point.to_json() for point in response_points(points, phases)],
        "chosen": (static[0] if static else points[index]).to_json(),
        "chosen_source": (static[1] if static else CurveSource.THIS_RUN).value,
        "probes": sum(phase.probes for phase in phases),
        "estimated_saving": None if static else _saving(main, index),
        "exploration": False,
    }


def response_points(
    points: Sequence[OperatingPoint], phases: Sequence[PhaseKnowledge]
) -> list[ResponsePoint]:
    """Return the measured time and power at each operating point that the search has tried.

    If the program has several phases, the measurements in the longest phase are returned.
    """
    main = _main_phase(phases)
    result = []
    for index, visit in sorted(main.visits.items()):
        log_time, log_power = main.log_ratios(visit)
        error = math.hypot(visit.relative_error, main.reference_error())
        ratios = (math.exp(log_time), math.exp(log_power))
        result.append(ResponsePoint(points[index], *ratios, CurveSource.THIS_RUN, error, visit.windows))
    return result


def _main_phase(phases: Sequence[PhaseKnowledge]) -> PhaseKnowledge:
    return max(phases, key=lambda phase: phase.held_s)


def _saving(phase: PhaseKnowledge, index: int) -> float | None:
    """Return the relative saving of energy at certain hardware settings in a phase of the job.

    Return None if the job was not measured at these settings.
    """
    if index == 0:
        return None if phase.ensemble is None else 0.0
    visit = phase.visits.get(index)
    return None if visit is None else 1.0 - math.exp(sum(phase.log_ratios(visit)))
