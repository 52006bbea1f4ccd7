"""Determination of the speed of one job on one node (progress tracker).

The tracker uses the most trusted signal that is available. These are the signals, the most trusted first:

- units of work that the job reports;
- a verified period of the job's power;
- the activity of the job's GPUs times their clock;
- retired instructions, if they agreed with one of the first two signals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from slurm_energy.tuning.progress.estimate import Progress
from slurm_energy.tuning.progress.proxies import ProxyValidation
from slurm_energy.tuning.progress.reported_units import ReportedUnits
from slurm_energy.tuning.progress.samples import Sample, SampleHistory, counter_rate, mean_and_error, series
from slurm_energy.tuning.progress_window import ProgressSource

if TYPE_CHECKING:
    from slurm_energy.tuning.progress.period import Period

TOLERANCE: Final = 0.05
"""Relative difference of two signals' speed ratios above which the signals disagree."""
_MIN_WINDOW_S: Final = 5.0
_UNITS_PER_WINDOW: Final = 7
_PERIODS_PER_WINDOW: Final = 11
_MISSES_BEFORE_FALLBACK: Final = 3
_SHORTEST_PERIOD_RATIO, _LONGEST_PERIOD_RATIO = 0.60, 1.65
"""A new period relative to the first: settings change it less than this, a harmonic changes it by 2."""
_DEFAULT_WINDOW_S: Final = 20.0
REPORT_PATIENCE_S: Final = 60.0
"""Time after the last report in which a job is expected to report again before another source is used."""
_TRUST: Final = (
    ProgressSource.REPORTED,
    ProgressSource.PERIOD,
    ProgressSource.ACTIVITY,
    ProgressSource.INSTRUCTIONS,
)


