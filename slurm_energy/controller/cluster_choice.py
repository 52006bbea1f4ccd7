"""Choice of a cluster for one job from the states of all clusters. It needs numpy; no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.config import Config
from slurm_energy.placement.assignment import PlacementRequest, place
from slurm_energy.placement.choice import PlacementOptions, options_of
from slurm_energy.placement.expected_load import ExpectedLoad
from slurm_energy.placement.sites import Site
from slurm_energy.protocol.cluster_state import ClusterState, SignalValues
from slurm_energy.protocol.placement_requests import PlacementQuery
from slurm_energy.signals import SignalColumns, SignalForecast

_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class ReservedJob:
    """A job that has just been placed and is not in the state of its cluster yet.

    Attributes:
        user: login name of its owner.
        cluster: where it was placed.
        cpus, gpus: numbers on all nodes together.
        run_s: predicted run time.
        placed_unix_s: when it was placed.
    """

    user: str
    cluster: str
    cpus: int
    gpus: int
    run_s: float
    placed_unix_s: float


def options(config: Config, policy: str) -> PlacementOptions:
    """Return the settings of the choice; `policy` empty: the configured one."""
    settings = config.placement
    return options_of(
        policy or settings.policy,
        settings.weights,
        max_delay_s=settings.max_delay_s,
        min_saving=settings.min_saving_percent / 100,
        confidence=settings.confidence,
    )


def choose_cluster(
    config: Config,
    states: Mapping[str, ClusterState],
    query: PlacementQuery,
    reserved: Sequence[ReservedJob],
    now_s: float,
) -> dict[str, Any]:
    """Return the chosen cluster, the reason, and the figures of all clusters as plain values.

    Args:
        config: the configuration.
        states: states of the clusters that can be chosen.
        query: the job.
        reserved: jobs that count in addition to those in the states.
        now_s: Unix time.
    """
    names = list(states)
    sites = [_site(config, name, states[name]) for name in names]
    loads = [
        _load(states[name], query.gpus > 0, [one for one in reserved if one.cluster == name], now_s)
        for name in names
    ]
    predictions = [query.predictions[name] for name in names]
    run_s = np.array([max(1.0, one.run_s) for one in predictions])
    home = names.index(config.cluster.name) if config.cluster.name in names else -1
    units = float(query.gpus or query.cpus)
    request = PlacementRequest(
        np.full(len(names), units),
        run_s,
        np.array([one.watts for one in predictions]),
        home,
        query.data_bytes,
    )
    decision = place(request, sites, loads, options(config, query.policy), now_s)
    scores = decision.scores
    rows = [
        {
            "cluster": name,
            "wait_s": _plain(decision.wait_s[at]),
            "start": _plain(scores.start_s[0, at]),
            "end": _plain(scores.end_s[0, at]),
            "transfer_s": _plain(scores.transfer_s[0, at]),
            "run_s": _plain(run_s[at]),
            "kwh": _plain(scores.kwh[0, at]),
            "cost": _plain(scores.cost[0, at]),
            "cost_deviation": _plain(scores.cost_deviation[0, at]),
            "currency": states[name].currency,
            "carbon_kg": _plain(scores.carbon_kg[0, at]),
            "carbon_deviation_kg": _plain(scores.carbon_deviation_kg[0, at]),
            "score": _plain(decision.score[at]),
        }
        for at, name in enumerate(names)
    ]
    ordered = sorted(
        (name for name in names if _row(rows, name)["end"] is not None),
        key=lambda name: _sort_key(_row(rows, name), name == names[decision.site]),
    )
    return {
        "cluster": names[decision.site] if decision.site >= 0 else None,
        "reason": decision.reason,
        "order": ordered,
        "clusters": rows,
    }


def _row(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if row["cluster"] == name)


def _sort_key(row: Mapping[str, Any], chosen: bool) -> tuple[bool, bool, float, float]:
    """Order: the chosen cluster, then by score, then those without a score by their end."""
    score = row["score"]
    return not chosen, score is None, score if score is not None else 0.0, row["end"]


def _site(config: Config, name: str, state: ClusterState) -> Site:
    signals = None
    if state.signals:
        columns = {signal: _forecast(values) for signal, values in state.signals.items()}
        signals = SignalColumns(state.start_unix_s, state.step_s, **columns)
    settings = config.clusters.get(name)
    if settings is None:
        return Site(name, signals, state.pue)
    return Site(
        name,
        signals,
        state.pue,
        settings.bandwidth_mbit_per_s * _MBIT,
        settings.transfer_kwh_per_gb,
        math.nan if settings.latitude is None else settings.latitude,
        math.nan if settings.longitude is None else settings.longitude,
    )


def _forecast(values: SignalValues) -> SignalForecast:
    return SignalForecast(
        np.array([math.nan if one is None else one for one in values.mean], np.float64),
        np.array([math.nan if one is None else abs(one) for one in values.deviation], np.float64),
        values.source,
    )


def _load(state: ClusterState, by_gpus: bool, reserved: Sequence[ReservedJob], now_s: float) -> ExpectedLoad:
    """Return the expected load in GPUs or in CPUs: running, pending and reserved jobs, in this order."""
    units = state.gpus if by_gpus else state.cpus
    running = [(end_s, gpus if by_gpus else cpus) for end_s, cpus, gpus in state.running]
    load = ExpectedLoad(units, now_s, [job for job in running if job[1]])
    waiting = [*state.pending, *((float(one.cpus), float(one.gpus), one.run_s) for one in reserved)]
    for cpus, gpus, run_s in waiting:
        count = gpus if by_gpus else cpus
        start_s = load.earliest_start_s(count, run_s, now_s) if count else math.inf
        if math.isfinite(start_s):
            load.add(count, start_s, run_s)
    return load


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
