"""Time, energy and progress of a run of a program.

Trials compare these figures between runs with and without an adjustment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_energy.diagnosis.cpu_waits import contended_s
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.rules.allocation import idle_tail_s
from slurm_energy.diagnosis.trials.run_figures import RunFigures

if TYPE_CHECKING:
    from slurm_energy.config.diagnosis_section import DiagnosisConfig
    from slurm_energy.diagnosis.observation import JobObservation
    from slurm_energy.diagnosis.steps import RankSteps


def observed_figures(
    observation: JobObservation, job: str, energy_joules: float | None, config: DiagnosisConfig
) -> RunFigures:
    """Return the time, energy and progress of a run.

    Args:
        observation: signals, steps and allocation of the run.
        job: id of the job.
        energy_joules: energy on all nodes; None if unknown.
        config: thresholds of activity.
    """
    ranks, view = observation.ranks, JobView(observation, config)
    delay_s, watts = contended_s(view), view.waiting_watts
    return RunFigures(
        job=job,
        state=observation.context.state or "",
        elapsed_s=observation.context.elapsed_s,
        energy_joules=energy_joules,
        energy_parts=_energy_parts(observation.context.energy_joules),
        samples=_sum([rank.samples for rank in ranks]),
        steps=_sum([_steps(rank) for rank in ranks]),
        ranks=len(ranks),
        nodes=len(observation.nodes),
        hints=common_hints(ranks),
        tail_s=idle_tail_s(view),
        contended_s=delay_s,
        contended_joules=None if delay_s is None or watts is None else delay_s * watts,
    )


def _energy_parts(energies: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """Return the types of the components whose energy is known, as one text per kind of node.

    Nodes with the same types of components, such as `cpu+gpu`, are of one kind. The texts contain neither
    names nor numbers of nodes and GPUs, because both may differ between runs.
    """
    types = (
        {"node"} if "node" in parts else {name.partition("[")[0] for name in parts}
        for parts in energies.values()
    )
    return tuple(sorted({"+".join(sorted(names)) for names in types}))


def _sum(amounts: Sequence[float | None]) -> float | None:
    """Return the total of an amount (samples or steps) over all ranks.

    The result is None if there are no ranks, or if the amount of any rank is unknown or 0.

    Args:
        amounts: amount of each rank.
    """
    known = [amount for amount in amounts if amount]
    return math.fsum(known) if known and len(known) == len(amounts) else None


def _steps(rank: RankSteps) -> float | None:
    phase = rank.phases.get("step")
    return None if phase is None else float(phase.count)


def common_hints(ranks: Sequence[RankSteps]) -> dict[str, float]:
    """Return the numeric settings (hints) that all ranks report with the same value.

    The result maps the name of a setting, for example `batch_size`, to its value. Settings with different
    values on two ranks are left out.
    """
    if not ranks:
        return {}
    numbers = {name: value for name, value in ranks[0].hints.items() if isinstance(value, int | float)}
    return {
        name: float(value)
        for name, value in numbers.items()
        if all(rank.hints.get(name) == value for rank in ranks)
    }
