"""Responses of senergyctld about two budgets, for tests of the CLI and of pages."""

from __future__ import annotations

from slurm_energy.protocol.budget_responses import (
    BudgetExplanationResponse,
    BudgetHistoryResponse,
    BudgetObject,
    BudgetStatusResponse,
)

NOW = 1795000000.0
"""2026-11-18T11:06:40 UTC."""


def site() -> BudgetObject:
    """Return the state of an example budget, whose scope is the whole cluster.

    An operator has changed the limit of the budget.
    """
    return {
        "name": "site",
        "scope": "cluster",
        "scope_value": "",
        "source": "set",
        "problem": "",
        "limit_watts": 250e3,
        "configured_watts": 300e3,
        "override": {
            "watts": 250e3,
            "until_unix_s": NOW + 7200,
            "by": "alice",
            "since_unix_s": NOW - 60,
            "reason": "grid operator called",
        },
        "measured_watts": 231e3,
        "committed_watts": 244600.0,
        "fixed_watts": 40e3,
        "capped_watts": 21e3,
        "headroom_watts": 5400.0,
        "idle_watts": 60e3,
        "floor_watts": 120e3,
        "shortfall_watts": 0.0,
        "nodes": 128,
        "silent_nodes": 1,
        "distrusted_nodes": 0,
        "unmeasured_nodes": 0,
        "held_jobs": 3,
        "plan": [
            {"unix_s": NOW + 7200, "watts": 300e3},
            {"unix_s": NOW + 27200, "watts": 100e3},
            {"unix_s": NOW + 37200, "watts": None},
        ],
    }


def row() -> BudgetObject:
    """Return the state of a budget whose limit signal is lost.

    The budget limits a set of 64 nodes. The measured power of these nodes is unknown.
    """
    return {
        **site(),
        "name": "row-1",
        "scope": "nodes",
        "scope_value": "n[001-064]",
        "source": "signal",
        "problem": "signal lost since 2026-11-18T11:00:00: connection refused",
        "limit_watts": 20e3,
        "configured_watts": 20e3,
        "override": None,
        "measured_watts": None,
        "committed_watts": None,
        "fixed_watts": None,
        "capped_watts": None,
        "headroom_watts": None,
        "idle_watts": None,
        "floor_watts": None,
        "shortfall_watts": 1500.0,
        "nodes": 64,
        "silent_nodes": 0,
        "held_jobs": None,
        "plan": [],
    }


def status() -> BudgetStatusResponse:
    """Return an example response to `GET /v1/budget`, with nodes and jobs."""
    return {
        "unix_s": NOW,
        "mode": "enforce",
        "distribution": "least-edp",
        "admission": "licenses",
        "period_s": 5.0,
        "decided_unix_s": NOW - 1,
        "scope": "own",
        "budgets": [site(), row()],
        "nodes": [
            {
                "node": "n001",
                "state": "reporting",
                "reason": "",
                "measured_watts": 1800.0,
                "committed_watts": 2000.0,
                "max_watts": 3500.0,
                "job_ids": [12, 13],
            },
            {
                "node": "n002",
                "state": "silent",
                "reason": "no report for 40 s",
                "measured_watts": None,
                "committed_watts": 3500.0,
                "max_watts": 3500.0,
                "job_ids": [],
            },
        ],
        "jobs": [
            {
                "job_id": 12,
                "user": "bob",
                "partition": "gpu",
                "nodes": 4,
                "measured_watts": 5100.0,
                "committed_watts": 5600.0,
                "wanted_watts": 8000.0,
                "budget": "site",
                "keeps_slowdown": False,
                "explanation": "Budget site limits its GPUs to 250 W.",
            }
        ],
    }


def history(points: int = 288) -> BudgetHistoryResponse:
    """Return a response to `GET /v1/budget/history` for the day before `NOW`."""
    span_s = 86400.0 / points
    times = [NOW - 86400 + index * span_s for index in range(points)]
    limits = [300e3 if index < points / 2 else 250e3 for index in range(points)]
    measured = [limit * (0.7 + 0.2 * (index % 10) / 10) for index, limit in enumerate(limits)]
    return {
        "series": [
            {
                "budget": "site",
                "unix_s": times,
                "span_s": [span_s] * points,
                "limit_watts": [*limits],
                "measured_watts": [None, *measured[1:]],
                "max_measured_watts": [None, *(1.05 * watts for watts in measured[1:])],
                "committed_watts": [0.98 * limit for limit in limits],
                "capped_watts": [12e3] * points,
                "over_s": [0.0] * (points - 1) + [2.0],
            }
        ],
        "changes": [
            {
                "unix_s": NOW - 60,
                "budget": "site",
                "by": "alice",
                "kind": "set",
                "text": "250000 W until 2026-11-18T13:06:40: <b>grid operator</b> called",
            }
        ],
    }


def explanation() -> BudgetExplanationResponse:
    """Return an example response to `GET /v1/budget/explain` for a running job with limited GPUs."""
    return {
        "job_id": 12,
        "state": "running",
        "budget": "site",
        "explanation": "Budget site limits its GPUs to 250 W of 400 W: other jobs would lose more.",
        "details": ["Budget row-1 would permit 300 W."],
        "wanted_watts": 8000.0,
        "committed_watts": 5600.0,
        "license_watts": 6100,
        "keeps_slowdown": False,
        "decided_unix_s": NOW - 1,
    }
