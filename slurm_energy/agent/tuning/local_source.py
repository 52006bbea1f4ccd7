"""Sources of operating points for a job that only the agent of this node tunes.

An operating point is a set of hardware settings. A source decides which point the job uses next.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slurm_energy.agent.tuning.job_power import mean_gpu_watts, package_watts, total_watts
from slurm_energy.agent.tuning.job_tuner import JobTuner
from slurm_energy.agent.tuning.point_source import ConstantPoint, PointSource
from slurm_energy.agent.tuning.window_collector import MeasuredInterval
from slurm_energy.config import Config
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.policies.starting_point import starting_point
from slurm_energy.tuning.candidates import Reference, safe_point
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve

if TYPE_CHECKING:
    from slurm_energy.tuning.priors import Prior

log = logging.getLogger(__name__)

_SEARCH_MODULE = "slurm_energy.tuning.search"
_DECISION_MODULE = "slurm_energy.tuning.decision"
_SAMPLES_MODULE = "slurm_energy.tuning.prior_samples"
_PERIOD_MODULE = "slurm_energy.tuning.progress.period"
NO_NUMPY_NOTE = "tuning: numpy is not installed on the node (extra 'tuning'): no search"
NO_NUMPY_LIMIT_NOTE = f"{NO_NUMPY_NOTE}, and no setting because the job has a slowdown limit"
NO_PROGRESS_NOTE = (
    "tuning: no trustworthy progress signal: no search, the setting follows the job's own power draw"
)
NO_PROGRESS_LIMIT_NOTE = (
    "tuning: no trustworthy progress signal: no search, and only a setting that is almost certain to keep the"
    " slowdown limit"
)
NO_KNOB_NOTE = "tuning: the job has no knob on this node that it may move"
_CLASS_ERROR = 0.08
"""Standard deviation of a program's response from that of the reference kernel of its class."""
_COMPUTE_SHARE, _HOST_SHARE = 0.85, 0.5
"""Power draw as a share of the GPU's limit: at least the first for a compute-bound program, below the second
for a program that the host limits."""


