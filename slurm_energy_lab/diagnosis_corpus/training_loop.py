"""Model of a training loop: stage times and hardware load, computed from physical parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

_PYTHON_SPIN = 0.9
"""CPU use of a process that launches compute kernels and waits for the GPU."""


@dataclass(slots=True)
class Loop:
    """Parameters of a data-parallel training loop with one process per GPU. Times are in seconds.

    Attributes:
        nodes, gpus: number of nodes, and number of GPUs per node that the program uses.
        cpus: number of CPUs of the job per node.
        batch: number of samples per training step and process.
        workers: number of loader processes per rank; 0 if the rank loads the data itself.
        sample_cpu_s: CPU time for preparing a sample.
        sample_bytes: size of a stored sample in bytes.
        tensor_bytes: size in bytes of a prepared sample that is copied to the GPU.
        storage_bytes_per_s: bandwidth of the storage per node.
        copy_bytes_per_s: bandwidth of copies from host to GPU.
        sample_gpu_s: GPU time per sample if the batch is large.
        launch_s: constant time per training step for launching compute kernels.
        half_batch: batch size at which half of the GPU's execution units have work.
        gradient_bytes: size in bytes of the gradients exchanged per training step.
        network_bytes_per_s: bandwidth between processes.
        overlap: fraction of the communication that overlaps with the backward pass.
        slowness: factors by which compute times of ranks are multiplied, by rank; a rank without an entry has
            1.
        clock: factors by which GPU clocks of ranks are multiplied, by rank; a rank without an entry has 1.
        jitter: relative standard deviation of the times of training steps.
        is_pinned: whether the loader pins memory, as the program reports; None if the program does not report
            this.
        accumulation: number of training steps per exchange of gradients.
        is_balanced: whether each rank gets work in proportion to its speed.
    """

    nodes: int = 1
    gpus: int = 1
    cpus: int = 16
    batch: int = 128
    workers: int = 8
    sample_cpu_s: float = 0.004
    sample_bytes: float = 1.5e5
    tensor_bytes: float = 6e5
    storage_bytes_per_s: float = 2e9
    copy_bytes_per_s: float = 2e10
    sample_gpu_s: float = 0.0015
    launch_s: float = 0.01
    half_batch: float = 24.0
    gradient_bytes: float = 1e8
    network_bytes_per_s: float = 2e10
    overlap: float = 0.6
    slowness: dict[int, float] = field(default_factory=dict)
    clock: dict[int, float] = field(default_factory=dict)
    jitter: float = 0.03
    is_pinned: bool | None = None
    accumulation: int = 1
    is_balanced: bool = False

    @property
    def ranks(self) -> int:
        """Number of processes (ranks) of the training: one per GPU on each node."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class RankStep:
    """Mean seconds that each stage of one training step takes on one rank."""

    data: float
    copy: float
    forward: float
    backward: float
    optimizer: float
    communication: float

    @property
    def compute(self) -> float:
        """Return the time of the computation in seconds."""
        return self.forward + self.backward + self.optimizer

    @property
    def step(self) -> float:
        """Return the time of the whole training step in seconds."""
        return self.data + self.copy + self.compute + self.communication


def step_times(loop: Loop) -> list[RankStep]:
    """Return the mean times of the stages of a training step, such as data and computation.

    The result has one entry per rank. All ranks end a training step at the same time.
    """
    io_s = loop.batch * loop.sample_bytes * loop.gpus / loop.storage_bytes_per_s
    cpu_s = loop.batch * loop.sample_cpu_s
    copy_s = loop.batch * loop.tensor_bytes / loop.copy_bytes_per_s
    compute = [_compute_s(loop, rank) for rank in range(loop.ranks)]
    if loop.is_balanced:  # ranks with times t and work in proportion to 1/t end together
        compute = [loop.ranks / sum(1 / seconds for seconds in compute)] * loop.ranks
    exchange_s = 0.0
    if loop.ranks > 1:
        full_s = 2 * loop.gradient_bytes / loop.network_bytes_per_s
        exchange_s = max(full_s - loop.overlap * min(full_s, 0.6 * min(compute)), 0.02 * full_s)
        exchange_s /= loop.accumulation
    if loop.workers:
        parallel = min(loop.workers, max(0.5, loop.cpus / loop.gpus))
        load_s = max(cpu_s / parallel, io_s)
        data = [max(0.01 * c, load_s - c - copy_s - exchange_s) for c in compute]
    else:
        data = [cpu_s + io_s] * loop.ranks
    own = [d + copy_s + c for d, c in zip(data, compute, strict=True)]
    slowest = max(own)
    return [
        RankStep(d, copy_s, 0.3 * c, 0.6 * c, 0.1 * c, exchange_s + slowest - o)
        for d, c, o in zip(data, compute, own, strict=True)
    ]


