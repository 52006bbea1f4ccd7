"""Fake nodes whose agents apply the decisions of a power budget engine, for tests.

The test passes messages by function calls and sets the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slurm_energy.budget.messages import DeviceReport, JobReport, NodeDecision, NodePoll
from slurm_energy.controller.budgets.engine import BudgetEngine
from slurm_energy.controller.budgets.facts import BudgetedJob, BudgetedNode

GPU, CPU = "NVIDIA A100", "Xeon"
RANGES = {"package": (60.0, 200.0, 40.0), "gpu": (100.0, 400.0, 50.0)}
"""Lowest and highest limit, and idle power."""
RESERVE_WATTS = 80.0


@dataclass
class FakeNode:
    """A node and its agent.

    Attributes:
        name: name of the node.
        gpus: number of GPUs.
        demand: power that the jobs want by device; a device without an entry is idle.
        jobs: jobs by device.
        lowest: lowest power that a power limit can enforce, by device. A device without an entry
            can be limited to its minimum power limit.
        has_devices: whether the agent finds processors and GPUs; a virtual machine without counters has none.
    """

    name: str
    gpus: int = 2
    boot: int = 1
    number: int = 0
    ceiling: dict[str, float] = field(default_factory=dict)
    demand: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)
    sensor_factor: float = 1.0
    has_package_limits: bool = True
    has_gpu_limits: bool = True
    is_measured: bool = True
    has_devices: bool = True
    slowdown_limit: float | None = None
    lowest: dict[str, float] = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        return ["package-0", *(f"gpu{i}" for i in range(self.gpus))]

    def range_of(self, device: str) -> tuple[float, float, float]:
        return RANGES[device.rstrip("0123456789-")]

    def watts(self, device: str) -> float:
        low, high, idle = self.range_of(device)
        wanted = self.demand.get(device, idle)
        return min(wanted, max(low, self.lowest.get(device, 0.0), self.ceiling.get(device, high)))

    @property
    def power(self) -> float:
        return RESERVE_WATTS + sum(self.watts(device) for device in self.devices)

    def run(self, job_id: int, watts: dict[str, float]) -> None:
        """Start a job on the node.

        The controller has set a power limit for starting jobs on each device. The agent raises the ceiling of
        each device of the job to this limit. A ceiling is the upper bound of a power limit.
        """
        for device, wanted in watts.items():
            self.demand[device], self.jobs[device] = wanted, (job_id,)
            if device in self.ceiling:
                self.ceiling[device] = max(self.ceiling[device], self.start.get(device, 0.0))

    def end(self, job_id: int) -> None:
        for device in [name for name, ids in self.jobs.items() if job_id in ids]:
            del self.demand[device], self.jobs[device]

    def poll(self) -> NodePoll:
        devices = []
        for name in self.devices if self.has_devices else ():
            low, high, _ = self.range_of(name)
            ceiling = self.ceiling.get(name)
            limited = self.has_gpu_limits if name.startswith("gpu") else self.has_package_limits
            devices.append(
                DeviceReport(
                    name,
                    GPU if name.startswith("gpu") else CPU,
                    low if limited else None,
                    high if limited else None,
                    (high if ceiling is None else ceiling) if limited else None,
                    self.watts(name) * self.sensor_factor if self.is_measured else None,
                    self.jobs.get(name, ()),
                    ceiling,
                )
            )
        ids = {job for ids in self.jobs.values() for job in ids}
        reports = tuple(JobReport(job, 0, self.slowdown_limit) for job in sorted(ids))
        power = self.power * self.sensor_factor if self.is_measured else None
        return NodePoll(self.name, f"boot-{self.boot}", self.number, tuple(devices), power, None, reports)

    def apply(self, decision: NodeDecision) -> None:
        if decision.number == 0:
            self.ceiling.clear()
            self.number = 0
            return
        for device, watts in decision.limits_watts.items():
            if watts is None:
                self.ceiling.pop(device, None)
            else:
                self.ceiling[device] = watts
        self.number, self.start = decision.number, decision.start_watts


@dataclass
class FakeCluster:
    """Nodes that poll an engine once per second, with losses of requests and responses."""

    engine: BudgetEngine
    nodes: list[FakeNode]
    now_s: float = 1000.0
    loss: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    cut: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.engine.set_nodes({node.name: BudgetedNode() for node in self.nodes})

    @property
    def power(self) -> float:
        return sum(node.power for node in self.nodes)

    def announce(self, **accounts: int) -> None:
        """Announce the jobs on the nodes to the engine as the running jobs of Slurm.

        Args:
            **accounts: job id by name of the account to which the job belongs. Jobs that are not given
                belong to the account `other`.
        """
        of_job = {job: account for account, job in accounts.items()}
        jobs: dict[int, BudgetedJob] = {}
        for node in self.nodes:
            for ids in node.jobs.values():
                for job in ids:
                    before = jobs[job].nodes if job in jobs else frozenset()
                    nodes = before | {node.name}
                    jobs[job] = BudgetedJob(job, account=of_job.get(job, "other"), nodes=nodes)
        self.engine.set_jobs(jobs)

    def step(self, seconds: int = 1) -> list[float]:
        """Simulate some seconds of the cluster. Return its power after each second.

        In each second the nodes poll the budget engine, the engine decides, and the nodes apply the decision.
        Some messages are lost.
        """
        powers = []
        for _ in range(seconds):
            self.now_s += 1.0
            for node in self.nodes:
                if node.name in self.cut or self.rng.random() < self.loss:
                    continue
                decision = self.engine.poll(node.poll(), self.now_s)
                if self.rng.random() >= self.loss:
                    node.apply(decision)
            self.cycle = self.engine.decide(self.now_s)
            powers.append(self.power)
        return powers