class LocalSources:
    """Factory of the objects that choose the hardware settings of the jobs on this node.

    The search for the best settings needs numpy, which takes a tenth of a second to load. A separate
    thread loads numpy when the first tuned job starts, so that no hook waits for numpy. An agent without
    tuned jobs never loads numpy.

    Args:
        config: returns the current configuration.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._loading: threading.Thread | None = None
        self._search: Any = None
        self._is_missing = False

    def prepare(self) -> None:
        """Start to load the modules of the search for operating points in a thread.

        Nothing happens if they are loaded or are being loaded.
        """
        if self._loading is not None or self._search is not None:
            return
        self._search = sys.modules.get(_SEARCH_MODULE)
        if self._search is None:
            self._loading = threading.Thread(target=self._load, name="tuning", daemon=True)
            self._loading.start()

    def _load(self) -> None:
        for library in ("OPENBLAS", "MKL", "OMP"):
            # numpy's linear algebra would start a thread on each core, beside the job that uses these cores.
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")
        try:
            importlib.import_module(_PERIOD_MODULE)
            importlib.import_module(_SAMPLES_MODULE).prepare_gpu_samples()
            self._search = importlib.import_module(_SEARCH_MODULE)
        except ImportError as error:
            self._is_missing = True
            log.warning("jobs are tuned without a search: %s", error)

    def create(self, tuner: JobTuner, interval: MeasuredInterval) -> PointSource | None:
        """Return the object that gives a job its operating points, for example a search.

        Return None until the modules of the search are loaded. The power of the untuned job must have been
        measured.

        Args:
            tuner: tuner of the job.
            interval: speed and power of the job, measured at the untuned settings.
        """
        self.prepare()
        if self._search is None and not self._is_missing:
            return None
        record, tunable = tuner.record, tuner.tunable
        objective = Objective(record["objective"], record["slowdown_limit"])
        reference = Reference(
            total_watts(interval.watts),
            gpu_watts=mean_gpu_watts(interval.watts),
            package_watts=package_watts(interval.watts, tunable.package_count),
        )
        points = tunable.candidates(tuner.gpu_draw_watts)
        if not points:
            tuner.session.note(NO_KNOB_NOTE)
            return ConstantPoint(UNTUNED, _summary(UNTUNED, None, interval))
        if record["mode"] == "advise":
            return self._recommend(tuner, objective, points, reference, interval)
        if not interval.has_progress and (advised := tuner.advised_start()) is not None:
            point, source = advised
            # Without numpy there is no search that could replace the advised point.
            summary = _summary(point, source, interval)
            return ConstantPoint(point, summary, is_provisional=not self._is_missing)
        if self._is_missing:
            tuner.session.note(NO_NUMPY_NOTE if objective.slowdown_limit is None else NO_NUMPY_LIMIT_NOTE)
            point = safe_point(points, reference, tunable.gpu, objective)
            return ConstantPoint(point, _summary(point, CurveSource.GENERIC_PRIOR.value, interval))
        if not interval.has_progress:
            is_limited = objective.slowdown_limit is not None
            tuner.session.note(NO_PROGRESS_LIMIT_NOTE if is_limited else NO_PROGRESS_NOTE)
        return self._start_search(tuner, objective, points, interval)

    def _start_search(
        self,
        tuner: JobTuner,
        objective: Objective,
        points: tuple[OperatingPoint, ...],
        interval: MeasuredInterval,
    ) -> PointSource:
        config, search = self._config(), self._search
        named = self._start(tuner, objective, config)
        start = None if named is None else named[0]
        if start is not None and start != UNTUNED and start not in points:
            points = (start, *points)
        expected_s = tuner.remaining_s
        if expected_s is not None and interval.window is not None:
            expected_s += interval.window.duration_s  # the search counts from the start of its first window
        options = search.SearchOptions(
            max_probes=config.tuning.max_probes, start=start, expected_duration_s=expected_s
        )
        source: PointSource = search.TuningSearch(points, objective, self._prior(tuner), options)
        return source

    def _recommend(
        self,
        tuner: JobTuner,
        objective: Objective,
        points: tuple[OperatingPoint, ...],
        reference: Reference,
        interval: MeasuredInterval,
    ) -> ConstantPoint:
        """Return the recommended operating point for a job in the tuning mode `advise`.

        The result also contains the estimated energy saving at this point.
        """
        if self._is_missing:
            point = safe_point(points, reference, tuner.tunable.gpu, objective)
            return ConstantPoint(point, _summary(point, CurveSource.GENERIC_PRIOR.value, interval))
        named = self._start(tuner, objective, self._config())
        first = () if named is None else (named[0],)
        everywhere = (UNTUNED, *(point for point in dict.fromkeys((*first, *points)) if point != UNTUNED))
        prior = self._prior(tuner)
        posterior = prior.ensemble(everywhere, reference).condition()
        if named is not None:
            point, source = named
        elif interval.has_progress:
            decision = importlib.import_module(_DECISION_MODULE)
            index = decision.decide(posterior, objective, decision.Situation(0, frozenset())).index
            point, source = everywhere[index], _curve_source(tuner, everywhere[index])
        else:
            point, source = prior.static_point(points, reference, objective)
        index = everywhere.index(point)
        log_energy = float(posterior.mean_log_time()[index] + posterior.mean_log_power()[index])
        saving = 0.0 if point == UNTUNED else 1.0 - math.exp(log_energy)
        return ConstantPoint(point, _summary(point, source.value, interval) | {"estimated_saving": saving})

    @staticmethod
    def _start(
        tuner: JobTuner, objective: Objective, config: Config
    ) -> tuple[OperatingPoint, CurveSource] | None:
        """Return the operating point with which tuning starts, and the source of this point.

        If the controller has advised a point, this point is returned. Otherwise the point comes from the
        site's configuration or from a publication. None means that no such point is known.
        """
        advice, tunable = tuner.advice, tuner.tunable
        if advice is not None and advice.start is not None:
            sources = [source for source in CurveSource if source.value == advice.start_source]
            return tunable.allowed(advice.start), sources[0] if sources else CurveSource.ORACLE
        named = starting_point(objective.name, tuner.session.model, tunable.hardware, tunable.scope, config)
        return (tunable.allowed(named.point), CurveSource(named.source)) if named is not None else None

    @staticmethod
    def _prior(tuner: JobTuner) -> Prior:
        from slurm_energy.tuning import priors

        gpu, cpu = tuner.tunable.gpu, tuner.tunable.cpu
        prior: Prior
        if gpu is not None and cpu is not None:
            prior = priors.joint_prior(gpu, cpu)
        elif gpu is not None:
            prior = priors.gpu_prior(gpu)
        else:
            assert cpu is not None
            prior = priors.cpu_prior(cpu)
        advice = tuner.advice
        if tuner.known_points:
            return priors.curve_prior(prior, ResponseCurve("", "", tuner.known_points))
        if advice is None:
            return prior
        if advice.curve is not None and advice.curve.points:
            return priors.curve_prior(prior, advice.curve)
        program_class = _program_class(tuner)
        for curve in advice.site_curves:
            if curve.workload == program_class and curve.points:
                return priors.CurvePrior(prior, curve, extra_error=_CLASS_ERROR)
        return prior


def _program_class(tuner: JobTuner) -> str | None:
    """Return what limits a GPU job: `compute`, `memory` or `host`; None if unknown.

    The result is estimated from the power of the GPUs, relative to their default limit.
    """
    gpu, draw = tuner.tunable.gpu, tuner.gpu_draw_watts
    if gpu is None or draw is None:
        return None
    share = draw / gpu.default_limit_watts
    if share >= _COMPUTE_SHARE:
        return "compute"
    return "host" if share < _HOST_SHARE else "memory"


def _curve_source(tuner: JobTuner, point: OperatingPoint) -> CurveSource:
    """Return the source from which the effect of an operating point on a job was known at the start.

    The controller gives a response curve (speed and power at operating points) for the job. The result is
    the source that the curve states for the point, for example an earlier run. If the curve does not
    contain the point, the result is the general prior.
    """
    curve = None if tuner.advice is None else tuner.advice.curve
    known = {item.point: item.source for item in curve.points} if curve is not None else {}
    return known.get(point, CurveSource.GENERIC_PRIOR)


def _summary(point: OperatingPoint, source: str | None, interval: MeasuredInterval) -> dict[str, Any]:
    """Return the result of a job that was tuned without a search, for the record's key `tuning`."""
    window = interval.window if interval.has_progress else None
    return {
        "chosen": point.to_json(),
        "chosen_source": source,
        "progress": "none" if window is None else window.source.value,
        "reference": None if window is None else {"units_per_s": window.units_per_s, "watts": window.watts},
    }
