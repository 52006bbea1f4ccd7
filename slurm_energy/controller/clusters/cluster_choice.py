"""Choice of a cluster for a job from the states of all clusters.

The module needs numpy and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.config import Config
from slurm_energy.placement.assignment import PlacementDecision, PlacementRequest, place
from slurm_energy.placement.choice import PlacementOptions, options_of
from slurm_energy.placement.expected_load import ExpectedLoad
from slurm_energy.placement.sites import Floats, Site
from slurm_energy.protocol.cluster_state import ClusterState, SignalValues
from slurm_energy.protocol.placement_requests import PlacementQuery
from slurm_energy.quantities import shown
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName

_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class ReservedJob:
    """A job that has just been placed on a cluster whose state does not contain the job yet.

    Attributes:
        user: login name of the job's owner.
        cluster: cluster on which the job was placed.
        cpus, gpus: numbers of CPUs and GPUs of the job on all its nodes together.
        run_s: predicted run time.
        placed_unix_s: time of the placement.
    """

    user: str
    cluster: str
    cpus: int
    gpus: int
    run_s: float
    placed_unix_s: float


def options(config: Config, policy: str) -> PlacementOptions:
    """Return the configured settings of the choice among clusters.

    Args:
        config: configuration of senergyctld.
        policy: name of the policy to use; an empty value selects the configured policy.
    """
    settings = config.placement
    return options_of(
        policy or settings.policy,
        settings.weights,
        max_delay_s=settings.max_delay_s,
        min_saving=settings.min_saving_percent / 100,
        confidence=settings.confidence,
    )


class ExpectedLoads:
    """Cache of the expected load of each cluster. The load is computed once for each reported state.

    Jobs reserved for a cluster are not included.
    """

    def __init__(self) -> None:
        self._loads: dict[tuple[str, bool], tuple[ClusterState, ExpectedLoad]] = {}

    def load(self, state: ClusterState, by_gpus: bool, now_s: float) -> ExpectedLoad:
        """Return a copy of the load that is expected on a cluster from `now_s` on, in GPUs or in CPUs."""
        key = state.cluster, by_gpus
        known = self._loads.get(key)
        if known is None or known[0] is not state:
            known = self._loads[key] = state, _load(state, by_gpus, now_s)
        copy = known[1].copy()
        copy.advance(now_s)
        return copy


def choose_cluster(
    config: Config,
    states: Mapping[str, ClusterState],
    query: PlacementQuery,
    reserved: Sequence[ReservedJob],
    loads: ExpectedLoads,
    now_s: float,
) -> dict[str, Any]:
    """Choose a cluster for a job. Return it with the reason and the figures of all clusters.

    The result contains plain values.

    Args:
        config: the configuration.
        states: states of the clusters that can be chosen. A state contains the cluster's jobs.
        query: the job to place.
        reserved: jobs that have just been placed and are not in `states` yet.
        loads: cache of the expected load of each cluster.
        now_s: Unix time.
    """
    names, home = list(states), config.cluster.name
    # The home cluster is the origin of the data even if it cannot be chosen.
    known = {**states, home: states.get(home) or ClusterState(home, now_s)}
    predictions = [query.predictions.get(name) if name in states else None for name in known]
    request = PlacementRequest(
        np.full(len(known), float(query.gpus or query.cpus)),
        np.array([math.nan if one is None else max(1.0, one.run_s) for one in predictions]),
        np.array([math.nan if one is None else one.watts for one in predictions]),
        list(known).index(home),
        query.data_bytes,
    )
    expected = [
        _with_reserved(loads.load(state, query.gpus > 0, now_s), name, query.gpus > 0, reserved, now_s)
        for name, state in known.items()
    ]
    sites = [_site(config, name, state) for name, state in known.items()]
    decision = place(request, sites, expected, options(config, query.policy), now_s)
    rows = [_figures(decision, at, states[name], request.run_s) for at, name in enumerate(names)]
    chosen = list(known)[decision.site] if decision.site >= 0 else None
    startable = [row for row in rows if row["end"] is not None]
    ordered = sorted(startable, key=lambda row: _sort_key(row, row["cluster"] == chosen))
    return {
        "cluster": chosen,
        "reason": decision.reason,
        "order": [row["cluster"] for row in ordered],
        "clusters": rows,
        "notes": [
            f"the price of cluster {name} is in {shown(state.currency)} and not compared"
            for name, state in states.items()
            if not _is_comparable(config, state)
        ],
    }


def _figures(decision: PlacementDecision, at: int, state: ClusterState, run_s: Floats) -> dict[str, Any]:
    """Return start, end, energy, cost and emissions of a job on one cluster.

    A value is None if the value is unknown, or if the job cannot run on the cluster.
    """
    scores = decision.scores
    return {
        "cluster": state.cluster,
        "wait_s": _plain(decision.wait_s[at]),
        "start": _plain(scores.start_s[0, at]),
        "end": _plain(scores.end_s[0, at]),
        "transfer_s": _plain(scores.transfer_s[0, at]),
        "run_s": _plain(run_s[at]),
        "kwh": _plain(scores.kwh[0, at]),
        "cost": _plain(scores.cost[0, at]),
        "cost_deviation": _plain(scores.cost_deviation[0, at]),
        "currency": state.currency,
        "carbon_kg": _plain(scores.carbon_kg[0, at]),
        "carbon_deviation_kg": _plain(scores.carbon_deviation_kg[0, at]),
        "score": _plain(decision.score[at]),
    }


def _sort_key(row: Mapping[str, Any], chosen: bool) -> tuple[bool, bool, float, float]:
    """Return the key by which the clusters are sorted for display.

    The chosen cluster comes first. The other clusters with a score follow, the lowest score first.
    Clusters without a score come last, in the order in which the job would end on them.

    Args:
        row: figures of a cluster, such as its score and the expected end of the job.
        chosen: whether this is the chosen cluster.
    """
    score = row["score"]
    return not chosen, score is None, score if score is not None else 0.0, row["end"]


def _is_comparable(config: Config, state: ClusterState) -> bool:
    """Return whether the costs of another cluster can be compared with those of this cluster.

    The costs can be compared if the other cluster has no price, or states its price in the currency of this
    cluster.
    """
    return SignalName.PRICE not in state.signals or state.currency == config.price.currency


def _site(config: Config, name: str, state: ClusterState) -> Site:
    signals = None
    columns = {
        signal: _forecast(values)
        for signal, values in state.signals.items()
        if signal != SignalName.PRICE or _is_comparable(config, state)
    }
    if columns:
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


def _load(state: ClusterState, by_gpus: bool, now_s: float) -> ExpectedLoad:
    """Return the load that a cluster expects from its running and pending jobs, in GPUs or in CPUs.

    The running jobs are added first, and the pending jobs after them.
    """
    units = state.gpus if by_gpus else state.cpus
    running = [(end_s, gpus if by_gpus else cpus) for end_s, cpus, gpus in state.running]
    load = ExpectedLoad(units, now_s, [job for job in running if job[1]])
    for cpus, gpus, run_s in state.pending:
        _add(load, gpus if by_gpus else cpus, run_s, now_s)
    return load


def _with_reserved(
    load: ExpectedLoad, cluster: str, by_gpus: bool, reserved: Sequence[ReservedJob], now_s: float
) -> ExpectedLoad:
    """Add jobs that were just placed on a cluster (reserved jobs) to its expected load.

    Return the changed load.
    """
    for job in reserved:
        if job.cluster == cluster:
            _add(load, float(job.gpus if by_gpus else job.cpus), job.run_s, now_s)
    return load


def _add(load: ExpectedLoad, units: float, run_s: float, now_s: float) -> None:
    start_s = load.earliest_start_s(units, run_s, now_s) if units else math.inf
    if math.isfinite(start_s):
        load.add(units, start_s, run_s)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
