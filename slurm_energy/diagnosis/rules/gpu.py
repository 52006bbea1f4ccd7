"""Rules with which the diagnosis finds problems with the use of GPUs.

The problems are unused GPUs, little work per step, and low use for an unknown reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.gpu_view import GpuView
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.rules.data_pipeline import message_seconds
from slurm_energy.diagnosis.series_means import mean_of

_FULL_USE = 95.0
_BATCH_BUSY = 35.0
_DATA_WAIT_LIMIT = 25.0
_BURSTS = 1.8
"""Ratio of the 90th percentile to the mean of the use of a GPU if requests arrive at random."""
_HELD_MEMORY = 50.0
"""Minimum GPU memory in use, in percent, of a service that holds its model ready."""


def unused_gpus(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the job never used some of its GPUs."""
    unused = [gpu for gpu in view.gpus if _is_unused(view, gpu)]
    use = view.cpu_use
    is_idle = use is not None and use < view.threshold("idle_cpu")
    if not unused or (is_idle and len(unused) == len(view.allocated_gpus)):
        return  # a job that does nothing at all is an idle allocation
    energies = [view.gpu_joules(gpu) for gpu in unused]
    known = [joules for joules in energies if joules is not None]
    facts = [_unused_fact(view, gpu) for gpu in unused]
    yield view.finding(
        FindingKind.UNUSED_GPU,
        f"{len(unused)} of {len(view.allocated_gpus)} GPUs are never used",
        facts,
        None,
        0.95 if all("gpu_busy_percent" in gpu.series for gpu in unused) else 0.7,
        joules_lost=math.fsum(known) if len(known) == len(unused) else None,
        time_share=1.0,
        where=[gpu.name for gpu in unused],
    )


def _is_unused(view: JobView, gpu: GpuView) -> bool:
    busy, memory = gpu.maximum("gpu_busy_percent"), gpu.memory_share()
    if busy is not None:
        is_empty = memory is None or memory <= view.threshold("unused_gpu_memory")
        return gpu.active is None and is_empty
    idle = view.context.idle_watts.get(gpu.node, {}).get(gpu.part)
    limit = view.context.limit_watts.get(gpu.node, {}).get(gpu.part)
    watts = gpu.maximum("power_watts")
    if watts is None or idle is None or limit is None:
        return False
    return watts <= idle + view.threshold("idle_power") / 100 * (limit - idle)


def _unused_fact(view: JobView, gpu: GpuView) -> FindingEvidence:
    start, end = view.context.start_s, view.context.start_s + view.elapsed_s
    busy = gpu.maximum("gpu_busy_percent")
    if busy is not None:
        text = f"{gpu.name} was busy for at most {busy:.0f} % of any interval."
        return view.fact("gpu_busy_percent", busy, text, "gpu_active", gpu.name, (start, end))
    watts = gpu.maximum("power_watts")
    text = f"{gpu.name} drew at most {watts:.0f} W, which is idle power."
    return view.fact("power_watts", watts, text, None, gpu.name, (start, end))


def small_batch(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the steps contain too little work for the GPU.

    The GPU runs compute kernels most of the time, but the kernels use few of the GPU's compute units and
    little of the GPU's memory.
    """
    busy, data = view.gpu_busy, view.category_share("data")
    memory = mean_of([share for gpu in view.busy_gpus if (share := gpu.memory_share()) is not None])
    if view.context.is_interactive:
        return  # tests with small inputs
    if busy is None or busy < _BATCH_BUSY or view.active_s < view.threshold("minimum_time"):
        return
    if memory is None or memory >= view.threshold("small_batch_memory"):
        return
    if (data is not None and data >= _DATA_WAIT_LIMIT) or message_seconds(view) is not None:
        return
    fact = _low_activity(view)
    if fact is None or fact.value is None or fact.threshold is None or fact.value >= fact.threshold:
        return
    facts = [
        fact,
        view.fact("gpu_memory_used_bytes", memory, f"{memory:.0f} % of the GPU memory are in use."),
    ]
    batch = view.hint("batch_size")
    if batch is not None:
        facts.append(view.fact("batch_size", batch, f"The batch size is {batch:.0f}."))
    level = fact.value / max(fact.threshold, fact.value, 1.0)
    yield view.finding(
        FindingKind.SMALL_BATCH,
        f"Steps are too small for the GPU: {fact.text[0].lower()}{fact.text[1:].rstrip('.')}",
        facts,
        (1 - level) * view.active_s,
        0.8 if batch is not None else 0.65,
    )


def _low_activity(view: JobView) -> FindingEvidence | None:
    """Return the activity of the GPUs' compute units (SM activity, else power) as evidence.

    Return None if the activity is unknown.
    """
    active = view.gpu_mean("sm_active_percent")
    if active is not None:
        text = f"SMs are active for {active:.0f} % of the time."
        return view.fact("sm_active_percent", active, text, "small_batch_sm")
    levels = [level for gpu in view.busy_gpus if (level := view.gpu_power_level(gpu)) is not None]
    level = mean_of(levels)
    if level is None:
        return None
    text = f"GPUs draw {level:.0f} % of the range between idle power and limit."
    return view.fact("power_watts", level, text, "small_batch_power")


def underused(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that GPUs are underused.

    A GPU is underused if its use is low even in the 10 % of the time with the highest use.
    Programs with varying use, such as services, are busy in some intervals and get no finding.
    """
    slack = [gpu for gpu in view.busy_gpus if _is_underused(view, gpu)]
    if not slack or view.active_s < view.threshold("minimum_time"):
        return
    busy = mean_of([mean for gpu in slack if (mean := gpu.mean("gpu_busy_percent")) is not None]) or 0.0
    facts, count = [], len(view.allocated_gpus)
    for gpu in slack:
        high, mean = gpu.high("gpu_busy_percent"), gpu.mean("gpu_busy_percent")
        text = f"{gpu.name} was busy for {mean:.0f} % of the time, in its busiest tenth {high:.0f} %."
        facts.append(view.fact("gpu_busy_percent", high, text, "gpu_underused", gpu.name))
    yield view.finding(
        FindingKind.GPU_UNDERUSED,
        f"{len(slack)} of {count} GPUs are busy for only {busy:.0f} % of the time",
        facts,
        max(0.0, 1 - busy / _FULL_USE) * view.active_s * len(slack) / count,
        0.6,
        where=[gpu.name for gpu in slack],
    )


def _is_underused(view: JobView, gpu: GpuView) -> bool:
    high, mean, memory = gpu.high("gpu_busy_percent"), gpu.mean("gpu_busy_percent"), gpu.memory_share()
    if high is None or mean is None or high >= view.threshold("gpu_underused"):
        return False
    is_service = high >= _BURSTS * mean and memory is not None and memory >= _HELD_MEMORY
    return not is_service
