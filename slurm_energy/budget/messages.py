"""Messages between the agents and the controller about the power of nodes.

The agent of each node polls the controller. A poll reports the node's devices, power and jobs; the decision
states a power limit for each device, a time until which it is valid, and the limits to use after that time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

BUDGET_PATH: Final = "/v1/budget/poll"
"""Path of the polls on the controller's HTTP server."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """A processor package or GPU.

    Attributes:
        name: `package-N` or `gpuN`, as in the keys of settings.
        kind: product name.
        min_watts, max_watts: range of the power limit; None if the device has no power limit to set.
        limit_watts: power limit that was read back; None if unknown.
        watts: mean power since the last poll; None if unknown.
        job_ids: jobs that use the device.
    """

    name: str
    kind: str
    min_watts: float | None
    max_watts: float | None
    limit_watts: float | None
    watts: float | None
    job_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job that runs on the node.

    Attributes:
        job_id, restart_count: the job.
        slowdown_limit: accepted slowdown as a fraction; None without one.
        requested_watts: limit per device that the job itself requests or the tuner has set, by device.
        curve: response curve measured in this run (`tuning.ResponseCurve` as JSON); None without one.
    """

    job_id: int
    restart_count: int
    slowdown_limit: float | None = None
    requested_watts: dict[str, float] = field(default_factory=dict)
    curve: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NodePoll:
    """Report of a node.

    Attributes:
        node: Slurm's name of the node.
        boot_id: identifies the node's boot, because a reboot resets power limits.
        number: number of the last decision that was applied and read back; 0 for none.
        devices: packages and GPUs.
        node_watts: power of the whole node; None if it is not measured.
        dram_watts: power of the memory; None if it is not measured.
        jobs: jobs on the node.
        is_safe: whether the node has fallen back to its safe limits.
    """

    node: str
    boot_id: str
    number: int
    devices: tuple[DeviceReport, ...]
    node_watts: float | None
    dram_watts: float | None
    jobs: tuple[JobReport, ...] = ()
    is_safe: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the poll as a dict for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """Decision of the controller for one node.

    Attributes:
        number: number of the decision; 0: no budget applies to the node.
        limits_watts: power limit by device; None: no limit of the budget.
        safe_watts: power limit by device that the agent sets when `lease_s` has passed without a decision.
        start_watts: power limit by device for a job that starts before the next decision.
        lease_s: seconds for which the limits are valid.
        poll_s: seconds until the next poll.
    """

    number: int
    limits_watts: dict[str, float | None]
    safe_watts: dict[str, float]
    start_watts: dict[str, float]
    lease_s: float
    poll_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a dict for JSON."""
        return dataclasses.asdict(self)
