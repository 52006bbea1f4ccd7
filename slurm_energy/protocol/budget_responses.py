"""Responses of senergyctld about power budgets, as JSON objects.

Powers are watts, times are Unix seconds. None means unknown unless stated otherwise.
"""

from __future__ import annotations

from typing import TypedDict


class LimitStepObject(TypedDict):
    """A change of a limit over time: `watts` applies from `unix_s` on.

    `watts` is None if no limit applies from `unix_s` on.
    """

    unix_s: float
    watts: float | None


class LimitOverrideObject(TypedDict):
    """A limit that an administrator has set while senergyctld runs.

    `until_unix_s` is None if the limit applies until the next change.
    """

    watts: float
    until_unix_s: float | None
    by: str
    since_unix_s: float
    reason: str


class BudgetObject(TypedDict):
    """State of one budget.

    Keys:
        name: name in the configuration.
        scope, scope_value: the configuration key that defines the scope (`cluster`, `partition`, `nodes`,
            `account`, `user` or `qos`), and the value of this key; the value is empty for `cluster`.
        source: origin of the limit: `watts`, `schedule`, `calendar`, `signal`, or `set` if an administrator
            has set the limit.
        problem: fault of the source, for example a lost signal; empty if there is no fault.
        limit_watts: present limit; None if there is no limit.
        configured_watts: limit that applies without `override`; None if there is no limit.
        override: live limit; None if there is no live limit.
        measured_watts: measured power of the nodes under the budget.
        committed_watts: power that cannot be exceeded at the limits in force, including `fixed_watts`.
        fixed_watts: part of `committed_watts` that no limit controls.
        capped_watts: power by which the limits reduce the demand of the devices.
        headroom_watts: power that new jobs may add now; None if there is no limit.
        idle_watts: power under the budget without any job. The limit cannot be set to less.
        floor_watts: lowest committed power at which every running job keeps its floor (minimum power limit).
        shortfall_watts: power by which the limit is exceeded although every device is at its floor.
        nodes, silent_nodes, distrusted_nodes: numbers of all nodes under the budget, of silent nodes and of
            distrusted nodes, see `BudgetNodeObject.state`.
        unmeasured_nodes: number of nodes that report neither power nor a power limit.
        held_jobs: pending jobs that wait for power under this budget.
        plan: coming changes of the limit, in the order of time.
    """

    name: str
    scope: str
    scope_value: str
    source: str
    problem: str
    limit_watts: float | None
    configured_watts: float | None
    override: LimitOverrideObject | None
    measured_watts: float | None
    committed_watts: float | None
    fixed_watts: float | None
    capped_watts: float | None
    headroom_watts: float | None
    idle_watts: float | None
    floor_watts: float | None
    shortfall_watts: float
    nodes: int
    silent_nodes: int
    distrusted_nodes: int
    unmeasured_nodes: int
    held_jobs: int | None
    plan: list[LimitStepObject]


class BudgetNodeObject(TypedDict):
    """Power of one node.

    Keys:
        node: Slurm's name.
        state: `reporting`; `silent`: the node does not report; `safe`: the node has set its safe limits;
            `distrusted`: the node's reports contradict each other; `off`: Slurm has powered the node down.
        reason: why the node has this state; may be empty.
        measured_watts, committed_watts: measured power and power that the limits permit.
        max_watts: power without limits (nameplate).
        job_ids: jobs on the node that the caller may see.
    """

    node: str
    state: str
    reason: str
    measured_watts: float | None
    committed_watts: float | None
    max_watts: float | None
    job_ids: list[int]


class BudgetJobObject(TypedDict):
    """Power of one running job.

    Keys:
        job_id: Slurm's number of the job.
        user, partition: names; empty if unknown.
        nodes: number of nodes.
        measured_watts: measured power of the job's devices.
        committed_watts: power that the limits permit the job's devices.
        wanted_watts: expected power of the job without limits.
        budget: name of the budget that determines the limits; None if no budget limits the job.
        keeps_slowdown: whether the job's slowdown limit is kept under the power limits; None if the job has
            no slowdown limit.
        explanation: the decision about the job in one sentence.
    """

    job_id: int
    user: str
    partition: str
    nodes: int
    measured_watts: float | None
    committed_watts: float | None
    wanted_watts: float | None
    budget: str | None
    keeps_slowdown: bool | None
    explanation: str


