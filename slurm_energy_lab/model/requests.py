"""Data types of requests to the model of an emulated node, and of the model's results."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FrequencyRequest:
    """Frequency settings of one logical CPU.

    Each attribute corresponds to a cpufreq file.

    Attributes:
        governor: `performance`, `powersave`, `userspace`, `ondemand`, `conservative` or `schedutil`.
        min_khz: scaling_min_freq.
        max_khz: scaling_max_freq.
        setspeed_khz: scaling_setspeed; None if not set. Only the governor `userspace` uses this frequency.
        epp: energy_performance_preference, as a name or as a number "0" to "255" in text form. Only drivers
            in active mode use this preference. None if the driver has no preferences.
        boost: whether boost is enabled. It is the value of cpufreq/boost, or the inverse of no_turbo.
    """

    governor: str
    min_khz: int
    max_khz: int
    setspeed_khz: int | None = None
    epp: str | None = None
    boost: bool = True


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """Request to run one compute kernel on the node model.

    Attributes:
        kernel: a name in `kernel_names()` or `program_names()`.
        device: `cpu` or `gpu`.
        size: problem size in the kernel's own unit (see docs/lab-physics.md); None if `full_speed_s`
            determines it.
        cpus: for a CPU kernel, the logical CPUs that share the problem. Siblings count as one core. An empty
            value means all CPUs of the node. For a GPU kernel, the CPUs that feed the GPUs. An empty value
            means the CPUs of the package to which the GPU belongs.
        gpus: numbers of the GPUs; empty for all GPUs of the node. Each GPU runs the whole problem.
        full_speed_s: seconds that the kernel takes on the whole idle device at full speed. This time
            determines the size if `size` is None. If both are None, the time is 10 seconds.
        job_id: Slurm's job id; None if the kernel belongs to no job.
    """

    kernel: str
    device: str
    size: float | None = None
    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    full_speed_s: float | None = None
    job_id: int | None = None


@dataclass(frozen=True, slots=True)
class KernelResult:
    """Result of a finished compute kernel.

    All times are seconds of model time.

    Attributes:
        run_id: number that `NodeModel.submit` returned.
        kernel: name of the kernel.
        device: `cpu` or `gpu`.
        size: problem size in the kernel's own unit.
        start_s: time of the submission.
        end_s: time at which the last operation ended.
        seconds: end_s - start_s.
        flops: operations executed, summed over the GPUs.
        bytes: bytes read from and written to memory, summed over the GPUs.
        energy_joules: energy of every component of the node between start and end.
        units: completed units of progress. The kernel chooses the unit.
    """

    run_id: int
    kernel: str
    device: str
    size: float
    start_s: float
    end_s: float
    seconds: float
    flops: float
    bytes: float
    energy_joules: dict[str, float] = field(default_factory=dict)
    units: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """State of one GPU as NVML reports it.

    Attributes:
        graphics_clock_mhz: effective graphics clock, rounded down to a clock that the GPU supports.
        memory_clock_mhz: effective memory clock.
        utilisation: share of time for which a compute kernel runs, 0 to 1.
        memory_utilisation: share of the peak memory bandwidth in use, 0 to 1.
        limit_watts: power limit in force.
        power_watts: current power.
        power_average_watts: mean power of the last second.
        energy_mj: whole millijoules since the start of the model.
        throttle_power_cap: whether the power limit lowers the clock (NVML reason SwPowerCap).
        throttle_clocks_setting: whether locked clocks lower the clock (reason ApplicationsClocksSetting).
        idle: whether no compute kernel runs (reason GpuIdle).
    """

    graphics_clock_mhz: int
    memory_clock_mhz: int
    utilisation: float
    memory_utilisation: float
    limit_watts: float
    power_watts: float
    power_average_watts: float
    energy_mj: int
    throttle_power_cap: bool
    throttle_clocks_setting: bool
    idle: bool
