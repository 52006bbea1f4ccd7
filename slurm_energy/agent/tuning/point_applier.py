"""Application of operating points (combinations of settings) to the hardware of a job.

The original values of the settings are kept in the settings journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_energy.agent.jobs import planner
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.tuning.tunable_hardware import TunableHardware
from slurm_energy.config import Config
from slurm_energy.control.arbitration import KnobDomains, bounded_value
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.control.transaction import CHANGED_EXTERNALLY, SettingOutcome
from slurm_energy.devices.discovery import NodeDevices, with_current_limits
from slurm_energy.policies import point_settings
from slurm_energy.policies.operating_point import OperatingPoint

_FIELDS = {
    "nvml.power_limit": "gpu_limit_watts",
    "amdsmi.power_limit": "gpu_limit_watts",
    "intel_gpu.power_limit": "gpu_limit_watts",
    "nvml.locked_clocks": "gpu_clock_mhz",
    "nvml.power_profile": "gpu_power_profile",
    "powercap.power_limit": "package_limit_watts",
    "hsmp.power_limit": "package_limit_watts",
    "cpufreq.frequency": "cpu_max_mhz",
    "cpufreq.boost": "cpu_max_mhz",
    "cpufreq.epp": "cpu_epp",
}
"""Field of `OperatingPoint` by name of the knob. Any other knob is set only together with one of these."""
_BOOST = "cpufreq.boost[all]"
_LIMIT_SUFFIX = ".power_limit"
_REACHED_SHARE = 0.97
"""A device that draws at least this share of its ceiling would draw more without the ceiling."""
_KEPT_UNTIL_THE_END = ("nvml.persistence",)
"""Knobs that stay set between operating points, because restoring them could lose other settings."""


@dataclass(frozen=True, slots=True)
class Application:
    """Result of applying an operating point.

    Attributes:
        refused: fields of `OperatingPoint` that have no effect on this node, each with the reason. Reasons
            are that the device refuses the value or holds another value, and that another job or program
            requires another value.
    """

    refused: dict[str, str] = field(default_factory=dict)


class PointApplier:
    """Object that applies operating points of jobs.

    Args:
        devices: the node's hardware.
        settings: applies settings and journals the original values before each write.
        config: returns the current configuration.
    """

    def __init__(self, devices: NodeDevices, settings: SettingsManager, config: Callable[[], Config]) -> None:
        self._devices = devices
        self._settings = settings
        self._config = config
        self._domains = KnobDomains.from_hardware(devices.hardware)

    def is_limited_by_budget(self, session: Session) -> bool:
        """Return whether a power budget limits the power of a job's device below the job's own limit.

        The speed of the job then shows the effect of the budget, not the effect of the operating point. The
        result is True only if the device draws as much as its ceiling, the limit of the budget. If several
        jobs share a package, the draw of one job does not show whether the package reaches its ceiling. For
        a shared package, every ceiling below the job's limit therefore counts.
        """
        allocation = planner.allocation(session, self._devices.hardware)
        drawn = session.power_monitor.watts
        packages = max(1, len(self._devices.hardware.packages))
        for entry in self._settings.journal.entries.values():
            name, _, domain = entry.key.rstrip("]").partition("[")
            if entry.ceiling is None or not name.endswith(_LIMIT_SUFFIX):
                continue
            own = int(self._settings.value_without_ceiling(entry.key) or 0)
            if 0 < own <= int(entry.ceiling) or not self._domains.affects(entry.key, allocation):
                continue
            is_gpu = domain.startswith("gpu")
            watts = drawn.get(f"gpu[{domain.removeprefix('gpu')}]") if is_gpu else drawn.get("cpu")
            if watts is None or not (is_gpu or session.whole_node):
                return True
            ceiling_watts = int(entry.ceiling) / (1e3 if name.startswith("nvml") else 1e6)
            if watts / (1 if is_gpu else packages) >= _REACHED_SHARE * ceiling_watts:
                return True
        return False

    def tunable_hardware(self, session: Session, blocked: frozenset[str] = frozenset()) -> TunableHardware:
        """Return the hardware that tuning may change for a job.

        The result includes the limits that would apply to the job without tuning. Such a limit is the limit
        that was in force before any job. A lower value that a fixed setting of the job requests replaces
        this limit.
        """
        before, _ = planner.limits_before_jobs(self._devices, self._settings.journal)
        fixed = {setting.key: setting.value for setting in session.plan}
        hardware = with_current_limits(before, {_BOOST: "1" if before.boost else "0"} | fixed)
        if any(key.startswith("nvml.locked_clocks") for key in fixed):
            blocked |= {"gpu_clock_mhz"}  # the job's flags or the site chose the clocks
        if any(key.startswith("nvml.power_profile") for key in fixed):
            blocked |= {"gpu_power_profile"}
        scope = planner.job_scope(session, hardware)
        return TunableHardware(hardware, scope, blocked, self._config().bounds)

    def apply(self, session: Session, tunable: TunableHardware, point: OperatingPoint) -> Application:
        """Apply an operating point. Restore the settings that only the previous operating point changed.

        Args:
            session: session of the job. Its outcomes are updated.
            tunable: hardware that tuning may change for the job.
            point: the operating point; `UNTUNED` leaves only the fixed settings of the job's plan. Settings
                that tuning must not change are left out.
        """
        fixed = {setting.key: setting for setting in session.plan}
        wanted = point_settings(tunable.allowed(point), tunable.hardware, tunable.scope, self._config())
        tuned = {setting.key: setting for setting in wanted}
        before = self.tuned_keys(session)
        dropped = before - tuned.keys() - fixed.keys()
        refused = self._restore(session, dropped)
        again = [fixed[key] for key in sorted(before & fixed.keys() - tuned.keys())]
        outcomes = self._settings.apply(session.owner, [*tuned.values(), *again])
        session.merge_outcomes(outcomes)
        for outcome in outcomes:
            name = _FIELDS.get(outcome.key.partition("[")[0])
            if name is not None and outcome.key in tuned and self._is_ineffective(outcome):
                refused.setdefault(name, f"{outcome.key}: {outcome.note or 'no effect'}")
        return Application(refused)

    def withdraw(self, session: Session) -> None:
        """Restore the fixed settings that the job's plan prescribes, and undo all other tuned settings."""
        fixed = {setting.key: setting for setting in session.plan}
        tuned = self.tuned_keys(session)
        self._restore(session, tuned - fixed.keys())
        session.merge_outcomes(
            self._settings.apply(session.owner, [fixed[key] for key in sorted(tuned & fixed.keys())])
        )

    def tuned_keys(self, session: Session) -> set[str]:
        """Return the keys of the settings that the job has from tuning, according to the journal.

        The journal contains the values that each job requests. A setting that has its fixed value from the
        job's plan does not count.
        """
        fixed = {setting.key: setting.value for setting in session.plan}
        return {
            entry.key
            for entry in self._settings.journal.entries_of(session.owner)
            if (value := entry.claims[session.owner]) is not None
            and value != fixed.get(entry.key)
            and entry.key.partition("[")[0] not in _KEPT_UNTIL_THE_END
        }

    def replaced_values(self, session: Session) -> dict[str, str]:
        """Return the values of the job's operating point that are no longer in force, with reasons.

        There are two possible reasons: another program has changed the hardware setting (knob), or another
        job on the node now requires another value. The values are named by their fields in `OperatingPoint`.
        """
        replaced: dict[str, str] = {}
        entries = self._settings.journal.entries
        for key, value in self._devices.read(self.tuned_keys(session)).items():
            knob, entry = self._devices.knobs[key], entries[key]
            name = _FIELDS.get(knob.name)
            if name is None or not knob.readable or entry.written is None:
                continue
            if not knob.is_equivalent(entry.written, value):
                replaced[name] = f"{key}: {CHANGED_EXTERNALLY}{knob.format_value(value)}"
            elif not (
                knob.satisfies(str(entry.claims[session.owner]), value)
                or self._is_bounded(key, str(entry.claims[session.owner]), value)
            ):
                replaced[name] = f"{key}: other jobs on the node require {knob.format_value(value)}"
        return replaced

    def _restore(self, session: Session, keys: set[str]) -> dict[str, str]:
        """Restore the original values of some settings (knobs) of a job.

        A setting that another program has changed meanwhile is not restored.

        Args:
            session: state of the job on this node.
            keys: keys of the settings.

        Returns:
            The settings that were not restored, as names of `OperatingPoint` fields, each with the reason
            why.
        """
        if not keys:
            return {}
        results = {result.key: result for result in self._settings.restore(session.owner, keys)}
        done = {key for key in keys if key not in results or results[key].done}
        session.outcomes = [outcome for outcome in session.outcomes if outcome.key not in done]
        refused = {}
        for key, result in results.items():
            name = _FIELDS.get(key.partition("[")[0])
            if name is not None and not result.done:
                refused[name] = f"{key}: {result.note}"
        return refused

    def _is_ineffective(self, outcome: SettingOutcome) -> bool:
        if outcome.failed or outcome.applied is None:
            return True
        knob = self._devices.knobs[outcome.key]
        return (
            knob.readable
            and not knob.satisfies(outcome.requested, outcome.applied)
            and not self._is_bounded(outcome.key, outcome.requested, outcome.applied)
        )

    def _is_bounded(self, key: str, requested: str, actual: str) -> bool:
        """Return whether a power budget explains the actual value of a knob (a hardware setting).

        This is true if the actual value is the lower of two values: the requested value and the ceiling of
        the budget.
        """
        entry = self._settings.journal.entries.get(key)
        if entry is None or entry.ceiling is None:
            return False
        return self._devices.knobs[key].is_equivalent(bounded_value(key, requested, entry.ceiling), actual)
