"""Rules about CPUs: contention for CPUs, and CPUs that the job does not use."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_energy.diagnosis.cpu_waits import ready_tasks_per_cpu
from slurm_energy.diagnosis.distribution import percentile
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.rules.data_pipeline import message_seconds
from slurm_energy.diagnosis.series_means import mean_of, scaled

_PEAK_PERCENTILE = 95.0
_OTHER_RESOURCE_SHARE = 50.0


def contention(view: JobView) -> Iterator[JobFinding]:
    """Yield a finding if tasks of the job wait for CPUs.

    The causes are too many threads or a CPU quota.
    """
    throttled = view.mean("cpu_throttled_percent")
    if throttled is not None and throttled >= view.threshold("cpu_throttled"):
        text = f"The CPU quota stopped the job's tasks for {throttled:.0f} % of the time."
        fact = view.fact("cpu_throttled_percent", throttled, text, "cpu_throttled")
        title = f"The CPU quota stops tasks {throttled:.0f} % of the time"
        lost = throttled / 100 * view.active_s
        yield view.finding(FindingKind.CPU_CONTENTION, title, [fact], lost, 0.9)
        return
    pressure, use, ratio = view.mean("cpu_pressure_percent"), view.cpu_use, _processes_per_cpu(view)
    if pressure is None and (tasks := ready_tasks_per_cpu(view)) is not None:
        yield from _too_many_tasks(view, tasks)
        return
    if use is not None and use < view.threshold("cpu_saturated"):
        return
    if ratio is not None and ratio < view.threshold("processes_per_cpu"):
        return
    if pressure is None:
        yield from _overcommitment(view, use, ratio)
        return
    if pressure < view.threshold("cpu_pressure"):
        return
    text = f"A task waited for a CPU for {pressure:.0f} % of the time."
    facts = [view.fact("cpu_pressure_percent", pressure, text, "cpu_pressure")]
    if use is not None:
        facts.append(
            view.fact("cpu_busy_cores", use, f"The job used {use:.0f} % of its CPUs.", "cpu_saturated")
        )
    yield view.finding(
        FindingKind.CPU_CONTENTION,
        f"More threads than CPUs: a task waits for a CPU {pressure:.0f} % of the time",
        facts,
        _gpu_wait_s(view),
        0.8,
        time_share=pressure / 100,
    )


def _too_many_tasks(view: JobView, tasks: float) -> Iterator[JobFinding]:
    """Yield the finding that too many tasks compete for the CPUs of the job.

    The evidence is the mean number of tasks per CPU that run or wait for a CPU.

    Tasks may wait although the job has a CPU for each of them. The cause is then work of others.
    """
    if tasks < view.threshold("processes_per_cpu"):
        return
    text = f"On average {tasks:.1f} tasks per CPU of the job ran or waited for a CPU."
    facts = [view.fact("cpu_waiting_tasks", tasks, text, "processes_per_cpu")]
    title = f"More threads than CPUs: {tasks:.1f} are ready to run for each CPU"
    share = 1 - 1 / tasks
    yield view.finding(FindingKind.CPU_CONTENTION, title, facts, _gpu_wait_s(view), 0.8, time_share=share)


def _overcommitment(view: JobView, use: float | None, ratio: float | None) -> Iterator[JobFinding]:
    """Yield the finding of CPU contention if the CPUs are busy and the job has too many processes.

    The caller uses this rule if the CPU pressure and the number of waiting tasks are unknown.
    """
    if use is None or ratio is None:
        return
    text = f"Ranks and loader processes are {ratio:.1f} times as many as the CPUs."
    facts = [
        view.fact("num_workers", ratio, text, "processes_per_cpu"),
        view.fact("cpu_busy_cores", use, f"The job used {use:.0f} % of its CPUs.", "cpu_saturated"),
    ]
    title = f"More processes than CPUs: {ratio:.1f} for each, and all CPUs are busy"
    yield view.finding(FindingKind.CPU_CONTENTION, title, facts, _gpu_wait_s(view), 0.6, time_share=1.0)


def _processes_per_cpu(view: JobView) -> float | None:
    """Return the job's number of processes per CPU; None if unknown.

    The processes are the ranks of the program and their loader processes.
    """
    workers = [rank.steps.hints.get("num_workers") for rank in view.ranks]
    counts = [count for count in workers if isinstance(count, int) and not isinstance(count, bool)]
    cpus = sum(
        allocated.known()[0]
        for node in view.observation.nodes
        if (allocated := view.node_series(node, "cpu_allocated_cores")) is not None
    )
    return (sum(counts) + len(counts)) / cpus if counts and len(counts) == len(workers) and cpus else None


def _gpu_wait_s(view: JobView) -> float | None:
    """Return for how many seconds the GPUs of a job waited for CPUs.

    The result is None for a job without GPUs.
    """
    if (seconds := view.category_seconds("data")) is not None:
        return seconds
    return None if view.gpu_busy is None else (1 - view.gpu_busy / 100) * view.active_s


def small_batch(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that batches are so small that constant costs per batch dominate the time.

    The optimizer takes the same time for a batch of any size, because its time depends only on the
    parameters of the model. A loader worker also sends one message per batch, whatever its size. On GPUs the
    optimizer's share of the time is a weak sign, because compute kernels are short.
    """
    optimizer_s, share = _optimizer(view)
    message_s = message_seconds(view)
    batch = view.hint("batch_size")
    is_small = batch is None or batch <= view.threshold("small_batch_limit")
    is_optimizer = is_small and share is not None and share >= view.threshold("small_batch_optimizer")
    if not is_optimizer and message_s is None:
        return
    facts, causes = [], []
    if share is not None and is_optimizer:
        text = f"The optimizer takes {share:.0f} % of the computation, whatever the size of the batch."
        facts.append(view.fact("optimizer", share, text, "small_batch_optimizer"))
        causes.append(f"the optimizer takes {share:.0f} % of the computation")
    if message_s is not None:
        data, wait_ms = view.category_share("data") or 0.0, 1000 * (view.mean_phase_s("data") or 0.0)
        text = f"A step waits {wait_ms:.1f} ms for the message of a worker, {data:.0f} % of its time."
        facts.append(view.fact("data", wait_ms, text, "worker_message"))
        causes.append(f"messages of the loader take {data:.0f} % of the step")
    if batch is not None:
        facts.append(view.fact("batch_size", batch, f"The batch size is {batch:.0f}."))
    title = f"Batches are too small: {' and '.join(causes)}"
    lost = (optimizer_s if is_optimizer else 0.0) + (message_s or 0.0)
    yield view.finding(FindingKind.SMALL_BATCH, title, facts, lost, 0.7)


