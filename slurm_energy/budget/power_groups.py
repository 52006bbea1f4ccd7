"""Arrays with the input and the result of a budget decision.

`PowerGroups` describes groups of devices with a common power limit. `BudgetColumns` describes the budgets
that cover these groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.scheduling.queue import Bools, Floats, Ints

NO_JOB = -1
"""Value of `PowerGroups.job_id` for devices without a job."""


@dataclass(frozen=True, slots=True)
class PowerGroups:
    """The n groups of devices with a power limit. Columns have shape (n,) unless stated otherwise.

    A group contains devices of one kind that belong to one job, or to the jobs that share a processor, or to
    no job. All devices of a group get the same limit, because a job on several nodes waits for its slowest
    device.

    Attributes:
        job_id: job id; `NO_JOB` for devices without a job.
        devices: number of devices.
        min_watts, max_watts: range of the power limit of one device.
        draw_watts: expected power of one device without a limit, as an upper quantile.
        floor_watts: minimum limit per device that a budget may set while the job runs; at least `min_watts`.
        level_watts: possible limits per device in ascending order, shape (n, k).
        time_ratio: time per unit of work at each of these limits, divided by the time without a limit. The
            ratios are at least 1 and do not increase from one limit to the next; shape (n, k).
        slowdown_limit: accepted slowdown as a fraction, for example 0.05; NaN means no slowdown limit.
        weight: number of nodes of the job, which is the weight of the job's slowdown; 0 for devices
            without a job.
        deadline_s: seconds until the job's deadline minus its remaining time without a limit; infinity
            without a deadline.
    """

    job_id: Ints
    devices: Ints
    min_watts: Floats
    max_watts: Floats
    draw_watts: Floats
    floor_watts: Floats
    level_watts: Floats
    time_ratio: Floats
    slowdown_limit: Floats
    weight: Floats
    deadline_s: Floats

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.job_id)


@dataclass(frozen=True, slots=True)
class BudgetColumns:
    """The b budgets in force. Columns have shape (b,) unless stated otherwise.

    A budget limits the power of the cluster or of a part of it. The devices of jobs form n groups.

    Attributes:
        limit_watts: present limit; infinity without a limit.
        fixed_watts: the part of the power under the budget that no power limit controls. It contains the
            idle power of other components, devices without power limits, nodes that do not answer, and
            constant loads such as switches.
        members: number of devices of each group under the budget, shape (b, n). A budget may cover only some
            of the devices of a job on several nodes.
    """

    limit_watts: Floats
    fixed_watts: Floats
    members: Ints


@dataclass(frozen=True, slots=True)
class PowerShares:
    """Result of the distribution of b budgets among n groups of devices.

    Attributes:
        limit_watts: power limit of each device of a group; NaN means that no limit is needed. Shape (n,).
        binding: row of the budget that determines the group's power limit, shape (n,). -1 means that no
            budget determines the power limit.
        keeps_slowdown: whether the job stays within its permitted slowdown under the power limit. Shape
            (n,).
        committed_watts: sum of all power limits and the fixed power under each budget. A group that needs no
            limit counts with its expected power. Shape (b,).
        shortfall_watts: power by which a budget is exceeded although every group has its lowest permitted
            power limit (floor). Shape (b,).
    """

    limit_watts: Floats
    binding: Ints
    keeps_slowdown: Bools
    committed_watts: Floats
    shortfall_watts: Floats