def _compute_s(loop: Loop, rank: int) -> float:
    full_s = loop.launch_s + loop.batch * loop.sample_gpu_s
    return full_s * loop.slowness.get(rank, 1.0) / loop.clock.get(rank, 1.0)


def unit_activity(loop: Loop) -> float:
    """Return the fraction, 0 to 1, of the GPU's execution units that have work while the GPU computes."""
    kernels_s = loop.batch * loop.sample_gpu_s
    occupancy = 0.92 * loop.batch / (loop.batch + loop.half_batch)
    return occupancy * kernels_s / (kernels_s + 0.6 * loop.launch_s)


@dataclass(frozen=True, slots=True)
class RankLoad:
    """Load that one rank of a synthetic training puts on the hardware.

    Attributes:
        gpu_busy, sm_active, dram_active, tensor_active: utilisation of the GPU, its SMs, its DRAM interface
            and its tensor cores, 0 to 1.
        copy_bytes_per_s: traffic from the host to the GPU.
        cpu_cores: number of CPUs that the rank and its workers use.
        cpu_wanted: number of CPUs that the rank and its workers would use if there were enough CPUs.
        read_bytes_per_s: bytes read from storage per second.
        io_wait: fraction of the time in which a process waits for storage.
        send_bytes_per_s: bytes of gradients sent per second.
    """

    gpu_busy: float
    sm_active: float
    dram_active: float
    tensor_active: float
    copy_bytes_per_s: float
    cpu_cores: float
    cpu_wanted: float
    read_bytes_per_s: float
    io_wait: float
    send_bytes_per_s: float


def rank_load(loop: Loop, step: RankStep) -> RankLoad:
    """Return the load of GPU, CPU, storage and network that one rank of a training loop causes.

    Args:
        loop: parameters of the training loop.
        step: durations of the stages of a training step.
    """
    total = step.step
    units = unit_activity(loop)
    computing, exchanging = step.compute / total, step.communication / total
    loading = loop.batch * loop.sample_cpu_s / total
    io_s = loop.batch * loop.sample_bytes * loop.gpus / loop.storage_bytes_per_s
    spin = _PYTHON_SPIN * (step.compute + step.communication + step.copy) / total
    cores = spin + loading
    threads = loop.workers + 1 if step.data > 0.05 * total and loop.workers else cores
    cpu_limit = loop.cpus / loop.gpus
    is_io = io_s > loop.batch * loop.sample_cpu_s / max(1, loop.workers)
    return RankLoad(
        gpu_busy=min(1.0, computing * min(1.0, 0.55 + 0.5 * units) + exchanging),
        sm_active=units * computing + 0.08 * exchanging,
        dram_active=0.6 * units * computing + 0.02,
        tensor_active=0.5 * units * computing,
        copy_bytes_per_s=loop.batch * loop.tensor_bytes / total,
        cpu_cores=min(cores, cpu_limit),
        cpu_wanted=max(cores, spin + (0 if is_io else threads)),
        read_bytes_per_s=loop.batch * loop.sample_bytes / total,
        io_wait=min(0.97, io_s / total),
        send_bytes_per_s=2 * loop.gradient_bytes / loop.accumulation / total if loop.ranks > 1 else 0.0,
    )