class BudgetStatusResponse(TypedDict):
    """Response to `GET /v1/budget`, the state of power budgets.

    Keys:
        unix_s: time of the response.
        mode: `off`, `observe` or `enforce`.
        distribution, admission, period_s: as in the configuration.
        decided_unix_s: time of the last decision; None if there was no decision yet.
        scope: `all`, or `own` if jobs of other users are left out.
        budgets: the budgets in the order of the configuration.
        nodes, jobs: nodes and running jobs; empty unless the query requests them.
    """

    unix_s: float
    mode: str
    distribution: str
    admission: str
    period_s: float
    decided_unix_s: float | None
    scope: str
    budgets: list[BudgetObject]
    nodes: list[BudgetNodeObject]
    jobs: list[BudgetJobObject]


class BudgetSetResponse(TypedDict):
    """Response to `POST /v1/budget/set`, with which an operator sets the limit of a power budget.

    A limit below the idle power of the budget is refused; the error states the required power.

    Keys:
        budget: name of the budget.
        limit_watts: limit in force after the change; None if there is no limit.
        previous_watts: limit before the change; None if there was no limit.
        until_unix_s: end of the limit that the operator set; None if it has no end.
        warning: consequence that the administrator should know; may be empty. For example, no job starts
            while the limit is below the lowest power to which running jobs can be limited.
    """

    budget: str
    limit_watts: float | None
    previous_watts: float | None
    until_unix_s: float | None
    warning: str


class BudgetSeriesObject(TypedDict):
    """Power under one budget over time: lists of equal length.

    Keys:
        budget: name of the budget.
        unix_s, span_s: start and length of each time span of the series.
        limit_watts: lowest limit in the span; None if there was no limit.
        measured_watts, max_measured_watts: mean and maximum of the measured power in the span.
        committed_watts: maximum of the committed power in the span. Committed power is the maximum power
            that the limits in force permit devices to draw.
        capped_watts: mean power by which the limits reduced the demand of the devices.
        over_s: seconds of the span in which the measured power was above the limit.
    """

    budget: str
    unix_s: list[float]
    span_s: list[float]
    limit_watts: list[float | None]
    measured_watts: list[float | None]
    max_measured_watts: list[float | None]
    committed_watts: list[float]
    capped_watts: list[float]
    over_s: list[float]


class BudgetChangeObject(TypedDict):
    """An event of the audit trail.

    Keys:
        unix_s: time of the event.
        budget: name of the budget; None if the event does not concern a single budget.
        by: login name of the administrator; None if senergyctld caused the event.
        kind: `set`, `clear`, `reload`, `signal`, `over`, `node` or `start`.
        text: the event in one line.
    """

    unix_s: float
    budget: str | None
    by: str | None
    kind: str
    text: str


class BudgetHistoryResponse(TypedDict):
    """Response to `GET /v1/budget/history`: one time series per budget, and the budgets' events.

    The events are in the order of time, oldest first.
    """

    series: list[BudgetSeriesObject]
    changes: list[BudgetChangeObject]


class BudgetExplanationResponse(TypedDict):
    """Response to `GET /v1/budget/explain` about a job that the caller may see.

    Keys:
        job_id: Slurm's number of the job.
        state: `running`, `pending`, or `unknown` if senergyctld has not decided about the job yet.
        budget: name of the budget that limits or delays the job; None if no budget does.
        explanation: the decision in one sentence.
        details: further sentences, one per budget that applies to the job.
        wanted_watts: expected power of the job without limits; for a pending job the upper quantile of the
            prediction.
        committed_watts: power that the limits permit; None for a pending job.
        license_watts: watts that the job requests as licenses; None if the job requests no such licenses.
        keeps_slowdown: whether the job's slowdown limit is kept under the power limits; None if the job has
            no slowdown limit.
        decided_unix_s: time of the decision.
    """

    job_id: int
    state: str
    budget: str | None
    explanation: str
    details: list[str]
    wanted_watts: float | None
    committed_watts: float | None
    license_watts: int | None
    keeps_slowdown: bool | None
    decided_unix_s: float | None