def _optimizer(view: JobView) -> tuple[float, float | None]:
    """Return how long the optimizer of a training runs on the CPUs.

    The first value is the seconds per rank (process). The second value is the percentage of the
    computation time. The second value is None if the percentage is unknown, or if the job has GPUs.
    """
    times = [rank.times for rank in view.ranks if "optimizer" in rank.steps.phases]
    if view.gpus or not times or len(times) < len(view.ranks):
        return 0.0, None
    seconds = [rank.steps.phases["optimizer"].sum_s for rank in view.ranks]
    computing_s = math.fsum(entry.seconds.get("compute", 0.0) for entry in times)
    share = 100 * math.fsum(seconds) / computing_s if computing_s > 0 else None
    return mean_of(seconds) or 0.0, share


def unused_cpus(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that the job uses few of its CPUs even when its CPU use is highest."""
    allocated, use = _peak_use(view)
    if allocated is None or use is None or view.context.is_interactive or _holds_memory(view):
        return
    gpus = sum(map(len, view.context.gpus.values())) or len(view.gpus)
    limit = "unused_cpu_gpu" if gpus else "unused_cpu"
    unused = math.floor(allocated * (1 - use / 100))  # a core used in part is used
    if use >= view.threshold(limit) or unused < view.threshold("unused_cpu_count"):
        return
    if gpus and allocated <= gpus * view.threshold("unused_cpu_per_gpu"):
        return
    text = f"The job used at most {use:.0f} % of {allocated:.0f} CPUs."
    yield view.finding(
        FindingKind.UNUSED_CPU,
        f"{unused} of {allocated:.0f} CPUs are never used",
        [view.fact("cpu_busy_cores", use, text, limit)],
        None,
        0.8,
        joules_lost=scaled(_static_joules(view), 1 - use / 100),
        time_share=1.0,
    )


def _static_joules(view: JobView) -> float | None:
    """Return an upper bound of the energy that the idle CPUs of the job would have used; None if unknown.

    The known idle power is that of all CPUs of a node. A job on a shared node is charged only its share of
    this power, which is unknown. The energy is therefore limited to the measured energy of the job's CPUs.
    """
    energies = []
    for node in view.context.nodes:
        watts, joules = (
            table.get(node, {}).get("cpu") for table in (view.context.idle_watts, view.context.energy_joules)
        )
        if watts is None or joules is None:
            return None
        energies.append(min(watts * view.elapsed_s, joules))
    return math.fsum(energies) if energies else None


def _peak_use(view: JobView) -> tuple[float | None, float | None]:
    """Return how many CPUs the job has, and the percentage of these CPUs that it uses at its peak.

    Both values are None if the CPU use of any of the job's nodes is unknown.
    """
    peaks, cpus = [], []
    for node in view.observation.nodes:
        busy = view.node_series(node, "cpu_busy_cores")
        allocated = view.node_series(node, "cpu_allocated_cores")
        if busy is not None and allocated is not None:
            peaks.append(percentile(sorted(busy.known()), _PEAK_PERCENTILE))
            cpus.append(allocated.known()[0])
    total = math.fsum(cpus)
    if not total or len(peaks) < len(view.context.nodes):
        return None, None
    return total, 100 * math.fsum(peaks) / total


def _holds_memory(view: JobView) -> bool:
    """Return whether the job uses a large share of its memory limit.

    A job may request more CPUs than it uses in order to get the memory that Slurm allocates with each CPU.
    In such a job, unused CPUs are not necessarily a waste.
    """
    used, limit = view.mean("memory_used_bytes"), view.mean("memory_limit_bytes")
    share = None if used is None or not limit else 100 * used / limit
    return share is not None and share >= _OTHER_RESOURCE_SHARE
