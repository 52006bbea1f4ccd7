"""Description of a synthetic job for tests of the diagnosis.

It states what the job is allocated, how its activity changes over time, and which data sources observe the
job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_energy.slurm.exit_status import ExitStatus
from slurm_energy_lab.diagnosis_corpus.training_loop import Loop


@dataclass(slots=True)
class NodeLoad:
    """Load of one node at one moment. GPU values are listed by index of the allocated GPU.

    Attributes:
        busy, sm, dram, tensor: utilisation of the GPU, its SMs, its DRAM interface and its tensor cores, 0 to
            1.
        copy_bytes_per_s: PCIe traffic to each GPU.
        cpu_cores: number of CPUs in use.
        cpu_wanted: number of CPUs that the threads would use if the job had enough CPUs.
        read_bytes_per_s, write_bytes_per_s, send_bytes_per_s: storage and network traffic of the node.
        io_wait: fraction of the time spent waiting for storage, 0 to 1.
    """

    busy: list[float]
    sm: list[float]
    dram: list[float]
    tensor: list[float]
    copy_bytes_per_s: list[float]
    cpu_cores: float = 0.02
    cpu_wanted: float = 0.02
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    send_bytes_per_s: float = 0.0
    io_wait: float = 0.0

    @classmethod
    def idle(cls, gpus: int) -> NodeLoad:
        """Return the load of a node that does nothing."""
        return cls([0.0] * gpus, [0.0] * gpus, [0.0] * gpus, [0.0] * gpus, [0.0] * gpus)


@dataclass(slots=True)
class JobShape:
    """Parameters of a synthetic job, in addition to the parameters of the program that the job runs.

    Attributes:
        elapsed_s: duration of the job.
        loop: the training loop. If None, the argument `pattern` of `observe` gives the load.
        nodes, gpus, cpus: allocated nodes, GPUs per node and CPUs per node.
        startup_s: time before the program computes.
        tail_s: time after the last computation.
        checkpoint_every_s, checkpoint_s, checkpoint_bytes: interval, duration and size of checkpoints.
        outlier_every: number N if one of every N training steps is slow; 0 if no step is slow.
        outlier_factor: duration of a slow training step divided by the duration of the other steps.
        gpu_memory_share: GPU memory in use divided by the memory of the GPU.
        gpu_memory_growth: increase of `gpu_memory_share` from the start to the end of the job.
        host_memory_share, host_memory_growth: the same two values for host memory instead of GPU memory.
        memory_stall: fraction of the time in which tasks wait for memory.
        memory_slowdown: storage bandwidth that the job reaches with its memory, divided by the storage
            bandwidth that it would reach with sufficient memory.
        cpu_throttled: fraction of the time in which the CPU quota stops the job.
        cpu_pressure: CPU pressure in percent; None if the pressure follows from the load.
        cpu_clock: factors by which CPU clocks are multiplied, by node; a node without an entry has 1.
        thermal: fraction of the time with thermal throttling, by (node, GPU).
        power_throttled: fraction of the time in which the power limit throttles the GPU.
        cap_share: power limit divided by the highest possible limit.
        gpu_clock: SM clock divided by the highest clock, by (node, GPU); a GPU without an entry has 1.
        clock_setting: whether a clock limit was applied.
        is_network_storage: whether storage traffic goes over the network.
        state, exit_status, step_exit_status, restart_count, is_interactive: state of the job, exit status of
            the job and of its Slurm steps, number of restarts, and whether the job is interactive; see
            `ObservedAllocation`.
        has_steps, has_gpm, has_max_clock, has_pressure, has_signals, has_power, has_energy: whether steps,
            GPM metrics, maximum clocks, pressure, signals, power and energy of the job are observed.
        hide_phases: phases that the program does not report.
    """

    elapsed_s: float
    loop: Loop | None = None
    nodes: int = 1
    gpus: int = 1
    cpus: int = 16
    startup_s: float = 40.0
    tail_s: float = 0.0
    checkpoint_every_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_bytes: float = 2e9
    outlier_every: int = 0
    outlier_factor: float = 1.0
    gpu_memory_share: float = 0.6
    gpu_memory_growth: float = 0.0
    host_memory_share: float = 0.3
    host_memory_growth: float = 0.0
    memory_stall: float = 0.0
    memory_slowdown: float = 1.0
    cpu_throttled: float = 0.0
    cpu_pressure: float | None = None
    cpu_clock: dict[int, float] = field(default_factory=dict)
    thermal: dict[tuple[int, int], float] = field(default_factory=dict)
    power_throttled: float = 0.0
    cap_share: float = 1.0
    gpu_clock: dict[tuple[int, int], float] = field(default_factory=dict)
    clock_setting: bool = False
    is_network_storage: bool = False
    state: str | None = "COMPLETED"
    exit_status: ExitStatus | None = None
    step_exit_status: ExitStatus | None = None
    restart_count: int = 0
    is_interactive: bool = False
    has_steps: bool = True
    has_gpm: bool = True
    has_max_clock: bool = True
    has_pressure: bool = True
    has_signals: bool = True
    has_power: bool = True
    has_energy: bool = True
    hide_phases: tuple[str, ...] = ()
