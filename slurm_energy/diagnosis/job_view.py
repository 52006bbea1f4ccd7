"""Facts about a job for the rules: activity of GPUs and nodes, step times, cost of lost time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.distribution import median
from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.gpu_view import GpuView, active_range
from slurm_energy.diagnosis.observation import JobObservation, NodeObservation
from slurm_energy.diagnosis.phase_times import PhaseTimes, phase_times
from slurm_energy.diagnosis.series_means import between, mean_of, scaled
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.steps import RankSteps
from slurm_energy.diagnosis.summary import total_joules
from slurm_energy.diagnosis.waiting_power import waiting_power


@dataclass(frozen=True, slots=True)
class RankView:
    """Times of the training steps of one process (rank).

    Attributes:
        steps: steps as the process reported them.
        times: times by category, such as computation or communication.
    """

    steps: RankSteps
    times: PhaseTimes

    @property
    def name(self) -> str:
        """Name of the process for readers: its rank, or node and process id if it has no rank."""
        steps = self.steps
        return f"rank {steps.rank}" if steps.rank is not None else f"{steps.node} pid {steps.pid}"

    @property
    def step_count(self) -> int:
        """Number of training steps (iterations) that the rank has recorded."""
        phase = self.steps.phases.get("step")
        return phase.count if phase else 0


class JobView:
    """Observed facts of a job in the form that the diagnosis rules need.

    A property or method returns None if its value is unknown. Values that include the use by other jobs
    count as unknown.

    Args:
        observation: observations of the job.
        config: thresholds of the site.
    """

    def __init__(self, observation: JobObservation, config: DiagnosisConfig) -> None:
        self.observation = replace(observation, nodes=tuple(map(_own_node, observation.nodes)))
        self.context = observation.context
        self.config = config
        self.elapsed_s = observation.context.elapsed_s

    def threshold(self, name: str) -> float:
        """Return the value of the threshold `name`, in the unit of the threshold."""
        return self.config.value(name)

    @cached_property
    def gpus(self) -> tuple[GpuView, ...]:
        """GPUs of the job that have at least one signal, power included."""
        by_gpu: dict[tuple[str, str], dict[str, ObservedSeries]] = {}
        for node in self.observation.nodes:
            for series in node.series:
                if series.part.startswith("gpu["):
                    by_gpu.setdefault((node.node, series.part), {})[series.name] = series
        active = self.threshold("gpu_active")
        return tuple(
            GpuView(node, part, series, active_range(series.get("gpu_busy_percent"), active))
            for (node, part), series in sorted(by_gpu.items())
        )

    @cached_property
    def allocated_gpus(self) -> frozenset[tuple[str, str]]:
        """Node name and part name, such as `gpu[0]`, of each GPU of the job, with or without signals."""
        allocated = {(node, f"gpu[{index}]") for node, gpus in self.context.gpus.items() for index in gpus}
        return frozenset(allocated | {(gpu.node, gpu.part) for gpu in self.gpus})

    @cached_property
    def node_count(self) -> int | None:
        """Number of allocated nodes, including those without a record; None if unknown."""
        missing = self.context.missing_nodes
        return None if missing is None else len(self.observation.nodes) + missing

    @cached_property
    def busy_gpus(self) -> tuple[GpuView, ...]:
        """GPUs that were active at least once."""
        return tuple(gpu for gpu in self.gpus if gpu.active is not None)

    @cached_property
    def gpu_busy(self) -> float | None:
        """Mean percentage of time in which the active GPUs were busy.

        The time is from the first to the last GPU activity.
        """
        return self.gpu_mean("gpu_busy_percent")

    def gpu_mean(self, signal: str) -> float | None:
        """Return the mean of a signal over the GPUs that were busy in the job; None if unknown."""
        return mean_of([mean for gpu in self.busy_gpus if (mean := gpu.mean(signal)) is not None])

    @cached_property
    def ranks(self) -> tuple[RankView, ...]:
        """Processes of the job that report steps, each with its step times."""
        views = [RankView(rank, phase_times(rank, self.elapsed_s)) for rank in self.observation.ranks]
        return tuple(view for view in views if view.times.step_s > 0)

    @cached_property
    def concurrent_ranks(self) -> int:
        """Maximum number of processes in `ranks` that ran at the same time.

        If the times of a process are unknown, the value is the number of all processes.
        """
        times = [rank.steps.intervals for rank in self.ranks]
        starts = [one.start_s for one in times if one is not None]
        ends = [one.start_s + len(one.steps) * one.interval_s for one in times if one is not None]
        if len(starts) < len(times):
            return len(times)
        return max(
            (bisect_right(sorted(starts), at) - bisect_right(sorted(ends), at) for at in starts), default=0
        )

    @cached_property
    def programs_in_turn(self) -> float:
        """Number of the job's programs divided by the number of programs that ran at the same time.

        The value is above 1 if programs follow each other, such as the runs of a parameter search. It is at
        least 1. Only programs that report iterations count.
        """
        return len(self.ranks) / max(1, self.concurrent_ranks) if self.ranks else 1.0

    def category_share(self, category: str) -> float | None:
        """Return the percentage of the step time that a category of a step (such as `copy`) takes.

        The result is the mean of the ranks. Return None if no rank reports the category.
        """
        return scaled(
            mean_of([s for rank in self.ranks if (s := rank.times.share(category)) is not None]), 100
        )

    def category_seconds(self, category: str) -> float | None:
        """Return how many seconds of the job a category of its steps (such as `copy`) takes.

        The result is None if no rank reports the category. For ranks that run at the same time, the seconds
        are the mean of the ranks. For programs that follow each other, the seconds are added up.
        """
        mean = mean_of(
            [rank.times.seconds[category] for rank in self.ranks if category in rank.times.seconds]
        )
        return scaled(mean, self.programs_in_turn)

    def mean_phase_s(self, phase: str) -> float | None:
        """Return the mean duration of a phase (named part of a step) over all ranks, in seconds.

        Return None if no rank reports the phase.
        """
        known = [p for rank in self.ranks if (p := rank.steps.phases.get(phase)) is not None and p.count]
        count = sum(one.count for one in known)
        return math.fsum(one.sum_s for one in known) / count if count else None

    def hint(self, name: str) -> float | None:
        """Return the value of a numeric hint, which the ranks of the job report.

        If several ranks report the hint in `RankSteps.hints`, the maximum is returned. If no rank reports
        it, the result is None.
        """
        values = [rank.steps.hints.get(name) for rank in self.ranks]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        return max(numbers, default=None)

    def mean(self, signal: str) -> float | None:
        """Return the mean of a signal over all nodes and parts.

        The mean covers the time from the first to the last GPU activity.
        """
        means = map(self.window_mean, self.observation.series(signal))
        return mean_of([mean for mean in means if mean is not None])

    def median(self, signal: str) -> float | None:
        """Return the median of a signal, averaged over the nodes and over the parts of a node.

        The median of each part covers the time in which the job was active.
        """
        medians = (median(self._active(series)) for series in self.observation.series(signal))
        return mean_of([value for value in medians if value is not None])

    def window_mean(self, series: ObservedSeries) -> float | None:
        """Return the mean of a series over the time in which the job was active (`active_window`).

        The result is None if it is unknown.
        """
        return mean_of(self._active(series))

    def _active(self, series: ObservedSeries) -> list[float]:
        window = self.active_window
        return between(series, *window) if window else list(series.known())

    @cached_property
    def active_window(self) -> tuple[float, float] | None:
        """Time from the first to the last step.

        If there are no steps, the time is from the first to the last GPU activity.

        None for jobs that have neither steps nor GPU activity.
        """
        ranges = [
            (steps.start_s, steps.start_s + len(steps.steps) * steps.interval_s)
            for rank in self.ranks
            if (steps := rank.steps.intervals) is not None and len(steps.steps)
        ] or [
            (busy.start_s + gpu.active[0] * busy.interval_s, busy.start_s + gpu.active[1] * busy.interval_s)
            for gpu in self.busy_gpus
            if gpu.active is not None and (busy := gpu.series["gpu_busy_percent"])
        ]
        return (min(start for start, _ in ranges), max(end for _, end in ranges)) if ranges else None

    @property
    def active_s(self) -> float:
        """Seconds from the first to the last activity of the job (active window).

        The reported steps of the job count as activity. If the job reports no steps, the activity of its GPUs
        counts. If there is no activity, the value is the duration of the job.
        """
        window = self.active_window
        return min(self.elapsed_s, window[1] - window[0]) if window else self.elapsed_s

    def node_series(self, node: NodeObservation, signal: str) -> ObservedSeries | None:
        """Return the recorded values of a signal that describes a whole node or the job on it.

        Signals of a single GPU or CPU are not considered. The result is None if the signal is absent or has
        no known value.
        """
        found = (s for s in node.series if s.name == signal and not s.part and s.known())
        return next(found, None)

    @cached_property
    def cpu_use(self) -> float | None:
        """Mean percentage of the allocated CPUs in use; None if unknown."""
        busy, allocated = self.mean("cpu_busy_cores"), self.mean("cpu_allocated_cores")
        return None if busy is None or not allocated else 100 * busy / allocated

    @cached_property
    def mean_watts(self) -> float | None:
        """Mean power of the job; None if unknown."""
        joules = total_joules(self.observation)
        return None if joules is None or self.elapsed_s <= 0 else joules / self.elapsed_s

    @cached_property
    def waiting_watts(self) -> float | None:
        """Power in watts of the job while it waits for data or other processes, see `waiting_power`.

        None if it is unknown or if some of the job's energy is unknown.
        """
        return waiting_power(self.observation, self.mean_watts) if self.context.is_energy_complete else None

    def gpu_joules(self, gpu: GpuView) -> float | None:
        """Return the energy of a GPU during the job; None if unknown."""
        return self.context.energy_joules.get(gpu.node, {}).get(gpu.part)

    def gpu_power_level(self, gpu: GpuView) -> float | None:
        """Return the position of a GPU's mean power between idle power (0) and power limit (100).

        Return None if a power is unknown.
        """
        idle = self.context.idle_watts.get(gpu.node, {}).get(gpu.part)
        limit = self.context.limit_watts.get(gpu.node, {}).get(gpu.part)
        watts = gpu.mean("power_watts")
        if watts is None and self.elapsed_s > 0:
            watts = scaled(self.gpu_joules(gpu), 1 / self.elapsed_s)
        if watts is None or idle is None or limit is None or limit <= idle:
            return None
        return 100 * (watts - idle) / (limit - idle)

    def finding(
        self,
        kind: FindingKind,
        title: str,
        evidence: Sequence[FindingEvidence],
        seconds_lost: float | None,
        confidence: float,
        *,
        joules_lost: float | None = None,
        time_share: float | None = None,
        where: Sequence[str] = (),
    ) -> JobFinding:
        """Return a finding. If `joules_lost` is not given, the lost energy is computed from the lost time.

        Args:
            kind: kind of the finding.
            title: one line for readers.
            evidence: measured facts.
            seconds_lost: lost wall-clock time of the whole job; None if unknown.
            confidence: 0 to 1.
            joules_lost: lost energy. None: the lost time multiplied by the power that the job draws while it
                waits.
            time_share: affected fraction of the job's time; None means the lost time divided by the job's
                time.
            where: nodes, GPUs or ranks concerned.
        """
        if seconds_lost is not None:
            seconds_lost = min(max(seconds_lost, 0.0), self.elapsed_s)
            if joules_lost is None:
                joules_lost = scaled(self.waiting_watts, seconds_lost)
            if time_share is None and self.elapsed_s > 0:
                time_share = seconds_lost / self.elapsed_s
        if time_share is not None:
            time_share = min(max(time_share, 0.0), 1.0)
        return JobFinding(
            kind, title, tuple(evidence), time_share, seconds_lost, joules_lost, confidence, tuple(where)
        )

    def fact(
        self,
        signal: str,
        value: float | None,
        text: str,
        threshold: str | None = None,
        where: str = "",
        window: tuple[float, float] | None = None,
    ) -> FindingEvidence:
        """Return evidence that was observed while the job was active.

        Args:
            signal: name of the signal, phase or fact.
            value: measured value.
            text: the fact in one sentence.
            threshold: name of the threshold with which `value` was compared; None means no threshold.
            where: node, part or rank.
            window: start and end of the observation, Unix seconds; None means the active window of the job,
                or the whole job if there is no active window.
        """
        start, end = (
            window
            or self.active_window
            or (
                self.context.start_s,
                self.context.start_s + self.elapsed_s,
            )
        )
        limit = None if threshold is None else self.threshold(threshold)
        return FindingEvidence(signal, where, start, end, value, limit, text)


def _own_node(node: NodeObservation) -> NodeObservation:
    return replace(node, series=tuple(series for series in node.series if not series.is_shared))
