"""Example responses to `GET /v1/priority` and `GET /v1/shares` in the form of docs/reference/protocol.md."""

from __future__ import annotations

from typing import Any

NOW = 1795000000.0


def job(job_id: int, place: int | None, **changes: Any) -> dict[str, Any]:
    edp = 1e6 * job_id
    factor = 3e6 / (3e6 + edp)
    values: dict[str, Any] = {
        "job_id": job_id,
        "display_id": str(job_id),
        "user": "alice",
        "account": "physics",
        "partition": "gpu",
        "qos": "normal",
        "name": "train",
        "submit": NOW - 3600,
        "eligible": NOW - 3600,
        "deadline": None,
        "wait_s": 3600.0,
        "place": place,
        "ranked_jobs": 4,
        "tier": "normal",
        "score": -(factor + 0.25),
        "site_factor": None if place is None else 1000 * (5 - place),
        "priority": 4294 - 1000 * (place or 0),
        "nice": 0,
        "held": False,
        "dependent": False,
        "fixed": False,
        "reason": "Resources",
        "terms": [
            {"name": "edp", "value": factor, "unit": "", "weight": 1.0, "contribution": factor},
            {"name": "fair", "value": 0.5, "unit": "", "weight": 0.5, "contribution": 0.25},
            {"name": "deadline", "value": None, "unit": "", "weight": 2.0, "contribution": None},
            {"name": "age", "value": 1 / 24, "unit": "", "weight": 0.0, "contribution": 0.0},
        ],
        "predicted": {
            "time_s": 100.0 * job_id,
            "power_watts": 1500.0,
            "energy_joules": 150_000.0 * job_id,
            "edp_js": edp,
            "source": "history",
            "runs": 12,
            "basis": "12 runs: same script, arguments, resources and policy",
        },
        "shapes": [
            {
                "text": "gpu:a100:4",
                "gpus": 4,
                "gpu_kind": "a100",
                "time_s": 100.0 * job_id,
                "power_watts": 1500.0,
                "energy_joules": 150_000.0 * job_id,
                "work_shares": None,
                "edp_js": edp,
                "fits": True,
                "chosen": True,
            }
        ],
        "why": f"Place {place} of 4 by blend: it is expected to take an EDP of {job_id} MJ s.",
    }
    return {**values, **changes}


def priority(*jobs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    values = {
        "mode": "plugin",
        "policy": "blend",
        "computed": NOW - 5,
        "interval_s": 15.0,
        "weights": {"age": 0.0},
        "age_weight": 0.01,
        "wait_bound_s": 86400.0,
        "source": "queue.table",
        "pending": len(jobs),
        "ranked": len(jobs),
        "error": None,
        "scope": "all",
    }
    return {**values, "jobs": list(jobs or queue()), **changes}


def queue() -> list[dict[str, Any]]:
    """Return an example queue: four ranked jobs, and one job with a fixed priority.

    Job 3 has two shapes (ways to run it). Job 4 cannot start yet.
    """
    shapes = [
        {
            "text": text,
            "gpus": gpus,
            "gpu_kind": text.split(":")[1],
            "time_s": time_s,
            "edp_js": watts * time_s**2,
            "power_watts": watts,
            "energy_joules": watts * time_s,
            "work_shares": {"a100": 0.375, "h100": 0.625} if "+" in text else None,
            "fits": fits,
            "chosen": text == "gpu:h100:2",
        }
        for text, gpus, time_s, watts, fits in (
            ("gpu:a100:4", 4, 300.0, 1500.0, True),
            ("gpu:h100:2", 2, 200.0, 1300.0, False),
            ("gpu:a100+h100:2", 4, 240.0, 1400.0, True),
        )
    ]
    return [
        job(1, 1),
        job(2, 2, user="bob", display_id="2_[5]", account="biology"),
        job(3, 3, shapes=shapes, deadline=NOW + 7200, tier="urgent", name="naïve\nname"),
        job(4, 4, dependent=True, reason="Dependency", score=None, user="bob", account="biology"),
        job(5, None, fixed=True, terms=[], site_factor=None, tier=None, score=None, shapes=[], priority=9000),
    ]


def shares() -> dict[str, Any]:
    def row(account: str, user: str | None, raw: Any, norm: float | None, joules: float) -> dict[str, Any]:
        return {
            "account": account,
            "user": user,
            "shares": raw,
            "norm_shares": norm,
            "energy_joules": joules,
            "energy_share": joules / 3.6e8,
            "gpu_seconds": joules / 300,
            "usage_to_share_ratio_joules": joules * 1.5,
            "fair_share_factor": None if norm is None else 2 ** (-joules / 3.6e8 / norm),
        }

    return {
        "computed": NOW - 10,
        "half_life_s": 604800.0,
        "scope": "all",
        "rows": [
            row("biology", None, 1, 0.25, 0.9e8),
            row("biology", "bob", "parent", 0.25, 0.9e8),
            row("physics", None, 3, 0.75, 2.7e8),
            row("physics", "alice", 2, 0.5, 2.7e8),
            row("physics", "carol", 1, None, 0.0),
        ],
    }
