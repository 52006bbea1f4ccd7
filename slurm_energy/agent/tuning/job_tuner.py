"""Tuner of one job on a node: it looks for better hardware settings while the job runs.

The tuner applies operating points (combinations of settings), and measures the job's speed and power in time
windows. It passes each window to a source of operating points, which chooses the next point.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.tuning.advice import Advice
from slurm_energy.agent.tuning.group_source import GroupSource
from slurm_energy.agent.tuning.job_power import MeterReading, total_watts, watts_between
from slurm_energy.agent.tuning.point_applier import PointApplier
from slurm_energy.agent.tuning.point_source import HOLD, ConstantPoint, PointSource
from slurm_energy.agent.tuning.tunable_hardware import TunableHardware
from slurm_energy.agent.tuning.window_collector import (
    DEFAULT_LENGTHS,
    MeasuredInterval,
    WindowCollector,
    WindowLengths,
)
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.progress.tracker import ProgressTracker
from slurm_energy.tuning.progress_window import ProgressSource
from slurm_energy.tuning.response_curve import ResponsePoint
from slurm_energy.tuning_record import MAX_POINTS, MAX_PROBES

log = logging.getLogger(__name__)

WARM_UP, REFERENCE, ENDED = "warm-up", "reference", "ended"
LIMITED_NOTE = "tuning: nothing was measured while a power budget limited the job"
_HOLDING = (HOLD, "static")
_FIRST_RECHECK_S, _MAX_RECHECK_S = 120.0, 960.0
"""Pauses after which a job without progress is measured untuned again: its draw may have changed. A job with
an advised start has the same pauses between two attempts to start a search."""
_CYCLE_WAIT_S = 400.0
"""Time after the warm-up in which a job that paused is not tuned until its pauses are known to be regular."""
_SEEK_S = 150.0
"""Time in which a job without reports is sampled fast after the warm-up, and after each new reference."""

SourceFactory = Callable[["JobTuner", MeasuredInterval], PointSource | None]
"""Returns the source of operating points for a job whose untuned power was measured; None if not ready."""


class JobTuner:
    """Tuning of one job on this node, from its warm-up to its end.

    The job starts untuned. After the warm-up the tuner measures the untuned reference and creates the source
    of operating points. The tuner then applies each requested point and measures windows at this point. All
    methods run in the worker thread.

    Args:
        session: session of the job, whose attribute `tuning` has the keys `mode`, `objective` and
            `slowdown_limit`.
        applier: applies operating points.
        create_source: creates the source of operating points.
        now_s: current time in seconds since boot, at which the warm-up starts.
        warm_up_s: seconds of the warm-up, in which nothing is measured.
        lengths: minimum and maximum lengths of the measured windows.

    Attributes:
        session: session (state on this node) of the job.
        tracker: progress of the job.
        advice: advice of the controller; None if no advice has been received yet.
        point: operating point in force.
        gpu_draw_watts: the highest power of a GPU while the job is untuned, as a mean over one second; None
            if unknown.
        known_points: operating points with their effects on the job, measured before the search was
            restarted.
        remaining_s: expected seconds to the end of the job's work; None if the job has not reported the
            amount of its work.
    """

    def __init__(
        self,
        session: Session,
        applier: PointApplier,
        create_source: SourceFactory,
        now_s: float,
        warm_up_s: float,
        lengths: WindowLengths = DEFAULT_LENGTHS,
    ) -> None:
        self.session = session
        self.tracker = ProgressTracker()
        self.advice: Advice | None = None
        self.point = UNTUNED
        self.gpu_draw_watts: float | None = None
        self.known_points: tuple[ResponsePoint, ...] = ()
        self.remaining_s: float | None = None
        self._applier = applier
        self._create_source = create_source
        self._blocked: frozenset[str] = frozenset()
        self._warm_up_until_s = now_s + warm_up_s
        self._last = MeterReading.of(session.meter, now_s)
        self._source: PointSource | None = None
        self._pinned: OperatingPoint | None = None
        self._ended = False
        self._recheck_s, self._recheck_at_s = _FIRST_RECHECK_S, math.inf
        self._search_from_s = -math.inf
        self._seek_until_s = self._warm_up_until_s + _SEEK_S
        self._earlier: dict[str, dict[str, Any]] = {}
        self._earlier_probes = 0
        self._tunable: TunableHardware | None = None
        self._collector = WindowCollector(self.tracker, lengths)
        self._collector.restart(UNTUNED, now_s, warm_up_s)
        self._keep_results()

    @property
    def tunable(self) -> TunableHardware:
        """The hardware that tuning may change for the job.

        The hardware is read at the first use of this property. The prolog of the job waits for the creation
        of the tuner, which therefore reads nothing.
        """
        if self._tunable is None:
            self._tunable = self._applier.tunable_hardware(self.session, self._blocked)
            self._collector.package_count = self._tunable.package_count
        return self._tunable

    @property
    def phase(self) -> str:
        """Phase of the tuning, as status pages show it."""
        if self._ended:
            return ENDED
        if self._source is not None:
            return str(self._source.phase)
        return WARM_UP if self._last.time_s < self._warm_up_until_s else REFERENCE

    @property
    def record(self) -> dict[str, Any]:
        """Present state of the tuning, as stored under the key `tuning` of the job's record."""
        assert self.session.tuning is not None
        return self.session.tuning

    def advised_start(self) -> tuple[OperatingPoint, str] | None:
        """Return the advised operating point within the site's bounds, and the source of the advice.

        The result is None without such advice, or if tuning must not change a setting of the point.
        """
        advice = self.advice
        if advice is None or advice.start is None or not self.tunable.can_change(advice.start):
            return None
        return self.tunable.allowed(advice.start), advice.start_source

    def add_sample(self, now_s: float, signals: Mapping[str, Any] | None = None) -> bool:
        """Process a sample of the job's meter. Change the hardware settings if a change is due.

        Args:
            now_s: time of the sample in seconds since boot.
            signals: other readings of the sample for the progress tracker; None if no other readings were
                made.

        Returns:
            True if the hardware settings or the result of tuning changed. The state of the job (session)
            should then be written to disk.
        """
        self._feed_tracker(now_s, signals or {})
        if self._ended or now_s < self._warm_up_until_s:
            return False
        if now_s >= self._recheck_at_s and (self.advice is None or self.advice.start is None):
            self._recheck_at_s = math.inf
            self._measure_reference_again(now_s)
        if self._applier.is_limited_by_budget(self.session):
            return self._wait_for_power(now_s)
        if self._may_become_cycle(now_s):
            return self._wait_for_cycle(now_s)
        interval = self._collector.add_sample(now_s, self.session.meter, holding=self.phase in _HOLDING)
        if interval is None:
            return False
        return self._take(interval, now_s)

    def _wait_for_power(self, now_s: float) -> bool:
        """Handle a sample taken while a power budget limits the job. Measure nothing.

        The job may have no source of operating points (sets of settings) yet. It then gets the operating
        point that the controller advised. This point may need less power than the budget permits.

        Returns:
            Whether the operating point or the result changed.
        """
        self.session.note(LIMITED_NOTE)
        self._collector.restart(self.point, now_s)
        is_alone = self.record["mode"] == "on" and (self.session.node_count or 1) == 1
        if self._source is not None or not is_alone or (advised := self.advised_start()) is None:
            return False
        point, source = advised
        summary = {"chosen": point.to_json(), "chosen_source": source}
        self._source = ConstantPoint(point, summary, is_provisional=True)
        self._search_from_s = max(self._search_from_s, now_s + _FIRST_RECHECK_S)
        self.follow(now_s)
        self._store_result()
        return True

    def _may_become_cycle(self, now_s: float) -> bool:
        """Return whether the search for settings should wait until more pauses of the job were seen.

        The wait applies to a job that started recently and has paused at least once. If the pauses turn out
        to be regular, they are a cycle of the job, for example checkpoints.
        """
        is_young = now_s < self._warm_up_until_s + _CYCLE_WAIT_S
        is_alone = self.record["mode"] == "on" and self.group is None and self._pinned is None
        return is_young and is_alone and self.tracker.may_become_cycle

    def _wait_for_cycle(self, now_s: float) -> bool:
        """Keep a young job untuned and measure nothing, because its pauses may turn out to be regular.

        If the job pauses regularly, each measurement window must contain whole cycles of work and pause. A
        window with a pause would otherwise give another result than a window without a pause.
        """
        is_tuned = self.point != UNTUNED
        if self._source is not None:
            self._measure_reference_again(now_s)
        else:
            self._collector.restart(UNTUNED, now_s)
        return is_tuned

    def needs_fast_samples(self, now_s: float) -> bool:
        """Return whether the agent must sample the job's power at short intervals.

        Short intervals are needed if the job's progress is detected from its power.

        Args:
            now_s: time of the last sample in seconds since boot.
        """
        source = self.tracker.source
        if self._ended or self.record["mode"] != "on" or source is ProgressSource.REPORTED:
            return False
        return source is not ProgressSource.NONE or now_s < self._seek_until_s

    def restart(self, now_s: float) -> None:
        """Return to the untuned settings and measure the reference of the job again.

        Call this when the fixed settings of the job's plan have changed.
        """
        if self._ended:
            return
        self._tunable, self.known_points = None, ()
        if self.group is None:
            self._measure_reference_again(now_s)
        else:
            self._applier.apply(self.session, self.tunable, self.point)
            self._collector.restart(self.point, now_s)

    @property
    def group(self) -> GroupSource | None:
        """Link of this tuner to the group of nodes that are tuned together.

        The nodes of a job on several nodes are tuned together. For other jobs the value is None.
        """
        return self._source if isinstance(self._source, GroupSource) else None

    def join_group(self, source: GroupSource) -> None:
        """Tune a job together with the other nodes of the job (tuning group) again.

        The method is called after a restart of the agent. The settings do not change.
        """
        self._source = source

    def change_group_point(self, now_s: float) -> bool:
        """Change to the operating point of the job's group if the change is due now.

        Return whether the change was due.

        Args:
            now_s: time in seconds since boot.
        """
        group = self.group
        change = None if group is None or self._ended else group.due_change(now_s)
        if group is None or change is None:
            return False
        refused = self._applier.apply(self.session, self.tunable, change.point).refused
        self.point = change.point
        self._collector.restart(change.point, now_s)
        group.applied(change, now_s)
        self._report_refused(group, refused)
        self._store_result()
        return True

    def resume(self, now_s: float) -> None:
        """Return to the untuned settings after a restart of the agent. Earlier measurements are kept."""
        self.known_points = self._measured_points()
        self._measure_reference_again(now_s)

    def pin(self, point: OperatingPoint, now_s: float) -> None:
        """End the search, and run the job at an operating point that the site or the user has fixed."""
        self._pinned = point
        self._source = self._pinned_source(point)
        self.follow(now_s)
        self._store_result()

    def _pinned_source(self, point: OperatingPoint) -> ConstantPoint:
        allowed = self.tunable.allowed(point)
        return ConstantPoint(allowed, {"chosen": allowed.to_json(), "chosen_source": "pinned"})

    def finish(self) -> None:
        """Write the final result of the tuning into the agent's stored state of the job (session).

        The method does not restore the hardware settings. The caller restores them.
        """
        self._store_result()
        self.record["phase"] = self.phase
        self._ended = True

    def _feed_tracker(self, now_s: float, signals: Mapping[str, Any]) -> None:
        reading = MeterReading.of(self.session.meter, now_s)
        watts = watts_between(self._last, reading)
        if watts:
            gpu_watts = [value for name, value in watts.items() if name.startswith("gpu[")]
            self.tracker.sample(now_s, math.fsum(gpu_watts) if gpu_watts else total_watts(watts), **signals)
            self._note_draw()
        self._last = reading

    def _note_draw(self) -> None:
        """Record the highest power that a GPU of the job draws while the job runs untuned.

        Each power is a mean over the last whole second.
        """
        if self.point == UNTUNED and self._last.time_s >= self._warm_up_until_s:
            watts = self.session.power_monitor.watts
            draws = [value for name, value in watts.items() if name.startswith("gpu[")]
            self.gpu_draw_watts = max([*draws, self.gpu_draw_watts or 0.0]) if draws else None

    def _take(self, interval: MeasuredInterval, now_s: float) -> bool:
        before = self.point, self.phase
        if self._source is None:
            self._tunable = self.tunable.without_idle_gpus(self.gpu_draw_watts)
            if self._pinned is not None:
                self._source = self._pinned_source(self._pinned)
            else:
                self._source = self._create_source(self, interval)
            if self._source is None:
                return False
        if (group := self.group) is not None:
            if interval.window is not None:
                group.observe(interval.window)
            self._report_refused(group, self._applier.replaced_values(self.session))
        elif not interval.has_progress and self._had_progress():
            self.session.note("tuning: the job's progress was lost; measured again from the untuned settings")
            self._measure_reference_again(now_s)
        elif interval.has_progress and self._may_replace_start(now_s):
            self._delay_search(now_s)
            self._measure_reference_again(now_s)
        elif interval.window is not None:
            self._source.observe(interval.window)
        self.follow(now_s)
        self._store_result()
        return before != (self.point, self.phase)

    def _had_progress(self) -> bool:
        return self.record.get("progress") not in (None, "none") and self.phase != REFERENCE

    def _may_replace_start(self, now_s: float) -> bool:
        """Return whether a search may replace the advised operating point that the job has provisionally."""
        is_provisional = isinstance(self._source, ConstantPoint) and self._source.is_provisional
        return is_provisional and now_s >= self._search_from_s

    def _delay_search(self, now_s: float) -> None:
        """Set the earliest time of the next search, in case the job gets the advised operating point again.

        Before a search, the job runs untuned. It may then reach the ceiling of a power budget or lose its
        progress signal again, and get the advised operating point again. Without the delay, the job would
        alternate between the untuned and the advised settings.
        """
        self._search_from_s = now_s + self._recheck_s
        self._recheck_s = min(2 * self._recheck_s, _MAX_RECHECK_S)

    def follow(self, now_s: float) -> None:
        """Apply the operating point (set of hardware settings) that the source of points requests.

        Nothing is applied if the mode forbids it. If a setting turns out to have no effect, the tuner
        excludes it and starts a new search. The tuner calls this method after each measurement window. A
        source of operating points calls this method if it requests another point between two windows.

        Args:
            now_s: current time in seconds since boot.
        """
        if self._source is None or self.group is not None or self.record["mode"] != "on":
            return
        refused = self._applier.replaced_values(self.session)
        point = self._source.requested
        if not refused and point != self.point:
            refused = self._applier.apply(self.session, self.tunable, point).refused
            self.point = point
            self._collector.restart(point, now_s)
            if self.phase == "static" and point != UNTUNED:
                self._recheck_at_s = now_s + self._recheck_s
                self._recheck_s = min(2 * self._recheck_s, _MAX_RECHECK_S)
        if refused:
            self._block(refused, now_s)

    def _report_refused(self, group: GroupSource, refused: Mapping[str, str]) -> None:
        """Report to the tuning group which settings have no effect on this node.

        The group consists of the nodes on which the job is tuned together. After the report, no node of the
        group changes these settings any more.
        """
        for field in refused.keys() - self._blocked:
            self.session.note(f"tuning: not moved any more on any node of the job: {refused[field]}")
        self._blocked |= refused.keys()
        group.refuse(refused)

    def _block(self, refused: Mapping[str, str], now_s: float) -> None:
        """Exclude settings (knobs) that turned out to have no effect from the tuning of the job.

        A new search starts with the remaining knobs.
        """
        for reason in refused.values():
            self.session.note(f"tuning: not moved any more: {reason}")
            log.info("job %s: not tuned any more: %s", self.session.owner, reason)
        self._blocked |= refused.keys()
        self._tunable = None
        self._store_result()
        self.known_points = self._measured_points()
        self._measure_reference_again(now_s)

    def _measure_reference_again(self, now_s: float) -> None:
        self._store_result()
        self._keep_results()
        self._source, self.gpu_draw_watts = None, None
        if self.record["mode"] == "on":
            self._applier.apply(self.session, self.tunable, UNTUNED)
        self.point = UNTUNED
        self._seek_until_s = now_s + _SEEK_S
        self._collector.restart(UNTUNED, now_s)

    def _measured_points(self) -> tuple[ResponsePoint, ...]:
        """Return the job's operating points (combinations of settings) that have been measured so far.

        Points that contain a setting excluded from tuning are left out.
        """
        points = (ResponsePoint.from_json(item) for item in self.record.get("points", ()))
        return tuple(item for item in points if self._blocked.isdisjoint(item.point.to_json()))

    def _keep_results(self) -> None:
        """Keep the measured operating points for the record, even if a new search starts."""
        for item in self.record.get("points", ()):
            self._earlier[repr(sorted(item["point"].items()))] = item
        self._earlier_probes = self.record.get("probes", 0)

    def _store_result(self) -> None:
        """Store the present result of the search for settings in the record of the job.

        Measured points of earlier searches for the same job stay in the record.
        """
        if self._source is None:
            return
        record, result = self.record, self._source.summary()
        kept = {key: record[key] for key in ("mode", "objective", "slowdown_limit")}
        points = {repr(sorted(item["point"].items())): item for item in result.get("points", ())}
        record.update({key: value for key, value in result.items() if value is not None or key not in record})
        record.update(kept)
        record["points"] = list((self._earlier | points).values())[-MAX_POINTS:]
        record["probes"] = min(MAX_PROBES, self._earlier_probes + result.get("probes", 0))
        if self.advice is not None and self.advice.exploration:
            record["exploration"] = True
