"""Advice about power and clock limits that slow a job down.

The advice names the limit at which the job uses the least energy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.finding_advice import FindingAdvice
from slurm_energy.diagnosis.gpu_view import GpuView
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.rules.clocks import reference_mhz
from slurm_energy.diagnosis.series_means import mean_of
from slurm_energy.diagnosis.trials.change_set import AdvisedChange

_MIN_RISE = 1.05
_BUSY = 60.0


@dataclass(frozen=True, slots=True)
class _PowerModel:
    """Model of a job's power: a constant part, and a part that grows with the square of the GPU clock.

    Attributes:
        ratio: present clock divided by the highest clock.
        constant_watts: constant part, which is the power of the job without any activity of its GPUs.
        dynamic_watts: variable part at the present clock, which is the power of the activity of the GPUs.
        highest_mhz: highest clock of the GPUs in MHz.
    """

    ratio: float
    constant_watts: float
    dynamic_watts: float
    highest_mhz: float

    def best_ratio(self) -> float:
        """Return the clock with the least energy per unit of work, divided by the highest clock.

        In the model, the power at clock c is C + D c^2. C is the constant power, D describes the dynamic
        power. The time per unit of work is proportional to 1 / c. The energy per unit of work is therefore
        (C + D c^2) / c, with its minimum at c = sqrt(C / D).
        """
        return min(1.0, self.ratio * math.sqrt(self.constant_watts / self.dynamic_watts))

    def energy_ratio(self, ratio: float) -> float:
        """Return the energy per unit of work at another clock, divided by the energy at the present clock.

        The other clock is `ratio` times the highest clock.
        """
        change = ratio / self.ratio
        power = self.constant_watts + self.dynamic_watts * change**2
        return power / change / (self.constant_watts + self.dynamic_watts)


def raised_limit(view: JobView, finding: JobFinding) -> Iterator[FindingAdvice]:
    """Yield the advice to raise a power or clock limit if a higher limit would lower the energy.

    A limit that already saves energy yields no advice.
    """
    gpus = [gpu for gpu in view.busy_gpus if gpu.name in finding.where]
    model = _power_model(view, gpus) if gpus and len(gpus) == len(view.busy_gpus) else None
    if model is None:
        return
    best = model.best_ratio()
    if best < _MIN_RISE * model.ratio:
        return
    change = _limit_change(view, gpus, best, model)
    active_joules = (view.mean_watts or 0.0) * view.active_s
    unit = "W" if change.kind is AdjustmentKind.GPU_CAP else "MHz"
    yield FindingAdvice(
        finding.kind,
        f"At {100 * best:.0f} % of their highest clock instead of {100 * model.ratio:.0f} % the GPUs need"
        f" less time and energy: a limit of {change.new} {unit}.",
        f"#SBATCH --energy-{change.kind.value}={change.new}",
        (1 - model.ratio / best) * view.active_s,
        (1 - model.energy_ratio(best)) * active_joules,
        "power of this job, if the activity of the GPUs draws power with the square of their clock",
        "time and energy of the next run: senergy job OLD NEW --html FILE",
        (change,),
    )


def _limit_change(view: JobView, gpus: list[GpuView], best: float, model: _PowerModel) -> AdvisedChange:
    """Return the change of a GPU limit that the advice suggests.

    The advice changes the power limit if the present power limit of all GPUs is below their highest one.
    Otherwise the advice changes the clock limit.
    """
    limits = [view.context.limit_watts.get(gpu.node, {}).get(gpu.part) for gpu in gpus]
    highest = [view.context.max_limit_watts.get(gpu.node, {}).get(gpu.part) for gpu in gpus]
    if all(a and b and a < 0.97 * b for a, b in zip(limits, highest, strict=True)):
        low, high = min(one or 0.0 for one in limits), min(one or 0.0 for one in highest)
        idle = mean_of([view.context.idle_watts[gpu.node][gpu.part] for gpu in gpus]) or 0.0
        watts = min(high, idle + (low - idle) * (best / model.ratio) ** 2)
        return AdvisedChange(AdjustmentKind.GPU_CAP, math.ceil(watts), low)
    mhz = model.highest_mhz
    return AdvisedChange(AdjustmentKind.GPU_CLOCK, round(best * mhz), round(model.ratio * mhz))


def _power_model(view: JobView, gpus: list[GpuView]) -> _PowerModel | None:
    """Return the model of the job's power.

    The result is None if a power, an idle power or a clock is unknown. It is also None if the highest clocks
    of the GPUs differ, because no single limit suits all of them.
    """
    highest, watts = {reference_mhz(view, gpu) for gpu in gpus}, view.mean_watts
    clocks = [gpu.working_mean("sm_clock_mhz", _BUSY) for gpu in gpus]
    idle = [view.context.idle_watts.get(gpu.node, {}).get(gpu.part) for gpu in gpus]
    powers = [gpu.mean("power_watts") for gpu in gpus]
    known = [value for value in (*clocks, *idle, *powers) if value is not None]
    if len(highest) != 1 or watts is None or len(known) < 3 * len(gpus):
        return None
    (highest_mhz,) = highest
    clock = mean_of([value for value in clocks if value is not None]) or 0.0
    dynamic = sum(value or 0.0 for value in powers) - sum(value or 0.0 for value in idle)
    if not highest_mhz or dynamic <= 0 or clock <= 0 or dynamic >= watts:
        return None
    return _PowerModel(clock / highest_mhz, watts - dynamic, dynamic, highest_mhz)
