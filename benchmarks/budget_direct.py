"""Fast emulated nodes for the benchmark `budget_lab`, which compares power budgets.

The agents of these nodes access the hardware model directly instead of emulated files. They report
and act as `agent.budget.NodeBudget` does for jobs that use whole nodes. They are six times as fast as
the agents of the product, because some parts are missing: the journal of original settings, the time
limit of decisions (lease), and emulated faults. The budget decisions come from the code of the
product.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.agent.budget.device_ceilings import MAX_WINDOW_S
from slurm_energy.budget.messages import DeviceReport, JobReport, NodeDecision, NodePoll
from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.virtual_cluster.cluster import BareNode
from slurm_energy_lab.virtual_node import ModelClock

_PACKAGE_MIN_SHARE = 0.3
"""Lowest limit of a package divided by its highest, as senergyd assumes it for RAPL."""
_MIN_WINDOW_S = 0.4
"""Minimum length of the time over which power is averaged."""


@dataclass(slots=True)
class DirectDevice:
    """A package or GPU whose power a budget limits.

    Attributes:
        kind: product name.
        component: name of the device in the model of the node.
        min_watts, max_watts: range of the device's power limit.
        limit_watts: current power limit.
        ceiling_watts: upper bound that the budget sets for the power limit; None if it sets no upper bound.
    """

    kind: str
    component: str
    min_watts: float
    max_watts: float
    limit_watts: float
    ceiling_watts: float | None = None


class DirectNode(BareNode):
    """A simulated node with the part of an agent that power budgets need.

    Args:
        name: Slurm's name of the node.
        profile: hardware.
        clock: clock of the model.

    Attributes:
        poll_s: seconds until the node sends its next report (poll) to the controller.
        wants_poll: whether a job started or ended since the last poll.
    """

    def __init__(self, name: str, profile: NodeProfile, clock: ModelClock) -> None:
        super().__init__(profile, clock)
        self.poll_s, self.wants_poll = 1.0, False
        self._name, self._clock = name, clock
        self._devices = _devices(profile)
        self._job_ids: tuple[int, ...] = ()
        self._decision: NodeDecision | None = None
        self._counters: dict[str, float] = {}
        self._counted_s = clock.now_s
        self._watts: dict[str, float] = {}

    @property
    def manager(self) -> DirectNode:
        """The job manager of this node, which is this object itself.

        Nodes with a real agent have a separate job manager.
        """
        return self

    @property
    def budget(self) -> DirectNode:
        """The power budget of the agent."""
        return self

    def sample(self) -> None:
        """Compute the mean power of all devices and of the node since the last sample."""
        length_s = self._clock.now_s - self._counted_s
        if self._counters and length_s < _MIN_WINDOW_S:
            return
        with self.model.now() as state:
            names = {name: device.component for name, device in self._devices.items()} | {"node": "node"}
            counters = {name: state.energy_joules(component) for name, component in names.items()}
        if self._counters:
            self._watts = {name: (counters[name] - self._counters[name]) / length_s for name in counters}
        self._counters, self._counted_s = counters, self._clock.now_s

    def poll_budget(self) -> NodePoll:
        """Take a sample and return the report of the node to the controller."""
        self.sample()
        self.wants_poll = False
        devices = tuple(
            DeviceReport(
                name,
                device.kind,
                device.min_watts,
                device.max_watts,
                device.limit_watts,
                self._watts.get(name),
                self._job_ids,
                device.ceiling_watts,
            )
            for name, device in self._devices.items()
        )
        number = 0 if self._decision is None else self._decision.number
        jobs = tuple(JobReport(job_id, 0) for job_id in self._job_ids)
        return NodePoll(self._name, "boot", number, devices, self._watts.get("node"), None, jobs)

    def apply(self, decision: NodeDecision, sent_s: float | None = None) -> None:
        """Set the ceilings that a decision contains.

        A ceiling is the upper bound of a device's power limit.
        """
        self._decision, self.poll_s = decision, decision.poll_s
        for name, watts in decision.limits_watts.items():
            self._set_ceiling(name, self._devices[name].max_watts if watts is None else watts)

    def begin(self, job_id: int) -> None:
        """Start a job on the node.

        Ceilings (upper bounds of device power) are raised to the power limits of the controller's decision
        for starting jobs.
        """
        self._job_ids, self.wants_poll = (*self._job_ids, job_id), True
        for name, watts in self._decision.start_watts.items() if self._decision is not None else ():
            ceiling = self._devices[name].ceiling_watts
            if ceiling is not None and ceiling < watts:
                self._set_ceiling(name, watts)

    def end(self, job_id: int) -> None:
        """End a job on the node.

        When the last job has ended, the ceiling (upper bound of the power limit) of each device falls to the
        minimum. A ceiling that is at the device's maximum stays there.
        """
        self._job_ids, self.wants_poll = tuple(one for one in self._job_ids if one != job_id), True
        for name, device in self._devices.items() if not self._job_ids else ():
            if device.ceiling_watts is not None and device.ceiling_watts < device.max_watts:
                self._set_ceiling(name, device.min_watts)

    def _set_ceiling(self, name: str, watts: float) -> None:
        device = self._devices[name]
        device.ceiling_watts = watts = min(max(watts, device.min_watts), device.max_watts)
        if watts == device.limit_watts:
            return
        device.limit_watts = watts
        with self.model.modify() as state:
            if name.startswith("gpu"):
                state.set_gpu(int(name.removeprefix("gpu")), watts)
            else:
                package = int(name.removeprefix("package-"))
                state.set_package_limit(package, "long_term", watts, MAX_WINDOW_S, True)


def _devices(profile: NodeProfile) -> dict[str, DirectDevice]:
    """Return the CPU packages and GPUs of an emulated node as devices of a budget, by name."""
    cpu, gpu = profile.cpu, profile.gpu
    top = cpu.tdp_watts
    devices = {
        f"package-{index}": DirectDevice(cpu.model_name, f"cpu[{index}]", _PACKAGE_MIN_SHARE * top, top, top)
        for index in range(cpu.packages)
    }
    if gpu is not None:
        limits = gpu.min_limit_watts, gpu.default_limit_watts, gpu.default_limit_watts
        for index in range(gpu.count):
            devices[f"gpu{index}"] = DirectDevice(gpu.name, f"gpu[{index}]", *limits)
    return devices
