"""Responses of senergyctld about power budgets, as JSON objects.

Powers are watts, times are Unix seconds. None means unknown unless stated otherwise.
"""

from __future__ import annotations

from typing import TypedDict


class LimitStepObject(TypedDict):
    """A step of a limit: `watts` applies from `unix_s` on; None: no limit."""

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
        scope, scope_value: `cluster`, `partition`, `nodes`, `account`, `user` or `qos`, and the value of this
            key; empty for the cluster.
        source: `watts`, `schedule`, `calendar`, `signal`, or `set` if an administrator has set the limit.
        problem: fault of the source, for example a lost signal; empty: none.
        limit_watts: limit now; None: no limit.
        configured_watts: limit without `override`; None: no limit.
        override: live limit; None: none.
        measured_watts: measured power.
        committed_watts: power that cannot be exceeded at the limits in force, with `fixed_watts`.
        fixed_watts: part of it that no limit controls.
        capped_watts: power that the limits take from devices.
        headroom_watts: power that new jobs may add now; None: no limit.
        idle_watts: power under the budget without any job. No limit can be lower.
        floor_watts: lowest committed power at which every running job keeps its floor.
        shortfall_watts: power by which the limit is exceeded although every device has its floor.
        nodes, silent_nodes, distrusted_nodes: numbers of nodes under the budget.
        held_jobs: pending jobs that wait for power under this budget.
        plan: coming steps of the limit, in the order of time.
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
    held_jobs: int | None
    plan: list[LimitStepObject]


class BudgetNodeObject(TypedDict):
    """Power of one node.

    Keys:
        node: Slurm's name.
        state: `reporting`; `silent`: it does not report; `safe`: it has set its safe limits; `distrusted`:
            its reports contradict each other; `off`: Slurm has powered it down.
        reason: reason of the state; may be empty.
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
        committed_watts: power that the limits permit them.
        wanted_watts: expected power without limits.
        budget: budget that determines the limits; None: none does.
        keeps_slowdown: whether the limits keep the job's slowdown limit; None: it has none.
        explanation: the decision in one sentence.
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
    """Response to `GET /v1/budget`.

    Keys:
        unix_s: time of the response.
        mode: `off`, `observe` or `enforce`.
        distribution, admission, period_s: as in the configuration.
        decided_unix_s: time of the last decision; None: none yet.
        scope: `all`, or `own` if jobs of other users are left out.
        budgets: the budgets in the order of the configuration.
        nodes, jobs: nodes and running jobs; empty unless the query asks for them.
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
    """Response to `POST /v1/budget/set`.

    A limit below the idle power of the budget is refused; the error states the required power.

    Keys:
        budget: name of the budget.
        limit_watts: limit in force after the change; None: no limit.
        previous_watts: limit before the change; None: no limit.
        until_unix_s: end of the live limit; None: none.
        warning: consequence that the administrator should know, for example that the limit is below the
            floors of running jobs, so that no job starts until enough have ended; empty: none.
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
        unix_s, span_s: begin and length of each span.
        limit_watts: lowest limit; None: no limit.
        measured_watts, max_measured_watts: mean and maximum of the measured power.
        committed_watts: maximum of the committed power.
        capped_watts: mean power that limits took from devices.
        over_s: seconds with the measured power above the limit.
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
        unix_s: time.
        budget: name of the budget; None: the event concerns no single budget.
        by: login name of the administrator; None: senergyctld.
        kind: `set`, `clear`, `reload`, `signal`, `over`, `node` or `start`.
        text: the event in one line.
    """

    unix_s: float
    budget: str | None
    by: str | None
    kind: str
    text: str


class BudgetHistoryResponse(TypedDict):
    """Response to `GET /v1/budget/history`: one series per budget, and the events, oldest first."""

    series: list[BudgetSeriesObject]
    changes: list[BudgetChangeObject]


class BudgetExplanationResponse(TypedDict):
    """Response to `GET /v1/budget/explain`. The caller may see the job.

    Keys:
        job_id: Slurm's number of the job.
        state: `running`, `pending`, or `unknown` if senergyctld has not decided about the job yet.
        budget: budget that limits or delays the job; None: none does.
        explanation: the decision in one sentence.
        details: further sentences, one per budget over the job.
        wanted_watts: expected power of the job without limits; of a pending job the upper quantile.
        committed_watts: power that the limits permit; None for a pending job.
        license_watts: watts that the job requests as licenses; None: none.
        keeps_slowdown: whether the limits keep the job's slowdown limit; None: it has none.
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
