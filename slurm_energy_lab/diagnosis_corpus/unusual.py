"""Further synthetic jobs for tests of the diagnosis, added after a review.

The jobs are of kinds that were missing before. Some waste energy, others are healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps
from slurm_energy.slurm.exit_status import OUT_OF_MEMORY_SIGNAL, ExitStatus
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape, NodeLoad
from slurm_energy_lab.diagnosis_corpus.observe import observe
from slurm_energy_lab.diagnosis_corpus.patterns import debugging_session
from slurm_energy_lab.diagnosis_corpus.planted import PlantedJob, training_job
from slurm_energy_lab.diagnosis_corpus.training_loop import Loop

_K = FindingKind
_STEP_S = 8.0


def _loop(shape: JobShape) -> Loop:
    assert shape.loop is not None, "a training job has a loop"
    return shape.loop


def _changed(max_ranks: int = 4, **values: object) -> Callable[[Random], JobObservation]:
    """Return a builder of healthy training jobs with changed parameters."""

    def build(random: Random) -> JobObservation:
        shape = training_job(random, max_ranks=max_ranks)
        for name, value in values.items():
            setattr(shape, name, value)
        return observe(shape, random)

    return build


def _without_checkpoint(random: Random, **values: Any) -> JobObservation:
    """Return a synthetic job that writes no checkpoints.

    Half of these jobs use a framework that can report checkpoints but reports none. In the other jobs, only
    the written data show that there are no checkpoints.
    """
    has_framework = random.random() < 0.5
    job = _changed(8 if has_framework else 1, **values)(random)
    if not has_framework:
        return job
    return _with_steps(job, lambda rank: replace(rank, hints={**rank.hints, "marks_checkpoints": True}))


def _uneven_accumulation(random: Random) -> JobObservation:
    """Return a job in which half of the ranks accumulate one more micro-batch than the others."""
    shape = training_job(random, min_ranks=4)
    loop = _loop(shape)
    parts = random.choice([1, 2])
    slow = random.sample(range(loop.ranks), max(2, loop.ranks // 2))
    loop.slowness = dict.fromkeys(slow, (parts + 1) / parts)
    loop.gradient_bytes *= 0.3
    return observe(shape, random)


def _slow_checkpoints(random: Random, *, steps: bool) -> JobObservation:
    """Return a job with training steps of several seconds that rarely writes checkpoints to a slow disk.

    `steps` determines whether the step statistics of the job are observed.
    """
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    factor = _STEP_S / (loop.batch * loop.sample_gpu_s)
    for name in ("sample_gpu_s", "launch_s", "sample_cpu_s", "gradient_bytes", "tensor_bytes"):
        setattr(loop, name, getattr(loop, name) * factor)
    loop.storage_bytes_per_s /= factor
    shape.elapsed_s, shape.has_steps = random.uniform(7200, 20000), steps
    shape.checkpoint_s, shape.checkpoint_every_s = random.uniform(60, 150), random.uniform(400, 900)
    shape.checkpoint_bytes = shape.checkpoint_s * random.uniform(4e7, 9e7)
    return observe(shape, random)


def _one_of_four_gpus(random: Random) -> JobObservation:
    """Return a job with four GPUs that computes on one GPU and only opens a context on the other three."""
    shape = training_job(random, max_ranks=1)
    shape.gpus, shape.has_steps = 4, False
    job = observe(shape, random)
    series = []
    for one in job.nodes[0].series:
        if one.name == "gpu_busy_percent" and one.part != "gpu[0]":
            values = one.values[:]
            values[2] = 8.0
            one = replace(one, values=values)
        series.append(one)
    return replace(job, nodes=(replace(job.nodes[0], series=tuple(series)),))


def _half_locked(random: Random, *, steps: bool) -> JobObservation:
    """Return a job in which half of the GPUs are locked at a low clock."""
    shape = training_job(random, min_ranks=2, max_ranks=8)
    loop, clock = _loop(shape), random.uniform(0.4, 0.65)
    for rank in range(loop.ranks // 2):
        shape.gpu_clock[divmod(rank, loop.gpus)] = loop.clock[rank] = clock
    shape.clock_setting, shape.has_steps = True, steps
    return observe(shape, random)


def _bursty_input(random: Random) -> JobObservation:
    """Return a job that reads shards from slow storage. Its waits for data therefore vary."""
    shape = training_job(random, max_ranks=4)
    loop = _loop(shape)
    compute_s = loop.launch_s + loop.batch * loop.sample_gpu_s
    loop.storage_bytes_per_s = loop.batch * loop.sample_bytes * loop.gpus / compute_s
    loop.storage_bytes_per_s *= random.uniform(0.3, 0.6)
    loop.jitter = 0.3
    return observe(shape, random)


def _with_steps(job: JobObservation, change: Callable[[RankSteps], RankSteps]) -> JobObservation:
    nodes = (replace(node, ranks=tuple(map(change, node.ranks))) for node in job.nodes)
    return replace(job, nodes=tuple(nodes))


def _starting_loader(random: Random) -> JobObservation:
    """Return a synthetic job with many short epochs, whose data loader restarts in each epoch.

    Each restart starts the loader's processes again.
    """
    epochs, share = random.randint(10, 60), random.uniform(0.2, 0.6)

    def change(rank: RankSteps) -> RankSteps:
        start_s = share * rank.phases["step"].sum_s
        longer = {name: replace(p, sum_s=p.sum_s + start_s) for name, p in rank.phases.items()}
        phases = {**rank.phases, "data": longer["data"], "step": longer["step"]}
        starts = {"loader_starts": epochs, "loader_start_s": start_s, "persistent_workers": False}
        return replace(rank, phases=phases, hints={**rank.hints, **starts})

    return _with_steps(observe(training_job(random, max_ranks=4), random), change)


def _hang(random: Random) -> JobObservation:
    """Return a job that hangs.

    From some time on, its GPUs wait in a compute kernel for communication.
    """
    gpus = random.choice([2, 4, 8])
    state = random.choice(["TIMEOUT", "CANCELLED"])
    shape = JobShape(random.uniform(7200, 20000), gpus=gpus, cpus=8 * gpus, has_steps=False, state=state)
    hangs_from_s, shape.has_gpm = shape.elapsed_s * random.uniform(0.2, 0.7), random.random() < 0.5

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        if time_s > 60:
            hangs = time_s > hangs_from_s
            load.busy, load.sm = [1.0 if hangs else 0.95] * gpus, [0.03 if hangs else 0.7] * gpus
            load.dram = [0.01 if hangs else 0.4] * gpus
            load.cpu_cores = load.cpu_wanted = 1.0 * gpus
        return load

    return observe(shape, random, pattern)


def _simulation(random: Random) -> JobObservation:
    """Return an example job for tests of the diagnosis: a numerical simulation on CPUs.

    The job occasionally evaluates a small network on a GPU.
    """
    cpus = random.choice([16, 32])
    shape = JobShape(random.uniform(3600, 14400), cpus=cpus, has_steps=False)
    shape.gpu_memory_share = random.uniform(0.05, 0.15)

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load, busy = NodeLoad.idle(1), noise.uniform(0.25, 0.4)
        load.busy, load.sm, load.dram = [busy], [0.15 * busy], [0.1 * busy]
        load.cpu_cores, load.cpu_wanted = 0.8 * cpus, 0.85 * cpus
        return load

    return observe(shape, random, pattern)


def _evaluation_only(random: Random) -> JobObservation:
    gpus = random.choice([1, 2, 4])
    shape = JobShape(random.uniform(900, 5000), gpus=gpus, cpus=8 * gpus, has_steps=False)
    shape.gpu_memory_share = random.uniform(0.2, 0.6)

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        load.read_bytes_per_s = 5e8 if time_s < 40 else 2e8
        if time_s >= 40:
            load.busy, load.sm = [noise.uniform(0.85, 1)] * gpus, [0.5] * gpus
            load.dram, load.cpu_cores, load.cpu_wanted = [0.6] * gpus, 2.5 * gpus, 2.5 * gpus
        return load

    return observe(shape, random, pattern)


def _service(random: Random) -> JobObservation:
    """Return an inference service with a low load that keeps its model in GPU memory."""
    gpus, rate = random.choice([1, 2]), random.uniform(0.05, 0.3)
    shape = JobShape(random.uniform(3600, 36000), gpus=gpus, cpus=8 * gpus, has_steps=False)
    shape.gpu_memory_share = random.uniform(0.8, 0.95)
    shape.state = random.choice(["TIMEOUT", "CANCELLED", None])

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        if time_s < 90:
            load.read_bytes_per_s = 1e9
            return load
        busy = min(1.0, noise.expovariate(1 / rate))
        load.busy, load.sm, load.dram = [busy] * gpus, [0.3 * busy] * gpus, [0.7 * busy] * gpus
        load.cpu_cores = load.cpu_wanted = 0.2 + busy * gpus
        load.send_bytes_per_s = 1e4 * busy
        return load

    return observe(shape, random, pattern)


def _search(random: Random) -> JobObservation:
    """Return a parameter search that runs many short processes on each GPU."""
    gpus = random.choice([2, 4])
    shape = JobShape(random.uniform(3600, 14400), gpus=gpus, cpus=12 * gpus, has_steps=False)
    shape.gpu_memory_share = random.uniform(0.3, 0.7)
    times = [(random.uniform(90, 220), random.uniform(10, 22)) for _ in range(gpus)]

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        for gpu, (period_s, start_s) in enumerate(times):
            is_working = (time_s + 47 * gpu) % period_s > start_s
            if is_working:
                load.busy[gpu], load.sm[gpu], load.dram[gpu] = 0.93, 0.65, 0.4
            load.cpu_cores += 3 if is_working else 1
        load.cpu_wanted = load.cpu_cores
        return load

    return observe(shape, random, pattern)


def _search_with_steps(random: Random) -> JobObservation:
    """Return a synthetic job that runs several independent training programs, one per GPU.

    The programs train different models. Each program reports its steps as if it were rank 0.
    """
    gpus = random.choice([2, 4])
    jobs = []
    for _ in range(gpus):
        shape = training_job(random, max_ranks=1)
        shape.elapsed_s = 3000.0
        jobs.append(observe(shape, random))
    first = jobs[0]
    parts = range(1, gpus)
    ranks = [replace(job.nodes[0].ranks[0], pid=2000 + i, gpu=i) for i, job in enumerate(jobs)]
    series = [
        replace(one, part=f"gpu[{i}]")
        for i in parts
        for one in jobs[i].nodes[0].series
        if one.part == "gpu[0]"
    ]
    node = replace(first.nodes[0], ranks=tuple(ranks), series=(*first.nodes[0].series, *series))
    context = replace(first.context, gpus={"n1": tuple(range(gpus))})
    return replace(first, nodes=(node,), context=context)


def _evaluating(random: Random) -> JobObservation:
    """Return a training job that marks its evaluations, which take a fifth of its time."""
    shape = training_job(random, max_ranks=4)

    def change(rank: RankSteps) -> RankSteps:
        phases = {name: replace(p, sum_s=0.74 * p.sum_s) for name, p in rank.phases.items()}
        phases["evaluation"] = PhaseStatistics.of([0.22 * shape.elapsed_s / 12] * 12)
        return replace(rank, phases=phases)

    return _with_steps(observe(shape, random), change)


def _compiling(random: Random) -> JobObservation:
    """Return a training job whose first step compiles the model for minutes."""
    shape = training_job(random, max_ranks=4)
    shape.startup_s = random.uniform(120, 280)
    shape.elapsed_s += 600
    shares: Mapping[str, float] = {"step": 1.0, "forward": 0.6, "backward": 0.4}

    def change(rank: RankSteps) -> RankSteps:
        longer = {
            name: rank.phases[name].merged(PhaseStatistics.of([0.9 * share * shape.startup_s]))
            for name, share in shares.items()
        }
        return replace(rank, phases={**rank.phases, **longer})

    return _with_steps(observe(shape, random), change)


def _interactive_limit(random: Random) -> JobObservation:
    job = debugging_session(random)
    return replace(job, context=replace(job.context, state="TIMEOUT"))


_OUT_OF_MEMORY = ExitStatus(0, OUT_OF_MEMORY_SIGNAL)
_LEAK: Final[dict[str, Any]] = {"gpu_memory_share": 0.4, "gpu_memory_growth": 0.595}
_HOST_LEAK: Final[dict[str, Any]] = {"host_memory_share": 0.3, "host_memory_growth": 0.66}
_RARE: Final[dict[str, Any]] = {"checkpoint_s": 20.0, "checkpoint_every_s": 3400.0, "checkpoint_bytes": 5e9}
_OFTEN: Final[dict[str, Any]] = {"checkpoint_s": 5.0, "checkpoint_every_s": 700.0, "checkpoint_bytes": 1e9}
_FAILED: Final[dict[str, Any]] = {"state": "FAILED", "exit_status": ExitStatus(1)}

UNUSUAL_PLANTED: Final[tuple[PlantedJob, ...]] = (
    PlantedJob("uneven-accumulation", _K.LOAD_IMBALANCE, _uneven_accumulation),
    PlantedJob("slow-rare-checkpoints", _K.CHECKPOINT_STALL, lambda r: _slow_checkpoints(r, steps=True)),
    PlantedJob(
        "slow-rare-checkpoints-no-steps", _K.CHECKPOINT_STALL, lambda r: _slow_checkpoints(r, steps=False)
    ),
    PlantedJob("one-of-four-gpus", _K.UNUSED_GPU, _one_of_four_gpus),
    PlantedJob("half-of-clocks-locked", _K.WRONG_LIMIT, lambda r: _half_locked(r, steps=True)),
    PlantedJob("half-of-clocks-locked-no-steps", _K.WRONG_LIMIT, lambda r: _half_locked(r, steps=False)),
    PlantedJob("gpu-leak-to-failure", _K.OUT_OF_MEMORY, _changed(**_LEAK, **_FAILED)),
    PlantedJob(
        "host-leak-to-sigkill",
        _K.OUT_OF_MEMORY,
        _changed(**_HOST_LEAK, state="FAILED", exit_status=ExitStatus(9), has_steps=False),
    ),
    PlantedJob("step-out-of-memory", _K.OUT_OF_MEMORY, _changed(**_FAILED, step_exit_status=_OUT_OF_MEMORY)),
    PlantedJob(
        "limit-without-checkpoint", _K.UNFINISHED_WORK, lambda r: _without_checkpoint(r, state="TIMEOUT")
    ),
    PlantedJob(
        "limit-after-rare-checkpoints",
        _K.UNFINISHED_WORK,
        _changed(state="TIMEOUT", elapsed_s=7200.0, **_RARE),
    ),
    PlantedJob("late-failure", _K.UNFINISHED_WORK, lambda r: _without_checkpoint(r, **_FAILED)),
    PlantedJob("bursty-input", _K.DATA_STALL_IO, _bursty_input),
    PlantedJob("loader-starts-in-each-epoch", _K.DATA_STALL, _starting_loader),
    PlantedJob("hang", _K.HANG, _hang),
    PlantedJob("simulation-on-gpu-node", _K.GPU_UNDERUSED, _simulation),
)
"""Kinds of jobs with a planted cause."""
UNUSUAL_HEALTHY: Final[tuple[PlantedJob, ...]] = (
    PlantedJob("evaluation-only", None, _evaluation_only),
    PlantedJob("training-with-evaluations", None, _evaluating),
    PlantedJob("service-with-low-load", None, _service),
    PlantedJob("parameter-search", None, _search),
    PlantedJob("parameter-search-with-steps", None, _search_with_steps),
    PlantedJob("compiled-model", None, _compiling),
    PlantedJob(
        "limit-with-unmarked-checkpoints",
        None,
        _changed(state="TIMEOUT", hide_phases=("checkpoint",), **_OFTEN),
    ),
    PlantedJob("limit-after-many-checkpoints", None, _changed(state="TIMEOUT", elapsed_s=9000.0, **_OFTEN)),
    PlantedJob("session-until-limit", None, _interactive_limit),
    PlantedJob("failed-step", None, _changed(step_exit_status=ExitStatus(1))),
)
"""Kinds of healthy jobs."""
