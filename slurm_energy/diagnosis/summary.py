"""Summary of a job: step times and signals per job, node, rank and GPU, and time and energy by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_energy.diagnosis.distribution import ValueDistribution, distribution_of, phase_distribution
from slurm_energy.diagnosis.finding import finite_or_none
from slurm_energy.diagnosis.observation import JobObservation, ObservedAllocation
from slurm_energy.diagnosis.phase_times import TIME_CATEGORIES, phase_times
from slurm_energy.diagnosis.signals import SIGNALS, ObservedSeries
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """Durations of one phase of a program, summarised for a job, a node, a GPU or a rank.

    Attributes:
        scope: what the summary covers: `job`, `node`, `gpu` or `rank`.
        where: name of the node, GPU or rank; empty for the job.
        phase: name of the phase.
        total_s: time in the phase, summed over all processes of the scope.
        time_share: `total_s` divided by the total run time of all processes of the scope.
        joules: energy of the scope times `time_share`; None if unknown.
        durations: distribution of single durations in seconds.
    """

    scope: str
    where: str
    phase: str
    total_s: float
    time_share: float
    joules: float | None
    durations: ValueDistribution

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        data = {name: finite_or_none(getattr(self, name)) for name in self.__slots__ if name != "durations"}
        return data | {"durations_s": self.durations.to_json()}


@dataclass(frozen=True, slots=True)
class SignalSummary:
    """Distribution of a signal in one scope: the whole job, one node, or one part of a node.

    Attributes:
        scope: `job`, `node` or `part`. A part is, for example, one GPU of a node.
        where: node, or node and part; empty for the job.
        signal: name of the signal.
        unit: unit of the values; empty for a signal of a newer release.
        values: distribution of the interval means.
    """

    scope: str
    where: str
    signal: str
    unit: str
    values: ValueDistribution

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        data = {name: getattr(self, name) for name in self.__slots__ if name != "values"}
        return data | {"values": self.values.to_json()}


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Figures of a job; None if unknown.

    Attributes:
        elapsed_s: duration.
        energy_joules: energy of all nodes. It is only a lower bound if `is_energy_complete` is false.
        is_energy_complete: whether `energy_joules` covers all nodes and all their processors, memory and
            GPUs.
        missing_nodes: number of allocated nodes without an energy record.
        incomplete_components: types of the components (`cpu`, `dram`, `gpu`) whose energy is unknown on some
            node and is therefore missing from `energy_joules`.
        steps: number of iterations of the job. All processes work on the same iterations, so this
            is the maximum over the processes.
        samples: samples of all processes.
        joules_per_step, joules_per_sample: energy of the job divided by the number of steps and by
            the number of samples. None if the energy is incomplete.
        time_shares: by category, fraction of the time of all processes; empty if no process
            reports steps.
        energy_shares: joules by category. The energy of the job is divided among the categories in
            proportion to their time. Empty if unknown or incomplete.
        phases: durations of phases per job, node, GPU and rank.
        signals: distributions of signals for the job, for each node, and for each part of a node.
    """

    elapsed_s: float
    energy_joules: float | None
    is_energy_complete: bool
    missing_nodes: int | None
    incomplete_components: tuple[str, ...]
    steps: int | None
    samples: float | None
    joules_per_step: float | None
    joules_per_sample: float | None
    time_shares: Mapping[str, float]
    energy_shares: Mapping[str, float]
    phases: tuple[PhaseSummary, ...]
    signals: tuple[SignalSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        plain = ("elapsed_s", "energy_joules", "steps", "samples", "joules_per_step", "joules_per_sample")
        return {
            **{name: finite_or_none(getattr(self, name)) for name in plain},
            "missing_nodes": self.missing_nodes,
            "incomplete_components": list(self.incomplete_components),
            "time_shares": dict(self.time_shares),
            "energy_shares_joules": dict(self.energy_shares),
            "phases": [phase.to_json() for phase in self.phases],
            "signals": [signal.to_json() for signal in self.signals],
        }


def summarise_job(observation: JobObservation) -> JobSummary:
    """Return the summary of a job."""
    energy, ranks = total_joules(observation), observation.ranks
    steps = max((rank.phases["step"].count for rank in ranks if "step" in rank.phases), default=0)
    known_samples = [rank.samples for rank in ranks if rank.samples is not None]
    samples = math.fsum(known_samples) if ranks and len(known_samples) == len(ranks) else None
    context = observation.context
    shares = _time_shares(ranks, context.elapsed_s)
    return JobSummary(
        elapsed_s=context.elapsed_s,
        energy_joules=context.known_joules,
        is_energy_complete=context.is_energy_complete,
        missing_nodes=context.missing_nodes,
        incomplete_components=_incomplete_components(context),
        steps=steps or None,
        samples=samples,
        joules_per_step=energy / steps if energy is not None and steps else None,
        joules_per_sample=energy / samples if energy is not None and samples else None,
        time_shares=shares,
        energy_shares={} if energy is None else {name: share * energy for name, share in shares.items()},
        phases=tuple(_phases(observation, energy)),
        signals=tuple(_signals(observation)),
    )


def total_joules(observation: JobObservation) -> float | None:
    """Return the energy of the job on all nodes; None if it is unknown or incomplete."""
    context = observation.context
    return context.known_joules if context.is_energy_complete else None


def _incomplete_components(context: ObservedAllocation) -> tuple[str, ...]:
    names = (name for parts in context.unknown_energy.values() for name in parts)
    return tuple(sorted({name.partition("[")[0] for name in names}))


def _time_shares(ranks: tuple[RankSteps, ...], elapsed_s: float) -> dict[str, float]:
    reporting = [rank for rank in ranks if any(phase.count for phase in rank.phases.values())]
    if not reporting or elapsed_s <= 0:
        return {}
    times = [phase_times(rank, elapsed_s).seconds for rank in reporting]
    total = math.fsum(math.fsum(seconds.values()) for seconds in times)
    sums = {name: math.fsum(s.get(name, 0.0) for s in times) for name in TIME_CATEGORIES}
    return {name: value / total for name, value in sums.items() if value > 0} if total > 0 else {}


def _phases(observation: JobObservation, energy: float | None) -> Iterator[PhaseSummary]:
    context = observation.context
    by_scope: dict[tuple[str, str], tuple[list[RankSteps], float | None]] = {}
    for rank in observation.ranks:
        components = context.energy_joules.get(rank.node, {})
        name = f"{rank.node} pid {rank.pid}" if rank.rank is None else str(rank.rank)
        scopes = [
            ("job", "", energy),
            ("node", rank.node, context.node_joules(rank.node)),
            ("rank", name, None),
        ]
        if rank.gpu is not None:
            part = f"gpu[{rank.gpu}]"
            scopes.append(("gpu", f"{rank.node} {part}", components.get(part)))
        for scope, where, joules in scopes:
            by_scope.setdefault((scope, where), ([], joules))[0].append(rank)
    for (scope, where), (members, joules) in by_scope.items():
        yield from _scope_phases(scope, where, members, joules, context.elapsed_s)


def _scope_phases(
    scope: str, where: str, ranks: list[RankSteps], joules: float | None, elapsed_s: float
) -> Iterator[PhaseSummary]:
    merged: dict[str, PhaseStatistics] = {}
    for rank in ranks:
        for name, phase in rank.phases.items():
            merged[name] = merged[name].merged(phase) if name in merged else phase
    for name, phase in merged.items():
        durations = phase_distribution(phase)
        if durations is None or elapsed_s <= 0:
            continue
        share = min(1.0, phase.sum_s / (elapsed_s * len(ranks)))
        yield PhaseSummary(
            scope, where, name, phase.sum_s, share, None if joules is None else joules * share, durations
        )


def _signals(observation: JobObservation) -> Iterator[SignalSummary]:
    by_scope: dict[tuple[str, str, str], list[ObservedSeries]] = {}
    for node in observation.nodes:
        for series in node.series:
            scopes = [("job", ""), ("node", node.node)]
            if series.part:
                scopes.append(("part", f"{node.node} {series.part}"))
            for scope, where in scopes:
                by_scope.setdefault((scope, where, series.name), []).append(series)
    for (scope, where, name), members in by_scope.items():
        if name == "power_watts" and scope != "part":
            continue  # the components differ in meaning, so that only their energies can be added
        distribution = distribution_of(value for series in members for value in series.values)
        if distribution is not None:
            unit = SIGNALS[name].unit if name in SIGNALS else ""
            yield SignalSummary(scope, where, name, unit, distribution)
