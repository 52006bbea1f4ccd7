"""Advice for programs with several ranks (processes) that train together.

The first advice is to exchange gradients less often. The second advice is to divide the work in proportion
to the speed of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.finding_advice import FindingAdvice, joules_of_part
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.trials.change_set import AdvisedChange

_ACCUMULATION_FACTOR = 2


def accumulated_gradients(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to exchange gradients half as often.

    The program then computes twice as many steps per exchange, which halves the time of exchanges.
    """
    if finding.seconds_lost is None:
        return
    old = view.hint("accumulation")
    steps = round(_ACCUMULATION_FACTOR * (old or 1))
    gain_s = finding.seconds_lost * (1 - 1 / _ACCUMULATION_FACTOR)
    yield FindingAdvice(
        finding.kind,
        f"Exchange gradients once in {steps} steps (gradient accumulation, `no_sync`): half as often as now"
        + ("" if old else ", if the program exchanges them in each step")
        + ". The effective batch doubles: check the learning rate and the result of the training.",
        f'slurm_energy.adjusted("accumulation", default={steps})',
        gain_s,
        joules_of_part(finding, gain_s),
        "half of the time that this job spends in communication, an upper bound",
        "phase communication and energy per sample of the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.ACCUMULATION, steps, old),),
    )


def balanced_work(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to divide the work in proportion to the speed of the ranks.

    In this way no rank waits for another.
    """
    count = len(view.ranks) or len(view.busy_gpus)
    is_partial = finding.kind is not FindingKind.THERMAL_THROTTLING or len(finding.where) < count
    if finding.seconds_lost is None or count < 2 or not is_partial:
        return
    lines = ['slurm_energy.adjusted("balance", default=True)']
    if slow := _slow_nodes(view, finding):
        lines.append(f"#SBATCH --exclude={','.join(slow)}")
    yield FindingAdvice(
        finding.kind,
        "Divide each batch by the measured speed of the ranks (docs/training-balanced.md), or give the slow"
        " ones less work. If always the same node is slow, exclude it and report it.",
        "; ".join(lines),
        finding.seconds_lost,
        finding.joules_lost,
        "time in which ranks wait for the slowest one, an upper bound",
        "time per step of the slowest rank in the next run: senergy diagnose",
        (AdvisedChange(AdjustmentKind.BALANCE, 1, None),),
    )


def _slow_nodes(view: JobView, finding: JobFinding) -> list[str]:
    """Return the nodes of the slow ranks or GPUs; empty if these are at least half of the nodes."""
    names = {rank.name: rank.steps.node for rank in view.ranks} | {gpu.name: gpu.node for gpu in view.gpus}
    slow = sorted({names[name] for name in finding.where if name in names})
    return slow if 2 * len(slow) < len(view.observation.nodes) else []
