"""What callers ask of the model and what they get back: plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FrequencyRequest:
    """Settings of one CPU as the cpufreq files hold them.

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
        size: problem size in the kernel's own unit (see docs/lab-physics.md); None: see below.
        cpus: logical CPUs that share the problem; empty: all of the node. Siblings count as one core. With
            a GPU those of which each feeds one; empty: some near the GPU.
        gpus: GPUs, each of which runs the whole problem; empty: all of the node.
        full_speed_s: instead of `size`, choose the size that takes so many seconds on the whole idle
            device at full speed. Both None: 10 seconds.
        job_id: Slurm's number of the job that runs it; None: no job.
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
    """A finished kernel.

    Attributes:
        start_s: model time at which it was submitted.
        end_s: model time at which its last operation ended.
        seconds: end_s - start_s.
        flops: operations done, summed over its GPUs.
        bytes: bytes moved, summed over its GPUs.
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
    """What NVML shows of one GPU.

    Attributes:
        graphics_clock_mhz: effective clock, rounded down to the clock table.
        memory_clock_mhz: effective memory clock.
        utilisation: share of time with a kernel running, 0 or 1.
        memory_utilisation: share of the peak bandwidth in use, 0 to 1.
        limit_watts: power limit in force.
        power_watts: now.
        power_average_watts: mean of the last second.
        energy_mj: millijoules since the start of the model, whole number.
        throttle_power_cap: the power limit lowers the clock (NVML reason SwPowerCap).
        throttle_clocks_setting: locked clocks lower the clock (reason ApplicationsClocksSetting).
        idle: nothing runs (reason GpuIdle).
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
