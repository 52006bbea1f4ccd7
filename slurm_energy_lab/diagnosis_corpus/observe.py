"""Simulation of what the agents observe of a synthetic job, for tests of the diagnosis.

The observation consists of noisy series of signals, step statistics, energy and the allocation of the job.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from random import Random

from slurm_energy.diagnosis.observation import JobObservation, NodeObservation, ObservedAllocation
from slurm_energy.diagnosis.signals import MAX_POINTS, ObservedSeries
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape, NodeLoad
from slurm_energy_lab.diagnosis_corpus.step_statistics import rank_steps
from slurm_energy_lab.diagnosis_corpus.training_loop import rank_load, step_times

Pattern = Callable[[int, float, Random], NodeLoad]
"""Load of a node at seconds after the start of the job."""
START_S = 1_700_000_000.0
_GPU_IDLE, _GPU_LIMIT, _GPU_MEMORY, _SM_MHZ = 60.0, 400.0, 80e9, 1980.0
_CPU_IDLE, _CPU_PER_CORE, _OTHER = 60.0, 5.0, 90.0
_MISSED = 0.005
"""Share of values that the sampler misses."""
_NODE_MEMORY, _CPU_MHZ = 256e9, 3000.0


def observe(
    shape: JobShape,
    random: Random,
    pattern: Pattern | None = None,
    job_id: int = 1,
    start_s: float = START_S,
) -> JobObservation:
    """Return the observation of a synthetic job, with noise and with missing values.

    Args:
        shape: parameters of the job.
        random: source of the noise.
        pattern: load of the nodes over time; None means the load of the training loop.
        job_id: id of the job.
        start_s: start of the job in Unix seconds.
    """
    load = pattern or _training_pattern(shape)
    interval_s = 10.0
    while shape.elapsed_s / interval_s > MAX_POINTS:
        interval_s *= 2
    names = [f"n{number + 1}" for number in range(shape.nodes)]
    nodes, energy = [], {}
    for number, name in enumerate(names):
        recorder = _NodeRecorder(shape, name, number, interval_s, random, start_s)
        for index in range(max(1, math.ceil(shape.elapsed_s / interval_s - 1e-9))):
            recorder.add(load(number, (index + 0.5) * interval_s, random), (index + 0.5) * interval_s)
        ranks = rank_steps(shape, number, name, start_s, random) if shape.has_steps and shape.loop else ()
        nodes.append(NodeObservation(name, tuple(recorder.series()), ranks))
        energy[name] = recorder.energy_joules()
    return JobObservation(_context(shape, job_id, names, energy, start_s), tuple(nodes))


def _context(
    shape: JobShape, job_id: int, names: list[str], energy: dict[str, dict[str, float]], start_s: float
) -> ObservedAllocation:
    parts = [f"gpu[{index}]" for index in range(shape.gpus)]
    limit = _GPU_LIMIT * shape.cap_share
    settings = (("nvml.gpu_clock_mhz[0]", "900", "900"),) if shape.clock_setting else ()
    return ObservedAllocation(
        job_id=job_id,
        start_s=start_s,
        elapsed_s=shape.elapsed_s,
        state=shape.state,
        exit_status=shape.exit_status,
        step_exit_status=shape.step_exit_status,
        is_interactive=shape.is_interactive,
        nodes=tuple(names),
        cpus=shape.cpus * shape.nodes,
        gpus={name: tuple(range(shape.gpus)) for name in names} if shape.gpus else {},
        restart_count=shape.restart_count,
        energy_joules=energy if shape.has_energy else {},
        missing_nodes=0,
        idle_watts={name: {"cpu": _CPU_IDLE} | dict.fromkeys(parts, _GPU_IDLE) for name in names},
        limit_watts={name: dict.fromkeys(parts, limit) for name in names},
        max_limit_watts={name: dict.fromkeys(parts, _GPU_LIMIT) for name in names},
        settings=dict.fromkeys(names, settings) if settings else {},
    )


def _training_pattern(shape: JobShape) -> Pattern:
    loop = shape.loop
    assert loop is not None, "a job has a loop or a pattern"
    loads = [rank_load(loop, step) for step in step_times(loop)]

    def pattern(node: int, time_s: float, random: Random) -> NodeLoad:
        state = NodeLoad.idle(shape.gpus)
        if time_s < shape.startup_s:
            state.cpu_cores = state.cpu_wanted = min(1.2, loop.cpus)
            state.read_bytes_per_s = 5e7
            return state
        if time_s > shape.elapsed_s - shape.tail_s:
            return state
        pause = _checkpoint_share(shape, time_s)
        for gpu in range(loop.gpus):
            rank = loads[node * loop.gpus + gpu]
            run = 1 - pause
            state.busy[gpu] = rank.gpu_busy * run
            state.sm[gpu] = rank.sm_active * run
            state.dram[gpu] = rank.dram_active * run
            state.tensor[gpu] = rank.tensor_active * run
            state.copy_bytes_per_s[gpu] = rank.copy_bytes_per_s * run
            state.cpu_cores += rank.cpu_cores * run + 0.5 * pause
            state.cpu_wanted += rank.cpu_wanted * run
            state.read_bytes_per_s += rank.read_bytes_per_s * run
            state.io_wait = max(state.io_wait, rank.io_wait * run + 0.3 * pause)
            state.send_bytes_per_s += rank.send_bytes_per_s * run
        if pause:
            seconds = shape.checkpoint_s or 1.0
            state.write_bytes_per_s = pause * shape.checkpoint_bytes / seconds
        state.cpu_cores = min(state.cpu_cores, float(shape.cpus))
        return state

    return pattern


def _checkpoint_share(shape: JobShape, time_s: float) -> float:
    """Return the fraction of one sampling interval that the job spends in checkpoints.

    The middle of the interval is at `time_s`.
    """
    if not shape.checkpoint_every_s:
        return 0.0
    period = shape.checkpoint_every_s + shape.checkpoint_s
    window = 10.0
    inside = 0
    for step in range(20):
        phase = (time_s - shape.startup_s + (step / 20 - 0.5) * window) % period
        inside += phase >= shape.checkpoint_every_s
    return inside / 20


class _NodeRecorder:
    """Recorder of the synthetic time series of one node of a job.

    The caller adds the values interval by interval.
    """

    def __init__(
        self, shape: JobShape, name: str, number: int, interval_s: float, random: Random, start_s: float
    ) -> None:
        self._start_s = start_s
        self._shape, self._name, self._number = shape, name, number
        self._interval_s, self._random = interval_s, random
        self._values: dict[tuple[str, str], array[float]] = {}

    def add(self, load: NodeLoad, time_s: float) -> None:
        """Append the signal values of one time interval to the series of the node."""
        shape, progress = self._shape, time_s / shape_duration(self._shape)
        for gpu in range(shape.gpus):
            self._add_gpu(gpu, load, progress)
        cores = self._noisy(load.cpu_cores, 0.03, shape.cpus)
        self._put("power_watts", "cpu", _CPU_IDLE + _CPU_PER_CORE * cores)
        self._put("power_watts", "other", self._noisy(_OTHER, 0.01))
        self._put("cpu_busy_cores", "", cores)
        self._put("cpu_allocated_cores", "", float(shape.cpus))
        self._put("cpu_mhz", "", self._noisy(_CPU_MHZ * shape.cpu_clock.get(self._number, 1.0), 0.01))
        self._put("cpu_throttled_percent", "", self._percent(shape.cpu_throttled))
        memory = shape.host_memory_share + shape.host_memory_growth * progress
        self._put("memory_used_bytes", "", self._noisy(_NODE_MEMORY * memory, 0.004, _NODE_MEMORY))
        self._put("memory_limit_bytes", "", _NODE_MEMORY)
        self._put("block_read_bytes_per_s", "", 0.0 if shape.is_network_storage else load.read_bytes_per_s)
        self._put("block_write_bytes_per_s", "", 0.0 if shape.is_network_storage else load.write_bytes_per_s)
        received = load.read_bytes_per_s if shape.is_network_storage else 0.0
        sent = load.send_bytes_per_s + (load.write_bytes_per_s if shape.is_network_storage else 0.0)
        self._put("network_receive_bytes_per_s", "eth0", self._noisy(received + load.send_bytes_per_s, 0.05))
        self._put("network_transmit_bytes_per_s", "eth0", self._noisy(sent, 0.05))
        if shape.has_pressure:
            excess = load.cpu_wanted / max(shape.cpus, 1)
            pressure = min(0.97, max(0.02, 1.1 * (excess - 0.9))) if excess > 0.5 else 0.01
            if shape.cpu_pressure is not None:
                pressure = shape.cpu_pressure / 100
            self._put("cpu_pressure_percent", "", self._percent(pressure))
            self._put("io_pressure_percent", "", self._percent(0.9 * load.io_wait))
            self._put("memory_pressure_percent", "", self._percent(shape.memory_stall))

    def _add_gpu(self, gpu: int, load: NodeLoad, progress: float) -> None:
        shape, part, key = self._shape, f"gpu[{gpu}]", (self._number, gpu)
        clock = shape.gpu_clock.get(key, 1.0)
        activity = min(1.0, 0.95 * load.sm[gpu] + 0.15 * load.dram[gpu] + 0.08 * load.busy[gpu])
        watts = _GPU_IDLE + (_GPU_LIMIT - _GPU_IDLE) * activity * clock**2
        self._put("power_watts", part, self._noisy(min(watts, _GPU_LIMIT * shape.cap_share), 0.02))
        self._put("gpu_busy_percent", part, self._percent(load.busy[gpu]))
        if shape.has_gpm:
            self._put("sm_active_percent", part, self._percent(load.sm[gpu]))
            self._put("dram_active_percent", part, self._percent(load.dram[gpu]))
            self._put("tensor_active_percent", part, self._percent(load.tensor[gpu]))
        self._put("pcie_receive_bytes_per_s", part, self._noisy(load.copy_bytes_per_s[gpu], 0.1))
        was_used = load.busy[gpu] > 0 or any(v > 0 for v in self._values[("gpu_busy_percent", part)])
        share = shape.gpu_memory_share + shape.gpu_memory_growth * progress if was_used else 0.006
        self._put("gpu_memory_used_bytes", part, min(_GPU_MEMORY, _GPU_MEMORY * share))
        self._put("gpu_memory_total_bytes", part, _GPU_MEMORY)
        mhz = _SM_MHZ * clock if load.busy[gpu] > 0.02 else 345.0
        self._put("sm_clock_mhz", part, self._noisy(mhz, 0.01, _SM_MHZ))
        if shape.has_max_clock:
            self._put("max_sm_clock_mhz", part, _SM_MHZ)
        hot = shape.thermal.get(key, 0.0)
        self._put("gpu_temperature_celsius", part, self._noisy(35 + 35 * activity + (25 if hot else 0), 0.01))
        self._put("throttle_thermal_percent", part, self._percent(hot if load.busy[gpu] > 0.02 else 0.0))
        is_limited = load.busy[gpu] > 0.3
        self._put("throttle_power_percent", part, self._percent(shape.power_throttled if is_limited else 0.0))

    def series(self) -> list[ObservedSeries]:
        """Return the series of those signals that are observed for the job."""
        shape = self._shape
        return [
            ObservedSeries(name, part, self._name, "lab", self._start_s, self._interval_s, values)
            for (name, part), values in self._values.items()
            if (shape.has_power if name == "power_watts" else shape.has_signals)
        ]

    def energy_joules(self) -> dict[str, float]:
        """Return the energy in joules by component."""
        scale = self._shape.elapsed_s / max(1, len(self._values[("power_watts", "cpu")]))
        return {
            part: math.fsum(values) * scale
            for (name, part), values in self._values.items()
            if name == "power_watts"
        }

    def _put(self, name: str, part: str, value: float) -> None:
        if self._random.random() < _MISSED and name != "power_watts":
            value = math.nan
        self._values.setdefault((name, part), array("d")).append(value)

    def _noisy(self, value: float, deviation: float, maximum: float = math.inf) -> float:
        return min(maximum, max(0.0, value * self._random.gauss(1.0, deviation)))

    def _percent(self, share: float) -> float:
        return self._noisy(100 * share, 0.06, 100.0)


def shape_duration(shape: JobShape) -> float:
    """Return the duration of a job in seconds, which is always above 0."""
    return max(shape.elapsed_s, 1.0)