class ProgressTracker:
    """Measured progress of one job on one node, from the best available source.

    The tracker keeps its present source until a more trusted source has a rate of progress, or until the
    present source has had no rate in three consecutive measurement windows. Compare only rates of the same
    source, because each source has its own unit.

    All times are seconds of the same monotonic clock.
    """

    def __init__(self) -> None:
        self._reports = ReportedUnits()
        self._samples = SampleHistory()
        self._source = ProgressSource.NONE
        self._misses: set[float] = set()
        self._period_s: float | None = None
        self._other_period: tuple[float, float] | None = None
        self._activity_base: dict[str, float] = {}
        self._activity = ProxyValidation(TOLERANCE)
        self._instructions = ProxyValidation(TOLERANCE)

    @property
    def source(self) -> ProgressSource:
        """Source of the job's latest progress rate, for example its reports; NONE before the first rate."""
        return self._source

    @property
    def unit_s(self) -> float | None:
        """Length of one unit of the job's progress in seconds; None if unknown.

        This is the time between two progress reports of the program. Without reports, it is the period with
        which the power of the job repeats.
        """
        return self._reports.unit_s() or self._period_s

    def awaits_report(self, now_s: float) -> bool:
        """Return whether the caller should wait for the job's next progress report.

        The result is True if the program has reported progress in the last `REPORT_PATIENCE_S` seconds, but
        the tracker does not measure the rate of progress by these reports at present. In this case the
        reports are too rare to compute a rate, because each unit of work takes a long time.

        The tracker could compute a rate from another source, such as the power of the job. However, such a
        rate cannot be compared with later rates from reports. The caller should therefore wait for the next
        report.

        Args:
            now_s: current time in seconds.
        """
        last_s = self._reports.last_s
        return self._source is not ProgressSource.REPORTED and now_s - last_s <= REPORT_PATIENCE_S

    @property
    def cycle_s(self) -> float | None:
        """Seconds between two regular pauses of a job that reports its progress.

        None means that the job has no regular pauses.
        """
        cycle = self._reports.cycle if self._source is ProgressSource.REPORTED else None
        return None if cycle is None else cycle.seconds

    @property
    def may_become_cycle(self) -> bool:
        """Whether the job has paused and it is not known yet whether the pauses are regular.

        The result can only be true for a job that reports its progress.
        """
        is_reported = self._source in (ProgressSource.REPORTED, ProgressSource.NONE)
        return is_reported and self._reports.may_become_cycle

    def is_paused(self, time_s: float) -> bool:
        """Return whether the job was in one of its regular pauses at a given time.

        The result is False for a job without regular pauses.
        """
        return self.cycle_s is not None and self._reports.is_paused(time_s)

    @property
    def window_s(self) -> float:
        """Length of a measurement window in seconds.

        The progress of a job is measured by the reports of its program, or by the period of its power. The
        window is long enough to contain several reports or periods, so that a rate of progress can be
        computed in each window.
        """
        if self.cycle_s is not None:
            return self.cycle_s + (self._reports.unit_s() or 0.0)
        reported_s = self._reports.unit_s()
        if reported_s is not None:
            return max(_MIN_WINDOW_S, _UNITS_PER_WINDOW * reported_s)
        return (
            _DEFAULT_WINDOW_S
            if self._period_s is None
            else max(_MIN_WINDOW_S, _PERIODS_PER_WINDOW * self._period_s)
        )

    def report(self, units: float, time_s: float, process: str = "") -> None:
        """Store the units of work that a process has completed since its start.

        The total is cumulative, so that a lost report loses no units. A total that decreases starts a new
        series. The rate of a job with several processes is the rate of its slowest process.

        Args:
            units: cumulative units of work. The job chooses the unit.
            time_s: time at which the last unit was completed.
            process: key of the process, for example its rank.
        """
        self._reports.add(units, time_s, process)

    def sample(
        self,
        time_s: float,
        watts: float | None,
        utilisation: float | None = None,
        instructions: float | None = None,
        activity: Mapping[str, float] | None = None,
    ) -> None:
        """Store readings of the job's hardware. None means unknown.

        Period detection needs samples at about 10 Hz. Irregular sample times (± 20 %) allow the
        detection to exclude periods that are shorter than the sampling interval. If the samples are
        equally spaced, no period is accepted.

        Args:
            time_s: time of the readings.
            watts: mean power of the job since the previous sample. For a GPU job use the power of its
                GPUs.
            utilisation: share of time in which the job's GPUs were busy, 0 to 1.
            instructions: instructions retired by the job since an arbitrary start.
            activity: work per second by kind of work (`compute`, `memory`), in any unit. Examples are
                the activity of the execution units times their clock, and bytes of memory traffic per
                second. A share of time alone is not a rate of work, because the share does not fall
                when a limit lowers the clock.
        """
        self._samples.add(Sample(time_s, watts, utilisation, instructions, dict(activity or {})))

    def rate(self, start_s: float, end_s: float) -> Progress | None:
        """Return the job's rate of progress in a measurement window (interval of time).

        Return None if no trustworthy signal yields a rate. A window should start after the hardware has
        settled at its settings. It should be at least `window_s` long. No setting should change during the
        window.
        """
        samples = self._samples.between(start_s, end_s)
        rates: dict[ProgressSource, Progress] = {}
        readers: dict[ProgressSource, Callable[[], Progress | None]] = {
            ProgressSource.REPORTED: lambda: self._reports.rate(start_s, end_s),
            ProgressSource.PERIOD: lambda: self._period_rate(samples, start_s),
            ProgressSource.ACTIVITY: lambda: self._activity_rate(samples),
            ProgressSource.INSTRUCTIONS: lambda: self._instruction_rate(samples),
        }
        for source in _TRUST:
            if source is ProgressSource.PERIOD and ProgressSource.REPORTED in rates:
                continue  # reports need no check, and the detection costs milliseconds
            found = readers[source]()
            if source is ProgressSource.REPORTED and found is None:
                if self.cycle_s is not None:
                    return None  # the window is shorter than a cycle
                if self.awaits_report(end_s):
                    return None  # the window is shorter than two units
            if found is not None:
                rates[source] = found
        self._validate(rates)
        return self._choose(
            {source: rate for source, rate in rates.items() if self._is_trusted(source)}, start_s
        )

    def reported_rate(self, start_s: float, end_s: float) -> Progress | None:
        """Return the rate of progress from the median duration of a reported unit; None if unknown.

        Programs report how many units of work they have completed. A rate needs two reports in the time
        window. It is only known if the tracker currently measures progress by the reports.

        A single pause in the window does not change this rate, but the rate includes the mean length of
        regular pauses. In contrast to `rate`, this method does not influence whether the tracker uses the
        reports.
        """
        if self._source is not ProgressSource.REPORTED:
            return None
        return self._reports.rate_of_part(start_s, end_s)

    def sudden_slowdown(self, since_s: float, now_s: float) -> Progress | None:
        """Return the current rate if the reported progress has become clearly slower, else None.

        Args:
            since_s: time since which the settings of the hardware have not changed.
            now_s: current time.
        """
        if self._source is not ProgressSource.REPORTED:
            return None
        return self._reports.sudden_slowdown(since_s, now_s)

    def _choose(self, rates: Mapping[ProgressSource, Progress], start_s: float) -> Progress | None:
        best = next((source for source in _TRUST if source in rates), None)
        current = self._source
        if best is not None and (current not in _TRUST or _TRUST.index(best) <= _TRUST.index(current)):
            self._source = best
            self._misses.clear()
            return rates[best]
        if current in _TRUST:
            self._misses.add(start_s)  # a window that is extended counts once
        if len(self._misses) < _MISSES_BEFORE_FALLBACK:
            return None
        self._source = best or ProgressSource.NONE
        self._misses.clear()
        return rates.get(self._source)

    def _is_trusted(self, source: ProgressSource) -> bool:
        if source is ProgressSource.ACTIVITY:
            return not self._activity.is_refuted
        if source is ProgressSource.INSTRUCTIONS:  # processes that wait actively retire more when slower
            return self._instructions.is_confirmed
        return True

    def _validate(self, rates: Mapping[ProgressSource, Progress]) -> None:
        """Check whether signals of the hardware (proxies) follow the progress of the job.

        The proxies are compared with the progress that the job reports. If the job reports none, they are
        compared with the progress that follows from the period of the job's power.
        """
        true = rates.get(ProgressSource.REPORTED) or rates.get(ProgressSource.PERIOD)
        if true is None:
            return
        for source, validation in (
            (ProgressSource.ACTIVITY, self._activity),
            (ProgressSource.INSTRUCTIONS, self._instructions),
        ):
            if (proxy := rates.get(source)) is not None:
                validation.compare(proxy, true)

    def _period_rate(self, samples: list[Sample], start_s: float) -> Progress | None:
        period = self._detect(samples)
        if period is None or not self._continues(period.seconds, start_s):
            return None
        return Progress(1 / period.seconds, period.relative_error, ProgressSource.PERIOD)

    def _detect(self, samples: list[Sample]) -> Period | None:
        """Return the period with which the power in the samples repeats.

        The result is None in three cases: the power does not repeat, the utilisation of the GPUs has another
        period, or numpy is missing.
        """
        try:
            from slurm_energy.tuning.progress.period import detect_period
        except ImportError:
            return None
        times, watts = series(samples, lambda sample: sample.watts)
        period = detect_period(times, watts).period
        if period is None:
            return None
        busy_times, busy = series(samples, lambda sample: sample.utilisation)
        other = detect_period(busy_times, busy).period if len(busy) == len(watts) else None
        if other is not None and abs(math.log(other.seconds / period.seconds)) > TOLERANCE:
            return None
        return period

    def _continues(self, seconds: float, start_s: float) -> bool:
        """Return whether a detected period belongs to the same loop of the program as earlier periods.

        A period of clearly another length belongs to another loop. However, if two measurement windows in
        succession detect the same new length, this length replaces the earlier one.
        """
        if self._period_s is None:
            self._period_s = seconds
        if _SHORTEST_PERIOD_RATIO <= seconds / self._period_s <= _LONGEST_PERIOD_RATIO:
            self._other_period = None
            return True
        other = self._other_period
        if other is None or abs(math.log(seconds / other[0])) > TOLERANCE:
            self._other_period = seconds, start_s
        elif start_s != other[1]:
            self._period_s, self._other_period = seconds, None
        return False

    def _activity_rate(self, samples: list[Sample]) -> Progress | None:
        """Return the progress of a job as its hardware activity relative to the first measurement window.

        The result is the mean over the kinds of activity, such as counts of instructions. None is returned
        if two kinds of activity disagree.
        """
        readings = [sample for sample in samples if sample.activity]  # rarer than samples of the power
        kinds = {kind for sample in readings for kind in sample.activity}
        ratios: list[float] = []
        errors: list[float] = []
        for kind in sorted(kinds):
            _, values = series(readings, lambda sample, kind=kind: sample.activity.get(kind))  # type: ignore[misc]
            found = mean_and_error(values) if len(values) > len(readings) / 2 else None
            if found is not None:
                ratios.append(found[0] / self._activity_base.setdefault(kind, found[0]))
                errors.append(found[1])
        if not ratios or max(ratios) > (1 + TOLERANCE) * min(ratios):
            return None
        return Progress(math.fsum(ratios) / len(ratios), max(errors), ProgressSource.ACTIVITY)

    def _instruction_rate(self, samples: list[Sample]) -> Progress | None:
        found = counter_rate(*series(samples, lambda sample: sample.instructions))
        return Progress(*found, ProgressSource.INSTRUCTIONS) if found is not None else None
