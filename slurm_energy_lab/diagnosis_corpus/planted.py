"""Synthetic jobs for tests of the diagnosis, each with one deliberate cause of waste."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.slurm.exit_status import OUT_OF_MEMORY_SIGNAL, ExitStatus
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape
from slurm_energy_lab.diagnosis_corpus.observe import observe
from slurm_energy_lab.diagnosis_corpus.patterns import (
    cpu_job,
    cpu_only_program,
    forgotten_session,
    one_node_works,
)
from slurm_energy_lab.diagnosis_corpus.training_loop import Loop, step_times

_K = FindingKind
Builder = Callable[[Random], JobObservation]


@dataclass(frozen=True, slots=True)
class PlantedJob:
    """Kind of synthetic job.

    The kind includes the finding that the diagnosis should report for jobs of this kind.

    Attributes:
        name: name of the kind.
        expected: kind of the finding for the planted cause; None for a healthy job.
        build: function that builds one job from a source of random numbers.
    """

    name: str
    expected: FindingKind | None
    build: Builder


def training_job(random: Random, *, min_ranks: int = 1, max_ranks: int = 16) -> JobShape:
    """Return a healthy training job with random parameters, in which the GPU is the slowest stage."""
    choices = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (4, 2), (4, 4)]
    nodes, gpus = random.choice([c for c in choices if min_ranks <= c[0] * c[1] <= max_ranks])
    cpus = gpus * random.choice([8, 12, 16])
    half_batch = random.uniform(8, 30)
    sample_gpu_s = 10 ** random.uniform(-3.3, -2)
    batch = round(half_batch * random.uniform(4, 12))
    compute_s = batch * sample_gpu_s
    workers = random.choice([4, 6, 8])
    loop = Loop(
        nodes=nodes,
        gpus=gpus,
        cpus=cpus,
        batch=batch,
        workers=workers,
        sample_cpu_s=sample_gpu_s * min(workers, cpus / gpus) * random.uniform(0.1, 0.6),
        sample_bytes=random.uniform(3e4, 4e5),
        sample_gpu_s=sample_gpu_s,
        launch_s=compute_s * random.uniform(0.01, 0.12),
        half_batch=half_batch,
        jitter=random.uniform(0.01, 0.06),
    )
    loop.tensor_bytes = random.uniform(0.005, 0.04) * sample_gpu_s * loop.copy_bytes_per_s
    loop.storage_bytes_per_s = batch * loop.sample_bytes * gpus / compute_s * random.uniform(3, 12)
    loop.gradient_bytes = compute_s * loop.network_bytes_per_s * random.uniform(0.02, 0.25)
    return JobShape(
        elapsed_s=random.uniform(1200, 14400),
        loop=loop,
        nodes=nodes,
        gpus=gpus,
        cpus=cpus,
        startup_s=random.uniform(20, 120),
        gpu_memory_share=random.uniform(0.4, 0.85),
        host_memory_share=random.uniform(0.1, 0.6),
    )


def _compute_s(loop: Loop) -> float:
    return min(step.compute for step in step_times(loop))


def _slow_storage(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    demand = loop.batch * loop.sample_bytes * loop.gpus / _compute_s(loop)
    loop.storage_bytes_per_s = demand * random.uniform(0.2, 0.65)
    loop.sample_cpu_s *= 0.5
    return shape


def _slow_loader(random: Random, workers: int) -> JobShape:
    """Return a synthetic job that waits for data.

    Its loader processes take longer for a batch than the GPU.
    """
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    loop.workers = workers
    parallel = max(1, workers)
    excess = random.uniform(0.4, 2.0) if workers == 0 else random.uniform(1.4, 4.0)
    loop.sample_cpu_s = _compute_s(loop) / loop.batch * parallel * excess
    return shape


def _few_cpus(random: Random, workers_per_cpu: float) -> JobShape:
    """Return a job with fewer CPUs than its loader needs.

    `workers_per_cpu` is the number of loader processes per CPU.
    """
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    cores = random.choice([2, 3, 4])
    shape.cpus = loop.cpus = cores * loop.gpus
    loop.workers = max(1, round(cores * workers_per_cpu))
    loop.sample_cpu_s = _compute_s(loop) / loop.batch * cores * random.uniform(1.4, 3.0)
    return shape


def _tiny_batch(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    loop.batch = max(1, round(loop.half_batch * random.uniform(0.08, 0.3)))
    loop.launch_s = max(loop.launch_s, 0.4 * loop.batch * loop.sample_gpu_s)
    shape.gpu_memory_share = random.uniform(0.04, 0.22)
    loop.gradient_bytes *= 0.05
    loop.tensor_bytes *= 0.5
    return shape


def _slow_copies(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    loop.copy_bytes_per_s = random.uniform(3e9, 6e9)
    loop.tensor_bytes = loop.sample_gpu_s * loop.copy_bytes_per_s * random.uniform(0.5, 1.2)
    loop.is_pinned = False
    return shape


def _slow_network(random: Random) -> JobShape:
    shape = training_job(random, min_ranks=4)
    loop = _loop(shape)
    loop.network_bytes_per_s = random.uniform(1.0e9, 3e9)
    loop.gradient_bytes = _compute_s(loop) * loop.network_bytes_per_s * random.uniform(0.6, 1.6)
    return shape


def _straggler(random: Random) -> JobShape:
    shape = training_job(random, min_ranks=4)
    loop = _loop(shape)
    loop.slowness = {random.randrange(loop.ranks): random.uniform(1.5, 2.6)}
    loop.gradient_bytes *= 0.3
    return shape


def _uneven_work(random: Random) -> JobShape:
    shape = training_job(random, min_ranks=4)
    loop = _loop(shape)
    spread = random.uniform(0.6, 1.2)
    loop.slowness = {rank: 1 + spread * rank / (loop.ranks - 1) for rank in range(loop.ranks)}
    loop.gradient_bytes *= 0.3
    return shape


def _checkpoints(random: Random, signals_only: bool) -> JobShape:
    shape = training_job(random, max_ranks=8)
    shape.checkpoint_s = random.uniform(25, 60) if signals_only else random.uniform(2, 30)
    shape.checkpoint_every_s = shape.checkpoint_s * random.uniform(1.5, 6)
    shape.checkpoint_bytes = shape.checkpoint_s * random.uniform(4e8, 1.5e9)
    shape.elapsed_s = max(shape.elapsed_s, 8 * (shape.checkpoint_s + shape.checkpoint_every_s))
    return shape


def _outliers(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    shape.outlier_every = random.randint(20, 60)
    shape.outlier_factor = random.uniform(6, 20)
    return shape


def _hot(random: Random, all_gpus: bool) -> JobShape:
    shape = training_job(random, min_ranks=1 if all_gpus else 4)
    loop = _loop(shape)
    clock = random.uniform(0.5, 0.72)
    ranks = range(loop.ranks) if all_gpus else [random.randrange(loop.ranks)]
    for rank in ranks:
        key = divmod(rank, loop.gpus)
        shape.thermal[key] = random.uniform(0.4, 0.95)
        shape.gpu_clock[key] = loop.clock[rank] = clock
    if all_gpus:
        shape.startup_s = min(shape.startup_s, 60)
    return shape


def _low_limit(random: Random, by_power: bool) -> JobShape:
    shape = training_job(random, max_ranks=8)
    loop = _loop(shape)
    clock = random.uniform(0.4, 0.65)
    for rank in range(loop.ranks):
        shape.gpu_clock[divmod(rank, loop.gpus)] = loop.clock[rank] = clock
    if by_power:
        shape.cap_share, shape.power_throttled = random.uniform(0.3, 0.5), random.uniform(0.8, 1.0)
    else:
        shape.clock_setting = True
    return shape


def _leak(random: Random, host: bool) -> JobShape:
    shape = training_job(random, max_ranks=8)
    if host:
        shape.host_memory_share, shape.host_memory_growth = 0.3, random.uniform(0.64, 0.69)
    else:
        shape.gpu_memory_share, shape.gpu_memory_growth = 0.4, random.uniform(0.53, 0.59)
    return shape


def _thrashing(random: Random) -> JobShape:
    """Return a job that reads the same data repeatedly because its memory cannot hold them.

    The storage would be fast enough for a single reading, but is slower than the computation for repeated
    readings.
    """
    shape = training_job(random, max_ranks=4)
    loop = _loop(shape)
    shape.host_memory_share, shape.memory_stall = 0.985, random.uniform(0.25, 0.7)
    needed_bytes_per_s = loop.batch * loop.sample_bytes * loop.gpus / _compute_s(loop)
    shape.memory_slowdown = random.uniform(0.4, 0.75) * needed_bytes_per_s / loop.storage_bytes_per_s
    loop.storage_bytes_per_s *= shape.memory_slowdown
    loop.sample_cpu_s *= 2
    return shape


def _unused_gpus(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=2)
    assert shape.loop is not None
    shape.gpus = shape.loop.gpus * random.choice([2, 4]) if shape.loop.gpus < 4 else 8
    return shape


def _loop(shape: JobShape) -> Loop:
    assert shape.loop is not None, "a training job has a loop"
    return shape.loop


def _tail(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    shape.tail_s = shape.elapsed_s * random.uniform(0.3, 1.5)
    shape.elapsed_s += shape.tail_s
    return shape


@dataclass(frozen=True, slots=True)
class ShapedBuilder:
    """Builder of synthetic training jobs, for tests of the diagnosis with incomplete data.

    Calling the builder draws a job at random and returns the observation of this job.

    Attributes:
        make: function that draws the parameters of a job.
        layers: fixed values of some of these parameters. They state, for example, which signals are
            observed.
    """

    make: Callable[[Random], JobShape]
    layers: Mapping[str, object]

    def shape(self, random: Random) -> JobShape:
        """Return randomly drawn parameters of a synthetic job, with the fixed parameters of this builder."""
        shape = self.make(random)
        for name, value in self.layers.items():
            setattr(shape, name, value)
        return shape

    def __call__(self, random: Random) -> JobObservation:
        """Build the observation of a synthetic job with random parameters."""
        return observe(self.shape(random), random)


def _layers(make: Callable[[Random], JobShape], **layers: object) -> ShapedBuilder:
    return ShapedBuilder(make, layers)


def _early_failure(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    shape.elapsed_s, shape.startup_s = random.uniform(20, 400), 15.0
    shape.state, shape.exit_status = "FAILED", ExitStatus(random.choice([1, 2, 127]))
    return shape


def _failing_restarts(random: Random) -> JobShape:
    shape = training_job(random, max_ranks=8)
    shape.state, shape.exit_status, shape.restart_count = "FAILED", ExitStatus(1), random.randint(2, 5)
    return shape


def _out_of_memory(random: Random) -> JobShape:
    shape = _leak(random, host=True)
    shape.state, shape.exit_status = "OUT_OF_MEMORY", ExitStatus(0, OUT_OF_MEMORY_SIGNAL)
    return shape


_NO_STEPS: Final[Mapping[str, object]] = {"has_steps": False}
_NO_STEPS_NO_GPM: Final[Mapping[str, object]] = {"has_steps": False, "has_gpm": False}

PLANTED: Final[tuple[PlantedJob, ...]] = (
    PlantedJob("slow-storage", _K.DATA_STALL_IO, _layers(_slow_storage)),
    PlantedJob("slow-storage-no-steps", _K.DATA_STALL_IO, _layers(_slow_storage, **_NO_STEPS)),
    PlantedJob(
        "slow-network-storage-no-pressure",
        _K.DATA_STALL_IO,
        _layers(_slow_storage, is_network_storage=True, has_pressure=False),
    ),
    PlantedJob("one-worker", _K.DATA_STALL_CPU, _layers(lambda r: _slow_loader(r, 1))),
    PlantedJob("two-workers", _K.DATA_STALL_CPU, _layers(lambda r: _slow_loader(r, 2), has_gpm=False)),
    PlantedJob("no-workers", _K.DATA_STALL_CPU, _layers(lambda r: _slow_loader(r, 0))),
    PlantedJob("no-workers-no-steps", _K.DATA_STALL_CPU, _layers(lambda r: _slow_loader(r, 0), **_NO_STEPS)),
    PlantedJob("few-cpus", _K.DATA_STALL_CPU, _layers(lambda r: _few_cpus(r, 1.0))),
    PlantedJob("oversubscribed-workers", _K.CPU_CONTENTION, _layers(lambda r: _few_cpus(r, r.uniform(3, 6)))),
    PlantedJob("oversubscribed-cpu-job", _K.CPU_CONTENTION, lambda r: cpu_job(r, threads_per_cpu=2.0)),
    PlantedJob("cpu-quota", _K.CPU_CONTENTION, lambda r: cpu_job(r, throttled=r.uniform(0.2, 0.6))),
    PlantedJob("tiny-batch", _K.SMALL_BATCH, _layers(_tiny_batch)),
    PlantedJob("tiny-batch-no-gpm", _K.SMALL_BATCH, _layers(_tiny_batch, has_gpm=False)),
    PlantedJob("tiny-batch-no-steps", _K.SMALL_BATCH, _layers(_tiny_batch, **_NO_STEPS)),
    PlantedJob("slow-copies", _K.HOST_TO_DEVICE_COPY, _layers(_slow_copies)),
    PlantedJob("slow-copies-no-steps", _K.HOST_TO_DEVICE_COPY, _layers(_slow_copies, **_NO_STEPS)),
    PlantedJob("slow-network", _K.COMMUNICATION_BOUND, _layers(_slow_network)),
    PlantedJob("slow-network-no-steps", _K.COMMUNICATION_BOUND, _layers(_slow_network, **_NO_STEPS)),
    PlantedJob("straggler", _K.STRAGGLER, _layers(_straggler)),
    PlantedJob(
        "straggler-hidden-communication",
        _K.STRAGGLER,
        _layers(_straggler, hide_phases=("communication",)),
    ),
    PlantedJob(
        "slow-network-hidden-communication",
        _K.COMMUNICATION_BOUND,
        _layers(_slow_network, hide_phases=("communication",)),
    ),
    PlantedJob("straggler-no-steps", _K.STRAGGLER, _layers(_straggler, **_NO_STEPS)),
    PlantedJob("uneven-work", _K.LOAD_IMBALANCE, _layers(_uneven_work)),
    PlantedJob("uneven-work-no-steps", _K.LOAD_IMBALANCE, _layers(_uneven_work, **_NO_STEPS_NO_GPM)),
    PlantedJob("uneven-cpu-nodes", _K.LOAD_IMBALANCE, lambda r: cpu_job(r, uneven=True)),
    PlantedJob("gpu-memory-leak", _K.MEMORY_PRESSURE, _layers(lambda r: _leak(r, False))),
    PlantedJob("host-memory-leak", _K.MEMORY_PRESSURE, _layers(lambda r: _leak(r, True), **_NO_STEPS)),
    PlantedJob("thrashing", _K.MEMORY_PRESSURE, _layers(_thrashing)),
    PlantedJob("out-of-memory", _K.OUT_OF_MEMORY, _layers(_out_of_memory)),
    PlantedJob("frequent-checkpoints", _K.CHECKPOINT_STALL, _layers(lambda r: _checkpoints(r, False))),
    PlantedJob(
        "frequent-checkpoints-no-steps",
        _K.CHECKPOINT_STALL,
        _layers(lambda r: _checkpoints(r, True), **_NO_STEPS),
    ),
    PlantedJob("slow-iterations", _K.ITERATION_OUTLIERS, _layers(_outliers)),
    PlantedJob("hot-gpus", _K.THERMAL_THROTTLING, _layers(lambda r: _hot(r, True))),
    PlantedJob("one-hot-gpu", _K.THERMAL_THROTTLING, _layers(lambda r: _hot(r, False))),
    PlantedJob("low-power-limit", _K.WRONG_LIMIT, _layers(lambda r: _low_limit(r, True), has_gpm=False)),
    PlantedJob(
        "low-power-limit-unknown-clock",
        _K.WRONG_LIMIT,
        _layers(lambda r: _low_limit(r, True), has_max_clock=False),
    ),
    PlantedJob("low-clock", _K.WRONG_LIMIT, _layers(lambda r: _low_limit(r, False), **_NO_STEPS)),
    PlantedJob("slow-cpu-node", _K.WRONG_LIMIT, lambda r: cpu_job(r, slow_node=True)),
    PlantedJob("idle-tail", _K.IDLE_TAIL, _layers(_tail)),
    PlantedJob("idle-tail-power-only", _K.IDLE_TAIL, _layers(_tail, has_steps=False, has_signals=False)),
    PlantedJob("forgotten-session", _K.IDLE_ALLOCATION, forgotten_session),
    PlantedJob("one-node-works", _K.IDLE_ALLOCATION, one_node_works),
    PlantedJob("unused-gpus", _K.UNUSED_GPU, _layers(_unused_gpus)),
    PlantedJob(
        "unused-gpus-power-only", _K.UNUSED_GPU, _layers(_unused_gpus, has_steps=False, has_signals=False)
    ),
    PlantedJob("cpu-program-on-gpus", _K.UNUSED_GPU, cpu_only_program),
    PlantedJob("unused-cpus", _K.UNUSED_CPU, lambda r: cpu_job(r, used=r.uniform(0.02, 0.25))),
    PlantedJob("early-failure", _K.EARLY_FAILURE, _layers(_early_failure)),
    PlantedJob("failing-restarts", _K.EARLY_FAILURE, _layers(_failing_restarts)),
)
"""All kinds of jobs with a planted cause."""
