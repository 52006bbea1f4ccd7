"""Synthetic jobs that are not training loops: CPU programs, services, sessions and bursts."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape, NodeLoad
from slurm_energy_lab.diagnosis_corpus.observe import Pattern, observe


def cpu_job(
    random: Random,
    *,
    threads_per_cpu: float = 1.0,
    throttled: float = 0.0,
    uneven: bool = False,
    slow_node: bool = False,
    used: float = 1.0,
) -> JobObservation:
    """Return a job that runs an MPI or OpenMP program on CPUs only. By default, the job is healthy.

    Args:
        random: source of parameters and noise.
        threads_per_cpu: number of the program's threads per CPU.
        throttled: fraction of the time in which a CPU quota stops the program.
        uneven: whether the nodes have different amounts of work.
        slow_node: whether one node runs at a low clock.
        used: fraction of the allocated CPUs that the program uses.
    """
    nodes = random.choice([2, 3, 4, 8]) if uneven or slow_node else random.choice([1, 1, 2, 4])
    if slow_node:
        nodes = max(nodes, 3)
    cpus = random.choice([16, 32, 64])
    shape = JobShape(
        elapsed_s=random.uniform(900, 14400),
        nodes=nodes,
        gpus=0,
        cpus=cpus,
        startup_s=random.uniform(5, 40),
        host_memory_share=random.uniform(0.05, 0.4),
        cpu_throttled=throttled,
        has_steps=False,
    )
    if slow_node:
        shape.cpu_clock = {random.randrange(nodes): random.uniform(0.35, 0.7)}
    efficiency = random.uniform(0.9, 0.995)
    low = random.uniform(0.15, 0.5)
    send = random.choice([0.0, 1e7, 3e8])

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(0)
        share = used * efficiency * (1 - throttled)
        if uneven:
            share *= low + (1 - low) * node / (nodes - 1)
        load.cpu_cores = cpus * share if time_s > shape.startup_s else 1.0
        load.cpu_wanted = load.cpu_cores * threads_per_cpu
        load.send_bytes_per_s = send if nodes > 1 else 0.0
        return load

    return observe(shape, random, pattern)


def forgotten_session(random: Random) -> JobObservation:
    """Return an interactive job that works for a short time and then idles for hours."""
    gpus = random.choice([0, 1, 1, 2])
    shape = JobShape(
        elapsed_s=random.uniform(3 * 3600, 12 * 3600),
        gpus=gpus,
        cpus=random.choice([4, 8, 16]),
        is_interactive=True,
        has_steps=False,
        gpu_memory_share=random.uniform(0.05, 0.4),
        state=random.choice(["TIMEOUT", "COMPLETED", "CANCELLED"]),
    )
    active_s = random.uniform(300, 0.3 * shape.elapsed_s)
    return observe(shape, random, _session_pattern(gpus, lambda time_s, _: time_s < active_s))


def debugging_session(random: Random) -> JobObservation:
    """Return a healthy interactive job with short bursts of work and short pauses."""
    gpus = random.choice([0, 1])
    shape = JobShape(
        elapsed_s=random.uniform(1200, 5400),
        gpus=gpus,
        cpus=random.choice([2, 4, 8]),
        is_interactive=True,
        has_steps=False,
        gpu_memory_share=random.uniform(0.1, 0.4),
    )
    pauses, time_s = [], 0.0
    while time_s < shape.elapsed_s:
        start = time_s + random.uniform(60, 300)
        time_s = start + random.uniform(60, 500)
        pauses.append((start, time_s))

    def is_active(now_s: float, _: Random) -> bool:
        return not any(start <= now_s < end for start, end in pauses)

    return observe(shape, random, _session_pattern(gpus, is_active))


def _session_pattern(gpus: int, is_active: Callable[[float, Random], bool]) -> Pattern:
    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        if is_active(time_s, noise):
            load.busy = [noise.uniform(0.3, 1.0) for _ in range(gpus)]
            load.sm = [0.6 * busy for busy in load.busy]
            load.cpu_cores = load.cpu_wanted = noise.uniform(0.8, 2.5)
        return load

    return pattern


def one_node_works(random: Random) -> JobObservation:
    """Return a job on several nodes, of which only the first node does any work."""
    nodes, cpus = random.choice([2, 3, 4]), random.choice([8, 16, 32])
    shape = JobShape(random.uniform(1200, 9000), nodes=nodes, gpus=0, cpus=cpus, has_steps=False)

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(0)
        load.cpu_cores = load.cpu_wanted = 0.95 * cpus if node == 0 else 0.01
        return load

    return observe(shape, random, pattern)


def cpu_only_program(random: Random) -> JobObservation:
    """Return a job with allocated GPUs whose program runs on CPUs only."""
    gpus, cpus = random.choice([1, 2, 4]), random.choice([8, 16])
    shape = JobShape(random.uniform(1200, 9000), gpus=gpus, cpus=cpus, has_steps=False)

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        load.cpu_cores = load.cpu_wanted = 0.9 * cpus
        return load

    return observe(shape, random, pattern)


def inference_service(random: Random) -> JobObservation:
    """Return the observed data of a healthy inference service, for tests of the diagnosis.

    The load of the service comes in waves and bursts. The service reserves memory at the start.
    """
    gpus = random.choice([1, 2, 4])
    shape = JobShape(
        elapsed_s=random.uniform(3600, 10 * 3600),
        gpus=gpus,
        cpus=8 * gpus,
        gpu_memory_share=random.uniform(0.85, 0.95),
        has_steps=False,
        has_gpm=random.random() < 0.7,
        state=random.choice(["TIMEOUT", "CANCELLED", None]),
    )
    mean, period = random.uniform(0.3, 0.7), random.uniform(1200, 7200)

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        if time_s < 90:
            load.read_bytes_per_s = 1e9
            return load
        wave = mean * (1 + 0.6 * math.sin(2 * math.pi * time_s / period))
        level = min(1.0, max(0.06, wave * noise.gammavariate(3, 1 / 3)))
        load.busy = [min(1.0, max(0.06, level * noise.gauss(1, 0.1))) for _ in range(gpus)]
        load.sm = [0.45 * busy for busy in load.busy]
        load.dram = [0.6 * busy for busy in load.busy]
        load.cpu_cores = load.cpu_wanted = 0.3 + 1.5 * gpus * level
        load.send_bytes_per_s = 2e6 * level
        return load

    return observe(shape, random, pattern)


def bursts(random: Random) -> JobObservation:
    """Return the observed data of a healthy program with alternating phases on CPUs and on GPUs.

    Each phase lasts some minutes. The data tests the diagnosis.
    """
    gpus = random.choice([1, 2])
    shape = JobShape(random.uniform(3600, 14400), gpus=gpus, cpus=16 * gpus, has_steps=False)
    cpu_s, gpu_s = random.uniform(60, 400), random.uniform(120, 600)

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(gpus)
        if time_s % (cpu_s + gpu_s) < cpu_s:
            load.cpu_cores = load.cpu_wanted = 14.0 * gpus
        else:
            load.busy, load.sm = [0.93] * gpus, [0.7] * gpus
            load.dram, load.cpu_cores, load.cpu_wanted = [0.4] * gpus, 1.2 * gpus, 1.2 * gpus
        return load

    return observe(shape, random, pattern)


def large_memory_job(random: Random) -> JobObservation:
    """Return a healthy serial program that holds all CPUs of a node, because it needs the whole memory."""
    cpus = random.choice([16, 32])
    shape = JobShape(
        random.uniform(1800, 9000),
        gpus=0,
        cpus=cpus,
        host_memory_share=random.uniform(0.6, 0.85),
        has_steps=False,
    )

    def pattern(node: int, time_s: float, noise: Random) -> NodeLoad:
        load = NodeLoad.idle(0)
        load.cpu_cores = load.cpu_wanted = 1.0
        return load

    return observe(shape, random, pattern)
