"""Inputs of a ranking of the queue as plain data, for the HTTP interface.

The inputs are the fair shares and the columns from which the jobs were ranked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from slurm_energy.priority.engine import EngineState
from slurm_energy.priority.explanation import json_number
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.scheduling.fairness import fair_share_factor, usage_to_share_ratio
from slurm_energy.slurm.fair_share import FairShare


def share_rows(snapshot: Snapshot, state: EngineState) -> list[dict[str, Any]]:
    """Return energy usage and fair shares of all accounts and associations, as rows of a table.

    An association is a user in an account. The list contains one dict for each account and each association.
    An account comes before the users in the account.

    As in Slurm's sshare, the total of an account includes the accounts below it.
    """
    users = snapshot.users
    total = float(users.energy_joules.sum())
    factor, had = (
        fair_share_factor(users.energy_joules, users),
        usage_to_share_ratio(users.energy_joules, users),
    )
    rows = []
    for at, (account, user) in enumerate(snapshot.associations):
        joules = float(users.energy_joules[at])
        if not account and not joules:
            continue  # all records without an account have got an account since
        rows.append(
            {
                "account": account,
                "user": user,
                "shares": _raw(state.configured_shares.users.get((account, user))),
                "norm_shares": json_number(snapshot.shares[at]),
                "energy_joules": joules,
                "energy_share": joules / total if total > 0 else 0.0,
                "gpu_seconds": float(users.gpu_seconds[at]),
                "usage_to_share_ratio_joules": float(had[at]),
                "fair_share_factor": float(factor[at]),
            }
        )
    below: dict[str, list[dict[str, Any]]] = {name: [] for name in state.configured_shares.accounts}
    for row in rows:
        for account in state.configured_shares.ancestors(str(row["account"])):
            below.setdefault(account, []).append(row)
    rows += [_account(name, own, state.configured_shares.accounts.get(name)) for name, own in below.items()]
    return sorted(rows, key=lambda row: (row["account"], row["user"] is not None, row["user"] or ""))


def ranking_input(snapshot: Snapshot) -> dict[str, Any]:
    """Return the input of a ranking as columns, so that the ranking can be reproduced."""
    tables = {"jobs": snapshot.scheduled.jobs, "alternatives": snapshot.shapes.table, "users": snapshot.users}
    columns: dict[str, Any] = {
        name: {
            field.name: _plain(getattr(table, field.name).tolist())
            for field in dataclasses.fields(table)  # type: ignore[arg-type]
        }
        for name, table in tables.items()
    }
    return {
        "now_s": snapshot.scheduled.now_s,
        "policy": snapshot.policy,
        "options": dataclasses.asdict(snapshot.options),
        **columns,
        "order": snapshot.scheduled.jobs.job_id[snapshot.order].tolist(),
    }


def _account(name: str, own: Sequence[dict[str, Any]], configured: FairShare | None) -> dict[str, Any]:
    """Return the entry of a Slurm account in the table of fair shares, as a dict.

    The usage in the entry is the sum over the users of the account.

    Args:
        name: name of the account.
        own: the entries of the users in the account.
        configured: share of the account in Slurm. None means that this share is unknown. The entry then
            states the sum of the users' shares instead.
    """
    user_shares = [row["norm_shares"] for row in own if row["norm_shares"] is not None]
    share = configured.norm if configured else sum(user_shares) if user_shares else None
    part = sum(row["energy_share"] for row in own)
    return {
        "account": name,
        "user": None,
        "shares": _raw(configured),
        "norm_shares": share,
        "energy_joules": sum(row["energy_joules"] for row in own),
        "energy_share": part,
        "gpu_seconds": sum(row["gpu_seconds"] for row in own),
        "usage_to_share_ratio_joules": None,
        "fair_share_factor": 2.0 ** (-part / share) if share else None,
    }


def _raw(share: FairShare | None) -> int | None:
    return None if share is None else share.raw


def _plain(values: list[Any]) -> list[Any]:
    return [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
