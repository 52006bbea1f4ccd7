"""Generator of random hardware and random jobs for the virtual cluster.

The seed determines the hardware and the jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from slurm_energy_lab.model import NodeModel, NodeProfile, kernel_names, load_profile, program_names

_MAX_DRAWS = 1000
USERS = 3
"""Number of users, to whom the jobs belong in turn."""


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """Job of the virtual cluster, which uses whole nodes of one partition.

    Attributes:
        job_id: number of the job.
        submit_s: time of the submission in seconds since the start of the run.
        partition: `cpu` or `gpu`. The program runs on this kind of device.
        program: name of the compute kernel or program.
        nodes: number of nodes.
        seconds: run time at full speed without a power limit.
        limit_s: time limit that the user requests.
        uid: user id of the job's owner.
    """

    job_id: int
    submit_s: float
    partition: str
    program: str
    nodes: int
    seconds: float
    limit_s: float
    uid: int = 1001

    @property
    def work(self) -> float:
        """Return the work of the job in node-seconds at full speed."""
        return self.nodes * self.seconds


@dataclass(frozen=True, slots=True)
class JobMix:
    """Parameters of the random distribution of arriving jobs.

    Attributes:
        duration_s: time during which jobs arrive.
        load: arriving work, in node-seconds at full speed, per node and second.
        min_seconds, max_seconds: range of the run times in seconds. Run times are distributed log-uniformly.
        two_node_share: fraction of the jobs that use two nodes.
    """

    duration_s: float = 1800.0
    load: float = 0.8
    min_seconds: float = 60.0
    max_seconds: float = 420.0
    two_node_share: float = 0.3


def partition_of(node: str) -> str:
    """Return the partition of a node in the virtual cluster: the node's name without the number."""
    return node.rstrip("0123456789")


def nameplate_watts(profile: NodeProfile) -> float:
    """Return the sum of the thermal design powers of a node's packages and GPUs."""
    gpus = profile.gpu.count * profile.gpu.default_limit_watts if profile.gpu else 0.0
    return profile.cpu.packages * profile.cpu.tdp_watts + gpus


def max_other_watts(profile: NodeProfile) -> float:
    """Return the maximum total power of components without a power limit: memory, board, fans and losses."""
    memory, cpu, other = profile.memory, profile.cpu, profile.other
    dram = cpu.packages * (memory.idle_watts + memory.joules_per_byte * cpu.package_bytes_per_s)
    return other.base_watts + dram + other.loss_share * (nameplate_watts(profile) + dram)


def idle_watts(profile: NodeProfile) -> float:
    """Return the power of an idle node."""
    return NodeModel(profile).power_watts("node")


def has_package_limits(profile: NodeProfile) -> bool:
    """Return whether the power of the packages can be limited."""
    return any(limit.name == "long_term" for limit in profile.rapl.constraints)


def draw_profiles(
    seed: int, accepts: Callable[[NodeProfile, NodeProfile], bool] = lambda *_: True
) -> tuple[str, str]:
    """Return the names of two hardware profiles: for nodes without GPUs, and for nodes with GPUs.

    Profiles are drawn at random until the packages of both have power limits, and `accepts` returns True for
    both.

    Raises:
        ValueError: no accepted hardware was found.
    """
    numbers = random.Random(f"hardware/{seed}")
    for _ in range(_MAX_DRAWS):
        names = tuple(f"random-{device}-{numbers.randrange(10**9)}" for device in ("cpu", "gpu"))
        cpu, gpu = (load_profile(name) for name in names)
        if has_package_limits(cpu) and has_package_limits(gpu) and accepts(cpu, gpu):
            return names[0], names[1]
    raise ValueError(f"seed {seed}: no hardware was accepted in {_MAX_DRAWS} draws")


def draw_jobs(seed: int, partition_nodes: dict[str, int], mix: JobMix) -> list[ClusterJob]:
    """Return random jobs in the order of submission. Times between submissions are exponential."""
    numbers = random.Random(f"jobs/{seed}")
    programs = (*kernel_names(), *program_names())
    span = math.log(mix.max_seconds / mix.min_seconds)
    mean_seconds = (mix.max_seconds - mix.min_seconds) / span
    jobs: list[tuple[float, str, str, int, float, float]] = []
    for partition, count in partition_nodes.items():
        rate = mix.load * count / (mean_seconds * (1.0 + mix.two_node_share))
        submit_s = numbers.expovariate(rate) / 4.0
        while submit_s < mix.duration_s:
            seconds = mix.min_seconds * math.exp(span * numbers.random())
            nodes = 2 if numbers.random() < mix.two_node_share and count > 1 else 1
            limit_s = 60.0 * math.ceil(seconds * numbers.uniform(3.0, 6.0) / 60.0)
            jobs.append((submit_s, partition, numbers.choice(programs), nodes, seconds, limit_s))
            submit_s += numbers.expovariate(rate)
    return [
        ClusterJob(job_id, submit_s, partition, program, nodes, seconds, limit_s, 1001 + job_id % USERS)
        for job_id, (submit_s, partition, program, nodes, seconds, limit_s) in enumerate(sorted(jobs), 1)
    ]
