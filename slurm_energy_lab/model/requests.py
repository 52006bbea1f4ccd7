"""Requests to the node model and its results: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FrequencyRequest:
    """Settings of one CPU as in its cpufreq files.

    Attributes:
        governor: `performance`, `powersave`, `userspace`, `ondemand`, `conservative`, `schedutil`.
        min_khz: scaling_min_freq.
        max_khz: scaling_max_freq.
        setspeed_khz: scaling_setspeed, used by `userspace` only.
        epp: energy_performance_preference by name or as "0".."255"; used by active drivers.
        boost: cpufreq/boost, or the inverse of no_turbo.
    """

    governor: str
    min_khz: int
    max_khz: int
    setspeed_khz: int | None = None
    epp: str | None = None
    boost: bool = True


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """One run of a kernel.

    Attributes:
        kernel: a name of `kernel_names()`.
        device: `cpu` or `gpu`.
        size: problem size in the kernel's own unit (see docs/lab-physics.md). None: see `full_speed_s`.
        cpus: logical CPUs that share the problem; empty: all CPUs of the node. Siblings count as one core.
            For a GPU kernel the CPUs that feed the GPUs; empty: CPUs of the GPU's package.
        gpus: GPUs, each of which runs the whole problem; empty: all GPUs of the node.
        full_speed_s: run time on the whole idle device at full speed; determines the size if `size` is
            None. Both None: 10 seconds.
        job_id: Slurm's job number. None: the kernel belongs to no job.
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
    """Result of a finished kernel.

    Attributes:
        start_s: model time of the submission.
        end_s: model time at which the last operation ended.
        seconds: end_s - start_s.
        flops: operations executed, summed over the GPUs.
        bytes: bytes moved, summed over the GPUs.
        energy_joules: energy of every component of the node between start and end.
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


@dataclass(frozen=True, slots=True)
class GpuState:
    """State of one GPU as NVML shows it.

    Attributes:
        graphics_clock_mhz: effective clock, rounded down to the clock table.
        memory_clock_mhz: effective memory clock.
        utilisation: share of time with a kernel running, 0 or 1.
        memory_utilisation: share of the peak bandwidth in use, 0 to 1.
        limit_watts: power limit in force.
        power_watts: current power.
        power_average_watts: mean power of the last second.
        energy_mj: whole millijoules since the start of the model.
        throttle_power_cap: the power limit lowers the clock (NVML reason SwPowerCap).
        throttle_clocks_setting: locked clocks lower the clock (reason ApplicationsClocksSetting).
        idle: no kernel runs (reason GpuIdle).
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
